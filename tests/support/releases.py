"""Copies of the bundled sample release, changed as a test needs them; hashes that should agree are made to again."""

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memtrials.settings import evaluation

SAMPLE = evaluation() / "samples" / "inmind"
TASKS = "benchmark/dataset/inmind.jsonl"
SUMS = "benchmark/dataset/SHA256SUMS"
BACKGROUND = "evaluation/background/lme_s_background.jsonl"
MANIFEST = "evaluation/background/manifest.json"

Row = dict[str, Any]


def sample_copy(folder: Path) -> Path:
    """A release of one's own, byte for byte the sample."""
    return Path(shutil.copytree(SAMPLE, folder))


def read_rows(path: Path) -> list[Row]:
    """The objects of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def write_rows(path: Path, rows: list[Row]) -> None:
    """A file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8", newline="\n")


def sign(release: Path) -> Path:
    """Make the release's own hashes those of its files."""
    manifest = json.loads((release / MANIFEST).read_text("utf-8"))
    manifest["sha256"] = _sha256(release / BACKGROUND)
    (release / MANIFEST).write_text(json.dumps(manifest), "utf-8")
    (release / SUMS).write_text(f"{_sha256(release / TASKS)}  inmind.jsonl\n", "utf-8")
    return release


def change_tasks(release: Path, change: Callable[[list[Row]], object]) -> Path:
    """Change the task rows in place; hashes agree afterwards."""
    return _change(release, TASKS, change)


def change_background(release: Path, change: Callable[[list[Row]], object]) -> Path:
    """Change the background rows in place; hashes agree afterwards, the manifest's counts may not."""
    return _change(release, BACKGROUND, change)


def change_manifest(release: Path, **fields: Any) -> Path:
    """Set fields of the manifest; None takes one out."""
    path = release / MANIFEST
    manifest = {**json.loads(path.read_text("utf-8")), **fields}
    path.write_text(json.dumps({k: v for k, v in manifest.items() if v is not None}), "utf-8")
    return release


def _change(release: Path, name: str, change: Callable[[list[Row]], object]) -> Path:
    rows = read_rows(release / name)
    change(rows)
    write_rows(release / name, rows)
    return sign(release)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
