"""The wheel: built from the source archive, installed into an empty environment, run from another folder."""

import json
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest

from memtrials import __version__
from memtrials.settings import evaluation
from support.cli import Finished
from support.trials import records
from support.uv import ROOT, run, uv


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    finished = uv("build", "--quiet", "--out-dir", folder, ROOT, cwd=folder)
    assert finished.code == 0, finished.err
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with nothing but the wheel and what it needs."""
    venv = tmp_path_factory.mktemp("environment") / "venv"
    for arguments in (("venv", "--python", sys.executable, venv), ("pip", "install", "--python", venv, wheel)):
        finished = uv(*arguments, "--quiet", cwd=venv.parent)
        assert finished.code == 0, finished.err
    return venv


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


def memtrials(venv: Path, *arguments: str, cwd: Path) -> Finished:
    return run(venv / "bin" / "memtrials", *arguments, cwd=cwd)


def test_the_wheel_holds_the_package_and_the_whole_of_evaluation(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    data = {
        f"memtrials/evaluation/{path.relative_to(evaluation())}" for path in evaluation().rglob("*") if path.is_file()
    }
    assert len(data) > 15
    assert data <= names
    assert {name.split("/")[0] for name in names} == {"memtrials", f"memtrials-{__version__}.dist-info"}


def test_it_says_which_version_it_is(installed: Path, elsewhere: Path):
    assert memtrials(installed, "--version", cwd=elsewhere) == Finished(0, f"{__version__}\n", "")


def test_the_demo_runs_anywhere(installed: Path, elsewhere: Path):
    finished = memtrials(installed, "demo", "--trials", "../mine.json", cwd=elsewhere)
    assert finished.code == 0, finished.err
    assert "direct-verbatim" in finished.out
    assert "hybrid" in finished.out
    kinds = Counter(record["kind"] for record in records(elsewhere.parent / "mine.json"))
    assert kinds == {"task": 19, "config": 7, "ingest": 57, "retrieval": 123, "answer": 123, "verdict": 105}
    assert list(elsewhere.iterdir()) == []
    sources = {record["body"]["data"] for record in records(elsewhere.parent / "mine.json", "task")}
    assert len(sources) == 3
    assert all(Path(source).is_relative_to(installed) for source in sources)


def test_evaluation_is_found_inside_the_package_and_results_in_the_working_directory(installed: Path, elsewhere: Path):
    finished = memtrials(installed, "doctor", cwd=elsewhere)
    assert finished.code == 0, finished.err
    lines = {line.split()[0]: line.split()[1:] for line in finished.out.splitlines()}
    assert Path(lines["evaluation"][0]).is_relative_to(installed)
    assert Path(lines["evaluation"][0]).name == "evaluation"
    assert lines["ledger"][0] == str(elsewhere / "results" / "trials.json")
    assert list(elsewhere.iterdir()) == []


def test_the_default_ledger_is_made_in_the_working_directory(installed: Path, elsewhere: Path, sample: Path):
    finished = memtrials(installed, "build", "inmind", "--data", str(sample), "--json", cwd=elsewhere)
    assert finished.code == 0, finished.err
    assert json.loads(finished.out)["appended"] == 8
    assert len(records(elsewhere / "results" / "trials.json")) == 8
    again = memtrials(installed, "replay", "bm25", "--limit", "1", cwd=elsewhere)
    assert again.code == 0, again.err
    assert {path.name for path in (elsewhere / "results").iterdir()} >= {
        "trials.json",
        "trials.stores",
        "trials.manifests",
    }
