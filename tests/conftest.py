"""What all tests share: no setting from outside, one cache, and ledgers of the bundled sample at every stage."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from memtrials.settings import evaluation
from support.cli import CONFIGURES, call_cli

SYSTEMS = ("bm25", "none", "in-context")
"""Systems that need no embeddings, so that loading no model slows the tests."""

STAGES: tuple[tuple[str, ...], ...] = (
    ("build", "inmind", "--data", str(evaluation() / "samples" / "inmind")),
    ("replay", *SYSTEMS),
    ("fetch",),
    ("answer",),
    ("judge",),
)


@pytest.fixture(autouse=True, scope="session")
def _nothing_from_outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One cache for the whole run, and no key, model, endpoint or ledger that the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if CONFIGURES.fullmatch(name)]:
            patch.delenv(name)
        patch.setenv("MEMTRIALS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def sample() -> Path:
    """The bundled InMind sample: 8 tasks with 2 queries each, in 7 domains."""
    return evaluation() / "samples" / "inmind"


@pytest.fixture(scope="session")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A ledger of the sample after each stage, with its states beside it. Not to be written: see `ledger_after`."""
    folder = tmp_path_factory.mktemp("stages")
    made: dict[str, Path] = {}
    before: Path | None = None
    for stage, *arguments in STAGES:
        trials = folder / stage / "trials.json"
        if before is None:
            trials.parent.mkdir()
        else:
            shutil.copytree(before.parent, trials.parent)
        done = call_cli(stage, *arguments, "--trials", str(trials))
        assert done.code == 0, done.err
        made[stage] = before = trials
    return made


def _copy(ledgers: dict[str, Path], stage: str, folder: Path) -> Path:
    shutil.copytree(ledgers[stage].parent, folder, dirs_exist_ok=True)
    return folder / "trials.json"


@pytest.fixture
def built(ledgers: dict[str, Path], tmp_path: Path) -> Path:
    """A ledger of its own that holds the sample's tasks."""
    return _copy(ledgers, "build", tmp_path)


@pytest.fixture
def replayed(ledgers: dict[str, Path], tmp_path: Path) -> Path:
    """`built` with a state of each task in each of SYSTEMS."""
    return _copy(ledgers, "replay", tmp_path)


@pytest.fixture
def fetched(ledgers: dict[str, Path], tmp_path: Path) -> Path:
    """`replayed` with one trial of each query."""
    return _copy(ledgers, "fetch", tmp_path)


@pytest.fixture
def answered(ledgers: dict[str, Path], tmp_path: Path) -> Path:
    """`fetched` with the offline reader's answers."""
    return _copy(ledgers, "answer", tmp_path)


@pytest.fixture
def judged(ledgers: dict[str, Path], tmp_path: Path) -> Path:
    """`answered` with the offline judge's verdicts."""
    return _copy(ledgers, "judge", tmp_path)
