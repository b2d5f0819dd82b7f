"""Two runs, or two systems, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memtrials.cli.options import FILE, contrasting, emit, json_option, options_of, selecting, trials_option
from memtrials.cli.root import cli

if TYPE_CHECKING:
    from memtrials.records import Role


@cli.command()
@click.argument("ledgers", nargs=-1, type=FILE)
@click.option("--fetch", multiple=True, help="A fetch configuration, such as k10.")
@click.option("--reader", multiple=True, help="A reader.")
@click.option("--judge", multiple=True, help="A judge.")
@contrasting
@click.option("--exit-code", is_flag=True, help="End with 1 when anything differs.")
@json_option
@trials_option
@selecting
def compare(
    ledgers: tuple[Path, ...],
    fetch: tuple[str, ...],
    reader: tuple[str, ...],
    judge: tuple[str, ...],
    margin: float | None,
    allow_unlike: bool,
    exit_code: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Compare two LEDGERS, or two systems, fetch configurations or readers of one, question by question.

    One of --system, --fetch, --reader, --judge given twice names the two sides; given once it is for both. Results that
    don't agree in data, judge or prompts are refused. Ids, times and what work took are ignored.
    """
    from memtrials.report import comparison as report
    from memtrials.stages import comparing as stage

    named: dict[Role, tuple[str, ...]] = {"fetch": fetch, "reader": reader, "judge": judge}
    named["system"] = given.pop("system")
    request = stage.CompareRequest(
        ledgers, {role: names for role, names in named.items() if names}, margin, allow_unlike
    )
    found = stage.run(request, options_of(given))
    if as_json:
        emit(report.as_json(found))
    else:
        from memtrials.report.terminal import console

        report.print_comparison(found, console())
    return int(exit_code and found.differs)
