"""The ledger file: an append-only JSON array with one record per line.

Canonical form, whenever no write is in flight (so `json.load`, jq and data-frame libraries can open it):

    [
    {"id":…,"kind":…,"body":{…}},
    {"id":…,"kind":…,"body":{…}}
    ]

Each line is a header and one last key `body`. `,"body":` can't occur inside a JSON string, where quotes are escaped,
so its first occurrence ends the header, and a scan decodes headers only. An append overwrites the closing `\\n]\\n`
with `,\\n{record}\\n]\\n` in one write and syncs; its cost doesn't depend on the file's size. A write that was cut off
leaves a tail that isn't a whole line: readers leave it out, the next writer moves it to `X.json.torn-<time>`.

Nothing that was written is ever changed: to verify a copy, compare any prefix of whole lines.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Self, TypeVar

import msgspec
import orjson

from memtrials.errors import UserError
from memtrials.records import BODY_MARK, SCHEMA, Body, Header, Record, decode_body, decode_header, encode

OPENING = b"[\n"
CLOSING = b"\n]\n"
SPACE = b" \t\r\n"
BLOCK = 1 << 21
SECTOR = 512  # what a disk writes whole or not at all
BATCH_PARTS = 1000  # a vectored write takes at most 1,024 pieces on Linux

_sync = getattr(os, "fdatasync", os.fsync)
_log = logging.getLogger("memtrials")

_B = TypeVar("_B", bound=Body)
Take = Callable[[Sequence[int], Sequence[int], Sequence[Header]], None]
"""Takes in records: where they begin in the file, how long they are, their headers."""


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan of a file found. end: the byte after the last whole record (0 for an empty file); torn: how many
    bytes of an incomplete tail follow (0: nothing but white space, a comma and the closing bracket)."""

    end: int
    torn: int


class Ledger:
    """One ledger file: whole records in file order, and durable appends shared by threads, tasks and processes.

    Reading never locks. `headers` grows by `refresh` and by own appends.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.headers: list[Header] = []
        self._offsets = array("q")
        self._lengths = array("q")
        self._ids: dict[str, int] = {}
        self._configs: set[str] = set()
        self._end = 0
        self._mutex = threading.RLock()
        self._lock = path.with_name(path.name + ".lock")
        self._reader: int | None = None
        self._committer: _Committer | None = None

    @classmethod
    def open(cls, path: Path, *, create: bool = False, first: int | None = None) -> Self:
        """Read the headers of the file at `path`.

        create: whether a missing file is an empty ledger rather than an error. first: read the ledger as it was when it
        held so many records. Raises UserError when the file is missing, is a folder, isn't a ledger, was reformatted,
        or was written by a newer version.
        """
        ledger = cls(path)
        try:
            if path.is_dir():
                raise UserError(f"{path} is a folder, not a ledger; name a file, for example {path / 'trials.json'}")
            if path.exists():
                ledger.refresh()
                if first is not None and first < len(ledger.headers):
                    ledger._forget(first)
            elif not create:
                raise UserError(f"{path}: no such ledger; `memtrials build` makes it")
        except PermissionError:
            raise UserError(f"{path}: may not be read by this user; check its permissions") from None
        return ledger

    def refresh(self) -> None:
        """Read the headers of records that were appended since the last look."""
        with self._mutex:
            if self._reader is None:
                try:
                    self._reader = os.open(self.path, os.O_RDONLY)
                except FileNotFoundError:
                    return
            scan(self._reader, self._end, self.path, self._take, first_line=len(self.headers) + 2)

    def _take(self, offsets: Sequence[int], lengths: Sequence[int], headers: Sequence[Header]) -> None:
        self._ids.update((header.id, n) for n, header in enumerate(headers, len(self.headers)))
        self.headers.extend(headers)
        self._offsets.extend(offsets)
        self._lengths.extend(lengths)
        self._end = offsets[-1] + lengths[-1]
        self._configs.update(h.key for h in headers if h.kind == "config" and h.key)

    def _forget(self, first: int) -> None:
        """Be as if no more than the first records had been read."""
        for header in self.headers[first:]:
            del self._ids[header.id]
        del self.headers[first:], self._offsets[first:], self._lengths[first:]
        self._configs = {h.key for h in self.headers if h.kind == "config" and h.key}
        self._end = self._offsets[-1] + self._lengths[-1] if first else 0

    # --- reading ---

    @property
    def end(self) -> int:
        """The byte after the last record that was read: what stands before it never changes."""
        return self._end

    def __contains__(self, record_id: str) -> bool:
        return record_id in self._ids

    def header(self, record_id: str) -> Header:
        """The header of that id. Raises KeyError."""
        return self.headers[self._ids[record_id]]

    def position(self, record_id: str) -> int:
        """Where the record stands among all, counted from 0. Raises KeyError."""
        return self._ids[record_id]

    def line(self, header: Header) -> bytes:
        """The bytes of a record's line, without comma and line end."""
        if self._reader is None:
            self.refresh()
        assert self._reader is not None
        position = self._ids[header.id]
        return os.pread(self._reader, self._lengths[position], self._offsets[position])

    def body(self, header: Header, kind: type[_B]) -> _B:
        """The body of a record, read and decoded now. kind: the body type of `header.kind`."""
        line = self.line(header)
        body = decode_body(header.kind, memoryview(line)[line.index(BODY_MARK) + len(BODY_MARK) : -1])
        assert isinstance(body, kind)
        return body

    # --- appending ---

    def check_writable(self) -> None:
        """Raise UserError now if an append would fail later: a read-only file or folder. Changes nothing."""
        for target in (self.path.parent, self.path, self._lock):
            if (target == self.path.parent or target.exists()) and not os.access(target, os.W_OK):
                raise UserError(
                    f"{target}: may not be written by this user; check its permissions, or name another --trials"
                )

    def submit(self, records: Sequence[Record], done: Callable[[BaseException | None], None]) -> None:
        """Queue records for one durable write; `done` is called from the committing thread once they are on disk.

        All records of one call go out in one write. Raises ValueError for a record that can't be encoded.
        """
        lines = [encode(record) for record in records]
        self.submit_encoded(lines, [record.header for record in records], done)

    def submit_encoded(
        self, lines: Sequence[bytes], headers: Sequence[Header], done: Callable[[BaseException | None], None]
    ) -> None:
        """`submit` for lines that are encoded already; headers[i] is the header of lines[i]."""
        self._started().put(lines, headers, done)

    def append(self, *records: Record) -> None:
        """Append records in one write and return once they are durable.

        Raises UserError when the file can't be written (full disk, read-only, not a ledger); it is then as it was.
        """
        future: Future[None] = Future()
        self.submit(records, lambda error: future.set_exception(error) if error else future.set_result(None))
        future.result()

    async def append_async(self, *records: Record) -> None:
        """`append` that doesn't hold up the event loop; many at once share a sync."""
        await self.append_encoded([encode(r) for r in records], [r.header for r in records])

    def append_encoded(self, lines: Sequence[bytes], headers: Sequence[Header]) -> asyncio.Future[None]:
        """`append_async` for encoded lines: a future of the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._started().put(lines, headers, (loop, future))
        return future

    def _started(self) -> _Committer:
        if self._committer is None:
            with self._mutex:
                self._committer = self._committer or _Committer(self)
        return self._committer

    def close(self) -> None:
        """Finish queued appends and release the file."""
        if self._committer is not None:
            self._committer.stop()
            self._committer = None
        if self._reader is not None:
            os.close(self._reader)
            self._reader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def commit(self, lines: Sequence[bytes], headers: Sequence[Header]) -> None:
        """Write lines at the end of the file, durably, under the file lock. What a configuration's second record
        would say again is left out. Raises UserError and leaves the file as it was when it can't be written."""
        try:
            with self._mutex, _alone(self._lock):
                is_new = not self.path.exists()
                fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX)  # its own, too: while it is held the other may be removed
                    self._commit_locked(fd, lines, headers)
                except OSError:
                    if is_new:
                        self.path.unlink()
                    raise
                finally:
                    os.close(fd)
        except OSError as error:
            raise _write_error(self.path, error) from None

    def _commit_locked(self, fd: int, lines: Sequence[bytes], headers: Sequence[Header]) -> None:
        tail = os.pread(fd, len(CLOSING) + 1, self._end)
        if not self._end or tail != CLOSING:
            tail = self._reach_the_end(fd)
        fresh = self._fresh(headers)
        if not fresh:
            return
        start = self._end
        parts: list[bytes] = []
        for i in fresh:
            parts += [b",\n" if start or len(parts) else OPENING, lines[i]]
        parts.append(CLOSING)
        try:
            if tail != CLOSING:  # nothing of it may show through a write that is cut off
                os.ftruncate(fd, start)
            _write_parts(fd, parts, start)
            _sync(fd)
        except OSError:
            os.ftruncate(fd, start + len(tail))
            _write_parts(fd, [tail], start)
            raise
        lengths = [len(lines[i]) for i in fresh]
        offsets = accumulate((length + 2 for length in lengths[:-1]), initial=start + len(parts[0]))
        self._take(list(offsets), lengths, [headers[i] for i in fresh])

    def _reach_the_end(self, fd: int) -> bytes:
        """Take in what others appended, repair a torn tail and say what follows the last record; the caller holds the
        lock."""
        found = scan(fd, self._end, self.path, self._take, first_line=len(self.headers) + 2)
        if found.torn:
            _repair(fd, self.path, found)
        return os.pread(fd, os.fstat(fd).st_size - found.end, found.end)

    def _fresh(self, headers: Sequence[Header]) -> list[int]:
        """The positions of those that are to be written: all but configurations that are, or will be, there."""
        known = set(self._configs)
        fresh: list[int] = []
        for i, header in enumerate(headers):
            if header.kind == "config" and header.key:
                if header.key in known:
                    continue
                known.add(header.key)
            fresh.append(i)
        return fresh


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Hold the lock that a `FileLock` on this path holds, whose own bookkeeping takes longer than a small write."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if _is_at(fd, path):
                yield
                return
        finally:
            os.close(fd)


def _is_at(fd: int, path: Path) -> bool:
    """Whether an open file is still the one at a path: somebody may have removed it."""
    try:
        there = path.stat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), there)


def _write_error(path: Path, error: OSError) -> UserError:
    reason = error.strerror or str(error)
    place = error.filename or path  # the lock's or a torn tail's, too
    return UserError(f"{place}: can't be written ({reason}); the ledger is as it was. Fix it or make room; run again")


def _write_parts(fd: int, parts: list[bytes], offset: int) -> None:
    """Write pieces one after the other at `offset`; one system call for up to BATCH_PARTS pieces."""
    if len(parts) > BATCH_PARTS:
        for first in range(0, len(parts), BATCH_PARTS):
            some = parts[first : first + BATCH_PARTS]
            _write_parts(fd, some, offset)
            offset += sum(map(len, some))
        return
    total = sum(map(len, parts))
    written = os.pwritev(fd, parts, offset)
    if written < total:
        rest = b"".join(parts)[written:]
        while rest:
            count = os.pwrite(fd, rest, offset + written)
            written += count
            rest = rest[count:]


def sync_path(path: Path) -> None:
    """Wait until what a file or folder holds is on disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _repair(fd: int, path: Path, found: Scan) -> None:
    """Keep whole records, move the incomplete tail to a file of its own, close the array again."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    torn = path.with_name(f"{path.name}.torn-{stamp}")
    with torn.open("xb", buffering=0) as out:
        try:
            _write_parts(out.fileno(), [os.pread(fd, found.torn, found.end)], 0)
            os.fsync(out.fileno())
        except OSError:
            torn.unlink()
            raise
    os.ftruncate(fd, found.end)
    if found.end:
        _write_parts(fd, [CLOSING], found.end)
    os.fsync(fd)
    _log.warning("%s: an incomplete write of %d bytes was cut from the end and kept as %s", path, found.torn, torn.name)


# --- scanning ---------------------------------------------------------------------------------------------------


def scan(fd: int, start: int, path: Path, take: Take, *, first_line: int = 2) -> Scan:
    """Decode the headers of whole records from byte `start` on, in blocks (no mmap: its pages would count as ours).

    start: 0, or the byte after a whole record. first_line: the number of the first record's line, for messages.
    take(offsets, lengths, headers) is called for some at a time, in order. Raises UserError for a file that isn't a
    ledger, that another program reformatted, or whose schema is newer.
    """
    size = os.fstat(fd).st_size
    state = _ScanState(path, take, start, first_line)
    if size < start:
        raise state.foreign("it is shorter than when it was last read")
    buffer = bytearray(BLOCK)
    at, filled = start, 0  # where the buffer begins in the file, and how much of it holds what was read
    while at + filled < size and state.bracket is None:
        if filled == len(buffer):
            buffer.extend(bytes(len(buffer)))
        with memoryview(buffer) as view, view[filled : size - at] as room:
            count = os.preadv(fd, [room], at + filled)
        if not count:
            break
        begin, fresh, filled = 0, filled, filled + count
        state.doubtful |= 0 in buffer[fresh + (-1 - at - fresh) % SECTOR : filled : SECTOR]
        while state.bracket is None:
            if state.opened and not state.doubtful:
                with memoryview(buffer) as view:
                    begin = state.plain_records(buffer, view, begin, fresh, filled, at)
            newline = buffer.find(b"\n", max(begin, fresh), filled)
            if newline < 0:
                break
            state.whole_line(buffer, begin, newline, at)
            begin = newline + 1
        buffer[: filled - begin] = buffer[begin:filled]
        at, filled = at + begin, filled - begin
    if state.bracket is None:
        state.last_fragment(bytes(buffer[:filled]), at)
    if state.bracket is not None:
        clean = state.ends_with(os.pread(fd, min(size - state.bracket - 1, 1 << 16), state.bracket + 1))
    else:
        clean = os.pread(fd, size - state.end, state.end).strip(SPACE + b",") in (b"", b"[")
    return Scan(state.end, 0 if clean else size - state.end)


class _ScanState:
    """Line by line through a ledger: what has been seen so far. bracket: the byte where the closing bracket stands;
    holed: whether a line had NUL bytes, which JSON never has: pages of a last write that didn't reach the disk;
    doubtful: whether a sector ended with one, so that every line must be looked through."""

    def __init__(self, path: Path, take: Take, start: int, line: int) -> None:
        self.path = path
        self.take = take
        self.end = start
        self.bracket: int | None = None
        self.holed = self.doubtful = False
        self.line = line if start else 1
        self.opened = start > 0

    def foreign(self, why: str) -> UserError:
        return UserError(
            f"{self.path}, line {self.line}: {why}; this isn't a ledger of memtrials, or another program rewrote it. "
            "It was left untouched: restore it, or name another file with --trials"
        )

    def plain_records(self, buffer: bytearray, view: memoryview, begin: int, fresh: int, filled: int, base: int) -> int:
        """Take in, in the shortest way, the lines from buffer[begin] on that are a record and a comma, as all but the
        last are; where the first other one begins. view: of the buffer; before `fresh` there is no line end."""
        find, decode = buffer.find, decode_header
        headers: list[Header] = []
        offsets: list[int] = []
        lengths: list[int] = []
        first = max(begin, fresh)
        while (newline := find(b"\n", first, filled)) >= 0:
            mark = find(BODY_MARK, begin, newline)
            if mark < 0 or buffer[newline - 1] != 0x2C or buffer[newline - 2] != 0x7D:
                break
            buffer[mark] = 0x7D
            try:
                header = decode(view[begin : mark + 1])
            except (msgspec.DecodeError, ValueError):
                header = None
            if header is None or header.schema > SCHEMA:
                buffer[mark] = BODY_MARK[0]
                break
            headers.append(header)
            offsets.append(base + begin)
            lengths.append(newline - 1 - begin)
            begin = first = newline + 1
        if headers:
            self.take(offsets, lengths, headers)
            self.end = offsets[-1] + lengths[-1]
            self.line += len(headers)
        return begin

    def whole_line(self, buffer: bytearray, begin: int, end: int, base: int) -> None:
        """Take in the line buffer[begin:end] (its line end excluded), which starts at byte base + begin."""
        stop = end - 1 if end > begin and buffer[end - 1] == 0x0D else end
        if not self.opened:
            if buffer[begin:stop] != b"[":
                raise self.foreign("the first line isn't `[`")
            self.opened = True
            self.line += 1
            return
        if begin == stop:
            return
        if buffer[begin] == 0x5D:
            self.bracket = base + begin
            return
        if buffer[stop - 2 : stop] == b",]":  # `\n]` after the first byte of an append
            self.bracket = base + stop - 1
            stop -= 1
        if buffer[stop - 1] == 0x2C:
            stop -= 1
        if begin == stop:
            return
        if buffer.find(0, begin, stop) >= 0:
            self.holed = True
            return
        mark = buffer.find(BODY_MARK, begin, stop)
        if mark < 0 or buffer[stop - 1] != 0x7D:
            raise self.foreign("it isn't a record on one line")
        self._record(bytes(buffer[begin:mark]), base + begin, stop - begin)

    def _record(self, head: bytes, offset: int, length: int) -> None:
        if self.holed:
            raise self.foreign("bytes before it were lost")
        try:
            header = decode_header(b"%b}" % head)
        except (msgspec.DecodeError, ValueError):
            schema = _schema_of(head)
            if schema is not None and schema > SCHEMA:
                raise self._newer(schema) from None
            raise self.foreign("its header isn't a record's") from None
        if header.schema > SCHEMA:
            raise self._newer(header.schema)
        self.take([offset], [length], [header])
        self.end = offset + length
        self.line += 1

    def _newer(self, schema: int) -> UserError:
        return UserError(
            f"{self.path}, line {self.line}: written by a newer memtrials (schema {schema}, this one reads up to "
            f"{SCHEMA}); update memtrials"
        )

    def last_fragment(self, rest: bytes, offset: int) -> None:
        """Take in what stands after the last line end: nothing, `]`, a whole record, or the start of one."""
        text = rest.strip(b" \t\r")
        if not self.opened:
            if text.strip(b"\0") not in (b"", b"["):
                raise self.foreign("the first line isn't `[`")
            return
        if text.startswith((b"]", b",]")):
            self.bracket = offset + rest.index(b"]")
            return
        line = text.rstrip(b",\0")
        mark = line.find(BODY_MARK)
        if mark >= 0 and _is_json(line):
            self._record(line[:mark], offset + rest.index(line), len(line))
        elif line and not (line.startswith(b'{"id":"') or b'{"id":"'.startswith(line)):
            raise self.foreign("it isn't a record on one line")

    def ends_with(self, after: bytes) -> bool:
        """Whether what follows the closing bracket is only white space; False for bytes of a later write: they follow
        at once, or NULs where the bracket's own page didn't reach the disk. Raises UserError for anything else."""
        rest = after.strip(SPACE)
        if rest and not after.startswith(b"{") and not rest.startswith(b"\0"):
            raise self.foreign("something follows the closing bracket")
        return not (rest or self.holed)


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return True


def _schema_of(head: bytes) -> int | None:
    try:
        value = orjson.loads(head + b"}").get("schema")
    except (orjson.JSONDecodeError, AttributeError):
        return None
    return value if isinstance(value, int) else None


# --- group commit -----------------------------------------------------------------------------------------------

_Done = Callable[[BaseException | None], None] | tuple[asyncio.AbstractEventLoop, "asyncio.Future[None]"]


class _Committer:
    """A thread that writes what has gathered while the last sync ran: one lock, one write, one sync per batch."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._queue: deque[tuple[Sequence[bytes], Sequence[Header], _Done]] = deque()
        self._ready = threading.Condition()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="ledger-committer", daemon=True)
        self._thread.start()

    def put(self, lines: Sequence[bytes], headers: Sequence[Header], done: _Done) -> None:
        with self._ready:
            self._queue.append((lines, headers, done))
            self._ready.notify()

    def stop(self) -> None:
        with self._ready:
            self._stopped = True
            self._ready.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._queue and not self._stopped:
                    self._ready.wait()
                batch = list(self._queue)
                self._queue.clear()
            if not batch:
                return
            lines = [line for some, _, _ in batch for line in some]
            headers = [header for _, some, _ in batch for header in some]
            error: BaseException | None = None
            try:
                self._ledger.commit(lines, headers)
            except BaseException as caught:  # noqa: BLE001 - handed to everyone who waits for this batch
                error = caught
            self._report([done for _, _, done in batch], error)

    @staticmethod
    def _report(waiting: Iterable[_Done], error: BaseException | None) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        for done in waiting:
            if isinstance(done, tuple):
                by_loop.setdefault(done[0], []).append(done[1])
            else:
                done(error)
        for loop, futures in by_loop.items():
            with suppress(RuntimeError):  # the loop was closed: nobody waits any more
                loop.call_soon_threadsafe(_settle, futures, error)


def _settle(futures: Iterable[asyncio.Future[None]], error: BaseException | None) -> None:
    for future in futures:
        if not future.done():
            future.set_exception(error) if error else future.set_result(None)
