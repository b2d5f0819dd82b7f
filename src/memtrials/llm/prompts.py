"""Prompt texts: ours from `evaluation/prompts/`, or the publisher's own from the user's copy of a release."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memtrials.benchmarks.base import Benchmark, Prompts, read_text
from memtrials.errors import UserError
from memtrials.records import text_sha256
from memtrials.settings import evaluation


def load(benchmark: Benchmark, names: Sequence[str], source: str, upstream: Path | None) -> Prompts:
    """The prompts of these names.

    source: `default`, `official`, or a named set in a folder of its own. Raises UserError when a file is missing, when
    official ones are asked for without a folder or where the publisher has none, or when their texts aren't the
    published ones.
    """
    if source != "official":
        if upstream is not None:
            raise UserError("--upstream goes with --prompts official")
        folder = evaluation() / "prompts" / benchmark.name
        folder = folder if source == "default" else folder / source
        return Prompts({name: read_text(folder / f"{name}.txt") for name in names}, source)
    if not names or not set(names) <= set(benchmark.official_prompts) or benchmark.official_texts is None:
        whose = f"{benchmark.name}'s {', '.join(names) or 'judge'}"
        raise UserError(f"--prompts official: {whose} has no published text that can be read; leave it out")
    if upstream is None:
        raise UserError(f"--prompts official needs --upstream DIR, a clone of {benchmark.name}'s repository")
    found = benchmark.official_texts(upstream, names)
    for name in names:
        published, digest = benchmark.official_prompts[name], text_sha256(found[name])
        if digest != published:
            raise UserError(
                f"{upstream}: {name} isn't the published prompt (SHA-256 {digest[:8]}…, published {published[:8]}…)"
            )
    return Prompts({name: found[name] for name in names}, source, official=True)


def own(benchmark: Benchmark, folder: Path) -> Prompts:
    """A judge's prompts from the user's own folder, which holds files named as ours. Raises UserError."""
    hint = f"copy it from {evaluation() / 'prompts' / benchmark.name} and change what you like"
    return Prompts({name: read_text(folder / f"{name}.txt", hint) for name in benchmark.judge_prompts}, "own")
