"""Prompt texts: ours from `evaluation/prompts/`, or the publisher's own from the user's copy of a release."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Literal

from memtrials.benchmarks.base import Benchmark, Prompts
from memtrials.errors import UserError
from memtrials.settings import evaluation


def load(benchmark: Benchmark, source: Literal["default", "official"], upstream: Path | None) -> Prompts:
    """The prompts of a benchmark, by name.

    Raises UserError when a file is missing, when official ones are asked for without a folder, or when their bytes
    aren't the published ones.
    """
    if source == "default":
        if upstream is not None:
            raise UserError("--upstream goes with --prompts official")
        folder = evaluation() / "prompts" / benchmark.name
        return Prompts({name: _read(folder / f"{name}.txt") for name in benchmark.official_prompts}, source)
    if upstream is None:
        raise UserError(f"--prompts official needs --upstream DIR, a clone of {benchmark.name}'s repository")
    texts = {}
    for name, published in benchmark.official_prompts.items():
        path = upstream / benchmark.official_folder / f"{name}.txt"
        texts[name] = _read(path)
        found = hashlib.sha256(path.read_bytes().replace(b"\r\n", b"\n")).hexdigest()
        if found != published:
            raise UserError(f"{path}: not the published prompt (SHA-256 {found[:8]}…, published {published[:8]}…)")
    return Prompts(texts, source, official=True)


def own(benchmark: Benchmark, folder: Path) -> Prompts:
    """A judge's prompts from the user's own folder, which holds files named as ours. Raises UserError."""
    hint = f"copy it from {evaluation() / 'prompts' / benchmark.name} and change what you like"
    return Prompts({name: _read(folder / f"{name}.txt", hint) for name in benchmark.judge_prompts}, "own")


def _read(path: Path, hint: str = "check --upstream") -> str:
    try:
        return path.read_bytes().replace(b"\r\n", b"\n").decode()
    except FileNotFoundError:
        raise UserError(f"{path}: this prompt is missing; {hint}") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
