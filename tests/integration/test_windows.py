"""Systems with a window: a history cut to so many tokens, under an id of its own and with the cut on record."""

import json
from pathlib import Path
from typing import Any

import pytest

from memtrials.tokens import count_tokens
from support.cli import call_cli
from support.trials import ended, records, stage

N = 60
WHOLE = ["full-context", "always-visible"]


def toml(folder: Path, name: str, system: str, window: str) -> str:
    path = folder / f"{name}.toml"
    path.write_text(f'[state]\nsystem = "{system}"\nwindow = "{window}"\n', "utf-8")
    return str(path)


def contexts(trials: Path, system: str) -> dict[tuple[str, str], dict[str, Any]]:
    """The bodies of what was fetched from systems of a name, by task and query."""
    found = [r for r in records(trials, "retrieval") if r["system"].startswith(system)]
    return {(r["task"], r["query"]): r["body"] for r in found}


@pytest.mark.parametrize("system", WHOLE)
def test_the_newest_and_the_oldest_are_ends_of_the_whole(built: Path, tmp_path: Path, system: str) -> None:
    newest, oldest = (toml(tmp_path, f"w-{end}", system, f"keep-{end} {N}") for end in ("newest", "oldest"))
    stage(built, "replay", system, newest, oldest)
    stage(built, "fetch")
    whole = contexts(built, system)
    for end, holds in (("newest", str.endswith), ("oldest", str.startswith)):
        cut = contexts(built, f"w-{end}")
        assert cut.keys() == whole.keys()
        for place, body in cut.items():
            fit, full = body["fit"], whole[place]["context"]
            assert holds(full, body["context"])
            assert (fit["asked"], fit["tokens"], fit["used"]) == (N, count_tokens(full), count_tokens(body["context"]))
            assert N - 3 <= fit["used"] <= N < fit["tokens"]
            assert fit["dropped"] > 0
    assert all("fit" not in body for body in whole.values())
    assert len({r["system"] for r in records(built, "ingest")}) == 3  # the window is part of the id


def test_a_window_that_holds_everything_shows_the_whole(built: Path, tmp_path: Path) -> None:
    stage(built, "replay", "full-context", toml(tmp_path, "wide", "full-context", "keep-newest 1000000"))
    stage(built, "fetch")
    whole = contexts(built, "full-context")
    for place, body in contexts(built, "wide").items():
        assert body["context"] == whole[place]["context"]
        assert (body["fit"]["used"], body["fit"]["dropped"]) == (body["fit"]["tokens"], 0)


def test_what_was_cut_stands_in_the_table(built: Path, tmp_path: Path) -> None:
    stage(built, "replay", "full-context", toml(tmp_path, "narrow", "full-context", f"keep-newest {N}"))
    stage(built, "fetch")
    numbers = {(n["system_name"], n["metric"]): n for n in stage(built, "metrics")["numbers"]}
    fits = [body["fit"] for body in contexts(built, "narrow").values()]
    cut = numbers["narrow", "cut-tokens"]
    assert (cut["n"], cut["unit"]) == (len(fits), "tokens")
    assert cut["value"] == pytest.approx(sum(f["tokens"] - f["used"] for f in fits) / len(fits))
    assert ("full-context", "cut-tokens") not in numbers
    assert "cut tokens" in ended(call_cli("metrics", "--trials", str(built))).out


@pytest.mark.parametrize(
    ("system", "window", "complaint"),
    [
        ("full-context", "newest 5", 'window is \'newest 5\'; write "keep-newest N" or "keep-oldest N", N tokens'),
        ("embedded", "keep-newest 5", "unknown key 'window'"),
    ],
)
def test_a_window_that_is_none_ends_before_anything_is_written(
    built: Path, tmp_path: Path, system: str, window: str, complaint: str
) -> None:
    before = built.read_bytes()
    told = call_cli("replay", toml(tmp_path, "mine", system, window), "--trials", str(built), "--quiet")
    assert complaint in ended(told, 2).err
    assert built.read_bytes() == before


def test_a_window_without_one_keeps_the_id_it_had(built: Path) -> None:
    """Ledgers from before windows go on: the setting is part of an id only where it stands."""
    stage(built, "replay", *WHOLE)
    settings = [r["body"]["settings"] for r in records(built, "config")]
    assert [s for s in settings if "window" in json.dumps(s)] == []
