"""Files that are evidence: written once, whole or not at all, never replaced; and the folder of an exported run.

A run's evidence is a copy of its three files beside `seal.json`, which holds their SHA-256. The seal says nothing of
its own bytes: whoever relies on it cites its hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memtrials.errors import UserError

BLOCK = 1 << 20
SEAL = "seal.json"
RUN_FILES = ("header.json", "report.json")
"""What a run's folder holds beside its one file of rows."""


def write_once(path: Path, data: bytes) -> str:
    """Write a new file, durably and whole; the SHA-256 of its bytes. Raises UserError when the name is taken, also by a
    folder or a dangling link, or when it can't be written."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.link(fresh, path)
    except FileExistsError:
        raise UserError(f"{path} exists, and evidence is never overwritten; name another with --out") from None
    except OSError as error:
        raise UserError(f"{path}: can't be written ({error.strerror})") from None
    finally:
        fresh.unlink(missing_ok=True)
    return hashlib.sha256(data).hexdigest()


def new_folder(path: Path) -> Path:
    """A folder that wasn't there. Raises UserError."""
    try:
        path.mkdir()
    except FileExistsError:
        raise UserError(f"{path} exists, and evidence is never overwritten; name another with --out") from None
    except OSError as error:
        raise UserError(f"{path}: can't be made ({error.strerror})") from None
    return path


def file_sha256(path: Path, length: int | None = None) -> str:
    """Hex SHA-256 of a file's bytes, or of its first `length`. Raises UserError when it can't be read."""
    digest = hashlib.sha256()
    left = length
    try:
        with path.open("rb") as file:
            while block := file.read(BLOCK if left is None else min(BLOCK, left)):
                digest.update(block)
                left = None if left is None else left - len(block)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    return digest.hexdigest()


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises UserError."""
    try:
        content = json.loads(path.read_bytes())
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{path}: not valid JSON ({error})") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a JSON object")
    return content


# --- an exported run --------------------------------------------------------------------------------------------


def seal_run(folder: Path, evidence: Path, at: str) -> tuple[Path, str]:
    """Copy a run's files to a new folder of its id in `evidence` and seal them; that folder and the seal's SHA-256.

    folder: holds exactly one file of rows (`.jsonl`), `header.json` and `report.json`. The seal stands beside the
    originals, too. Raises UserError; once the new folder is there, what was written stays, and the error names it.
    """
    names = _run_files(folder)
    header = read_object(folder / "header.json")
    run_id = header.get("run_id")
    if not isinstance(run_id, str) or not is_component(run_id):
        raise UserError(f"{folder / 'header.json'}: run_id is {run_id!r}; it must be a name for a folder")
    if os.path.lexists(folder / SEAL):
        raise UserError(f"{folder / SEAL} exists: this run is sealed already, and evidence is never overwritten")
    content = {name: _bytes(folder / name) for name in names}
    files = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(content.items())}
    seal = {"files": files, "header": header, "sealed_at": at}
    sealed = (json.dumps(seal, ensure_ascii=False, indent=2) + "\n").encode()
    try:
        evidence.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{evidence}: can't be made ({error.strerror})") from None
    target = new_folder(evidence / run_id)
    written: list[Path] = []
    for path, data in [
        *((target / name, data) for name, data in content.items()),
        (folder / SEAL, sealed),
        (target / SEAL, sealed),
    ]:
        try:
            write_once(path, data)
        except UserError as error:
            there = ", ".join(map(str, written)) or f"{target}, empty"
            raise UserError(f"{error}; already written and left: {there}") from None
        written.append(path)
    return target, hashlib.sha256(sealed).hexdigest()


def _run_files(folder: Path) -> list[str]:
    """The names of a run's three files, the rows first. Raises UserError when its folder isn't one of a run."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; it should be one that `memtrials export rows` wrote")
    rows = sorted(path.name for path in folder.glob("*.jsonl"))
    if len(rows) != 1:
        raise UserError(f"{folder}: holds {len(rows)} .jsonl files ({', '.join(rows) or 'none'}); exactly one is a run")
    names = [rows[0], *RUN_FILES]
    for name in names:
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise UserError(f"{path}: not a regular file; a run has rows, header.json and report.json")
    return names


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None


def is_component(name: str) -> bool:
    """Whether a text can be the name of one file or folder on every system."""
    return name not in ("", ".", "..") and not re.search(r"[/\\:\0]", name)


def changed_files(folder: Path) -> tuple[Sequence[str], Mapping[str, str]]:
    """The names that a folder's seal lists, and what is wrong with some: `missing` or `changed`. The files themselves
    aren't looked into. Raises UserError when the seal can't be read or names what it may not."""
    path = folder / SEAL
    files = read_object(path).get("files")
    if not isinstance(files, dict) or not files:
        raise UserError(f"{path}: lists no files")
    wrong: dict[str, str] = {}
    for name, expected in files.items():
        if not is_component(name) or name == SEAL or not isinstance(expected, str):
            raise UserError(f"{path}: {name!r} can't be a sealed file")
        if not (folder / name).is_file():
            wrong[name] = "missing"
        elif file_sha256(folder / name) != expected.lower():
            wrong[name] = "changed"
    return list(files), wrong
