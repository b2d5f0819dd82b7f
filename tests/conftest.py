"""What all tests share: no setting from outside, one cache, and ledgers of the bundled sample at every stage."""

import os
import shutil
import ssl
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from memtrials.llm.engine import ChatModel
from memtrials.settings import evaluation
from support.cli import CONFIGURES, call_cli
from support.model_server import KEY
from support.trials import files

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


@pytest.fixture(scope="module")
def quick() -> Iterator[None]:
    """Tries follow each other at once, and no certificates are read, which takes longer than a test needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ChatModel.__init__.__kwdefaults__, "pause", 0.0)
        patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)
        yield


@pytest.fixture
def key_stays_secret(tmp_path: Path) -> Iterator[None]:
    """After the test: the key stands in no file that was written."""
    yield
    assert not [name for name, content in files(tmp_path).items() if KEY.encode() in content]


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


# --- what ran: each folder of tests is a group ---

GROUPS: pytest.StashKey[dict[str, dict[str, int]]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[GROUPS] = {}


def _group(nodeid: str) -> str:
    return nodeid.partition("tests/")[2].partition("/")[0]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many tests of each group ran and were skipped."""
    counts = config.stash[GROUPS]
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, []):
            of_group = counts.setdefault(_group(report.nodeid), {"ran": 0, "skipped": 0})
            of_group["skipped" if outcome == "skipped" else "ran"] += 1
    for group, count in sorted(counts.items()):
        terminalreporter.write_line(f"{group}: {count['ran']} ran, {count['skipped']} skipped")
    terminalreporter.write_line(f"skipped in all: {sum(count['skipped'] for count in counts.values())}")
    for group in _idle(config):
        terminalreporter.write_line(f"nothing ran in {group}, which should have run", red=True)


def _idle(config: pytest.Config) -> list[str]:
    """Groups that had to run (MEMTRIALS_REQUIRED_GROUPS) and in which nothing did."""
    required = os.environ.get("MEMTRIALS_REQUIRED_GROUPS", "").split()
    return [group for group in required if not config.stash[GROUPS].get(group, {}).get("ran")]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """A group that should have run and didn't fails the run."""
    yield
    if _idle(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
