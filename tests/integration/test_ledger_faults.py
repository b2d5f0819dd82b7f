"""The ledger under real faults: killed writers, crowds of writers, full disks, files that may not be written."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import ParamSpec, TypeVar

import pytest

from memtrials.errors import UserError
from memtrials.ledger import Ledger
from support.records import answer, write_ledger

P = ParamSpec("P")
T = TypeVar("T")

NOBODY = 65534
TESTS = Path(__file__).parents[1]


def ids_in(path: Path) -> list[str]:
    """What any JSON reader finds in the file."""
    return [entry["id"] for entry in json.loads(path.read_bytes())]


def torn_files(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.torn-*"))


def started(script: str, *arguments: object) -> subprocess.Popen[str]:
    """A process of its own that runs a script."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def in_child(act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What `act` returns or raises in a forked process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as pool:
        return pool.submit(act, *arguments, **named).result()


def as_nobody(act: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> T:
    """What `act` returns or raises in a process of a user who isn't root."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork"), initializer=become_nobody) as pool:
        return pool.submit(act, *arguments, **named).result()


def become_nobody() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def append(path: Path, record_id: str, text: str = "Oslo") -> None:
    with Ledger.open(path, create=True) as ledger:
        ledger.append(answer(record_id, text))


# Killed writers

APPENDS_UNTIL_KILLED = """
import os, random, sys
from pathlib import Path
from memtrials import ledger as ledger_module
from support.records import answer

path, name, pace = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
chance = random.Random(name)
sizes = [10, 5_000, 1_000_000]

def write_in_pieces(fd, parts, offset):
    data = b"".join(parts)
    while data:
        size = chance.randint(1, 20)
        os.pwrite(fd, data[:size], offset)
        data, offset = data[size:], offset + size

if pace == "in pieces":  # a kill loses nothing of what was written, so this only makes it come during a write
    sizes = [50_000]
    ledger_module._write_parts = write_in_pieces
    ledger_module._sync = lambda fd: None

with ledger_module.Ledger.open(path) as ledger:
    n = 0
    while True:
        calls = [f"{name}.{n + part}" for part in range(chance.choice([1, 1, 3]))]
        n += len(calls)
        ledger.append(*(answer(record_id, "x" * chance.choice(sizes)) for record_id in calls))
        print(*calls, flush=True)
"""


def test_a_writer_may_be_killed_at_any_instant(tmp_path: Path):
    path = write_ledger(tmp_path / "trials.json", [answer("first")])
    chance = random.Random(20261130)
    durable = ["first"]
    for turn in range(25):
        writer = started(APPENDS_UNTIL_KILLED, path, turn, "in pieces" if turn % 2 else "at once")
        assert writer.stdout is not None
        reported = writer.stdout.readline()
        time.sleep(chance.uniform(0, 0.02))
        writer.send_signal(signal.SIGKILL)
        reported += writer.communicate()[0]
        durable += " ".join(line for line in reported.splitlines(keepends=True) if line.endswith("\n")).split()

        left = path.read_bytes()
        with Ledger.open(path) as ledger:
            assert path.read_bytes() == left
            for header in ledger.headers[-10:]:
                assert json.loads(ledger.line(header))["id"] == header.id
            ledger.append(answer(f"after {turn}"))
        durable.append(f"after {turn}")
        assert path.read_bytes().endswith(b"}\n]\n")

    found = ids_in(path)
    assert len(durable) > 60
    assert len(found) == len(set(found))
    assert [record_id for record_id in found if record_id in set(durable)] == durable
    assert len(found) - len(durable) <= 25 * 3
    assert torn_files(path)
    assert all(torn.read_bytes().startswith(b",\n{") for torn in torn_files(path))


# Crowds of writers

APPENDS_FIVE_HUNDRED = """
import asyncio, sys
from pathlib import Path
from memtrials.ledger import Ledger
from support.records import answer

path, name = Path(sys.argv[1]), sys.argv[2]
records = [answer(f"{name}.{n}", f"text of {n}") for n in range(500)]

async def append_by_ten(ledger):
    for first in range(0, 500, 10):
        await asyncio.gather(*(ledger.append_async(record) for record in records[first:first + 10]))

with Ledger.open(path) as ledger:
    if int(name) % 2:
        for record in records:
            ledger.append(record)
    else:
        asyncio.run(append_by_ten(ledger))
"""


def test_eight_processes_share_a_ledger_that_one_left_torn(tmp_path: Path):
    path = write_ledger(tmp_path / "trials.json", [])
    torn = b'[\n{"id":"cut","kind"'
    path.write_bytes(torn)
    writers = [started(APPENDS_FIVE_HUNDRED, path, name) for name in range(8)]
    for writer in writers:
        assert writer.communicate()[1].count("an incomplete write of 20 bytes") <= 1
        assert writer.returncode == 0
    found = ids_in(path)
    for name in range(8):
        assert [i for i in found if i.startswith(f"{name}.")] == [f"{name}.{n}" for n in range(500)]
    assert len(found) == 4000
    assert path.read_bytes().count(b"\n") == 4002
    assert [left.read_bytes() for left in torn_files(path)] == [torn]
    with Ledger.open(path) as ledger:
        assert [header.id for header in ledger.headers] == found


# Full disks


def append_within(path: Path, rooms: list[int]) -> list[str]:
    """Append 20 KB with each of these rooms for the file to grow, then without a limit; the errors."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = path.read_bytes()
    errors = []
    with Ledger.open(path) as ledger:
        for room in rooms:
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + room, most))
            try:
                ledger.append(answer("a3", "x" * 20_000))
            except UserError as error:
                errors.append(str(error))
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
            assert path.read_bytes() == before
        ledger.append(answer("a4"))
    return errors


@pytest.mark.parametrize("text", ["Oslo", "x" * 4000, "x" * 300_000], ids=len)
def test_a_file_that_may_not_grow_stays_as_it_was(tmp_path: Path, text: str):
    path = write_ledger(tmp_path / "trials.json", [answer("a1", text), answer("a2", text)])
    rooms = [0, 1, 2, 3, 100, 4096, 10_000, 20_000]
    assert in_child(append_within, path, rooms) == [
        f"{path}: can't be written (File too large); the ledger is as it was. Fix it or make room; run again"
    ] * len(rooms)
    assert ids_in(path) == ["a1", "a2", "a4"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small file system")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room on the disk."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4096):
                pass
        except OSError:
            return filler


@pytest.mark.parametrize("size", [10, *range(3870, 3900)])
def test_a_full_disk_leaves_the_ledger_as_it_was(small_disk: Path, size: int):
    """3,870 to 3,900: wherever the closing bracket stands to the end of a page."""
    path = small_disk / "trials.json"
    with Ledger.open(path, create=True) as ledger:
        ledger.append(answer("a1", "x" * size))
        before = path.read_bytes()
        filler = fill(small_disk)
        with pytest.raises(UserError, match="No space left on device"):
            ledger.append(answer("a2", "x" * 50_000))
        assert path.read_bytes() == before
        filler.unlink()
        ledger.append(answer("a3", "x" * 50_000))
    assert ids_in(path) == ["a1", "a3"]


def test_a_full_disk_leaves_a_torn_ledger_as_it_was(small_disk: Path):
    path = write_ledger(small_disk / "trials.json", [answer("a1"), answer("a2", "x" * 50_000)])
    left = path.read_bytes()[:-10_000]
    path.write_bytes(left)
    filler = fill(small_disk)
    with Ledger.open(path) as ledger:
        with pytest.raises(UserError, match="No space left on device"):
            ledger.append(answer("a3"))
        assert path.read_bytes() == left
        assert torn_files(path) == []
        filler.unlink()
        ledger.append(answer("a3"))
    assert ids_in(path) == ["a1", "a3"]
    assert len(torn_files(path)) == 1


# Files that may not be read or written


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user may read and write."""
    folder = Path(tempfile.mkdtemp(prefix="ledger-", dir="/tmp"))
    folder.chmod(0o777)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


def errors_of_writing(path: Path) -> list[str]:
    """What checking and appending say."""
    errors = []
    with Ledger.open(path, create=True) as ledger:
        for act in (ledger.check_writable, lambda: ledger.append(answer("a2"))):
            try:
                act()
            except UserError as error:
                errors.append(str(error))
    return errors


def errors_for(place: Path) -> list[str]:
    return [
        f"{place}: may not be written by this user; check its permissions, or name another --trials",
        f"{place}: can't be written (Permission denied); the ledger is as it was. Fix it or make room; run again",
    ]


def ids_read(path: Path) -> list[str]:
    with Ledger.open(path) as ledger:
        return [header.id for header in ledger.headers]


def test_any_user_may_append_where_it_is_allowed(shared_folder: Path):
    path = write_ledger(shared_folder / "trials.json", [answer("a1")])
    path.chmod(0o666)
    assert as_nobody(errors_of_writing, path) == []
    assert ids_in(path) == ["a1", "a2"]


def test_a_read_only_file_can_be_read_and_is_left_as_it_was(shared_folder: Path):
    path = write_ledger(shared_folder / "trials.json", [answer("a1")])
    before = path.read_bytes()
    path.chmod(0o444)
    assert as_nobody(ids_read, path) == ["a1"]
    assert as_nobody(errors_of_writing, path) == errors_for(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("exists", [True, False])
def test_in_a_read_only_folder_nothing_is_made(shared_folder: Path, exists: bool):
    path = shared_folder / "trials.json"
    if exists:
        write_ledger(path, [answer("a1")]).chmod(0o666)
    before = {entry: entry.read_bytes() for entry in shared_folder.iterdir()}
    shared_folder.chmod(0o555)
    check, append = as_nobody(errors_of_writing, path)
    assert check == errors_for(shared_folder)[0]
    assert append == errors_for(shared_folder / "trials.json.lock")[1]
    assert {entry: entry.read_bytes() for entry in shared_folder.iterdir()} == before


def test_a_lock_of_another_user_is_named(shared_folder: Path):
    if os.geteuid() != 0:
        pytest.skip("only root can be two users")
    path = write_ledger(shared_folder / "trials.json", [answer("a1")])
    append(path, "a0")
    path.chmod(0o666)
    before = path.read_bytes()
    (shared_folder / "trials.json.lock").chmod(0o644)
    assert as_nobody(errors_of_writing, path) == errors_for(shared_folder / "trials.json.lock")
    assert path.read_bytes() == before


def test_a_file_that_may_not_be_read_is_an_error(shared_folder: Path):
    path = write_ledger(shared_folder / "trials.json", [answer("a1")])
    path.chmod(0)
    with pytest.raises(UserError, match=r"trials\.json: may not be read by this user; check its permissions"):
        as_nobody(ids_read, path)


def test_a_file_in_a_folder_that_may_not_be_entered_is_an_error(shared_folder: Path):
    path = write_ledger(shared_folder / "trials.json", [answer("a1")])
    shared_folder.chmod(0)
    with pytest.raises(UserError, match=r"trials\.json: may not be read by this user; check its permissions"):
        as_nobody(ids_read, path)
