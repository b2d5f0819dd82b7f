"""Commands that doubt: gold that may be wrong, and judges that people check."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from memtrials.cli.options import COUNT, FILE, emit, finite, json_option, options_of, selected, selecting, trials_option
from memtrials.cli.root import cli


@cli.command()
@json_option
@trials_option
@selecting
def suspects(as_json: bool, **given: Any) -> int:
    """Questions whose gold is worth a second look: wrong from the evidence alone, or right for no system."""
    from memtrials.report.scrutiny import print_suspects
    from memtrials.report.suspects import suspects as look
    from memtrials.report.terminal import console

    _, index, chosen = selected(given)
    found, looked = look(index, chosen)
    if as_json:
        emit(
            {"stage": "suspects", "suspects": [asdict(one) for one in found], "looked_at": [asdict(o) for o in looked]}
        )
    else:
        print_suspects(found, looked, console())
    return 0


@cli.group()
def audit() -> None:
    """Have people check a judge: draw a sample of its verdicts, and estimate from their labels."""


@audit.command("sample")
@click.option("--n", "items", type=COUNT, required=True, help="Items in all, shared out over systems and verdicts.")
@click.option("--out", type=FILE, required=True, help="For annotators, .csv or .jsonl; the key is written beside it.")
@click.option("--metric", help="Which verdicts, where several metrics have some.")
@click.option("--judge", help="Whose verdicts, where several judges have some.")
@click.option("--reader", help="Only this reader's answers.")
@json_option
@trials_option
@selecting
def audit_sample(
    items: int,
    out: Path,
    metric: str | None,
    judge: str | None,
    reader: str | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Draw verdicts at random within (system, verdict), and write them without verdict, system and judge.

    --seed decides the draw, too.
    """
    from memtrials.report.scrutiny import print_sampled
    from memtrials.report.terminal import console
    from memtrials.stages import audit as stage

    request = stage.SampleRequest(items, given["seed"], out, metric, judge, reader)
    done = stage.sample(request, options_of(given))
    if as_json:
        drawn = len(done.key.items)
        emit(
            {"stage": "audit sample", "audit": done.key.audit, "items": str(done.items), "key": str(done.key_path)}
            | {"drawn": drawn}
        )
    else:
        print_sampled(done, console())
    return 0


@audit.command("score")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=FILE)
@click.option("--key", type=FILE, help="The key that `audit sample` wrote [default: the one beside the first FILE].")
@click.option(
    "--rates",
    type=(click.FloatRange(0, 1), click.FloatRange(0, 1)),
    callback=finite,
    help="The judge's sensitivity and specificity from a simple random sample or from outside: Rogan-Gladen's share.",
)
@json_option
@trials_option
def audit_score(
    files: tuple[Path, ...], key: Path | None, rates: tuple[float, float] | None, as_json: bool, trials: Path | None
) -> int:
    """Corrected accuracy, sensitivity and specificity from annotated FILEs, one for each annotator."""
    from memtrials.report.scrutiny import audit_as_json, print_audit
    from memtrials.report.terminal import console
    from memtrials.stages import audit as stage

    report = stage.score(stage.ScoreRequest(files, key, rates), options_of({"trials": trials}))
    if as_json:
        emit(audit_as_json(report))
    else:
        print_audit(report, console())
    return 0
