"""The substrate's three modes on LongMemEval's and LoCoMo's samples: runs repeat, and their reports are complete."""

import json
from pathlib import Path

import pytest

from memtrials.settings import evaluation
from support.cli import call_cli
from support.released import LOCOMO
from support.trials import ended, stage

SAMPLES = {"longmemeval": evaluation() / "samples" / "longmemeval", "locomo": LOCOMO}
MODES = {"substrate": "hybrid", "substrate-vector": "vector_only", "substrate-bm25": "bm25_only"}


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two ledgers of the same work, by an embedding that needs no model. Not to be written."""
    folder = tmp_path_factory.mktemp("modes")
    mine = []
    for name in MODES:
        text = (evaluation() / "systems" / f"{name}.toml").read_text("utf-8")
        assert ("wordllama-256" in text) is (name != "substrate-bm25")
        mine.append(folder / f"{name}.toml")
        text = text.replace("wordllama-256", "deterministic-256").replace('"hybrid"', '"hybrid"\ntrace = true')
        mine[-1].write_text(text, encoding="utf-8")
    made = folder / "first.json", folder / "second.json"
    for ledger in made:
        for benchmark, data in SAMPLES.items():
            stage(ledger, "build", benchmark, "--data", str(data))
        stage(ledger, "replay", *map(str, mine))
        stage(ledger, "fetch")
    return made


@pytest.mark.parametrize("benchmark", SAMPLES)
@pytest.mark.parametrize("system", MODES)
def test_two_runs_do_not_differ(ledgers: tuple[Path, Path], benchmark: str, system: str):
    first, second = map(str, ledgers)
    asked = ("--benchmark", benchmark, "--system", system, "--exit-code", "--json")
    found = json.loads(ended(call_cli("compare", first, second, *asked)).out)
    assert found["queries"] > 0
    assert found["differing"] == found["missing"] == 0


RANKED = {"longmemeval": ("session", "turn"), "locomo": ("dialog", "session")}
CHECKED = ("context_validation_pass_rate", "suppressed_memory_leakage_rate", "orphan_vector_leakage_rate")


@pytest.mark.parametrize("benchmark", SAMPLES)
@pytest.mark.parametrize("system", MODES)
def test_a_report_has_all_that_is_required_in_every_mode(
    ledgers: tuple[Path, Path], tmp_path: Path, benchmark: str, system: str
):
    chosen = ("--benchmark", benchmark, "--system", system, "--run-id", "run")
    ended(call_cli("export", "rows", "--trials", str(ledgers[0]), "--out", str(tmp_path), *chosen))
    report = json.loads((tmp_path / "run" / "report.json").read_text("utf-8"))
    assert report["registry_coverage"]["missing_required_metrics"] == []
    assert report["degradation"] == {"any_degradation": False}
    support = report["metric_support"]
    for prefix in RANKED[benchmark]:
        for k in (1, 3, 5, 10) if prefix == "session" else (5, 10, 20, 50):
            assert support[f"{prefix}_recall_fraction@{k}"]["numeric_rows"] > 0
    assert {support[name]["unsupported"] for name in CHECKED} == {MODES[system] != "hybrid"}
    rows = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text("utf-8").splitlines()]
    outcomes = {len(row["retrieval_outcomes"]) for row in rows}
    assert outcomes == {{"hybrid": 1, "vector_only": 2, "bm25_only": 0}[MODES[system]]}
    headed = [line.startswith("[") for row in rows for line in row["context_text"].splitlines()[:1]]
    assert set(headed) == {MODES[system] != "bm25_only"}
