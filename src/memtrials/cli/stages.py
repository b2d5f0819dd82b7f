"""The six stages, and commands that run several of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memtrials.cli.options import (
    BY,
    FILE,
    FORMS,
    asking,
    batching,
    capping,
    connecting,
    contrasting,
    data_option,
    emit,
    finish,
    forcing,
    limiting,
    limits_of,
    model_path_option,
    no_ledger,
    options_of,
    profiling,
    prompting,
    release_option,
    repeating,
    selecting,
    trials_option,
    working,
    write_out,
)
from memtrials.cli.root import cli
from memtrials.errors import UserError
from memtrials.metrics.recipes import RECIPES

if TYPE_CHECKING:
    from memtrials.stages.common import Options


@cli.command()
@click.argument("benchmark")
@release_option
@click.option("--variant", help="What systems and readers are shown (inmind: released, stripped).")
@click.option("--allow-modified", is_flag=True, help="Accept data that isn't a known release, under its own name.")
@click.option("--export-timelines", type=FILE, help="Write each task's timeline in exchange form to this folder.")
@working
def build(benchmark: str, as_json: bool, **given: Any) -> int:
    """Validate a benchmark's data and record its tasks. With --dry-run it only validates."""
    from memtrials.stages import build as stage

    names = ("data", "variant", "allow_modified", "export_timelines")
    request = stage.BuildRequest(benchmark, **{name: given.pop(name) for name in names})
    options = options_of(given)
    return finish(stage.run(request, options), options.quiet, as_json)


@cli.command()
@click.argument("systems", nargs=-1, required=True)
@data_option
@click.option("--manifest", type=FILE, help="Take in the states that this file or folder names instead of feeding.")
@click.option("--state-per-query", is_flag=True, help="One state for each query, for systems that learn when asked.")
@asking
@connecting
@repeating
@forcing
@capping
@selecting
@working
def replay(
    systems: tuple[str, ...],
    data: Path | None,
    manifest: Path | None,
    state_per_query: bool,
    k: int | None,
    order: str | None,
    budgets: tuple[int, ...],
    date_in_query: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Feed each task's timeline to SYSTEMS (names, or TOML files) and freeze the states.

    Where queries stand in the midst of a timeline (continuity) they are asked on the way: --k, --order, --budget,
    --date-in-query and --force are for those alone, and another of these plays the script again.
    """
    from memtrials.stages import replay as stage
    from memtrials.stages.fetch import FetchRequest

    limits = limits_of(given)
    options = options_of(given)
    asked = FetchRequest(systems, k, order, budgets, date_in_query)
    request = stage.ReplayRequest(systems, data, manifest, state_per_query, limits, asked)
    return finish(stage.run(request, options), options.quiet, as_json)


@cli.command()
@click.argument("systems", nargs=-1)
@asking
@connecting
@repeating
@forcing
@capping
@selecting
@working
def fetch(
    systems: tuple[str, ...],
    k: int | None,
    order: str | None,
    budgets: tuple[int, ...],
    date_in_query: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Ask each query of each frozen state, and record the contexts."""
    from memtrials.stages import fetch as stage

    limits = limits_of(given)
    options = options_of(given)
    request = stage.FetchRequest(systems, k, order, budgets, date_in_query, limits)
    return finish(stage.run(request, options), options.quiet, as_json)


@cli.command()
@click.option(
    "--reader",
    help="A model's name, offline, local, or system (its own answer) [default: READER_MODEL, LLM_MODEL, else offline].",
)
@model_path_option
@profiling
@prompting
@repeating
@forcing
@batching
@limiting
@selecting
@working
def answer(
    reader: str | None,
    model_path: Path | None,
    profile: str,
    prompts: str,
    upstream: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Let a reader answer every trial that it owes an answer."""
    from memtrials.stages import answer as stage

    limits = limits_of(given)
    options = options_of(given)
    request = stage.AnswerRequest(reader, profile, prompts, upstream, limits, model_path)
    return finish(stage.run(request, options), options.quiet, as_json)


@cli.command()
@click.option(
    "--judge",
    "judges",
    multiple=True,
    help="A model's name, offline or local; repeatable [default: JUDGE_MODEL, LLM_MODEL, else offline].",
)
@model_path_option
@click.option("--panel", type=FILE, help="A TOML file of judges: [[judge]] with model, prompts, endpoint.")
@click.option("--probe", is_flag=True, help="Ask about constructed answers: golds, swapped golds, refusals, nothing.")
@click.option("--metric", multiple=True, help="Only this metric; repeatable.")
@click.option("--reader", help="Judge this reader's answers, or all [default: each system's current reader].")
@prompting
@click.option(
    "--export-requests",
    type=FILE,
    callback=no_ledger,
    help="Write the payloads as JSON lines instead of calling a model.",
)
@click.option("--import-replies", type=FILE, help="Read replies (JSON lines: custom_id, reply) obtained elsewhere.")
@repeating
@batching
@limiting
@selecting
@working
def judge(
    judges: tuple[str, ...],
    model_path: Path | None,
    panel: Path | None,
    probe: bool,
    metric: tuple[str, ...],
    reader: str | None,
    prompts: str,
    upstream: Path | None,
    export_requests: Path | None,
    import_replies: Path | None,
    as_json: bool,
    **given: Any,
) -> int:
    """Decide every verdict that the judges owe."""
    from memtrials.stages import judge as stage

    limits = limits_of(given)
    options = options_of(given)
    request = stage.JudgeRequest(
        judges, metric, prompts, upstream, reader, export_requests, import_replies, limits, panel, probe, model_path
    )
    return finish(stage.run(request, options), options.quiet, as_json)


@cli.command()
@click.option(
    "--by",
    type=click.Choice(BY),
    help="Split by type (domain), task or trial; or one table for each system, reader or judge.",
)
@click.option("--view", type=click.Choice(["latest"]), help="The last record of each question, not its repeats' mean.")
@click.option("--metric", multiple=True, help="Only this metric; repeatable.")
@click.option("--errata", is_flag=True, help="Also without questions whose gold is known to be wrong, and the ceiling.")
@click.option(
    "--lexical",
    type=click.Choice(list(RECIPES)),
    multiple=True,
    help="Compare answers' words with the gold's; repeatable.",
)
@click.option("--context", is_flag=True, help="Contexts beside whole histories, which are read from the data again.")
@click.option(
    "--vocabulary", type=click.Choice(["cl100k", "qwen"]), multiple=True, help="Count contexts in it, too; repeatable."
)
@click.option("--cost", is_flag=True, help="What a question, a right answer and its judging cost.")
@click.option("--reader", help="Only this reader's answers.")
@click.option("--judge", help="Only this judge's verdicts.")
@click.option("--reference", metavar="SYSTEM", help="Differences from this system [default: of all pairs].")
@click.option("--primary", metavar="METRIC", help="The metric that is tested [default: the first with verdicts].")
@contrasting
@click.option("--format", "form", type=click.Choice(FORMS), default="table", show_default=True)
@click.option(
    "--out",
    type=FILE,
    callback=no_ledger,
    help="A file for it, which parquet and xlsx need [default: standard output].",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@trials_option
@selecting
def metrics(form: str, as_json: bool, out: Path | None, **given: Any) -> int:
    """Fold the ledger into numbers."""
    from memtrials.stages import metrics as stage
    from memtrials.stages.contrasts import Contrasting

    asked = Contrasting(**{name: given.pop(name) for name in ("reference", "primary", "margin", "allow_unlike")})
    names = {"by": given.pop("by"), "view": given.pop("view"), "metrics": given.pop("metric")}
    names |= {name: given.pop(name) for name in ("errata", "lexical", "context", "cost")}
    names["vocabularies"] = given.pop("vocabulary")
    names |= {"reader": given.pop("reader"), "judge": given.pop("judge")}
    request = stage.MetricsRequest(**names, contrasting=asked)
    form = "json" if as_json else form
    if form in ("parquet", "xlsx") and out is None:
        raise UserError(f"{form} is no text; name a file with --out")
    if form == "table" and out is not None:
        raise UserError("a table goes to the terminal; take another --format for --out")
    _print_metrics(request, options_of(given), form, out)
    return 0


def _print_metrics(request: Any, options: Options, form: str, out: Path | None = None) -> None:
    from memtrials.report import documents, tables
    from memtrials.stages import metrics as stage

    report = stage.run(request, options)
    if form == "table":
        from memtrials.report.terminal import console

        tables.print_report(report, console())
    elif form in documents.FILES and out is not None:
        documents.write_file(report, form, out)
        print(f"{len(report.numbers)} numbers written to {out}")
    else:
        write_out(documents.as_text(report, form), out, f"{len(report.numbers)} numbers")


# --- several stages ---------------------------------------------------------------------------------------------


@cli.command()
@click.argument("built", metavar="BENCHMARK")
@click.argument("systems", nargs=-1, required=True)
@release_option
@click.option("--variant", help="What systems and readers are shown.")
@click.option("--allow-modified", is_flag=True, help="Accept data that isn't a known release.")
@asking
@click.option("--reader", help="A model's name, offline or local.")
@click.option("--judge", help="A model's name, offline or local.")
@model_path_option
@click.option("--metric", multiple=True, help="Only this metric; repeatable.")
@profiling
@prompting
@repeating
@forcing
@limiting
@selecting
@working
def run(built: str, systems: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Run all stages in order. --repeat N asks each query N times; each trial is answered and judged once.

    The selection's --benchmark defaults to the one that is built.
    """
    return _run({built: given.pop("data")}, systems, given, as_json)


@cli.command()
@click.option("--llm", help="A model's name for reader and judge, offline or local [default: offline].")
@model_path_option
@working
def demo(llm: str | None, as_json: bool, **given: Any) -> int:
    """Run all stages on the bundled samples with three systems, in a ledger of its own (results/demo.json)."""
    from memtrials.settings import evaluation

    name = llm or "offline"
    given |= {
        "variant": None,
        "allow_modified": False,
        "k": 5,
        "order": None,
        "budgets": (),
        "date_in_query": False,
        "profile": "plain",
        "prompts": "default",
    }
    given |= {"upstream": None, "reader": name, "judge": name, "metric": (), "repeat": 1, "force": False}
    samples: tuple[str, ...] = ("inmind", "longmemeval", "locomo")
    systems: tuple[str, ...] = ("bm25", "hybrid", "in-context")
    if name == "local":  # an answer or a verdict takes five seconds
        given["limit"], samples, systems = 2, ("inmind",), ("hybrid",)
    built = {sample: evaluation() / "samples" / sample for sample in samples}
    return _run(built, systems, given, as_json, "demo.json")


@cli.command()
@click.argument("table")
@click.option("--artifacts", type=FILE, required=True, help="The folder of the released files, as it was released.")
@click.option("--data", type=FILE, help="LoCoMo's file or folder [default: where `memtrials data get` put it].")
@click.option("--reader", help="A model's name: answer the imported contexts again.")
@click.option("--judge", help="A model's name: judge the answers again.")
@profiling
@prompting
@limiting
@working
def reproduce(table: str, as_json: bool, **given: Any) -> int:
    """Recompute a published TABLE from its released files: import, metrics, and every cell beside what was printed.

    Tables: longmemeval, longmemeval-memorybear, locomo, locomo-memorybear. Again the same command: what is done isn't
    done again. It has a ledger of its own (results/reproduce.json) unless --trials names one.
    """
    from memtrials.exchange import published
    from memtrials.report import tables
    from memtrials.report.terminal import console
    from memtrials.stages import reproduce as stage

    names = ("artifacts", "data", "reader", "judge", "profile", "prompts", "upstream")
    request = stage.ReproduceRequest(table, limits=limits_of(given), **{name: given.pop(name) for name in names})
    options = options_of(given, "reproduce.json")
    worst = 0
    for outcome in stage.prepare(request, options):
        finish(outcome, options.quiet or as_json, as_json=False)
        worst = max(worst, outcome.exit_code)
        if worst >= 2:
            return worst
    described, cells = published.load(table), stage.compare(request, options)
    if as_json:
        emit([asdict(cell) | {"difference": cell.difference} for cell in cells])
    else:
        decimals = {name: column.decimals for name, column in described.columns.items()}
        tables.print_compared(f"{described.title}\n{described.source}", cells, decimals, console())
    return worst


ASKING = ("profile", "prompts", "upstream", "model_path")


def _run(
    built: Mapping[str, Path | None],
    systems: Sequence[str],
    given: dict[str, Any],
    as_json: bool,
    own_ledger: str | None = None,
) -> int:
    """All stages on each benchmark with its data, then the tables of all."""
    from memtrials.stages.all import RunRequest, run_all

    names = ("variant", "allow_modified", "k", "order", "budgets", "date_in_query", "reader", "judge", *ASKING)
    asked = {"metrics": given.pop("metric"), "limits": limits_of(given), **{n: given.pop(n) for n in names}}
    options = options_of(given, own_ledger)
    outcomes = []
    worst = 0
    try:
        for benchmark, data in built.items():
            for outcome in run_all(RunRequest(benchmark, tuple(systems), data, **asked), options):
                outcomes.append(outcome.as_json())
                finish(outcome, options.quiet or as_json, as_json=False)
                worst = max(worst, outcome.exit_code)
            if worst >= 2:
                break
    finally:
        if as_json:
            emit(outcomes)
    if not as_json and worst < 2 and not options.dry_run:
        from memtrials.stages.metrics import MetricsRequest

        _print_metrics(MetricsRequest(metrics=asked["metrics"]), options, "table")
    return worst
