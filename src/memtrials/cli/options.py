"""What commands share: options, and what is made of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from memtrials.errors import UserError

if TYPE_CHECKING:
    from memtrials.index import LedgerIndex
    from memtrials.llm.pool import CallLimits
    from memtrials.outcome import Outcome
    from memtrials.selection import Chosen
    from memtrials.settings import Settings
    from memtrials.stages.common import Options

F = TypeVar("F", bound=Callable[..., Any])
N = TypeVar("N", float | None, tuple[float, ...] | None)

COUNT = click.IntRange(min=1)
FILE = click.Path(path_type=Path)
ORDERS = ("rank", "time")
BY = ("type", "domain", "task", "system", "reader", "judge", "repeat")
FORMS = ("table", "json", "csv", "markdown", "latex", "parquet", "xlsx")
KINDS = ("task", "ingest", "retrieval", "answer", "verdict", "failure", "void")


def with_options(options: Iterable[Callable[[F], F]]) -> Callable[[F], F]:
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


def _budgets(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> tuple[int, ...]:
    """Numbers of 1 or more, with commas between them or one by one."""
    return tuple(COUNT(part, parameter, context) for some in value for part in some.split(","))


LEDGER = b'[\n{"id":"'
"""How every ledger with a record begins."""


def no_ledger(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a ledger as the file that an option has written: what is there would be gone."""
    begins = b""
    if path is not None and path.is_file():
        with suppress(OSError), path.open("rb") as file:  # writing it says why not
            begins = file.read(len(LEDGER))
    if begins == LEDGER:
        raise click.UsageError(f"{option.opts[0]} {path}: that is a ledger, which this would overwrite")
    return path


def finite(context: click.Context, parameter: click.Parameter, value: N) -> N:
    """Numbers as given but NaN, which is in every range of click's, and the infinite: no cap and no margin is."""
    for number in value if isinstance(value, tuple) else (value,):
        if number is not None and not math.isfinite(number):
            raise click.BadParameter(f"{number} is not a finite number.")
    return value


asking = with_options(
    [
        click.option("--k", type=COUNT, help="How many items a query brings back [default: the system's, 10]."),
        click.option(
            "--order", type=click.Choice(ORDERS), help="Order of items in the context [default: the system's, rank]."
        ),
        click.option(
            "--budget",
            "budgets",
            multiple=True,
            callback=_budgets,
            metavar="N,N,…",
            help="Tokens of the context: one trial for each budget, all cut from one query's items; repeatable.",
        ),
        click.option(
            "--date-in-query", is_flag=True, help="Tell the system the question's date in the query's text, too."
        ),
    ]
)
trials_option = click.option("--trials", type=FILE, help="The ledger [default: TRIALS_FILE, else results/trials.json].")
out_option = click.option("--out", type=FILE, callback=no_ledger, help="The file to write [default: standard output].")
json_option = click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output.")
dry_run_option = click.option("--dry-run", is_flag=True, help="Say what would be done; call and write nothing.")
selecting = with_options(
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
working = with_options(
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
connecting = with_options(
    [
        click.option(
            "--timeout",
            type=click.FloatRange(min=1),
            callback=finite,
            help="Seconds for one request to a memory service.",
        ),
        click.option("--max-retries", type=COUNT, help="Attempts of one request to a memory service."),
    ]
)
model_path_option = click.option(
    "--model-path", type=FILE, help="The GGUF file of the model local [default: the bundled one]."
)
capping = with_options(  # caps count what the ledger has spent in the stage already, under the same configuration
    [
        click.option(
            "--max-cost",
            type=click.FloatRange(min=0, min_open=True),
            callback=finite,
            help="Stop a stage before so many dollars.",
        ),
        click.option("--max-requests", type=COUNT, help="Stop a stage before more requests than this."),
    ]
)
limiting = with_options(
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
prompting = with_options(
    [
        click.option("--prompts", default="default", show_default=True, help="official, or a named set of judge's."),
        click.option("--upstream", type=FILE, help="A clone of the benchmark's repository, for official prompts."),
    ]
)
contrasting = with_options(
    [
        click.option(
            "--margin",
            type=float,
            callback=finite,
            help="Also test whether they are no further apart, in the metric's unit.",
        ),
        click.option(
            "--allow-unlike", is_flag=True, help="Also between unlike data, fetch configurations, prompts or judges."
        ),
    ]
)
profiling = click.option(
    "--profile", default="plain", show_default=True, help="How the reader is asked; plain is blind to types."
)

CONNECTING = {"SERVICE_TIMEOUT": "timeout", "SERVICE_MAX_RETRIES": "max_retries"}
SELECTION = ("benchmark", "system", "config", "task", "types", "split", "sample", "seed", "limit", "shard")


def limits_of(given: dict[str, Any]) -> CallLimits:
    """The limits of model calls in a command's parameters; they are taken out but for `workers`."""
    from memtrials.llm.pool import CallLimits

    names = ("rpm", "tpm", "max_cost", "max_requests")
    return CallLimits(given["workers"], **{name: given.pop(name, None) for name in names})


def settings_now() -> Settings:
    from memtrials.settings import Settings

    return Settings.load()


def options_of(given: dict[str, Any], own_ledger: str | None = None) -> Options:
    """The stage options in a command's parameters, which are taken out of them."""
    from memtrials.selection import Selection, parse_shard
    from memtrials.settings import Settings, ledger_path
    from memtrials.stages.common import Options

    settings = settings_now()
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


def finish(outcome: Outcome, quiet: bool, as_json: bool) -> int:
    from memtrials.report.terminal import print_outcome

    if as_json:
        print(json.dumps(outcome.as_json(), ensure_ascii=False))
    print_outcome(outcome, quiet=quiet or as_json)
    return outcome.exit_code


def emit(value: Any) -> None:
    print(json.dumps(value, ensure_ascii=False, default=list))


def write_out(text: str, out: Path | None, what: str) -> int:
    """A text, to a file or to standard output."""
    if out is None:
        print(text, end="")
        return 0
    try:
        out.write_text(text, "utf-8")
    except OSError as error:
        raise UserError(f"{out}: can't be written ({error.strerror})") from None
    print(f"{what} written to {out}")
    return 0


def opened(trials: Path | None, settings: Settings) -> tuple[Path, LedgerIndex]:
    from memtrials.index import LedgerIndex
    from memtrials.ledger import Ledger
    from memtrials.settings import ledger_path

    path = ledger_path(trials, settings)
    return path, LedgerIndex(Ledger.open(path))


def selected(given: dict[str, Any]) -> tuple[Options, LedgerIndex, Chosen]:
    from memtrials.index import LedgerIndex
    from memtrials.ledger import Ledger
    from memtrials.selection import choose

    options = options_of(given)
    index = LedgerIndex(Ledger.open(options.trials))
    return options, index, choose(index, options.selection, "unit")
