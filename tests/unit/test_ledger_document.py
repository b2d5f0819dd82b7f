"""What docs/ledger.md says of the file, and its lines for other tools, at work on a ledger."""

import contextlib
import io
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import msgspec
import pytest

import memtrials
from memtrials.frames import COLUMNS
from memtrials.records import BODIES, Header
from support.extras import needs_tables
from support.trials import records, stage

TEXT = (Path(__file__).parents[2] / "docs" / "ledger.md").read_text("utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def tables() -> dict[str, list[str]]:
    """What stands in the second cell of each table row, by the name in the first."""
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", TEXT, re.MULTILINE)
    return {name: names(cell) for name, cell in rows}


def test_the_fields_of_every_record_are_listed():
    listed = tables()
    for kind, body in BODIES.items():
        assert listed[kind] == [field.encode_name for field in msgspec.structs.fields(body)], kind
    header = [field.encode_name for field in msgspec.structs.fields(Header)]
    assert header in [names(line) for line in TEXT.splitlines()]


@needs_tables
def test_the_columns_of_every_frame_are_listed(judged: Path):
    frames = memtrials.load(judged)._asdict()
    listed = tables()
    assert {name: frame.columns for name, frame in frames.items()} == {name: listed[name] for name in COLUMNS}


@pytest.fixture
def expected(judged: Path) -> dict[tuple[str, str], tuple[int, float]]:
    """n and mean by system and metric. The ledger stands where the lines look for it."""
    scores: dict[tuple[str, str], list[float]] = {}
    for record in records(judged, "verdict"):
        scores.setdefault((record["system"], record["metric"]), []).append(record["body"]["score"])
    assert len(scores) > 3
    (judged.parent / "results").mkdir()
    shutil.copy(judged, judged.parent / "results" / "trials.json")
    return {place: (len(some), sum(some) / len(some)) for place, some in scores.items()}


@pytest.mark.parametrize(
    "number",
    range(len(BLOCKS)),
    ids=[f"{i}-{text.split()[language == 'python']}" for i, (language, text) in enumerate(BLOCKS)],
)
def test_a_line_for_another_tool_finds_what_the_ledger_holds(
    expected: dict[tuple[str, str], tuple[int, float]],
    judged: Path,
    number: int,
    monkeypatch: pytest.MonkeyPatch,
):
    language, text = BLOCKS[number]
    monkeypatch.chdir(judged.parent)
    out = _shell(text) if language == "sh" else _python(text)
    for (system, metric), (_, mean) in expected.items():
        line = next(line for line in out.splitlines() if system in line and re.search(rf"\b{metric}(?![\w-])", line))
        shown = [float(value) for value in re.findall(r"(?<![\w.-])\d+(?:\.\d+)?(?![\w-])", line)]
        assert any(value == pytest.approx(mean, abs=5e-6) for value in shown), line


def _shell(command: str) -> str:
    program = command.split()[0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} isn't on this machine")
    return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True, timeout=60).stdout


def _python(text: str) -> str:
    """What a block prints, with tables whole."""
    if not find_spec(text.split()[1]):
        pytest.skip("the extra isn't installed: uv sync --extra tables")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        if find_spec("polars"):
            import polars

            with polars.Config(tbl_rows=-1, tbl_width_chars=400, fmt_str_lengths=100):
                exec(compile(text, "docs/ledger.md", "exec"), {})
        else:
            exec(compile(text, "docs/ledger.md", "exec"), {})
    return out.getvalue()


@needs_tables
def test_frames_join_and_leave_out_what_does_not_count(judged: Path):
    first = memtrials.load(judged)
    verdicts = records(judged, "verdict")
    assert first.verdicts["score"].to_list() == [record["body"]["score"] for record in verdicts]
    joined = first.verdicts.join(first.retrievals, left_on="retrieval", right_on="id")
    assert len(joined) == len(verdicts)
    assert (joined["system"] == joined["system_right"]).all()
    assert first.tasks.n_unique("task") * 2 == len(first.tasks) == 16
    assert set(first.retrievals["fetch"]) <= set(first.configs["id"])
    stage(judged, "void", "--kind", "answer", "--system", "bm25", "--reason", "a test")
    second = memtrials.load(str(judged))
    assert len(second.retrievals) == len(first.retrievals)
    assert len(second.answers) == len(first.answers) - 16
    assert {system.partition("-")[0] for system in second.answers["system"]} == {"none", "in"}


@needs_tables
def test_a_ledger_without_results_has_frames_with_the_same_columns(ledgers: dict[str, Path]):
    empty, full = memtrials.load(ledgers["build"]), memtrials.load(ledgers["judge"])
    assert [frame.schema for frame in empty] == [frame.schema for frame in full]
    assert len(empty.answers) == 0


def test_the_package_is_light_until_frames_are_asked_for():
    code = "import sys, memtrials; print([m for m in ('polars', 'numpy', 'msgspec', 'click') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
