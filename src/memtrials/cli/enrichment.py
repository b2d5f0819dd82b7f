"""What was precomputed of histories."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memtrials.cli.options import FILE, emit, json_option, release_option, settings_now, with_options
from memtrials.cli.root import cli

if TYPE_CHECKING:
    from memtrials.stages.build import BuildRequest

release = with_options(
    [
        release_option,
        click.option("--variant", help="Which of the benchmark's variants."),
        click.option("--allow-modified", is_flag=True, help="Accept data that isn't a known release."),
        json_option,
    ]
)


@cli.group()
def enrichment() -> None:
    """Entities, threads, derived memories and links beside sessions: making a snapshot, checking a file."""


@enrichment.command("build")
@click.argument("benchmark")
@click.option(
    "--out", type=FILE, required=True, help="A new file, NAME.jsonl; NAME_manifest.json is written beside it."
)
@release
def build_snapshot(out: Path, as_json: bool, **given: Any) -> int:
    """Make a snapshot of BENCHMARK's conversations alone: every turn once more, in its session's thread.

    No model is asked. The same conversations give the same bytes.
    """
    from memtrials.stages import enriching as stage

    made = stage.build(_request(given), out, settings_now())
    return _show(made, as_json, f"{made['benchmark']}: a snapshot in {out}")


@enrichment.command("validate")
@click.argument("benchmark")
@click.argument("file", type=FILE)
@release
def validate_enrichment(file: Path, as_json: bool, **given: Any) -> int:
    """Check FILE as replay would for all of BENCHMARK's tasks. With NAME_manifest.json beside it, it is a snapshot."""
    from memtrials.stages import enriching as stage

    found = stage.validate(_request(given), file, settings_now())
    return _show(found, as_json, f"{found['benchmark']}: {file} is right, as {found['kind']}")


def _request(given: dict[str, Any]) -> BuildRequest:
    from memtrials.stages.build import BuildRequest

    return BuildRequest(**given)


def _show(found: dict[str, Any], as_json: bool, line: str) -> int:
    if as_json:
        emit(found)
    else:
        counts = ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in found["counts"].items())
        print(f"{line}; {counts}")
    return 0
