"""The ledger file: its form, durable appends, what a write that was cut off leaves, and files that aren't ours."""

import asyncio
import errno
import fcntl
import functools
import itertools
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrials import ledger as ledger_module
from memtrials.errors import UserError
from memtrials.ledger import Ledger, Scan, scan
from memtrials.records import AnswerBody, Header, TaskBody, config_record, encode
from support.records import answer, file_of, record, write_ledger


def ids(ledger: Ledger) -> list[str]:
    return [header.id for header in ledger.headers]


def ids_in(path: Path) -> list[str]:
    """What any JSON reader finds in the file."""
    return [entry["id"] for entry in json.loads(path.read_bytes())]


def torn_files(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.name}.torn-*"))


THREE = [encode(answer(name)) for name in ("a1", "a2", "a3")]
FOURTH = encode(answer("a4", "Bergen, ø"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trials.json"


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncs that cost nothing, for tests of many appends."""
    monkeypatch.setattr(ledger_module, "_sync", lambda fd: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


# The file


def test_a_missing_ledger_is_an_error_that_says_what_makes_one(path: Path):
    with pytest.raises(UserError, match="no such ledger; `memtrials build` makes it"):
        Ledger.open(path)
    assert not path.exists()


def test_a_missing_ledger_may_be_begun(path: Path):
    with Ledger.open(path, create=True) as ledger:
        assert ids(ledger) == []
        assert not path.exists()
        ledger.append(answer("a1"))
        assert ids(ledger) == ["a1"]
    assert path.read_bytes() == b"[\n" + THREE[0] + b"\n]\n"


def test_every_append_leaves_a_json_array_with_one_record_a_line(path: Path):
    with Ledger.open(path, create=True) as ledger:
        for count, name in enumerate(["a1", "a2", "a3"], start=1):
            ledger.append(answer(name))
            assert path.read_bytes() == file_of(THREE[:count])
            assert ids_in(path) == ["a1", "a2", "a3"][:count]


def test_records_of_one_append_go_out_in_their_order(path: Path):
    with Ledger.open(path, create=True) as ledger:
        ledger.append(answer("a1"), answer("a2"), answer("a3"))
    assert path.read_bytes() == file_of(THREE)


def test_more_records_than_one_system_call_takes(path: Path):
    names = [f"a{n}" for n in range(2 * ledger_module.BATCH_PARTS)]
    with Ledger.open(path, create=True) as ledger:
        ledger.append(*map(answer, names))
        assert [ledger.line(header) for header in ledger.headers] == [encode(answer(name)) for name in names]
    assert ids_in(path) == names


def test_an_append_is_readable_by_who_wrote_it_and_by_who_opens_the_file(path: Path):
    made = record("t", "task", body=record("", "task").body)
    with Ledger.open(path, create=True) as ledger:
        ledger.append(made, answer("a1", "Oslo"))
        for reader in (ledger, Ledger.open(path)):
            assert reader.headers == [made.header, answer("a1").header]
            assert reader.body(made.header, TaskBody) == made.body
            assert reader.body(reader.header("a1"), AnswerBody).text == "Oslo"
            assert reader.line(reader.header("a1")) == encode(answer("a1", "Oslo"))
            assert "a1" in reader
            assert "a2" not in reader


def test_bodies_are_not_read_until_they_are_asked_for(path: Path):
    path.write_bytes(file_of([THREE[0].replace(b'"Oslo"', b"broken"), THREE[1]]))
    with Ledger.open(path) as ledger:
        assert ids(ledger) == ["a1", "a2"]
        assert ledger.body(ledger.header("a2"), AnswerBody).text == "Oslo"
        with pytest.raises(msgspec.DecodeError):
            ledger.body(ledger.header("a1"), AnswerBody)


def test_an_append_reads_nothing_of_the_file_and_writes_only_its_record(path: Path, monkeypatch: pytest.MonkeyPatch):
    write_ledger(path, [answer(f"a{n}") for n in range(100)])
    written: list[int] = []
    write = ledger_module._write_parts

    def counting(fd: int, parts: list[bytes], offset: int) -> None:
        written.append(sum(map(len, parts)))
        write(fd, parts, offset)

    with Ledger.open(path) as ledger:
        monkeypatch.setattr(ledger_module, "_write_parts", counting)
        monkeypatch.setattr(ledger_module, "scan", mock.Mock(side_effect=AssertionError("the file was read again")))
        ledger.append(answer("x"))
        ledger.append(answer("y"))
    assert written == [len(",\n") + len(encode(answer("x"))) + len("\n]\n")] * 2


def test_a_record_that_cannot_be_written_reaches_no_one_and_stops_nothing(path: Path):
    with Ledger.open(path, create=True) as ledger:
        with pytest.raises(ValueError, match="can't be recorded"):
            ledger.append(answer("a1"), config_record("reader", "x", {"temperature": float("nan")}, {}))
        ledger.append(answer("a2"))
    assert ids_in(path) == ["a2"]


# Several who read and write


def test_a_refresh_sees_what_others_appended(path: Path):
    reader = Ledger.open(path, create=True)
    writer = Ledger.open(path, create=True)
    for count in (1, 2, 3):
        writer.append(answer(f"a{count}"))
        reader.refresh()
        reader.refresh()
        assert ids(reader) == ["a1", "a2", "a3"][:count]
    assert reader.body(reader.headers[2], AnswerBody).text == "Oslo"


def test_two_writers_take_turns(path: Path):
    one, other = Ledger.open(path, create=True), Ledger.open(path, create=True)
    names = [f"a{n}" for n in range(10)]
    for n, name in enumerate(names):
        (one, other)[n % 2].append(answer(name, f"text {name}"))
    one.refresh()
    other.refresh()
    assert ids_in(path) == ids(one) == ids(other) == names
    assert [one.body(header, AnswerBody).text for header in other.headers] == [f"text {name}" for name in names]


def test_an_append_waits_for_whoever_holds_the_lock(path: Path):
    done = threading.Event()
    with Ledger.open(path, create=True) as ledger:
        with FileLock(f"{path}.lock"):
            ledger.submit([answer("a1")], lambda error: done.set())
            assert not done.wait(0.2)
            assert not path.exists()
        assert done.wait(10)
    assert ids_in(path) == ["a1"]


def test_a_lock_that_was_removed_meanwhile_is_no_lock(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Who waited for a file that is gone takes the one that is there now, as the next to come will."""
    lock = path.with_name("trials.json.lock")
    flock = fcntl.flock

    def removed_while_waiting(fd: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", flock)
        flock(fd, how)
        lock.unlink()

    monkeypatch.setattr(fcntl, "flock", removed_while_waiting)
    while_synced: list[bool] = []

    def is_held(fd: int) -> None:
        other = os.open(lock, os.O_RDWR)
        try:
            flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            while_synced.append(True)
        finally:
            os.close(other)

    monkeypatch.setattr(ledger_module, "_sync", is_held)
    with Ledger.open(path, create=True) as ledger:
        ledger.append(answer("a1"))
    assert while_synced == [True]
    assert ids_in(path) == ["a1"]


def test_while_one_writes_no_other_does_though_the_lock_was_removed(path: Path, monkeypatch: pytest.MonkeyPatch):
    writing, go_on = threading.Event(), threading.Event()

    def slow(fd: int) -> None:
        monkeypatch.setattr(ledger_module, "_sync", os.fsync)
        writing.set()
        assert go_on.wait(10)

    monkeypatch.setattr(ledger_module, "_sync", slow)
    done = [threading.Event(), threading.Event()]
    with Ledger.open(path, create=True) as one, Ledger.open(path, create=True) as other:
        one.submit([answer("a1")], lambda error: done[0].set())
        assert writing.wait(10)
        path.with_name("trials.json.lock").unlink()
        other.submit([answer("a2")], lambda error: done[1].set())
        assert not done[1].wait(0.2)
        go_on.set()
        assert done[0].wait(10)
        assert done[1].wait(10)
    assert ids_in(path) == ["a1", "a2"]


def test_a_configuration_is_written_once_by_whoever_comes_first(path: Path):
    one, other = Ledger.open(path, create=True), Ledger.open(path, create=True)
    one.append(config_record("reader", "offline", {"v": 1}, {}), answer("a1"))
    other.append(config_record("reader", "offline", {"v": 1}, {}), answer("a2"))
    one.append(config_record("reader", "offline", {"v": 1}, {}))
    one.append(config_record("reader", "offline", {"v": 2}, {}))
    assert [entry["kind"] for entry in json.loads(path.read_bytes())] == ["config", "answer", "answer", "config"]


def test_a_configuration_is_written_once_when_two_come_in_one_write(path: Path):
    twice = [config_record("reader", "offline", {}, {}) for _ in range(2)]
    with Ledger.open(path, create=True) as ledger:
        ledger.append(twice[0], answer("a1"), twice[1], answer("a2"))
        assert ids(ledger) == ids_in(path) == [twice[0].header.id, "a1", "a2"]
        assert ledger.body(ledger.header("a2"), AnswerBody).text == "Oslo"


def test_a_reader_beside_a_writer_sees_whole_records_and_never_fails(path: Path, unsynced: None):
    names = [f"a{n}" for n in range(150)]
    texts = {name: name * 3000 for name in names}

    def write() -> None:
        with Ledger.open(path) as ledger:
            for name in names:
                ledger.append(answer(name, texts[name]))

    path.touch()
    writer = threading.Thread(target=write)
    writer.start()
    follower = Ledger.open(path)
    looks = 0
    while writer.is_alive():
        follower.refresh()
        newcomer = Ledger.open(path)
        assert ids(newcomer) == names[: len(newcomer.headers)]
        assert ids(follower) == names[: len(follower.headers)]
        if newcomer.headers:
            last = newcomer.headers[-1]
            assert newcomer.body(last, AnswerBody).text == texts[last.id]
        newcomer.close()
        looks += 1
    writer.join()
    follower.refresh()
    assert ids(follower) == names
    assert looks > 1


@pytest.mark.parametrize("block", [1, 2, 7])
def test_a_reader_may_be_overtaken_by_an_append_between_any_two_reads(
    path: Path, block: int, monkeypatch: pytest.MonkeyPatch
):
    before = file_of(THREE[:2])
    after = file_of(THREE)
    monkeypatch.setattr(ledger_module, "BLOCK", block)
    for moment in range(len(before) // block + 2):
        path.write_bytes(before)
        reads = iter(range(10_000))

        def overtaken(real: Callable[..., Any], *arguments: Any, reads=reads, moment=moment) -> Any:
            if next(reads) == moment:
                path.write_bytes(after)
            return real(*arguments)

        with monkeypatch.context() as patched:
            patched.setattr(os, "pread", functools.partial(overtaken, os.pread))
            patched.setattr(os, "preadv", functools.partial(overtaken, os.preadv))
            ledger = Ledger.open(path)
        assert ids(ledger) == ["a1", "a2"]
        path.write_bytes(after)
        ledger.refresh()
        assert ids(ledger) == ["a1", "a2", "a3"]
        ledger.close()


@pytest.mark.parametrize("seen", list(itertools.product(*zip(b"\n]\n", b",\n{", strict=True))), ids=bytes)
def test_a_reader_may_see_any_of_the_three_bytes_that_an_append_changes(path: Path, seen: tuple[int, ...]):
    path.write_bytes(file_of(THREE[:2]))
    follower = Ledger.open(path)
    path.write_bytes(file_of(THREE[:2])[:-3] + bytes(seen))
    follower.refresh()
    newcomer = Ledger.open(path)
    assert ids(follower) == ["a1", "a2"]
    assert ids(newcomer) in (["a1"], ["a1", "a2"])
    path.write_bytes(file_of(THREE))
    for reader in (follower, newcomer):
        reader.refresh()
        assert ids(reader) == ["a1", "a2", "a3"]


# Group commit


def test_many_producers_share_few_syncs(path: Path, monkeypatch: pytest.MonkeyPatch):
    syncs: list[float] = []

    def slow_sync(fd: int) -> None:
        syncs.append(time.monotonic())
        time.sleep(0.005)

    monkeypatch.setattr(ledger_module, "_sync", slow_sync)

    async def produce(ledger: Ledger, producer: int) -> None:
        for n in range(4):
            await ledger.append_async(answer(f"{producer}.{n}"))
            assert f"{producer}.{n}" in ledger

    async def produce_all(ledger: Ledger) -> None:
        await asyncio.gather(*(produce(ledger, producer) for producer in range(100)))

    with Ledger.open(path, create=True) as ledger:
        asyncio.run(produce_all(ledger))
    found = ids_in(path)
    assert sorted(found) == sorted(f"{producer}.{n}" for producer in range(100) for n in range(4))
    assert [name for name in found if name.startswith("7.")] == ["7.0", "7.1", "7.2", "7.3"]
    assert len(syncs) <= 40


def test_a_record_is_reported_only_once_it_is_synced(path: Path, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []
    monkeypatch.setattr(ledger_module, "_sync", lambda fd: order.append("synced"))
    with Ledger.open(path, create=True) as ledger:
        ledger.submit([answer("a1")], lambda error: order.append(f"reported {error}"))
    assert order == ["synced", "reported None"]


def test_the_event_loop_goes_on_while_a_sync_runs(path: Path, monkeypatch: pytest.MonkeyPatch):
    may_finish = threading.Event()
    monkeypatch.setattr(ledger_module, "_sync", lambda fd: may_finish.wait(10))

    async def append_and_go_on(ledger: Ledger) -> None:
        waiting = asyncio.ensure_future(ledger.append_async(answer("a1")))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        may_finish.set()
        await waiting

    with Ledger.open(path, create=True) as ledger:
        asyncio.run(append_and_go_on(ledger))


def test_records_of_one_append_stay_together(path: Path, unsynced: None):
    def append(ledger: Ledger, worker: int) -> None:
        for n in range(20):
            ledger.append(*(answer(f"{worker}.{n}.{part}") for part in "abc"))

    with Ledger.open(path, create=True) as ledger:
        workers = [threading.Thread(target=append, args=(ledger, worker)) for worker in range(6)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    found = ids_in(path)
    assert len(found) == 6 * 20 * 3
    for first in range(0, len(found), 3):
        call = found[first].rpartition(".")[0]
        assert found[first : first + 3] == [f"{call}.a", f"{call}.b", f"{call}.c"]


def test_close_finishes_what_was_submitted(path: Path):
    ledger = Ledger.open(path, create=True)
    for n in range(50):
        ledger.submit([answer(f"a{n}")], lambda error: None)
    ledger.close()
    assert ids_in(path) == [f"a{n}" for n in range(50)]


def test_threads_that_append_first_at_once_lose_nothing_at_close(path: Path, unsynced: None):
    for turn in range(20):
        ledger = Ledger.open(path, create=True)
        start = threading.Barrier(8)

        def submit(n: int, ledger=ledger, start=start, turn=turn) -> None:
            start.wait()
            ledger.submit([answer(f"{turn}.{n}")], lambda error: None)

        workers = [threading.Thread(target=submit, args=(n,)) for n in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        ledger.close()
        assert len(ids_in(path)) == 8 * (turn + 1)


# Writes that fail


def disk_full(fd: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


BEFORE_A_FAILURE = {
    "canonical": file_of(THREE),
    "no record yet": b"[\n]\n",
    "only a bracket": b"[",
    "empty": b"",
    "Windows line ends": file_of(THREE).replace(b"\n", b"\r\n"),
    "no final newline": file_of(THREE)[:-1],
    "no closing bracket": file_of(THREE)[:-3],
}


@pytest.mark.parametrize("before", BEFORE_A_FAILURE.values(), ids=BEFORE_A_FAILURE)
def test_a_full_disk_leaves_the_file_as_it_was(path: Path, before: bytes, monkeypatch: pytest.MonkeyPatch):
    path.write_bytes(before)
    with Ledger.open(path) as ledger:
        with monkeypatch.context() as full:
            full.setattr(ledger_module, "_sync", disk_full)
            with pytest.raises(UserError, match=r"\(No space left on device\); the ledger is as it was"):
                ledger.append(answer("a4", "x" * 10_000))
        assert path.read_bytes() == before
        assert "a4" not in ledger
        ledger.append(answer("a5"))
        assert ids_in(path) == ids(ledger)
        assert ids(ledger)[-1] == "a5"


def test_a_full_disk_leaves_no_file_where_there_was_none(path: Path, monkeypatch: pytest.MonkeyPatch):
    with Ledger.open(path, create=True) as ledger:
        with monkeypatch.context() as full:
            full.setattr(ledger_module, "_sync", disk_full)
            with pytest.raises(UserError, match="No space left"):
                ledger.append(answer("a1"))
        assert not path.exists()
        ledger.append(answer("a2"))
        assert ids_in(path) == ids(ledger) == ["a2"]


def test_a_write_that_stops_half_way_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch):
    write_ledger(path, [answer("a1")])
    before = path.read_bytes()
    pwritev = os.pwritev

    def half(fd: int, parts: Sequence[bytes], offset: int) -> int:
        whole = b"".join(parts)
        if len(whole) < 100:
            return pwritev(fd, parts, offset)
        if len(path.read_bytes()) > len(before):
            disk_full(fd)
        return pwritev(fd, [whole[: len(whole) // 2]], offset)

    with Ledger.open(path) as ledger, monkeypatch.context() as full:
        full.setattr(os, "pwritev", half)
        full.setattr(os, "pwrite", lambda fd, rest, offset: disk_full(fd))
        with pytest.raises(UserError, match="No space left"):
            ledger.append(answer("a2"))
    assert path.read_bytes() == before


def test_a_short_write_that_can_go_on_goes_on(path: Path, monkeypatch: pytest.MonkeyPatch):
    pwritev, pwrite = os.pwritev, os.pwrite
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, offset: pwritev(fd, [b"".join(parts)[:7]], offset))
    monkeypatch.setattr(os, "pwrite", lambda fd, rest, offset: pwrite(fd, rest[:50], offset))
    with Ledger.open(path, create=True) as ledger:
        ledger.append(answer("a1"), answer("a2"))
        ledger.append(answer("a3"))
    assert path.read_bytes() == file_of(THREE)


def test_a_failed_write_is_reported_to_everyone_who_waits_for_it(path: Path, monkeypatch: pytest.MonkeyPatch):
    write_ledger(path, [answer("a1")])
    before = path.read_bytes()
    monkeypatch.setattr(ledger_module, "_sync", disk_full)

    async def append_all(ledger: Ledger) -> list[BaseException | None]:
        return await asyncio.gather(*(ledger.append_async(answer(f"b{n}")) for n in range(10)), return_exceptions=True)

    with Ledger.open(path) as ledger:
        outcomes = asyncio.run(append_all(ledger))
        reported: list[BaseException | None] = []
        ledger.submit([answer("c1")], reported.append)
    assert [type(outcome) for outcome in (*outcomes, *reported)] == [UserError] * 11
    assert path.read_bytes() == before


# What a cut-off write leaves

WHOLE = file_of([*THREE, FOURTH])
THIRD_ENDS = len(file_of(THREE)) - len("\n]\n")
FOURTH_ENDS = len(WHOLE) - len("\n]\n")


def killed_after(count: int) -> bytes:
    """The file when an append of the fourth record was cut off after `count` bytes of its one write."""
    before = file_of(THREE)
    written = WHOLE[THIRD_ENDS : THIRD_ENDS + count]
    return before[:THIRD_ENDS] + written + before[THIRD_ENDS + count :]


def cut_to(size: int) -> bytes:
    """The file with four records, cut to a size."""
    return WHOLE[:size]


AFTER_A_CUT = {
    "cut": [cut_to(size) for size in range(THIRD_ENDS, len(WHOLE))],
    "killed": [killed_after(count) for count in range(len(WHOLE) - THIRD_ENDS)],
    "NULs": [cut_to(size) + b"\0" * 500 for size in (*range(THIRD_ENDS, FOURTH_ENDS, 7), FOURTH_ENDS)],
    "NULs for the rest": [
        WHOLE[:size].ljust(len(WHOLE), b"\0") for size in (*range(THIRD_ENDS, FOURTH_ENDS, 7), FOURTH_ENDS)
    ],
    "closed, then NULs": [file_of(THREE) + b"\0" * 100 + FOURTH[50:] + b"\n]\n", file_of(THREE) + b"\0"],
    "NULs inside": [WHOLE[: THIRD_ENDS + at] + b"\0" * 20 + WHOLE[THIRD_ENDS + at + 20 :] for at in (20, 60, 100)],
}


@pytest.mark.parametrize("how", AFTER_A_CUT)
def test_a_reader_takes_whole_records_of_a_cut_file_and_changes_nothing(path: Path, how: str):
    for left in AFTER_A_CUT[how]:
        path.write_bytes(left)
        ledger = Ledger.open(path)
        whole = FOURTH in left
        assert ids(ledger) == ["a1", "a2", "a3", "a4"][: 4 if whole else 3]
        assert path.read_bytes() == left
        ledger.close()
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("how", AFTER_A_CUT)
def test_a_writer_keeps_whole_records_and_moves_the_rest_aside(path: Path, how: str, unsynced: None):
    for left in AFTER_A_CUT[how]:
        path.write_bytes(left)
        whole = FOURTH in left
        kept = ["a1", "a2", "a3", "a4"][: 4 if whole else 3]
        with Ledger.open(path) as ledger:
            ledger.append(answer("a5"))
            assert ids_in(path) == ids(ledger) == [*kept, "a5"]
            ledger.append(answer("a6"))
        assert path.read_bytes() == file_of([*THREE, FOURTH][: len(kept)] + [encode(answer(n)) for n in ("a5", "a6")])
        tail = left[FOURTH_ENDS if whole else THIRD_ENDS :]
        aside = torn_files(path)
        if tail.strip(b",\n]"):
            assert [torn.read_bytes() for torn in aside] == [tail]
        else:
            assert aside == []
        for torn in aside:
            torn.unlink()


def test_a_writer_says_what_it_cut(path: Path, caplog: pytest.LogCaptureFixture):
    path.write_bytes(cut_to(THIRD_ENDS + 12))
    with caplog.at_level(logging.WARNING, "memtrials"), Ledger.open(path) as ledger:
        ledger.append(answer("a5"))
    (torn,) = torn_files(path)
    assert torn.read_bytes() == b',\n{"id":"a4"'
    assert caplog.messages == [f"{path}: an incomplete write of 12 bytes was cut from the end and kept as {torn.name}"]


def test_of_a_cut_write_of_several_records_the_whole_ones_are_kept(path: Path):
    path.write_bytes(file_of(THREE)[:-20])
    with Ledger.open(path) as ledger:
        ledger.append(answer("a4"))
    assert ids_in(path) == ["a1", "a2", "a4"]


@pytest.mark.parametrize("cut", range(len(file_of(THREE[:1]))))
def test_a_cut_first_write_leaves_an_empty_ledger_or_a_whole_record(path: Path, cut: int, unsynced: None):
    path.write_bytes(file_of(THREE[:1])[:cut])
    with Ledger.open(path) as ledger:
        kept = ids(ledger)
        ledger.append(answer("a2"))
    assert kept == (["a1"] if cut >= len(b"[\n") + len(THREE[0]) else [])
    assert ids_in(path) == [*kept, "a2"]


def test_a_first_write_of_which_only_the_size_was_kept(path: Path):
    path.write_bytes(b"\0" * 4096)
    with Ledger.open(path) as ledger:
        assert ids(ledger) == []
        ledger.append(answer("a1"))
    assert ids_in(path) == ["a1"]
    assert [torn.read_bytes() for torn in torn_files(path)] == [b"\0" * 4096]


def test_a_writer_repairs_what_another_left_while_it_ran(path: Path):
    with Ledger.open(path, create=True) as ledger:
        ledger.append(answer("a1"))
        with path.open("r+b") as other:
            other.seek(-3, os.SEEK_END)
            other.write(b",\n" + THREE[1] + b',\n{"id":"a3","kind"')
        ledger.append(answer("a4"))
        assert ids_in(path) == ids(ledger) == ["a1", "a2", "a4"]


def test_a_repair_that_finds_no_room_leaves_the_file_as_it_was(path: Path, monkeypatch: pytest.MonkeyPatch):
    left = cut_to(THIRD_ENDS + 50)
    path.write_bytes(left)
    monkeypatch.setattr(os, "fsync", disk_full)
    with Ledger.open(path) as ledger, pytest.raises(UserError, match="No space left"):
        ledger.append(answer("a5"))
    assert path.read_bytes() == left
    assert torn_files(path) == []


@pytest.mark.parametrize(("left", "kept"), [(b'[\n{"id":"a1","ki', []), (cut_to(THIRD_ENDS + 50), ["a1", "a2", "a3"])])
def test_a_full_disk_after_a_repair_leaves_what_was_whole(
    path: Path, left: bytes, kept: list[str], monkeypatch: pytest.MonkeyPatch
):
    path.write_bytes(left)
    monkeypatch.setattr(ledger_module, "_sync", disk_full)
    with Ledger.open(path) as ledger, pytest.raises(UserError, match="No space left"):
        ledger.append(answer("a5"))
    assert path.read_bytes() == (file_of(THREE) if kept else b"")
    assert len(torn_files(path)) == 1


# Files that others touched


@pytest.mark.parametrize(
    "text",
    [b"", b"[", b"[\n", b"[\n]", b"[\n]\n", b"[\r\n]\r\n", b"[\n\n]\n\n"],
    ids=ascii,
)
def test_a_file_without_records_is_an_empty_ledger(path: Path, text: bytes):
    path.write_bytes(text)
    with Ledger.open(path) as ledger:
        assert ids(ledger) == []
        ledger.append(answer("a1"))
    assert path.read_bytes() == file_of(THREE[:1])
    assert torn_files(path) == []


@pytest.mark.parametrize(
    "end",
    [b"\n]", b"\n", b"", b"\r\n]\r\n", b"\r\n]", b"\n]\n\n\n", b"\n" * 500 + b"]\n", b",\n]\n", b",]\n", b",", b",\n"],
    ids=ascii,
)
def test_the_end_of_the_file_may_be_written_in_other_ways(path: Path, end: bytes):
    path.write_bytes(file_of(THREE)[:-3] + end)
    with Ledger.open(path) as ledger:
        assert ids(ledger) == ["a1", "a2", "a3"]
        ledger.append(answer("a4", "Bergen, ø"))
        assert ledger.body(ledger.header("a3"), AnswerBody).text == "Oslo"
        assert ledger.body(ledger.header("a4"), AnswerBody).text == "Bergen, ø"
    assert path.read_bytes() == WHOLE
    assert torn_files(path) == []


def test_windows_line_ends_are_read_and_appended_to(path: Path):
    path.write_bytes(file_of(THREE).replace(b"\n", b"\r\n"))
    with Ledger.open(path) as ledger:
        assert [ledger.line(header) for header in ledger.headers] == THREE
        ledger.append(answer("a4"))
        ledger.append(answer("a5"))
    assert ids_in(path) == ["a1", "a2", "a3", "a4", "a5"]
    with Ledger.open(path) as again:
        assert ids(again) == ["a1", "a2", "a3", "a4", "a5"]
        assert again.body(again.header("a5"), AnswerBody).text == "Oslo"


RECORDS = [json.loads(line) for line in THREE]
NOT_OURS = {
    "text": b"Dear diary,\ntoday\n",
    "text without a line end": b"Dear diary",
    "our records, indented": json.dumps(RECORDS, indent=2).encode(),
    "our records, indented by nothing": json.dumps(RECORDS, indent=0).encode(),
    "our records on one line": json.dumps(RECORDS).encode(),
    "our records on one line, compact": json.dumps(RECORDS, separators=(",", ":")).encode() + b"\n",
    "our records with spaces": b"[\n" + b",\n".join(json.dumps(r).encode() for r in RECORDS) + b"\n]\n",
    "one of our records with spaces, cut": b"[\n" + json.dumps(RECORDS[0]).encode()[:-9],
    "lines of JSON": b"\n".join(THREE) + b"\n",
    "an object": b'{"id":"a1","body":{}}\n',
    "an empty array of another program": b"[]\n",
    "an array of numbers": b"[\n1,\n2\n]\n",
    "other objects": b'[\n{"id":"a1","body":{"text":"x"}}\n]\n',
    "a kind we don't know": file_of([THREE[0].replace(b'"answer"', b'"opinion"')]),
    "a byte order mark": b"\xef\xbb\xbf" + file_of(THREE),
    "UTF-16": file_of(THREE).decode().encode("utf-16"),
    "binary": bytes(range(256)) * 16,
    "SQLite": b"SQLite format 3\0" + b"\0" * 4080,
    "something on the closing line": file_of(THREE)[:-1] + b"garbage\n",
    "something on the closing line, cut": file_of(THREE)[:-1] + b"garbage",
    "something after the closing bracket": file_of(THREE) + b"garbage\n",
    "a record after the closing bracket": file_of(THREE) + FOURTH + b"\n",
    "two ledgers in one file": file_of(THREE) + file_of(THREE),
    "a record cut in the middle": file_of([THREE[0], THREE[1][:-30], THREE[2]]),
    "a record with something behind it": file_of([THREE[0] + b" garbage", THREE[1]]),
    "a lost page before whole records": file_of([THREE[0], THREE[1][:60] + b"\0" * 40, THREE[2]]),
    "a conflict of git": file_of(THREE).replace(b"]\n", b"=======\n]\n"),
}


@pytest.mark.parametrize("text", NOT_OURS.values(), ids=NOT_OURS)
def test_a_file_that_is_not_ours_is_refused_and_left_untouched(path: Path, text: bytes):
    path.write_bytes(text)
    with pytest.raises(UserError, match=r"line \d+: .*left untouched"):
        Ledger.open(path)
    with pytest.raises(UserError, match=r"line \d+: .*left untouched"):
        Ledger(path).append(answer("a4"))
    assert path.read_bytes() == text
    assert torn_files(path) == []


@pytest.mark.parametrize("part", ["a page of the second record", "from within a page to its end"])
@pytest.mark.parametrize("block", [1 << 12, 1 << 21])
def test_a_lost_page_inside_a_record_is_noticed_wherever_the_reads_begin(
    path: Path, part: str, block: int, monkeypatch: pytest.MonkeyPatch
):
    lines = [encode(answer(name, f"{name} " * 4000)) for name in ("a1", "a2", "a3")]
    text = bytearray(file_of(lines))
    second = text.index(lines[1])
    page = ((second + 2000) // 4096 + 1) * 4096
    begin, end = (page, page + 4096) if part.startswith("a page") else (page - 700, page)
    assert second < begin < end < second + len(lines[1])
    text[begin:end] = bytes(end - begin)
    path.write_bytes(text)
    monkeypatch.setattr("memtrials.ledger.BLOCK", block)
    with pytest.raises(UserError, match=r"line 3: bytes before it were lost.*left untouched"):
        Ledger.open(path)


def test_a_file_that_another_program_rewrote_meanwhile_is_left_untouched(path: Path):
    with Ledger.open(path, create=True) as ledger:
        ledger.append(answer("a1"), answer("a2"))
        for rewritten in (json.dumps(RECORDS, indent=2).encode(), b"", b"[\n]\n", file_of(THREE)[:40]):
            path.write_bytes(rewritten)
            with pytest.raises(UserError, match="left untouched"):
                ledger.append(answer("a3"))
            assert path.read_bytes() == rewritten


def test_the_line_that_is_not_a_record_is_named(path: Path):
    path.write_bytes(file_of([*THREE, b'{"id":"a4"}']))
    with pytest.raises(UserError, match=r"trials\.json, line 5: it isn't a record on one line"):
        Ledger.open(path)


def test_the_line_is_named_too_when_earlier_ones_were_read_before(path: Path):
    write_ledger(path, [answer("a1"), answer("a2")])
    with Ledger.open(path) as ledger:
        path.write_bytes(file_of([*THREE, b'{"id":"a4"}']))
        with pytest.raises(UserError, match="line 5: "):
            ledger.refresh()


@pytest.mark.parametrize("kind", [b'"answer"', b'"a kind of tomorrow"'])
def test_a_newer_schema_is_refused_not_guessed(path: Path, kind: bytes):
    newer = THREE[1].replace(b'"schema":1', b'"schema":2').replace(b'"answer"', kind)
    path.write_bytes(file_of([THREE[0], newer]))
    before = path.read_bytes()
    for use in (lambda: Ledger.open(path), lambda: Ledger(path).append(answer("a3"))):
        with pytest.raises(
            UserError, match=r"line 3: written by a newer memtrials \(schema 2, this one reads up to 1\)"
        ):
            use()
    assert path.read_bytes() == before


def test_a_folder_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="is a folder, not a ledger"):
        Ledger.open(tmp_path, create=True)
    with pytest.raises(UserError, match="can't be written"):
        Ledger(tmp_path).append(answer("a1"))


def test_a_ledger_in_a_place_that_is_no_folder_is_an_error(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="can't be written"):
        Ledger.open(tmp_path / "file" / "trials.json", create=True).append(answer("a1"))


def test_checking_whether_it_may_be_written_changes_nothing(path: Path):
    Ledger.open(path, create=True).check_writable()
    assert list(path.parent.iterdir()) == []


# Scanning in blocks


def scanned(text: bytes, block: int, start: int = 0) -> tuple[list[tuple[int, int, Header]], Scan | str]:
    """What a scan in blocks of that size takes and finds, or its error."""
    taken: list[tuple[int, int, Header]] = []

    def take(offsets: Sequence[int], lengths: Sequence[int], headers: Sequence[Header]) -> None:
        taken.extend(zip(offsets, lengths, headers, strict=True))

    with tempfile.TemporaryFile() as file, mock.patch.object(ledger_module, "BLOCK", block):
        file.write(text)
        file.flush()
        try:
            return taken, scan(file.fileno(), start, Path("trials.json"), take)
        except UserError as error:
            return taken, str(error)


some_texts = st.lists(
    st.sampled_from(["", "é", ',"body":', "\n", "]", "\u2028", "\0", '{"id":"', "\\", "x" * 70]), max_size=4
).map("".join)


@given(
    texts=st.lists(some_texts, min_size=1, max_size=4),
    line_end=st.sampled_from([b"\n", b"\r\n"]),
    cut=st.integers(0, 60),
    after=st.sampled_from([b"", b"\0\0\0", b"\n", b"x"]),
    block=st.integers(1, 64),
)
@settings(deadline=None)
def test_where_a_block_ends_makes_no_difference(texts: list[str], line_end: bytes, cut: int, after: bytes, block: int):
    whole = file_of([encode(answer(f"a{n}", text)) for n, text in enumerate(texts)]).replace(b"\n", line_end)
    text = whole[: len(whole) - cut] + after
    in_one = scanned(text, 1 << 20)
    assert scanned(text, block) == in_one
    for offset, length, header in in_one[0]:
        assert text[offset : offset + length].startswith(b'{"id":"%b","kind"' % header.id.encode())
        assert text[offset + length : offset + length + 1] in (b",", b"\r", b"\n", b"\0", b"")
        later = [entry for entry in in_one[0] if entry[0] > offset]
        if isinstance(in_one[1], Scan):
            assert scanned(text, block, offset + length) == (later, in_one[1])


def test_a_scan_finds_where_records_stand():
    taken, found = scanned(b"[\n" + THREE[0] + b",\r\n" + THREE[1] + b"\n]\n", 16)
    first, second = len(THREE[0]), len(THREE[1])
    assert [(offset, length, header.id) for offset, length, header in taken] == [
        (2, first, "a1"),
        (2 + first + 3, second, "a2"),
    ]
    assert found == Scan(end=2 + first + 3 + second, torn=0)


def test_a_scan_does_not_hold_the_file_in_memory(path: Path):
    import tracemalloc

    write_ledger(path, [answer(f"a{n}", "x" * 1_000_000) for n in range(30)])
    tracemalloc.start()
    Ledger.open(path).close()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * ledger_module.BLOCK < path.stat().st_size
