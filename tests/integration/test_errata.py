"""Known errors in gold answers: what is listed, and what they make of a number."""

from pathlib import Path

import pytest

from memtrials import errata
from memtrials.errors import UserError
from memtrials.settings import evaluation
from support.cli import call_cli
from support.trials import ended, stage

ENTRY = 'benchmark = "inmind"\n\n[[entry]]\nkey = "2"\nwhat = "wrong"\nnote = "n"\nevidence = "e"\nsource = "s"\n'


@pytest.mark.parametrize("path", sorted((evaluation() / "errata").glob("*.toml")), ids=lambda path: path.stem)
def test_the_lists_are_valid(path: Path) -> None:
    entries = errata.read(path)
    assert all(entry.key == key for key, entry in entries.items())


def test_what_is_known_of_two_benchmarks() -> None:
    assert errata.load("locomo")["conv-26/5"].what == "wrong"
    assert errata.load("longmemeval")["370a8ff4"].what == "wrong"
    assert errata.load("inmind") == {}
    assert errata.load("somebody-elses") == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("benchmark = [", "not a list of errata"),
        (ENTRY.replace('"wrong"', '"bad"'), "Invalid enum value 'bad'"),
        (ENTRY.replace('note = "n"\n', ""), "missing required field `note`"),
        (ENTRY + 'hint = "h"\n', "unknown field `hint`"),
        (ENTRY.replace('"e"', '" "'), "has an empty evidence"),
        (ENTRY.replace('"inmind"', '"locomo"'), "named like its benchmark"),
        (ENTRY + ENTRY.partition("\n\n")[2], "entry 2: '2' is there already"),
    ],
)
def test_a_malformed_list_is_a_one_line_error(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "inmind.toml"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError) as raised:
        errata.read(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.fixture
def listed(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose errata are what the commands see; none yet."""
    folder = tmp_path_factory.mktemp("evaluation")
    (folder / "errata").mkdir()
    monkeypatch.setattr(errata, "evaluation", lambda: folder)
    return folder / "errata" / "inmind.toml"


def entry(key: str, what: str) -> str:
    return f'[[entry]]\nkey = "{key}"\nwhat = "{what}"\nnote = "n"\nevidence = "e"\nsource = "s"\n'


def test_shares_without_disputed_gold_and_the_ceiling(judged: Path, listed: Path) -> None:
    """Of eight tasks one is wrong throughout, one is disputed in one query, and one isn't there."""
    listed.write_text(
        'benchmark = "inmind"\n' + entry("2", "wrong") + entry("5/query", "disputed") + entry("77", "wrong")
    )
    said = stage(judged, "metrics", "--errata", "--system", "in-context")
    found = {
        (n["metric"], n["part"]): n for n in said["numbers"] if n["metric"] in ("target-verbatim", "direct-verbatim")
    }
    without, ceiling = "without disputed gold", "ceiling of the gold"
    assert [found["target-verbatim", part]["n"] for part in (None, without, ceiling)] == [8, 6, 8]
    assert [found["direct-verbatim", part]["n"] for part in (None, without, ceiling)] == [8, 7, 8]
    assert found["target-verbatim", ceiling]["value"] == 7 / 8
    assert found["target-verbatim", ceiling]["class"] is None
    assert found["target-verbatim", without]["class"] == "R"
    assert "inmind@sample: errata about nothing that is built (1): 77" in said["notes"]
    assert "inmind@sample, known errors in the gold of questions: 1 disputed, 2 wrong" in said["notes"]


def test_released_numbers_are_the_same_with_and_without(judged: Path, listed: Path) -> None:
    listed.write_text('benchmark = "inmind"\n' + entry("2", "wrong"))
    plain, with_errata = stage(judged, "metrics")["numbers"], stage(judged, "metrics", "--errata")["numbers"]
    assert plain == [n for n in with_errata if n["part"] is None]
    assert len(with_errata) > len(plain)


def test_a_malformed_list_ends_the_command(judged: Path, listed: Path) -> None:
    listed.write_text("benchmark = 5")
    ended(call_cli("metrics", "--trials", str(judged)))
    finished = ended(call_cli("metrics", "--errata", "--trials", str(judged)), 2)
    assert finished.err.count("\n") == 1
