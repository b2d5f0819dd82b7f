"""Published tables, recomputed from the released files through import and metrics.

The files are not part of this project. They are looked for in the folder that MEMTRIALS_REAL_DATA names, else in
`shared/data` beside the repository; without them every test here is skipped. Only numbers are kept here.
"""

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.cli import call_cli
from support.trials import ended, records

DATA = Path(os.environ.get("MEMTRIALS_REAL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
ARTIFACTS, LOCOMO = DATA / "memorybear", DATA / "locomo" / "locomo10.json"

pytestmark = [
    pytest.mark.skipif(not ARTIFACTS.is_dir(), reason=f"no released results at {ARTIFACTS}"),
    pytest.mark.skipif(not LOCOMO.is_file(), reason=f"no LoCoMo data at {LOCOMO}"),
]

Row = dict[str, Any]
MATCH, STORED, CLOSED = (
    "match",
    "differs: the file's own values give it",
    "no files were released: cannot be recomputed",
)
SHARED = ("1-multi-hop", "2-temporal", "3-open-domain", "4-single-hop")


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published") / "trials.json"


def reproduced(table: str, ledger: Path) -> dict[tuple[str, str], Row]:
    where = (
        ["--artifacts", str(ARTIFACTS), "--data", str(LOCOMO)] if "locomo" in table else ["--artifacts", str(ARTIFACTS)]
    )
    cells = json.loads(ended(call_cli("reproduce", table, *where, "--trials", str(ledger), "--json")).out)
    return {(cell["system"], cell["column"]): cell for cell in cells}


@pytest.fixture(scope="module")
def longmemeval(ledger: Path) -> dict[tuple[str, str], Row]:
    return reproduced("longmemeval", ledger)


@pytest.fixture(scope="module")
def locomo(ledger: Path) -> dict[tuple[str, str], Row]:
    return reproduced("locomo", ledger)


@pytest.fixture(scope="module")
def by_type(ledger: Path, locomo: object) -> dict[tuple[str, str, str], Row]:
    """Numbers on LoCoMo by system, metric and type."""
    out = ended(call_cli("metrics", "--by", "type", "--benchmark", "locomo", "--trials", str(ledger), "--json")).out
    return {(n["system_name"], n["metric"], n["group"]): n for n in json.loads(out)["numbers"]}


def test_every_longmemeval_cell_with_files_matches(longmemeval: dict[tuple[str, str], Row]):
    statuses = Counter(cell["status"] for cell in longmemeval.values())
    assert statuses == {MATCH: 14, "not published": 2, "as imported": 2, CLOSED: 6}
    assert longmemeval["MemoryBear", "overall"]["exact"] == 475 / 500
    assert longmemeval["MemoryBear", "types averaged"]["exact"] == pytest.approx(0.9540035987404408, rel=1e-9)
    assert longmemeval["MemOS", "overall"]["exact"] == 437 / 500
    assert longmemeval["MemoryBear", "tokens"]["exact"] == pytest.approx(706.52, rel=1e-9)
    assert longmemeval["MemoryBear", "latency p50, s"]["exact"] == 510.0


@pytest.mark.parametrize(
    ("system", "correct"),
    [
        ("MemoryBear", {"user": 70, "preference": 30, "assistant": 48, "multi-session": 125, "temporal": 125}),
        ("MemOS", {"user": 69, "preference": 26, "assistant": 52, "multi-session": 107, "temporal": 109}),
    ],
)
def test_longmemeval_by_type(longmemeval: dict[tuple[str, str], Row], system: str, correct: dict[str, int]):
    of = {"user": 70, "preference": 30, "assistant": 56, "multi-session": 133, "temporal": 133}
    for name, right in correct.items():
        cell = longmemeval[system, name]
        assert (cell["exact"], cell["n"]) == (pytest.approx(right / of[name], rel=1e-9), of[name])


def test_locomo_cells_match_but_for_the_documented_departure(locomo: dict[tuple[str, str], Row]):
    statuses = Counter(cell["status"] for cell in locomo.values())
    assert statuses == {MATCH: 18, STORED: 1, "not published": 2, CLOSED: 10}
    departing = locomo["MemoryBear", "F1, 1-5"]
    assert (departing["published"], departing["recomputed"], departing["stored"]) == (67.49, 67.5, 67.49)
    assert departing["differing"] == {"conv-43/30": [0.45, pytest.approx(0.7)]}  # conv-43_q031, and no other


def test_the_two_denominators_stand_side_by_side(locomo: dict[tuple[str, str], Row]):
    both = [locomo["MemoryBear", name] for name in ("overall, 1-5", "overall")]
    assert [(cell["recomputed"], cell["n"]) for cell in both] == [(91.54, 1986), (90.71, 1540)]
    assert both[0]["exact"] == 1818 / 1986
    assert both[1]["exact"] == 1397 / 1540
    f1 = [locomo["MemoryBear", name] for name in ("F1, 1-5", "F1")]
    assert [(cell["recomputed"], cell["stored"]) for cell in f1] == [(67.5, 67.49), (59.71, 59.69)]


def test_baselines_f1_is_the_official_one_unrounded(locomo: dict[tuple[str, str], Row]):
    """38.45 would come of rounding each question first; Mem0's own values are another formula's."""
    memos, mem0 = locomo["MemOS", "F1"], locomo["Mem0", "F1"]
    assert (memos["recomputed"], memos["stored"]) == (38.44, None)
    assert memos["exact"] == pytest.approx(0.38443685716100434, rel=1e-9)
    assert (mem0["recomputed"], mem0["stored"]) == (48.74, 47.24)
    assert mem0["exact"] == pytest.approx(0.48742154816138117, rel=1e-9)


@pytest.mark.parametrize(
    ("system", "correct", "f1"),
    [
        (
            "imported-memorybear",
            (256, 294, 71, 776),
            (0.5478508201072004, 0.5187460255217264, 0.41265269700269247, 0.6645762409144668),
        ),
        (
            "imported-memos",
            (218, 263, 61, 756),
            (0.34695551627970633, 0.4583351050896105, 0.22628192247076637, 0.386852165453164),
        ),
        (
            "imported-mem0",
            (238, 283, 71, 681),
            (0.3813416316873326, 0.6099177274634927, 0.38038228183670647, 0.48845488045254964),
        ),
    ],
)
def test_locomo_by_category(
    by_type: dict[tuple[str, str, str], Row], system: str, correct: tuple[int, ...], f1: tuple[float, ...]
):
    for type_, right, score, of in zip(SHARED, correct, f1, (282, 321, 96, 841), strict=True):
        accuracy = by_type[system, "accuracy", type_]
        assert (accuracy["value"], accuracy["n"]) == (pytest.approx(right / of, rel=1e-9), of)
        assert by_type[system, "official-f1", type_]["value"] == pytest.approx(score, rel=1e-9)


def test_the_fifth_category_is_the_refusal_rule_in_every_record(ledger: Path, locomo: dict[tuple[str, str], Row]):
    cell = locomo["MemoryBear", "adversarial"]
    assert (cell["exact"], cell["n"], cell["differing"]) == (421 / 446, 446, {})


def test_memorybears_own_tables(ledger: Path, locomo: object, longmemeval: object):
    one = reproduced("longmemeval-memorybear", ledger)
    assert Counter(cell["status"] for cell in one.values()) == {MATCH: 7}
    other = reproduced("locomo-memorybear", ledger)
    departing = {column: cell["recomputed"] for (_, column), cell in other.items() if cell["status"] != MATCH}
    assert departing == {"F1 multi-hop": 0.548}
    assert other["MemoryBear", "F1 multi-hop"]["stored"] == 0.547
    assert len(other) == 12


def test_labels_by_conversation(ledger: Path, locomo: object):
    """Which conversation is which: 26, 30, 41 … in the order of the data."""
    of: Counter[tuple[str, str]] = Counter()
    right: Counter[tuple[str, str]] = Counter()
    for verdict in records(ledger, "verdict"):
        if verdict["benchmark"] == "locomo@10":
            place = (verdict["system"].rpartition("-")[0], verdict["task"])
            of[place] += 1
            right[place] += verdict["body"]["score"] == 1.0
    assert [of["imported-memos", f"conv-{n}"] for n in (26, 30, 41, 42, 43)] == [152, 81, 152, 199, 178]
    shares = {name: right[name, "conv-47"] / of[name, "conv-47"] for name in ("imported-memos", "imported-mem0")}
    assert shares == {"imported-memos": 0.92, "imported-mem0": pytest.approx(0.8066666666666666, rel=1e-9)}
    assert right["imported-memos", "conv-50"] / of["imported-memos", "conv-50"] == pytest.approx(0.8924050632911392)
