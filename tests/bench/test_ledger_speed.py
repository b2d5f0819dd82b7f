"""The ledger at size: appends, scans and group commits, each against what it must be compared with."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.conftest import Report
from bench.measuring import ratio, seconds, settled
from memtrials.ledger import CLOSING, OPENING, Ledger
from memtrials.llm.offline import VERSION
from memtrials.llm.roles import RoleConfig
from memtrials.records import (
    AnswerBody,
    Header,
    IngestBody,
    Item,
    Kind,
    Query,
    Record,
    Release,
    RetrievalBody,
    TaskBody,
    TimelineSource,
    encode,
    new_id,
    now,
    sha256,
)
from memtrials.stages.answer import answer_key

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

MB = 1_000_000
APPENDS = 500
WORKERS = 8
"""Writers at once: what a stage has in flight when its endpoint is still unknown, and few enough to leave the gain of a
group commit small."""


SYSTEM = "hybrid-0123abcd"
TASK = TaskBody(
    release=Release(sha256="0" * 64, files=(), known=False, attribution=""),
    data="",
    source=TimelineSource(file="", sha256="", start=0, end=0),
    sessions=(),
    turns=0,
    queries=tuple(Query(id=q, text="", unit="", cluster="") for q in ("naive_query", "query")),
    gold=(),
)
STATE = IngestBody(namespace="0123456789abcdef", system_version="1", capabilities=(), sessions=0, turns=0)


def header(kind: Kind, parent: Header | None, task: str, key: str, **fields: Any) -> Header:
    parents = () if parent is None else (parent.id,)
    where = {"benchmark": "inmind@released", "task": task, "type": "health_and_wellness"}
    return Header(id=new_id(), kind=kind, key=key, content=key, parents=parents, at=now(), **where, **fields)


def retrieval(n: int, size: int, state: Header | None = None) -> Record:
    """A retrieval of about `size` bytes with the shape of a real one: half of it context, half items of 450 bytes."""
    text = f"{n} " + 'She said: "we moved in May", and then\nsomething else. ' * 9
    items = tuple(
        Item(
            rank=rank, text=text[:350], score=1 / (60 + rank), turns=(f"{rank}.{n % 9}",), time="2023/02/18 (Sat) 01:36"
        )
        for rank in range(1, 1 + size // 1000)
    )
    query = "query" if n % 2 else "naive_query"
    own = header(
        "retrieval",
        state,
        str(n % 100),
        sha256(["retrieval", n]),
        query=query,
        system=SYSTEM,
        fetch="k50-0123abcd",
        repeat=n // 200 + 1,
    )
    context = "\n".join(item.text for item in items)
    context += "more of it, " * ((size - len(context) - 480 * len(items)) // 12)
    return Record(own, RetrievalBody(question="What should I cook?", context=context, items=items))


def write_ledger(path: Path, bytes_wanted: int, size: int) -> Path:
    """A ledger of that many bytes: 100 tasks, each with a state, and on them retrievals of `size` bytes each."""
    lines = []
    states = []
    for n in range(100):
        task = header("task", None, str(n), sha256(["task", n]))
        states.append(header("ingest", task, str(n), sha256(["ingest", n]), repeat=1, system=SYSTEM))
        lines += [encode(Record(task, TASK)), encode(Record(states[-1], STATE))]
    count = max(1, bytes_wanted // len(encode(retrieval(0, size, states[0]))))
    with path.open("wb") as out:
        out.write(OPENING + b",\n".join(lines))
        for n in range(count):
            out.write(b",\n" + encode(retrieval(n, size, states[n % 100])))
        out.write(CLOSING)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("ledgers")
    yield folder
    for path in folder.iterdir():
        path.unlink()


@pytest.fixture(scope="module")
def large(folder: Path) -> Path:
    return write_ledger(folder / "large.json", 1000 * MB, 50_000)


@pytest.fixture(scope="module")
def small_records(folder: Path) -> Path:
    return write_ledger(folder / "small-records.json", 200 * MB, 5_000)


def write_answered(path: Path, bytes_wanted: int, size: int) -> Path:
    """A ledger of that many bytes in which the offline reader has answered every trial, with long answers."""
    reader = RoleConfig("offline", {"model": "offline", "version": VERSION}, {}).id
    task = header("task", None, "0", sha256(["task"]))
    state = header("ingest", task, "0", sha256(["ingest"]), repeat=1, system=SYSTEM)
    with path.open("wb") as out:
        out.write(OPENING + encode(Record(task, TASK)) + b",\n" + encode(Record(state, STATE)))
        for n in range(bytes_wanted // (2 * size)):
            trial = retrieval(n, size, state)
            answer = header(
                "answer",
                trial.header,
                trial.header.task or "",
                answer_key(trial.header, reader),
                query=trial.header.query,
                system=SYSTEM,
                fetch=trial.header.fetch,
                reader=reader,
                repeat=1,
            )
            out.write(
                b",\n" + encode(trial) + b",\n" + encode(Record(answer, AnswerBody(text="answer " * (size // 7))))
            )
        out.write(CLOSING)
    return path


def warm(path: Path) -> None:
    """Read the file's bytes, as a resume does: in blocks."""
    fd = os.open(path, os.O_RDONLY)
    block = bytearray(1 << 22)
    while os.readv(fd, [block]):
        pass
    os.close(fd)


def test_an_append_costs_the_same_on_a_large_ledger(folder: Path, large: Path, report: Report) -> None:
    small = write_ledger(folder / "one-mb.json", 1 * MB, 50_000)
    records = iter([retrieval(n, 50_000) for n in range(600)])
    with Ledger.open(large) as on_large, Ledger.open(small) as on_small:
        on_large.append(next(records))
        on_small.append(next(records))
        ours = settled(
            lambda: ratio(lambda: on_large.append(next(records)), lambda: on_small.append(next(records)), 60)[0],
            lambda value: value <= 1.5,
        )
    fd_large, fd_small = os.open(large, os.O_RDWR), os.open(small, os.O_RDWR)
    line = encode(retrieval(1, 50_000))

    def splice(fd: int) -> None:
        end = os.lseek(fd, 0, os.SEEK_END) - len(CLOSING)
        os.pwrite(fd, b",\n" + line + CLOSING, end)
        os.fdatasync(fd)

    bare = ratio(lambda: splice(fd_large), lambda: splice(fd_small), 60)[0]
    os.close(fd_large)
    os.close(fd_small)
    report("append of 50 KB: 1 GB ledger / 1 MB ledger", f"{ours:.2f} (bare splice {bare:.2f})", "at most 1.5")
    assert ours <= 1.5


def test_appending_beats_rewriting_the_array(folder: Path, report: Report) -> None:
    """500 durable appends, with WORKERS in flight, against json.dump(indent=2) per record,
    timed at five lengths and integrated."""
    path = folder / "appended.json"
    records = [retrieval(n, 50_000) for n in range(APPENDS)]

    async def append(ledger: Ledger, some: list[Record]) -> None:
        for record in some:
            await ledger.append_async(record)

    async def all_at_once(ledger: Ledger) -> None:
        await asyncio.gather(*(append(ledger, records[n::WORKERS]) for n in range(WORKERS)))

    with Ledger.open(folder / "one-by-one.json", create=True) as ledger:
        one_by_one = seconds(lambda: [ledger.append(record) for record in records])
    with Ledger.open(path, create=True) as ledger:
        ours = seconds(lambda: asyncio.run(all_at_once(ledger)))
    values = json.loads(path.read_bytes())
    lengths = [1, 125, 250, 375, 500]
    rewritten = folder / "rewritten.json"

    def rewrite(length: int) -> None:
        with rewritten.open("w") as out:
            json.dump(values[:length], out, indent=2)
            out.flush()
            os.fsync(out.fileno())

    costs = [statistics.median(seconds(lambda n=length: rewrite(n)) for _ in range(3)) for length in lengths]
    theirs = sum((costs[i] + costs[i + 1]) / 2 * (lengths[i + 1] - lengths[i]) for i in range(len(lengths) - 1))
    report(
        "500 appends: rewriting the array / appending",
        f"{theirs / ours:,.0f} times ({theirs / one_by_one:,.0f} one by one)",
        "at least 300",
    )
    assert theirs / ours >= 300


def child_seconds(command: list[str]) -> tuple[float, str]:
    """Processor time of a child with compiled bytecode, and its output: what it takes on a machine of its own."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, out.stdout


PENDING = """
import re, sys, time
from pathlib import Path
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.records import work_key
began = time.process_time()
ledger = Ledger.open(Path(sys.argv[1]))
index = LedgerIndex(ledger)
owed = [
    trial for trial in index.of("retrieval")
    if (work_key("answer", benchmark=trial.benchmark, task=trial.task, query=trial.query, parent=trial,
                 config="offline-01234567"), 1) not in index.done
]
took = time.process_time() - began
peak = re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]
print(took, peak, len(ledger.headers))
"""


def pending(path: Path) -> tuple[float, float, int]:
    """Processor seconds, peak megabytes and records of working out what is pending, in a process of its own.

    The peak is VmHWM: `ru_maxrss` of a child begins at its parent's.
    """
    out = subprocess.run([sys.executable, "-c", PENDING, str(path)], capture_output=True, text=True, check=True)
    took, kilobytes, count = out.stdout.split()
    return float(took), int(kilobytes) / 1024, int(count)


@pytest.mark.parametrize("size", [50_000, 5_000])
def test_pending_costs_little_more_than_reading(size: int, large: Path, small_records: Path, report: Report) -> None:
    path = large if size == 50_000 else small_records
    warm(path)
    pairs = []

    def measure() -> float:
        for _ in range(5 if size == 50_000 else 1):  # what is only printed is measured once
            ours = pending(path)
            began = time.process_time()
            warm(path)
            pairs.append((ours, time.process_time() - began))
        return statistics.median(ours[0] / reading for ours, reading in pairs[-5:])

    factor = settled(measure, lambda value: value <= 3, tries=6 if size == 50_000 else 1)
    peak = max(ours[1] for ours, _ in pairs)
    report(
        f"pending on {path.stat().st_size / 1e9:.1f} GB of {size // 1000} KB records / reading the bytes",
        f"{factor:.2f}, peak {peak:.0f} MB, {pairs[0][0][2]:,} records",
        "at most 3, under 300 MB" if size == 50_000 else "(printed beside it)",
    )
    if size == 50_000:
        assert factor <= 3
        assert peak < 300


def test_group_commit_outruns_one_sync_per_record(folder: Path, report: Report) -> None:
    producers = 64

    def rate_alone(size: int, count: int) -> float:
        """Records per second, one sync each, encoded beforehand."""
        encoded = [(encode(r), r.header) for r in (retrieval(n, size) for n in range(count))]
        path = folder / "alone.json"
        path.unlink(missing_ok=True)
        with Ledger.open(path, create=True) as ledger:
            ledger.append(retrieval(-1, size))
            return count / seconds(lambda: [ledger.commit([line], [header]) for line, header in encoded])

    def rate_together(size: int, each: int) -> float:
        encoded = [(encode(r), r.header) for r in (retrieval(n, size) for n in range(producers * each))]
        path = folder / "together.json"
        path.unlink(missing_ok=True)

        async def produce(ledger: Ledger, mine: list[tuple[bytes, Header]]) -> None:
            for line, header in mine:
                await ledger.append_encoded([line], [header])

        async def everybody(ledger: Ledger) -> None:
            parts = [encoded[n::producers] for n in range(producers)]
            await asyncio.gather(*(produce(ledger, part) for part in parts))

        with Ledger.open(path, create=True) as ledger:
            ledger.append(retrieval(-1, size))
            return len(encoded) / seconds(lambda: asyncio.run(everybody(ledger)))

    for size, bound in ((50_000, 2.5), (1_000, 8.0)):
        each = 12 if size == 50_000 else 60
        factor = settled(
            lambda size=size, each=each: statistics.median(
                rate_together(size, each) / rate_alone(size, 150) for _ in range(3)
            ),
            lambda value, bound=bound: value >= bound,
        )
        report(
            f"group commit, 64 producers of {size // 1000} KB / one sync each", f"{factor:.1f}", f"at least {bound:g}"
        )
        assert factor >= bound


def test_a_stage_with_nothing_to_do_is_quick(folder: Path, report: Report) -> None:
    """`answer` on a 1 GB ledger in which everything is answered, the interpreter's start included."""
    path = write_answered(folder / "answered.json", 1000 * MB, 50_000)
    command = [sys.executable, "-m", "memtrials", "answer", "--trials", str(path), "--json"]

    def once() -> float:
        took, out = child_seconds(command)
        said = json.loads(out)
        assert (said["pending"], said["appended"]) == (0, 0)
        return took

    once()
    took = settled(lambda: statistics.median(once() for _ in range(3)), lambda value: value < 1)
    report("a stage with nothing to do on 1 GB", f"{took:.2f} s", "under 1 s")
    assert took < 1


def test_help_is_instant(report: Report) -> None:
    command = [sys.executable, "-m", "memtrials", "--help"]
    child_seconds(command)
    took = settled(lambda: statistics.median(child_seconds(command)[0] for _ in range(5)), lambda value: value < 0.3)
    report("memtrials --help", f"{took:.2f} s", "under 0.3 s")
    assert took < 0.3
