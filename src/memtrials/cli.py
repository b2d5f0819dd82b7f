"""The command line: parses, calls one function, prints. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from memtrials import __version__
from memtrials.errors import UserError

if TYPE_CHECKING:
    from memtrials.index import LedgerIndex
    from memtrials.llm.pool import CallLimits
    from memtrials.outcome import Outcome
    from memtrials.selection import Chosen
    from memtrials.settings import Settings
    from memtrials.stages.common import Options

F = TypeVar("F", bound=Callable[..., Any])

COUNT = click.IntRange(min=1)
FILE = click.Path(path_type=Path)
ORDERS = ("rank", "time")
BY = ("type", "domain", "system", "reader", "judge", "repeat")
KINDS = ("task", "ingest", "retrieval", "answer", "verdict", "failure", "void")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 done, 1 work failed, 2 the user must fix something, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    logging.basicConfig(format="memtrials: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        code = cli.main(list(sys.argv[1:] if arguments is None else arguments), "memtrials", standalone_mode=False)
    except UserError as error:
        code = _complain(error)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        code = 2
    except click.ClickException as error:
        hint = f" (see `{error.ctx.command_path} --help`)" if isinstance(error, click.UsageError) and error.ctx else ""
        code = _complain(UserError(error.format_message() + hint))
    except (KeyboardInterrupt, click.Abort):
        print("memtrials: interrupted; what was reported done is durable", file=sys.stderr)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _complain(error: UserError) -> int:
    for detail in error.details:
        print(detail, file=sys.stderr)
    print(f"memtrials: {error}", file=sys.stderr)
    return 2


class _Program(click.Group):
    """To stop reading (`view | head`) is no failure: click would end with 1, which here means that work failed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush would complain
            return 0
        return code


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="%(version)s")
def cli() -> None:
    """Evaluate the long-term memory of LLM agents.

    Six stages share one append-only ledger: build, replay, fetch, answer, judge, metrics. Run a stage again and it
    goes on where it stopped; nothing is done twice.
    """


# --- shared options ---------------------------------------------------------------------------------------------


def _with(options: Iterable[Callable[[F], F]]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(list(options)):
            function = option(function)
        return function

    return decorate


def _workers(context: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """A number of 1 or more; `auto` is None."""
    if value is None or value == "auto":
        return None
    count: int = COUNT(value, parameter, context)
    return count


trials_option = click.option("--trials", type=FILE, help="The ledger [default: TRIALS_FILE, else results/trials.json].")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done; call and write nothing.")
selecting = _with(
    [
        click.option("--benchmark", help="NAME or NAME@VARIANT."),
        click.option("--system", "system", multiple=True, help="A system's name, or one configuration id; repeatable."),
        click.option("--config", multiple=True, help="Records made under this configuration; repeatable."),
        click.option("--task", multiple=True, help="TASK or TASK/QUERY; repeatable."),
        click.option("--type", "types", multiple=True, help="A question type (InMind: domain); repeatable."),
        click.option("--split", type=click.Choice(["dev", "test"]), help="One fifth of the clusters, or the rest."),
        click.option("--sample", type=COUNT, help="N units, drawn by hash within each type."),
        click.option("--seed", type=int, default=0, show_default=True, help="The seed of --sample."),
        click.option("--limit", type=COUNT, help="The first N units."),
        click.option("--shard", help="K/N: this machine's part of N."),
    ]
)
working = _with(
    [
        trials_option,
        dry_run_option,
        click.option("--workers", callback=_workers, help="How much is in flight at once: N or auto [default]."),
        click.option("--quiet", is_flag=True, help="No progress and no notes; problems are still told."),
        json_option,
    ]
)
repeating = click.option("--repeat", type=COUNT, default=1, show_default=True, help="Top up to N.")
forcing = click.option("--force", is_flag=True, help="Say yes to a switch of configuration.")
data_option = click.option("--data", type=FILE, help="Where the release is, if it moved since build.")
release_option = click.option(
    "--data", type=FILE, help="The folder of the release [default: where `memtrials data get` put it]."
)
connecting = _with(
    [
        click.option("--timeout", type=click.FloatRange(min=1), help="Seconds for one request to a memory service."),
        click.option("--max-retries", type=COUNT, help="Attempts of one request to a memory service."),
    ]
)
model_path_option = click.option(
    "--model-path", type=FILE, help="The GGUF file of the model local [default: the bundled one]."
)
capping = _with(  # caps count what the ledger has spent in the stage already, under the same configuration
    [
        click.option(
            "--max-cost", type=click.FloatRange(min=0, min_open=True), help="Stop a stage before so many dollars."
        ),
        click.option("--max-requests", type=COUNT, help="Stop a stage before more requests than this."),
    ]
)
limiting = _with(
    [
        click.option("--rpm", type=COUNT, help="At most so many requests a minute."),
        click.option("--tpm", type=COUNT, help="At most so many tokens of prompt a minute."),
        capping,
    ]
)
batching = click.option(
    "--batch",
    is_flag=True,
    help="Hand the requests to the provider's batch service and exit: half the price, within a day.",
)
prompting = _with(
    [
        click.option("--prompts", default="default", show_default=True, help="official, or a named set of judge's."),
        click.option("--upstream", type=FILE, help="A clone of the benchmark's repository, for official prompts."),
    ]
)
profiling = click.option(
    "--profile", default="plain", show_default=True, help="How the reader is asked; plain is blind to types."
)

CONNECTING = {"SERVICE_TIMEOUT": "timeout", "SERVICE_MAX_RETRIES": "max_retries"}
SELECTION = ("benchmark", "system", "config", "task", "types", "split", "sample", "seed", "limit", "shard")


def _limits(given: dict[str, Any]) -> CallLimits:
    """The limits of model calls in a command's parameters; they are taken out but for `workers`."""
    from memtrials.llm.pool import CallLimits

    names = ("rpm", "tpm", "max_cost", "max_requests")
    return CallLimits(given["workers"], **{name: given.pop(name, None) for name in names})


def _settings() -> Settings:
    from memtrials.settings import Settings

    return Settings.load()


def _options(given: dict[str, Any], own_ledger: str | None = None) -> Options:
    """The stage options in a command's parameters, which are taken out of them."""
    from memtrials.selection import Selection, parse_shard
    from memtrials.settings import Settings, ledger_path
    from memtrials.stages.common import Options

    settings = _settings()
    told = {name: given.pop(flag, None) for name, flag in CONNECTING.items()}
    if said := {name: str(value) for name, value in told.items() if value is not None}:
        settings = Settings((("command line", said), *settings.layers))
    chosen = {name: given.pop(name, None) for name in SELECTION}
    selection = Selection(
        benchmark=chosen["benchmark"],
        systems=chosen["system"] or (),
        configs=chosen["config"] or (),
        tasks=chosen["task"] or (),
        types=chosen["types"] or (),
        split=chosen["split"],
        sample=chosen["sample"],
        seed=chosen["seed"] or 0,
        limit=chosen["limit"],
        shard=parse_shard(chosen["shard"]) if chosen["shard"] else None,
    )
    return Options(
        trials=ledger_path(given.pop("trials", None), settings, own_ledger),
        settings=settings,
        selection=selection,
        repeat=given.pop("repeat", 1),
        force=given.pop("force", False),
        dry_run=given.pop("dry_run", False),
        workers=given.pop("workers", None),
        quiet=given.pop("quiet", False),
        batch=given.pop("batch", False),
    )


def _finish(outcome: Outcome, quiet: bool, as_json: bool) -> int:
    from memtrials.report.terminal import print_outcome

    if as_json:
        print(json.dumps(outcome.as_json(), ensure_ascii=False))
    print_outcome(outcome, quiet=quiet or as_json)
    return outcome.exit_code


def _emit(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, default=list))


# --- stages -----------------------------------------------------------------------------------------------------


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
    options = _options(given)
    return _finish(stage.run(request, options), options.quiet, as_json)


@cli.command()
@click.argument("systems", nargs=-1, required=True)
@data_option
@click.option("--manifest", type=FILE, help="Take in the states that this file or folder names instead of feeding.")
@click.option("--state-per-query", is_flag=True, help="One state for each query, for systems that learn when asked.")
@connecting
@repeating
@capping
@selecting
@working
def replay(
    systems: tuple[str, ...],
    data: Path | None,
    manifest: Path | None,
    state_per_query: bool,
    as_json: bool,
    **given: Any,
) -> int:
    """Feed each task's timeline to SYSTEMS (names, or TOML files) and freeze the states."""
    from memtrials.stages import replay as stage

    limits = _limits(given)
    options = _options(given)
    request = stage.ReplayRequest(systems, data, manifest, state_per_query, limits)
    return _finish(stage.run(request, options), options.quiet, as_json)


@cli.command()
@click.argument("systems", nargs=-1)
@click.option("--k", type=COUNT, help="How many items a query brings back [default: the system's, 10].")
@click.option("--order", type=click.Choice(ORDERS), help="Order of items in the context [default: the system's, rank].")
@click.option("--date-in-query", is_flag=True, help="Tell the system the question's date in the query's text, too.")
@connecting
@repeating
@forcing
@capping
@selecting
@working
def fetch(
    systems: tuple[str, ...], k: int | None, order: str | None, date_in_query: bool, as_json: bool, **given: Any
) -> int:
    """Ask each query of each frozen state, and record the contexts."""
    from memtrials.stages import fetch as stage

    limits = _limits(given)
    options = _options(given)
    request = stage.FetchRequest(systems, k, order, date_in_query, limits)
    return _finish(stage.run(request, options), options.quiet, as_json)


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

    limits = _limits(given)
    options = _options(given)
    request = stage.AnswerRequest(reader, profile, prompts, upstream, limits, model_path)
    return _finish(stage.run(request, options), options.quiet, as_json)


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
@click.option("--export-requests", type=FILE, help="Write the payloads as JSON lines instead of calling a model.")
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

    limits = _limits(given)
    options = _options(given)
    request = stage.JudgeRequest(
        judges, metric, prompts, upstream, reader, export_requests, import_replies, limits, panel, probe, model_path
    )
    return _finish(stage.run(request, options), options.quiet, as_json)


@cli.command()
@click.option(
    "--by",
    type=click.Choice(BY),
    help="Split by type (domain) or trial; or one table for each system, reader or judge.",
)
@click.option("--view", type=click.Choice(["latest"]), help="The last record of each question, not its repeats' mean.")
@click.option("--metric", multiple=True, help="Only this metric; repeatable.")
@click.option("--reader", help="Only this reader's answers.")
@click.option("--judge", help="Only this judge's verdicts.")
@click.option("--format", "form", type=click.Choice(["table", "json", "csv"]), default="table", show_default=True)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@trials_option
@selecting
def metrics(form: str, as_json: bool, **given: Any) -> int:
    """Fold the ledger into numbers."""
    from memtrials.stages import metrics as stage

    names = {"by": given.pop("by"), "view": given.pop("view"), "metrics": given.pop("metric")}
    request = stage.MetricsRequest(**names, reader=given.pop("reader"), judge=given.pop("judge"))
    _print_metrics(request, _options(given), "json" if as_json else form)
    return 0


def _print_metrics(request: Any, options: Options, form: str) -> None:
    from memtrials.report import tables
    from memtrials.stages import metrics as stage

    report = stage.run(request, options)
    if form == "json":
        _emit(tables.as_json(report))
    elif form == "csv":
        print(tables.as_csv(report), end="")
    else:
        from memtrials.report.terminal import console

        tables.print_report(report, console())


# --- several stages ---------------------------------------------------------------------------------------------


@cli.command()
@click.argument("built", metavar="BENCHMARK")
@click.argument("systems", nargs=-1, required=True)
@release_option
@click.option("--variant", help="What systems and readers are shown.")
@click.option("--allow-modified", is_flag=True, help="Accept data that isn't a known release.")
@click.option("--k", type=COUNT, help="How many items a query brings back.")
@click.option("--order", type=click.Choice(ORDERS), help="Order of items in the context.")
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
    given |= {"variant": None, "allow_modified": False, "k": 5, "order": None, "profile": "plain", "prompts": "default"}
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
    request = stage.ReproduceRequest(table, limits=_limits(given), **{name: given.pop(name) for name in names})
    options = _options(given, "reproduce.json")
    worst = 0
    for outcome in stage.prepare(request, options):
        _finish(outcome, options.quiet or as_json, as_json=False)
        worst = max(worst, outcome.exit_code)
        if worst >= 2:
            return worst
    described, cells = published.load(table), stage.compare(request, options)
    if as_json:
        _emit([asdict(cell) | {"difference": cell.difference} for cell in cells])
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

    names = ("variant", "allow_modified", "k", "order", "reader", "judge", *ASKING)
    asked = {"metrics": given.pop("metric"), "limits": _limits(given), **{n: given.pop(n) for n in names}}
    options = _options(given, own_ledger)
    outcomes = []
    worst = 0
    try:
        for benchmark, data in built.items():
            for outcome in run_all(RunRequest(benchmark, tuple(systems), data, **asked), options):
                outcomes.append(outcome.as_json())
                _finish(outcome, options.quiet or as_json, as_json=False)
                worst = max(worst, outcome.exit_code)
            if worst >= 2:
                break
    finally:
        if as_json:
            _emit(outcomes)
    if not as_json and worst < 2 and not options.dry_run:
        from memtrials.stages.metrics import MetricsRequest

        _print_metrics(MetricsRequest(metrics=asked["metrics"]), options, "table")
    return worst


# --- the ledger -------------------------------------------------------------------------------------------------


def _index(trials: Path | None, settings: Settings) -> tuple[Path, LedgerIndex]:
    from memtrials.index import LedgerIndex
    from memtrials.ledger import Ledger
    from memtrials.settings import ledger_path

    path = ledger_path(trials, settings)
    return path, LedgerIndex(Ledger.open(path))


def _selected(given: dict[str, Any]) -> tuple[Options, LedgerIndex, Chosen]:
    from memtrials.index import LedgerIndex
    from memtrials.ledger import Ledger
    from memtrials.selection import choose

    options = _options(given)
    index = LedgerIndex(Ledger.open(options.trials))
    return options, index, choose(index, options.selection, "unit")


@cli.command()
@trials_option
@json_option
def status(trials: Path | None, as_json: bool) -> int:
    """How far each benchmark, system, reader and judge is, and the command that goes on."""
    from memtrials.report import status as report
    from memtrials.report.terminal import print_status

    path, index = _index(trials, _settings())
    rows, totals, given_up = report.status_rows(index), report.totals(index), report.given_up_works(index)
    if as_json:
        _emit({"ledger": str(path), "rows": rows, "totals": totals, "given_up": given_up})
    else:
        print_status(path, rows, totals, given_up)
    return 0


@cli.command()
@click.option("--reader", help="This reader's answers, or all [default: each system's current reader].")
@trials_option
@selecting
def view(reader: str | None, **given: Any) -> int:
    """Self-contained trials as JSON lines: question, gold, context, answer, verdicts, latency."""
    from memtrials.report.view import trials

    _, index, chosen = _selected(given)
    for trial in trials(index, chosen, reader):
        _emit(trial)
    return 0


@cli.command()
@click.argument("one", type=FILE)
@click.argument("other", type=FILE)
@click.option("--out", type=FILE, required=True, help="The new ledger.")
def merge(one: Path, other: Path, out: Path) -> int:
    """Write the union of two ledgers to a new one."""
    from memtrials.merge import merge as merge_ledgers

    index = merge_ledgers(one, other, out)
    print(f"{out}: {len(index.ledger.headers)} records, {index.twins} twins ({index.set_aside} set aside)")
    return 0


@cli.command()
@click.argument("ids", nargs=-1)
@click.option("--kind", multiple=True, type=click.Choice(KINDS[:-1]), help="Only records of this kind; repeatable.")
@click.option("--reason", required=True, help="Why; it is recorded.")
@dry_run_option
@json_option
@trials_option
@selecting
def void(ids: tuple[str, ...], kind: tuple[Any, ...], reason: str, dry_run: bool, as_json: bool, **given: Any) -> int:
    """Take results out of the count; void a void record to undo it."""
    from memtrials import voiding
    from memtrials.index import LedgerIndex
    from memtrials.ledger import Ledger

    options = _options(given)
    with Ledger.open(options.trials) as ledger:
        index = LedgerIndex(ledger)
        headers = voiding.resolve(index, ids, kind, options.selection)
        body = voiding.tally(index, headers, reason)
        if headers and not dry_run:
            ledger.check_writable()
            voiding.void(ledger, index, headers, reason)
    appended = int(bool(headers) and not dry_run)
    if as_json:
        found = {"kinds": body.kinds, "right": body.right, "wrong": body.wrong}
        _emit({"stage": "void", "named": len(headers), **found, "appended": appended, "dry_run": dry_run})
    else:
        parts = ", ".join(f"{count} {name}" for name, count in body.kinds.items()) or "nothing"
        print(f"{'would void' if dry_run else 'void'}: {parts} ({body.right} right and {body.wrong} wrong verdicts)")
    return 0


@cli.group()
def batch() -> None:
    """Work that `answer --batch` and `judge --batch` handed to a provider's batch service."""


@batch.command("status")
@trials_option
@json_option
def batch_status(trials: Path | None, as_json: bool) -> int:
    """Every batch in flight, and how far its provider says it is."""
    from memtrials.report.terminal import print_batches
    from memtrials.stages import batch as stage

    settings = _settings()
    _, index = _index(trials, settings)
    found = stage.status(index, settings)
    if as_json:
        _emit(found)
    else:
        print_batches(found)
    return 0


@batch.command("collect")
@click.argument("ids", nargs=-1)
@trials_option
@json_option
def collect_batches(ids: tuple[str, ...], trials: Path | None, as_json: bool) -> int:
    """Take in what is finished of all batches, or of those with IDS. Work without a result is pending again."""
    return _take_in(ids, trials, as_json, cancel=False)


@batch.command("cancel")
@click.argument("ids", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Every batch in flight.")
@trials_option
@json_option
def cancel_batches(ids: tuple[str, ...], everything: bool, trials: Path | None, as_json: bool) -> int:
    """Have the batches with IDS end. What was answered is taken in, the rest is pending again.

    Where the provider takes a while, `memtrials batch collect` takes it in later.
    """
    if bool(ids) == everything:
        raise UserError("name the batches to cancel (`memtrials batch status` lists them), or say --all")
    return _take_in(ids, trials, as_json, cancel=True)


def _take_in(ids: tuple[str, ...], trials: Path | None, as_json: bool, *, cancel: bool) -> int:
    from memtrials.stages import batch as stage

    options = _options({"trials": trials})
    outcomes = stage.run(ids, options, cancel=cancel)
    for outcome in outcomes:
        _finish(outcome, quiet=as_json, as_json=False)
    if as_json:
        _emit([outcome.as_json() for outcome in outcomes])
    elif not outcomes:
        print("no batch in flight")
    return max((outcome.exit_code for outcome in outcomes), default=0)


@cli.group()
def stores() -> None:
    """The states of embedded systems beside a ledger."""


@stores.command("list")
@trials_option
@json_option
def list_stores(trials: Path | None, as_json: bool) -> int:
    """Every state, and whether the ledger counts on it."""
    from memtrials import states
    from memtrials.report.terminal import print_stores

    path, index = _index(trials, _settings())
    found = states.list_stores(index, path)
    if as_json:
        _emit([{"path": str(s.path), "system": s.system, "use": s.use, "bytes": s.bytes} for s in found])
    else:
        print_stores(found)
    return 0


@stores.command("clean")
@click.option("--all", "everything", is_flag=True, help="Also states that the ledger counts on.")
@dry_run_option
@trials_option
def clean_stores(everything: bool, dry_run: bool, trials: Path | None) -> int:
    """Remove states that no ingest counts on: void, orphaned, half-built."""
    from memtrials import states

    path, index = _index(trials, _settings())
    removed = states.clean_stores(index, path, everything=everything, dry_run=dry_run)
    size = sum(s.bytes for s in removed) / 1e6
    print(f"{'would remove' if dry_run else 'removed'} {len(removed)} states, {size:.1f} MB")
    return 0


# --- exchange ---------------------------------------------------------------------------------------------------


@cli.group(name="export")
def export_group() -> None:
    """Write results in other tools' formats."""


@export_group.command("inmind-submission")
@click.option("--out", type=FILE, help="The file to write [default: standard output].")
@click.option("--reader", help="Whose answers [default: the system's current reader].")
@click.option("--trial", type=COUNT, default=1, show_default=True, help="Which trial of each question.")
@click.option("--allow-partial", is_flag=True, help="Leave out tasks without a complete trial.")
@click.option("--allow-voided", is_flag=True, help="Export although results were voided after their verdict.")
@trials_option
@selecting
def export_inmind(
    out: Path | None, reader: str | None, trial: int, allow_partial: bool, allow_voided: bool, **given: Any
) -> int:
    """One JSON object per task of one system, as InMind's leaderboard takes it."""
    from memtrials.exchange import inmind_submission as format_
    from memtrials.exchange.cells import benchmark_in

    options, index, chosen = _selected(given)
    benchmark = benchmark_in(index, "inmind", options.selection.benchmark)
    rows = format_.rows(index, benchmark, chosen, reader, trial, allow_partial=allow_partial, allow_voided=allow_voided)
    return _write_out(_lines(rows), out, f"{len(rows)} tasks")


def _export_options(*, judged: bool) -> Callable[[F], F]:
    """What exports of one system's answers take."""
    judge = [click.option("--judge", help="Whose verdicts, where several judges decided.")] if judged else []
    return _with(
        [
            click.option("--out", type=FILE, help="The file to write [default: standard output]."),
            click.option("--reader", help="Whose answers [default: the system's current reader]."),
            *judge,
            trials_option,
            selecting,
        ]
    )


trial_option = click.option("--trial", type=COUNT, default=1, show_default=True, help="Which trial of each question.")


def _write_out(text: str, out: Path | None, what: str) -> int:
    """An export, to a file or to standard output."""
    if out is None:
        print(text, end="")
        return 0
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"{out}: can't be written ({error.strerror})") from None
    print(f"{what} written to {out}")
    return 0


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@export_group.command("memorybear-trials")
@_export_options(judged=True)
def export_trials(out: Path | None, reader: str | None, judge: str | None, **given: Any) -> int:
    """A JSON array of LongMemEval trials, as MemoryBear's pipeline writes and reads it. An imported array comes out
    again with every field it had."""
    from memtrials.exchange import trials_array
    from memtrials.exchange.cells import answers, benchmark_in, last_verdicts

    options, index, chosen = _selected(given)
    benchmark = benchmark_in(index, "longmemeval", options.selection.benchmark)
    _, trials = answers(index, benchmark, chosen, reader)
    verdicts = last_verdicts(index, trials, "accuracy", judge)
    rows = list(trials_array.export(index, benchmark, trials, verdicts))
    return _write_out(json.dumps(rows, ensure_ascii=False, indent=2) + "\n", out, f"{len(rows)} trials")


@export_group.command("longmemeval-hypotheses")
@trial_option
@_export_options(judged=False)
def export_hypotheses(trial: int, out: Path | None, reader: str | None, **given: Any) -> int:
    """JSON lines of question_id and hypothesis, as LongMemEval's evaluate_qa takes them."""
    from memtrials.exchange import longmemeval_files
    from memtrials.exchange.cells import answers, benchmark_in

    options, index, chosen = _selected(given)
    benchmark = benchmark_in(index, "longmemeval", options.selection.benchmark)
    rows = list(longmemeval_files.hypotheses(index, answers(index, benchmark, chosen, reader, trial)[1]))
    return _write_out(_lines(rows), out, f"{len(rows)} hypotheses")


@export_group.command("longmemeval-eval-results")
@trial_option
@click.option("--legacy", is_flag=True, help="MemoryBear's fields, and of each question the last judged trial.")
@_export_options(judged=True)
def export_eval_results(
    trial: int, legacy: bool, out: Path | None, reader: str | None, judge: str | None, **given: Any
) -> int:
    """JSON lines of judged answers with autoeval_label, as LongMemEval's evaluate_qa writes them."""
    from memtrials.exchange import longmemeval_files
    from memtrials.exchange.cells import answers, benchmark_in, last_verdicts

    options, index, chosen = _selected(given)
    benchmark = benchmark_in(index, "longmemeval", options.selection.benchmark)
    _, some = answers(index, benchmark, chosen, reader, None if legacy else trial)
    verdicts = last_verdicts(index, some, "accuracy", judge)
    rows = list(longmemeval_files.eval_results(index, some, verdicts, legacy=legacy))
    return _write_out(_lines(rows), out, f"{len(rows)} verdicts")


@export_group.command("locomo-results")
@trial_option
@click.option("--model", help="What fields are named after [default: the reader's model].")
@click.option("--data", type=FILE, help="LoCoMo's file, whose rows are written again, if it moved since build.")
@_export_options(judged=False)
def export_locomo(
    trial: int, model: str | None, data: Path | None, out: Path | None, reader: str | None, **given: Any
) -> int:
    """LoCoMo's samples with predictions and scores; with --out also OUT's counts by category, in *_stats.json."""
    from memtrials.exchange import locomo_files
    from memtrials.exchange.cells import answers, benchmark_in, model_of

    options, index, chosen = _selected(given)
    benchmark = benchmark_in(index, "locomo", options.selection.benchmark)
    cell, some = answers(index, benchmark, chosen, reader, trial)
    found = locomo_files.results(index, benchmark, some, model or model_of(index, cell.reader), data)
    count = sum(len(sample["qa"]) for sample in found.samples)
    if out is not None:
        statistics = out.with_name(f"{out.stem}_stats.json")
        _write_out(json.dumps(found.statistics, ensure_ascii=False, indent=2) + "\n", statistics, "counts")
    return _write_out(json.dumps(found.samples, ensure_ascii=False, indent=2) + "\n", out, f"{count} answers")


class _Import(click.Group):
    """`import FILE…` is `import results FILE…`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if not args or args[0] in names else ["results", *args])


@cli.group(name="import", cls=_Import)
def import_group() -> None:
    """Take in results that others made, so that they can be judged and compared.

    `memtrials import FILE…` is `memtrials import results FILE…`.
    """


@import_group.command("results")
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--benchmark", help="Where several are built, the one these are results of.")
@click.option("--name", help="The system's name [default: what the file's name begins with].")
@trials_option
@json_option
def import_results(
    files: tuple[Path, ...], benchmark: str | None, name: str | None, trials: Path | None, as_json: bool
) -> int:
    """Released results of MemoryBear, MemOS and Mem0 on LongMemEval and LoCoMo, plain or gzip, and MemoryBear's trials.

    They become those of the system imported-NAME. A file of retrieved memories belongs to the judged answers named
    before it; alone, its contexts can be answered and judged. Again the same file: nothing.
    """
    from memtrials.stages import importing

    options = _options({"trials": trials})
    outcome = importing.run(importing.ImportRequest(files, benchmark, name), options)
    if as_json:
        _emit({"stage": "import", "appended": outcome.appended, "notes": outcome.notes})
    else:
        print("\n".join([*outcome.notes, f"{outcome.appended} records appended"]))
    return 0


@import_group.command("inmind-submission")
@click.argument("file", type=FILE)
@click.option("--benchmark", help="Which built InMind benchmark it belongs to.")
@trials_option
@json_option
def import_inmind(file: Path, benchmark: str | None, trials: Path | None, as_json: bool) -> int:
    """Results of a submission file become those of the system imported-NAME. Again the same file: nothing."""
    from memtrials.exchange import inmind_submission as format_
    from memtrials.exchange.cells import benchmark_in
    from memtrials.exchange.imported import append

    _, index = _index(trials, _settings())
    appended = append(index, format_.records(index, benchmark_in(index, "inmind", benchmark), file))
    index.ledger.close()
    if as_json:
        _emit({"stage": "import", "appended": appended})
    else:
        print(f"{appended} records appended")
    return 0


@cli.group()
def validate() -> None:
    """Check files of other tools' formats."""


@validate.command("inmind-submission")
@click.argument("file", type=FILE)
@click.option("--allow-partial", is_flag=True, help="Accept missing tasks.")
@click.option("--benchmark", help="Which built InMind benchmark its ids belong to.")
@trials_option
def validate_inmind(file: Path, allow_partial: bool, benchmark: str | None, trials: Path | None) -> int:
    """Check a submission against the tasks of a built benchmark: every problem with its line number."""
    from memtrials.exchange import inmind_submission as format_
    from memtrials.exchange.cells import benchmark_in

    _, index = _index(trials, _settings())
    tasks = format_.tasks_of(index, benchmark_in(index, "inmind", benchmark))
    rows = format_.read(file, tasks, allow_partial=allow_partial)
    print(f"{file}: valid, {len(rows)} of {len(tasks)} tasks")
    return 0


# --- public data ------------------------------------------------------------------------------------------------


@cli.group()
def data() -> None:
    """Public data that benchmarks are built from: what there is, where it is, and getting it."""


@data.command("list")
@json_option
def list_data(as_json: bool) -> int:
    """Every dataset, its size and licence, and whether it is here. Asks nobody."""
    from memtrials import datasets
    from memtrials.report.terminal import print_datasets

    settings = _settings()
    found = [datasets.place(name, settings) for name in datasets.catalogue()]
    if as_json:
        _emit([datasets.as_json(place) for place in found])
    else:
        print_datasets(found)
    return 0


@data.command("where")
@click.argument("name")
def where_data(name: str) -> int:
    """The folder of a dataset that is here, and nothing else."""
    from memtrials import datasets

    print(datasets.folder_of(name, _settings()))
    return 0


@data.command("get")
@click.argument("names", nargs=-1, required=True)
@click.option("--to", type=FILE, help="Into this folder [default: MEMTRIALS_DATA, else the platform's for user data].")
@click.option("--quiet", is_flag=True, help="No progress; licences and problems are still told.")
@json_option
def get_data(names: tuple[str, ...], to: Path | None, quiet: bool, as_json: bool) -> int:
    """Download datasets, each to a folder of its name, and check them. What was cut off goes on where it stopped.

    The licence is shown first and kept beside the data.
    """
    from memtrials import datasets
    from memtrials.report.progress import say

    settings = _settings()
    places = [datasets.place(name, settings, to) for name in dict.fromkeys(names)]
    for place in places:
        datasets.check_by_hand(place)
    results, failed = [], False
    for place in places:
        result = datasets.as_json(place)
        try:
            result["downloaded"] = datasets.get(place, settings, quiet=quiet)
        except datasets.DownloadError as error:
            say(f"memtrials: {error}")
            result["error"], failed = str(error), True
        else:
            result |= datasets.as_json(place)
            if not as_json:
                done = f"{result['downloaded']:,} bytes downloaded" if result["downloaded"] else "nothing to do"
                print(f"{place.dataset.name}: {done}; in {place.folder}")
        results.append(result)
    if as_json:
        _emit(results)
    return int(failed)


@data.command("verify")
@click.argument("names", nargs=-1)
@json_option
def verify_data(names: tuple[str, ...], as_json: bool) -> int:
    """Read datasets again, all that are here or those named, and compare them with their published hashes."""
    from memtrials import datasets

    settings = _settings()
    places = [datasets.place(name, settings) for name in names or datasets.catalogue()]
    files = [file for place in places if names or place.here for file in datasets.verify(place, quiet=as_json)]
    if as_json:
        _emit([asdict(file) | {"path": str(file.path)} for file in files])
    else:
        print("\n".join(file.problem or f"{file.path}: {file.result}" for file in files) or "no dataset is here")
    return int(any(file.problem for file in files))


@cli.command()
@click.argument("system", required=False)
@trials_option
def doctor(system: str | None, trials: Path | None) -> int:
    """What is configured, where each value came from, and what is missing.

    With a SYSTEM whose states are in a service: one question end to end there, and everything that came of it.
    """
    from memtrials.doctor import examine, preflight
    from memtrials.report.terminal import print_doctor
    from memtrials.settings import ledger_path

    settings = _settings()
    if system is not None:
        lines, missing = preflight(system, settings)
        print_doctor(lines, missing)
        return 2 if missing else 0
    lines, missing = examine(settings, ledger_path(trials, settings), trials is not None)
    print_doctor(lines, missing)
    return 2 if missing else 0
