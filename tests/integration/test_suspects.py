"""Questions whose gold is worth a second look."""

from pathlib import Path
from typing import Any

from support.cli import call_cli
from support.trials import ended, stage
from support.verdicts import Scores, ledger_of

PLACES = ("conv-26/5", "conv-26/6", "conv-30/0", "conv-30/1")
QUESTIONS = {"conv-26": 7, "conv-30": 2}


def scores(**by_side: tuple[int, ...]) -> Scores:
    """By `system__judge`, the scores of PLACES in order."""
    return {
        (side.partition("__")[0].replace("_", "-"), side.partition("__")[2]): dict(
            zip(PLACES, map(float, some), strict=True)
        )
        for side, some in by_side.items()
    }


def looked(tmp_path: Path, given: Scores, *arguments: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
    """Suspects by place, and what was looked at."""
    trials = ledger_of(tmp_path / "trials.json", QUESTIONS, given)
    said = stage(trials, "suspects", *arguments)
    (at,) = said["looked_at"]
    return {f"{one['task']}/{one['query']}": one for one in said["suspects"]}, at


def test_both_signs(tmp_path: Path) -> None:
    """Only conv-26/5 fails for both judges of the oracle run; no system is right on it and on conv-30/1, but there the
    control is."""
    given = scores(
        in_context__a=(0, 1, 0, 1), in_context__b=(0, 0, 1, 1), x__a=(0, 1, 1, 0), y__a=(0, 0, 1, 0), z__b=(0, 0, 0, 0)
    )
    found, at = looked(tmp_path, given)
    assert list(found) == ["conv-26/5"]
    one = found["conv-26/5"]
    assert one["signs"] == ["oracle fails", "no system answers"]
    assert (one["judges_failing"], one["judges"], one["right"], one["systems"]) == (2, 2, 0, 3)
    assert (one["erratum"], one["gold"]) == ("wrong", "gold 5")
    assert (at["of"], at["by_oracle"], at["oracle_fails"], at["by_systems"], at["none_right"]) == (9, 4, 1, 4, 1)
    assert at["undecided"] == []


def test_two_of_three_judges_are_enough(tmp_path: Path) -> None:
    given = scores(in_context__a=(0, 1, 1, 1), in_context__b=(0, 1, 1, 0), in_context__c=(1, 1, 1, 1))
    found, at = looked(tmp_path, given)
    assert [(place, one["judges_failing"], one["judges"]) for place, one in found.items()] == [("conv-26/5", 2, 3)]
    assert "controls not counted: 0" in at["undecided"][0]


def test_what_cannot_be_decided(tmp_path: Path) -> None:
    found, at = looked(tmp_path, scores(x__a=(0, 0, 0, 0)))
    assert found == {}
    assert [reason.partition(":")[0] for reason in at["undecided"]] == [
        "no oracle run",
        "systems judged, controls not counted",
    ]
    _, at = looked(tmp_path, scores(in_context__a=(0, 0, 0, 0), x__a=(0, 1, 0, 0), y__a=(0, 0, 0, 0)))
    assert at["undecided"] == ["one judge alone decided on the oracle run: ask another one (judge --system in-context)"]
    assert at["none_right"] == 3


def test_the_table_says_it_too(tmp_path: Path) -> None:
    trials = ledger_of(tmp_path / "trials.json", QUESTIONS, scores(x__a=(0, 1, 1, 1), y__a=(0, 1, 1, 1)))
    shown = ended(call_cli("suspects", "--trials", str(trials))).out
    assert "conv-26/5" in shown
    assert "0 of 2" in shown
    assert "can't be decided: no oracle run" in shown


def test_a_selection_narrows_it(tmp_path: Path) -> None:
    given = scores(x__a=(0, 0, 0, 0), y__a=(0, 0, 0, 0))
    found, at = looked(tmp_path, given, "--task", "conv-30")
    assert (sorted(found), at["of"]) == (["conv-30/0", "conv-30/1"], 2)
