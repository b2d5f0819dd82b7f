"""A published table from its files: every cell beside what was printed, and what can't be recomputed said as such."""

import json
from pathlib import Path
from typing import Any

import pytest

from memtrials.exchange import published
from support import released
from support.cli import call_cli
from support.model_server import ModelServer, always, ok
from support.released import LOCOMO, write
from support.trials import ended, records

TABLE = """
title = "LoCoMo, percent"
benchmark = "locomo"
source = "nowhere"

[columns]
temporal = { metric = "accuracy", type = "2-temporal", percent = true, decimals = 2 }
"1-4" = { metric = "accuracy", percent = true, decimals = 2 }
"1-5" = { metric = "accuracy", part = "categories 1-5, the fifth by refusal-official", percent = true, decimals = 2 }
F1 = { metric = "official-f1", percent = true, decimals = 2 }
tokens = { imported = "context_tokens", decimals = 0 }
"p50, s" = { imported = "latency_ms", summary = "p50", scale = 0.001, decimals = 2 }

[[systems]]
name = "Ours"
answers = "ours/ours_judged.json"
memories = "ours/ours_memories.json"
published = { temporal = 66.67, "1-5" = 93.33, F1 = 96.33, tokens = 18, "p50, s" = 0.11 }
unpublished = ["1-4"]
notes = { "1-5" = "of all 15" }

[[systems]]
name = "Gone"
answers = "gone/gone_judged.json"
published = { "1-4" = 50.0 }

[[systems]]
name = "Closed"
published = { "1-4" = 40.0, F1 = 10.0 }
"""

Cells = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the table `ours` and the files of one of its systems are. One temporal answer is judged wrong, and one F1
    in the file is 0.45 where the answer's is 1."""
    (tmp_path / "published").mkdir()
    (tmp_path / "published" / "ours.toml").write_text(TABLE, "utf-8")
    monkeypatch.setattr(published, "evaluation", lambda: tmp_path)
    rows = released.listed_locomo()
    rows[0]["llm_judge"]["correct"] = False
    rows[8]["metrics"]["scored_f1"] = 0.45
    (tmp_path / "ours").mkdir()
    write(tmp_path / "ours" / "ours_judged.json", rows)
    return tmp_path


def command(folder: Path, *arguments: str) -> list[str]:
    here = ["--artifacts", str(folder), "--data", str(LOCOMO), "--trials", str(folder / "trials.json")]
    return ["reproduce", "ours", *here, *arguments]


def reproduce(folder: Path, *arguments: str, env: dict[str, str] | None = None) -> Cells:
    found = json.loads(ended(call_cli(*command(folder, *arguments), "--json", env=env)).out)
    return {(cell["system"], cell["column"]): cell for cell in found}


def test_every_cell_stands_beside_what_was_printed(folder: Path):
    cells = reproduce(folder)
    told = {place: (c["published"], c["recomputed"], c["stored"], c["status"], c["n"]) for place, c in cells.items()}
    closed = "no files were released: cannot be recomputed"
    assert told == {
        ("Ours", "temporal"): (66.67, 66.67, None, "match", 3),
        ("Ours", "1-4"): (None, 91.67, None, "not published", 12),
        ("Ours", "1-5"): (93.33, 93.33, None, "match", 15),
        ("Ours", "F1"): (96.33, 100.0, 96.33, "differs: the file's own values give it", 15),
        ("Ours", "tokens"): (18.0, None, 18.0, "as imported", 15),
        ("Ours", "p50, s"): (0.11, None, 0.11, "as imported", 15),
        ("Gone", "1-4"): (50.0, None, None, "missing: gone/gone_judged.json", 0),
        ("Closed", "1-4"): (40.0, None, None, closed, 0),
        ("Closed", "F1"): (10.0, None, None, closed, 0),
    }
    assert cells["Ours", "F1"]["difference"] == 3.67
    assert cells["Ours", "F1"]["differing"] == {"conv-1/8": [0.45, 1.0]}
    assert cells["Ours", "1-5"]["note"] == "of all 15"


def test_the_table_says_it_to_people(folder: Path):
    out = ended(call_cli(*command(folder, "--quiet"))).out
    assert "nowhere" in out
    for said in ("96.33", "100.00", "3.67", "1 of the file's own values differ: conv-1/8 0.45 → 1", "of all 15"):
        assert said in out


def test_again_the_same_command_does_nothing_again(folder: Path):
    first = reproduce(folder)
    before = (folder / "trials.json").read_bytes()
    assert reproduce(folder) == first
    assert (folder / "trials.json").read_bytes() == before


def test_answers_can_be_judged_again(folder: Path):
    with ModelServer(always(ok('{"score": 0, "reason": "no"}'))) as server:
        environment = server.environment("JUDGE")
        cells = reproduce(folder, "--judge", "judge-z", env=environment)
        assert len(server.requests) == 12
        assert reproduce(folder, "--judge", "judge-z", env=environment) == cells
        assert len(server.requests) == 12
    assert (cells["Ours", "1-4"]["recomputed"], cells["Ours", "1-5"]["recomputed"]) == (0.0, 20.0)
    assert (cells["Ours", "temporal"]["status"], cells["Ours", "F1"]["recomputed"]) == ("differs", 100.0)
    assert reproduce(folder)["Ours", "1-5"]["recomputed"] == 93.33


def test_contexts_can_be_answered_again_where_they_are_known(folder: Path):
    write(folder / "ours" / "ours_memories.json.gz", released.listed_locomo_memories(), compressed=True)
    with ModelServer(always(ok("2024"))) as server:
        cells = reproduce(folder, "--reader", "reader-z", env=server.environment("READER"))
        assert len(server.requests) == 12  # the fifth category came without memories
    assert len([r for r in records(folder / "trials.json", "answer") if r["reader"].startswith("reader-z")]) == 12
    assert cells["Ours", "1-4"]["recomputed"] is None
    assert cells["Ours", "F1"]["status"] == "partial"
    with ModelServer(always(ok('{"score": 1, "reason": "yes"}'))) as server:
        cells = reproduce(folder, "--judge", "judge-z", env=server.environment("JUDGE"))
        assert len(server.requests) == 12
    assert cells["Ours", "1-4"]["recomputed"] == 100.0  # of the file's own answers, although another reader came after


def test_an_unknown_table_and_a_folder_without_files_are_told(folder: Path):
    unknown = ended(call_cli("reproduce", "our", "--artifacts", str(folder)), 2).err
    assert "unknown published table 'our'; did you mean ours?" in unknown
    empty = ended(call_cli("reproduce", "ours", "--artifacts", str(folder / "published")), 2).err
    assert "holds none of ours/ours_judged.json, gone/gone_judged.json" in empty
