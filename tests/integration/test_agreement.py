"""Several judges on the same answers: what `metrics` says of how far they agree."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.cli import call_cli
from support.model_server import ModelServer, Reply, ok
from support.trials import stage

TASKS = (2, 5, 9, 14, 21, 22, 30, 41)
SAY = {
    "judge-a": (1, 1, 1, 1, 0, 0, 0, 0),
    "judge-b": (1, 1, 1, 0, 0, 0, 0, 0),
    "judge-c": (1, 1, 1, 1, 1, 0, 0, 0),
}
"""What each judge says of the eight tasks, in order: a and b differ on one, a and c on another."""


def judged(trials: Path, judges: tuple[str, ...]) -> dict[str, Any]:
    """The agreement on `application` of bm25's answers after these judges have decided."""
    for judge in judges:
        scores = iter(SAY[judge])

        def script(number: int, body: dict[str, Any], scores: Iterator[int] = scores) -> Reply:
            return ok(json.dumps({"score": next(scores), "reason": "as told"}))

        with ModelServer(script) as server:
            one = ("--judge", judge, "--metric", "application", "--system", "bm25", "--workers", "1")
            stage(trials, "judge", *one, env=server.environment())
    said = json.loads(call_cli("metrics", "--json", "--trials", str(trials)).out)
    (found,) = [a for a in said["agreements"] if a["metric"] == "application"]
    assert isinstance(found, dict)
    return found


def test_two_judges(answered: Path) -> None:
    """7 of 8 equal; chance 0.5 · 0.375 + 0.5 · 0.625 = 0.5; kappa (0.875 - 0.5) / 0.5."""
    found = judged(answered, ("judge-a", "judge-b"))
    assert (found["n"], found["raw"], found["kappa"]) == (8, 0.875, 0.75)
    assert (found["low"], found["high"]) == (0.375, 0.5)
    assert [item for item, _ in found["flips"]] == ["14/query"]
    assert (found["majority"], found["ties"]) == (3 / 7, 1)


def test_three_judges(answered: Path) -> None:
    """24 verdicts, 12 of each score; 4 of the 24 pairs that items make disagree, 12 of 23 would by chance."""
    found = judged(answered, ("judge-a", "judge-b", "judge-c"))
    assert (found["raw"], found["kappa"]) == (None, None)
    assert round(found["alpha"], 12) == round(1 - (4 / 24) / (12 / 23), 12)
    assert (found["low"], found["high"]) == (0.375, 0.625)
    assert [item for item, _ in found["flips"]] == ["14/query", "21/query"]
    assert (found["majority"], found["ties"]) == (0.5, 0)


def test_one_judge_twice(answered: Path) -> None:
    """Repeats of one judge are raters of their own, named by their ordinal."""
    judged_once = ("--judge", "judge-a", "--metric", "application", "--system", "bm25")
    replies = iter((1, 0) * 8)
    with ModelServer(lambda number, request: ok(json.dumps({"score": next(replies)}))) as server:
        stage(answered, "judge", *judged_once, "--repeat", "2", "--workers", "1", env=server.environment())
    said = json.loads(call_cli("metrics", "--json", "--trials", str(answered)).out)
    (found,) = [a for a in said["agreements"] if a["metric"] == "application"]
    assert [rater[-2:] for rater in found["raters"]] == ["#1", "#2"]
    assert (found["raw"], len(found["flips"])) == (0.0, 8)


def test_the_table_shows_them(answered: Path) -> None:
    judged(answered, ("judge-a", "judge-b"))
    table = call_cli("metrics", "--trials", str(answered)).out
    assert "where judges decided the same" in table
    assert "0.375–0.500" in table
