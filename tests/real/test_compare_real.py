"""Differences of released LoCoMo results as the commands give them, after `import`.

The files are not part of this project. They are looked for in the folder that MEMTRIALS_REAL_DATA names, else in
`shared/data` beside the repository; without them every test here is skipped.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from support.cli import call_cli
from support.published import DATA
from support.trials import ended, stage

LOCOMO = DATA / "locomo" / "locomo10.json"
FILES = {name: DATA / "memorybear" / "locomo" / name / f"{name}_locomo_judged.json.gz" for name in ("memos", "mem0")}

pytestmark = pytest.mark.skipif(
    not all(path.is_file() for path in (LOCOMO, *FILES.values())), reason=f"no released results in {DATA}"
)


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with the results of MemOS and Mem0."""
    ledger = tmp_path_factory.mktemp("locomo") / "trials.json"
    stage(ledger, "build", "locomo", "--data", str(LOCOMO))
    stage(ledger, "import", *(str(path) for path in FILES.values()))
    return ledger


@pytest.fixture(scope="module")
def report(trials: Path) -> dict[str, Any]:
    return stage(trials, "metrics", "--metric", "accuracy", "--allow-unlike", "--margin", "0.02")


def test_the_note_on_memos_and_mem0(report: dict[str, Any]):
    note = "imported-memos leads imported-mem0 over questions (84.3 to 82.7) and trails it averaged over types"
    (found,) = [n for n in report["notes"] if " leads " in n]
    assert found.startswith(f"locomo@10, accuracy: {note} (78.2 to 81.9)")


def test_the_difference_of_memos_and_mem0(report: dict[str, Any]):
    (found,) = [d for d in report["differences"] if not d["exploratory"]]
    assert (found["p"], found["test"], found["smallest_p"]) == (376 / 1024, "exact sign-flip", 2 / 1024)
    points = [round(100 * found[name], 1) for name in ("difference", "low", "high", "detectable")]
    assert points == [1.6, -2.2, 5.8, 5.5]
    assert (found["higher"], found["lower"], found["n"], found["left_out"]) == (162, 137, 1540, 0)
    assert found["said"].splitlines()[0] == "not significant"
    assert not found["equivalence"]["shown"]
    assert found["unlike"]


def test_compare_shows_every_flip_and_refuses_without_being_told(trials: Path):
    sides = ("--system", "imported-memos", "--system", "imported-mem0", "--trials", str(trials))
    told = ended(call_cli("compare", *sides), 2).err
    assert "accuracy of imported-memos and imported-mem0 can't stand in one difference" in told
    assert "judge: imported-memos-" in told
    (pair,) = json.loads(ended(call_cli("compare", *sides, "--allow-unlike", "--json")).out)["pairs"]
    accuracy = next(d for d in pair["differences"] if d["metric"] == "accuracy")
    assert accuracy["p"] == 376 / 1024
    ways = [flip["first"] > flip["second"] for flip in accuracy["flips"]]
    assert (ways.count(True), ways.count(False)) == (162, 137)
