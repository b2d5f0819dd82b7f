"""Public data that benchmarks are built from: described in `evaluation/datasets.toml`, kept outside the checkout.

The dataset NAME lies in FOLDER/NAME; FOLDER is MEMTRIALS_DATA, else the platform's folder for user data. A download has
its own name only once its size and SHA-256 were right. Until then it is `FILE.part`, to which the next try adds what is
missing, beside `FILE.part.etag`, the version that the server said it was. `SOURCE.json` records where the files are
from and under which licence.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from memtrials import __version__
from memtrials.errors import UserError, unknown
from memtrials.progress import say
from memtrials.records import now
from memtrials.settings import Settings, data_folder, evaluation

if TYPE_CHECKING:
    import httpx2

TRIES = 5
"""Requests for one file in one run, at most. Each goes on where the one before was cut."""
PAUSE = 1.0
"""Seconds at most before the second request; twice as many before each further one."""
SILENCE = 30.0
"""Seconds without a byte after which a connection counts as dead."""
BLOCK = 1 << 20

Advance = Callable[[int], None]
"""Told how many bytes of a file are there."""


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file. path: in the dataset's folder; size: in bytes. None: no address (got by hand), not published."""

    path: str
    url: str | None = None
    size: int | None = None
    sha256: str | None = None


class Dataset(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One table of `datasets.toml`. licence: in a few words; terms: what it asks of a user; by_hand: a command."""

    name: str
    licence: str
    terms: str
    citation: str
    homepage: str
    files: tuple[File, ...]
    by_hand: str | None = None

    @property
    def size(self) -> int | None:
        """Bytes in all; None when a file's size isn't known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


@dataclass(frozen=True)
class Place:
    """Where a dataset is or would be."""

    dataset: Dataset
    folder: Path

    @property
    def missing(self) -> list[File]:
        """Files that aren't there."""
        return [file for file in self.dataset.files if not (self.folder / file.path).is_file()]

    @property
    def here(self) -> bool:
        """Whether every file is there; `verify` says whether they are right."""
        return not self.missing

    @property
    def part(self) -> int:
        """Bytes of unfinished downloads."""
        parts = (_part(self.folder / file.path) for file in self.missing)
        return sum(part.stat().st_size for part in parts if part.is_file())


@dataclass(frozen=True)
class Checked:
    """What a file turned out to be. problem: None when it is right; sha256: of its bytes, None when it isn't there."""

    dataset: str
    path: Path
    result: Literal["right", "wrong", "missing", "no published hash"]
    sha256: str | None = None
    problem: str | None = None


def as_json(place: Place) -> dict[str, Any]:
    """A dataset and whether it is here, as `--json` gives it."""
    dataset = place.dataset
    return {
        "name": dataset.name,
        "size": dataset.size,
        "licence": dataset.licence,
        "by_hand": dataset.by_hand is not None,
        "here": place.here,
        "part": place.part,
        "path": str(place.folder),
    }


class DownloadError(Exception):
    """A download that failed: one line with the address, what was wrong and what is left of it."""


class _CutError(Exception):
    """A try that may go better the next time."""


# --- what there is ----------------------------------------------------------------------------------------------


def catalogue() -> dict[str, Dataset]:
    """All datasets by name, in the order of the file. Raises UserError for a file that can't be used."""
    path = evaluation() / "datasets.toml"
    try:
        tables = tomllib.loads(path.read_text("utf-8-sig"))
        found = {name: msgspec.convert({"name": name, **table}, Dataset) for name, table in tables.items()}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, TypeError, msgspec.ValidationError) as error:
        raise UserError(f"{path}: can't be used ({error}); correct it") from None
    for dataset in found.values():
        for file in dataset.files:
            if file.url is None and dataset.by_hand is None:
                raise UserError(f"{path}, {dataset.name}, {file.path}: needs a url, or the dataset by_hand")
            if file.url is not None and (file.size is None or file.sha256 is None):
                raise UserError(f"{path}, {dataset.name}, {file.path}: what has a url needs size and sha256")
    return found


def find(name: str) -> Dataset:
    """The dataset of that name, or the only one of a benchmark. Raises UserError, with near matches."""
    known = catalogue()
    if name in known:
        return known[name]
    variants = [other for other in known if other.partition("@")[0] == name]
    if len(variants) > 1:
        raise UserError(f"{name} is {' or '.join(variants)}; name one")
    if not variants:
        raise unknown("dataset", name, known)
    return known[variants[0]]


def place(name: str, settings: Settings, folder: Path | None = None) -> Place:
    """Where a dataset is or would be, in `folder` or the data folder. Raises UserError for an unknown name."""
    dataset = find(name)
    return Place(dataset, (folder or data_folder(settings)).absolute() / dataset.name)


def folder_of(name: str, settings: Settings) -> Path:
    """The folder of a dataset that is here. Raises UserError, with the command that gets it, when it isn't."""
    found = place(name, settings)
    if not found.here:
        raise UserError(
            f"{found.dataset.name} isn't in {found.folder}; get it: memtrials data get {found.dataset.name}"
        )
    return found.folder


def folder_for_build(benchmark: str, variant: str | None, settings: Settings) -> Path:
    """The folder a benchmark is built from when the command line names none.

    A variant that has no dataset of its own is made from the benchmark's. Raises UserError when there is none here.
    """
    known = catalogue()
    own = f"{benchmark}@{variant}"
    if own not in known and not any(name.partition("@")[0] == benchmark for name in known):
        raise UserError(f"{benchmark}: name the folder of the release with --data")
    try:
        return folder_of(own if own in known else benchmark, settings)
    except UserError as error:
        raise UserError(f"{error}, or name the folder of the release with --data") from None


# --- getting it -------------------------------------------------------------------------------------------------


def check_by_hand(target: Place) -> None:
    """Raises UserError, with what to do, for a dataset that is missing and that `get` can't download."""
    dataset, folder = target.dataset, target.folder
    if dataset.by_hand is not None and not target.here:
        files = ", ".join(file.path for file in target.missing)
        raise UserError(
            f"{dataset.name} has to be got by hand: {dataset.by_hand.format(folder=folder)}",
            [*licence_lines(dataset), f"  missing in {folder}: {files}"],
        )


def get(target: Place, settings: Settings, *, quiet: bool) -> int:
    """Download what is missing of a dataset; the bytes that came, 0 when all was here.

    The licence is said first. Raises UserError for what is got by hand and for a folder that can't be written,
    DownloadError for everything the other side does wrong.
    """
    check_by_hand(target)
    dataset, folder = target.dataset, target.folder
    if target.here:
        return 0
    for line in licence_lines(dataset):
        say(line)
    addresses = {file.path: _address(dataset, file, settings) for file in dataset.files}
    came = 0
    try:
        with _alone(folder), _client() as client:
            _record(target, addresses)
            for file in target.missing:
                with _bar(file.path, file.size, quiet) as advance:
                    came += _download(client, file, addresses[file.path], folder / file.path, advance)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: can't be written ({error.strerror})") from None
    return came


def licence_lines(dataset: Dataset) -> list[str]:
    """What a user must know before a dataset is used."""
    return [
        f"{dataset.name}: {dataset.homepage}",
        f"  licence: {dataset.licence}. {dataset.terms}",
        f"  cite: {dataset.citation}",
    ]


def _address(dataset: Dataset, file: File, settings: Settings) -> str:
    """The file's url, or where a mirror has it: BASE/NAME/PATH. Raises UserError for a base that is no address."""
    import httpx2

    assert file.url is not None
    base = settings.find("MEMTRIALS_DATA_BASE_URL")
    if base is None:
        return file.url
    try:
        url = httpx2.URL(f"{base.text.rstrip('/')}/{dataset.name}/{file.path}")
    except httpx2.InvalidURL:
        url = None
    if url is None or url.scheme not in ("http", "https") or not url.host:
        raise UserError(f"{base.source}: not an address; write it as https://HOST/PATH")
    return str(url)


def _shown(url: str) -> str:
    """An address as it may be shown and kept: without user and password."""
    import httpx2

    return str(httpx2.URL(url).copy_with(username=None, password=None))


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Nobody else downloads to that folder meanwhile. Raises UserError when somebody does."""
    from filelock import FileLock, Timeout

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=0):
            yield
    except Timeout:
        raise UserError(f"{folder}: another process is downloading to it; wait for it") from None


def _client() -> httpx2.Client:
    import httpx2

    headers = {"User-Agent": f"memtrials/{__version__}", "Accept-Encoding": "identity"}
    return httpx2.Client(timeout=SILENCE, follow_redirects=True, headers=headers)


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _download(client: httpx2.Client, file: File, url: str, path: Path, advance: Advance) -> int:
    """Bring one file, in at most TRIES requests; the bytes that came."""
    import backoff

    path.parent.mkdir(parents=True, exist_ok=True)
    transfer = _Transfer(client, file, url, path, advance)

    def told(details: Any) -> None:
        say(f"  {details['exception']}; trying again ({details['tries']} of {TRIES - 1})")

    trying = backoff.on_exception(
        backoff.expo, _CutError, max_tries=TRIES, factor=PAUSE, max_value=60, on_backoff=told, logger=None
    )
    try:
        trying(transfer.go_on)()
    except _CutError as error:
        raise DownloadError(f"{error} ({TRIES} tries); {transfer.kept()}") from None
    except KeyboardInterrupt:
        say(f"  {transfer.kept()}")
        raise
    return transfer.came


class _Transfer:
    """One file on its way, over as many requests as it takes. came: bytes that were received."""

    def __init__(self, client: httpx2.Client, file: File, url: str, path: Path, advance: Advance) -> None:
        assert file.size is not None
        assert file.sha256 is not None
        self.client, self.url, self.shown, self.path, self.advance = client, url, _shown(url), path, advance
        self.size, self.sha256 = file.size, file.sha256
        self.part, self.etag = _part(path), path.with_name(path.name + ".part.etag")
        self.came = 0

    def go_on(self) -> None:
        """Receive what is missing, check it, and give the file its name. Raises _CutError, DownloadError."""
        have = self.part.stat().st_size if self.part.exists() else 0
        if have > self.size:
            self._drop()
            have = 0
        digest = _digest(self.part, self.advance) if have else hashlib.sha256()
        if have < self.size:
            digest = self._receive(have, digest)
        if digest.hexdigest() != self.sha256:
            self._drop()
            raise self._other(f"SHA-256 {digest.hexdigest()[:12]}… where {self.sha256[:12]}… is expected")
        self.part.replace(self.path)
        self.etag.unlink(missing_ok=True)

    def kept(self) -> str:
        """What is left of a download that didn't end."""
        have = self.part.stat().st_size if self.part.exists() else 0
        return (
            f"{have:,} of {self.size:,} bytes are kept, the same command goes on there" if have else "nothing is kept"
        )

    def _receive(self, have: int, digest: Any) -> Any:
        """The digest of the whole file. Every byte is in the part before the next one is waited for."""
        import httpx2

        headers = {}
        if have:
            headers["Range"] = f"bytes={have}-"
            if self.etag.exists():
                headers["If-Range"] = self.etag.read_text("ascii")
        try:
            with self.client.stream("GET", self.url, headers=headers) as response:
                resumed = self._accept(response, have)
                if not resumed:
                    have, digest = 0, hashlib.sha256()
                with self.part.open("ab" if resumed else "wb") as out:
                    self._remember(response)
                    for block in response.iter_raw():
                        have += len(block)
                        if have > self.size:
                            break
                        out.write(block)
                        out.flush()
                        digest.update(block)
                        self.came += len(block)
                        self.advance(have)
                    os.fsync(out.fileno())
        except httpx2.TimeoutException:
            raise _CutError(f"{self.shown}: nothing came for {self.client.timeout.read:g} s") from None
        except httpx2.ConnectError as error:
            raise _CutError(f"{self.shown}: can't be reached ({_line(error)})") from None
        except httpx2.RequestError as error:
            raise _CutError(f"{self.shown}: cut off ({_line(error)})") from None
        if have != self.size:
            self._drop()
            raise self._wrong_size(f"{have:,}" if have < self.size else f"more than {self.size:,}")
        return digest

    def _accept(self, response: httpx2.Response, have: int) -> bool:
        """Whether the reply goes on after the `have` bytes that are there (else it is the whole file)."""
        status = response.status_code
        if status in (408, 425, 429) or status >= 500:
            raise _CutError(f"{self.shown}: HTTP {status}")
        if status == 416 or (status == 206 and not self._goes_on(response, have)):
            self._drop()
            raise _CutError(f"{self.shown}: sent nothing that goes on after byte {have:,}, so from the beginning")
        if status not in (200, 206):
            raise DownloadError(f"{self.shown}: HTTP {status}; {self.kept()}")
        length = response.headers.get("Content-Length", "")
        if status == 200 and length.isdecimal() and int(length) != self.size:
            raise self._wrong_size(f"{int(length):,}")
        return status == 206

    def _goes_on(self, response: httpx2.Response, have: int) -> bool:
        span = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", "").strip())
        return have > 0 and span is not None and int(span[1]) == have and span[2] in ("*", str(self.size))

    def _remember(self, response: httpx2.Response) -> None:
        """Keep the version that the part is of. A weak one says nothing about bytes."""
        etag = response.headers.get("ETag", "")
        if re.fullmatch(r'"[\x21\x23-\x7e]*"', etag):
            self.etag.write_text(etag, "ascii")
        else:
            self.etag.unlink(missing_ok=True)

    def _wrong_size(self, size: str) -> DownloadError:
        return self._other(f"{size} bytes where {self.size:,} are expected")

    def _other(self, what: str) -> DownloadError:
        return DownloadError(f"{self.shown}: {what}, so it isn't the known release; {self.kept()}")

    def _drop(self) -> None:
        self.part.unlink(missing_ok=True)
        self.etag.unlink(missing_ok=True)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _record(target: Place, addresses: dict[str, str]) -> None:
    """Write SOURCE.json: what a copy of the folder must carry with it."""
    dataset = target.dataset
    source = {
        "dataset": dataset.name,
        "licence": dataset.licence,
        "terms": dataset.terms,
        "citation": dataset.citation,
        "homepage": dataset.homepage,
        "files": [
            {"path": file.path, "url": _shown(addresses[file.path]), "size": file.size, "sha256": file.sha256}
            for file in dataset.files
        ],
        "at": now(),
    }
    path = target.folder / "SOURCE.json"
    part = _part(path)
    part.write_text(json.dumps(source, ensure_ascii=False, indent=2) + "\n", "utf-8")
    part.replace(path)


@contextlib.contextmanager
def _bar(name: str, size: int | None, quiet: bool) -> Iterator[Advance]:
    """A bar of bytes on a terminal, nothing elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield lambda have: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=size)
        yield lambda have: bar.update(task, completed=have)


# --- checking it ------------------------------------------------------------------------------------------------


def verify(target: Place, *, quiet: bool) -> list[Checked]:
    """Read every file again and compare it with what is published. Raises UserError for one that can't be read."""
    found, name = [], target.dataset.name
    for file in target.dataset.files:
        path = target.folder / file.path
        if not path.is_file():
            found.append(Checked(name, path, "missing", problem=f"{path}: missing"))
            continue
        try:
            with _bar(file.path, path.stat().st_size, quiet) as advance:
                digest = _digest(path, advance).hexdigest()
        except OSError as error:
            raise UserError(f"{path}: can't be read ({error.strerror})") from None
        if file.sha256 is None:
            found.append(Checked(name, path, "no published hash", digest))
        elif file.sha256 == digest:
            found.append(Checked(name, path, "right", digest))
        else:
            hint = f"remove it and run `memtrials data get {name}`"
            problem = f"{path}: SHA-256 {digest[:12]}… where {file.sha256[:12]}… is published; {hint}"
            found.append(Checked(name, path, "wrong", digest, problem))
    return found


def _digest(path: Path, advance: Advance = lambda have: None) -> Any:
    """The SHA-256 of a file, which may be continued."""
    digest, have = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            have += len(block)
            advance(have)
    return digest
