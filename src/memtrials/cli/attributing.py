"""Where wrong answers come from."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from memtrials.cli.options import COUNT, data_option, emit, finish, options_of, selecting, working
from memtrials.cli.root import cli


@cli.command()
@click.option("--max-requests", type=COUNT, required=True, help="At most so many, to models and services together.")
@click.option("--judge", "judges", multiple=True, help="Another judge for wrong answers; repeatable.")
@click.option("--full-context", is_flag=True, help="Also ask with the whole history as context.")
@data_option
@click.option("--upstream", type=click.Path(path_type=Path), help="A clone, where official prompts were used.")
@selecting
@working
def attribute(
    max_requests: int,
    judges: tuple[str, ...],
    full_context: bool,
    data: Path | None,
    upstream: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Ask what tells where wrong answers come from, then show it.

    For questions that were answered wrong: whether each piece of evidence that didn't come back is stored, and what the
    same reader makes of the evidence alone where all of it was in the context.
    """
    from memtrials.report import tables
    from memtrials.report.terminal import console
    from memtrials.stages import attributing as stage
    from memtrials.stages.metrics import MetricsRequest
    from memtrials.stages.metrics import run as fold

    options = options_of(given)
    request = stage.AttributeRequest(max_requests, judges, full_context, data, upstream)
    outcomes = []
    worst = 0
    for outcome in stage.run(request, options):
        outcomes.append(outcome.as_json())
        finish(outcome, options.quiet or as_json, as_json=False)
        worst = max(worst, outcome.exit_code)
    if options.dry_run or worst >= 2:
        if as_json:
            emit({"stage": "attribute", "outcomes": outcomes})
        return worst
    report = fold(MetricsRequest(), options)
    if as_json:
        found = [
            {**a.cell._asdict(), **{k: v for k, v in asdict(a).items() if k != "cell"}} for a in report.attributions
        ]
        emit({"stage": "attribute", "outcomes": outcomes, "attributions": found})
    else:
        tables.print_attributions(report, console())
    return worst
