"""What a ledger holds, and what is done to it; what this machine is set up for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memtrials.cli.options import (
    FILE,
    KINDS,
    dry_run_option,
    emit,
    finish,
    json_option,
    opened,
    options_of,
    selected,
    selecting,
    settings_now,
    trials_option,
)
from memtrials.cli.root import cli
from memtrials.errors import UserError

if TYPE_CHECKING:
    pass


@cli.command()
@trials_option
@json_option
def status(trials: Path | None, as_json: bool) -> int:
    """How far each benchmark, system, reader and judge is, and the command that goes on."""
    from memtrials.report import status as report
    from memtrials.report.terminal import print_status

    path, index = opened(trials, settings_now())
    rows, totals, given_up = report.status_rows(index), report.totals(index), report.given_up_works(index)
    if as_json:
        emit({"ledger": str(path), "rows": rows, "totals": totals, "given_up": given_up})
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

    _, index, chosen = selected(given)
    for trial in trials(index, chosen, reader):
        emit(trial)
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

    options = options_of(given)
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
        emit({"stage": "void", "named": len(headers), **found, "appended": appended, "dry_run": dry_run})
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

    settings = settings_now()
    _, index = opened(trials, settings)
    found = stage.status(index, settings)
    if as_json:
        emit(found)
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

    options = options_of({"trials": trials})
    outcomes = stage.run(ids, options, cancel=cancel)
    for outcome in outcomes:
        finish(outcome, quiet=as_json, as_json=False)
    if as_json:
        emit([outcome.as_json() for outcome in outcomes])
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

    path, index = opened(trials, settings_now())
    found = states.list_stores(index, path)
    if as_json:
        emit([{"path": str(s.path), "system": s.system, "use": s.use, "bytes": s.bytes} for s in found])
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

    path, index = opened(trials, settings_now())
    removed = states.clean_stores(index, path, everything=everything, dry_run=dry_run)
    size = sum(s.bytes for s in removed) / 1e6
    print(f"{'would remove' if dry_run else 'removed'} {len(removed)} states, {size:.1f} MB")
    return 0


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

    settings = settings_now()
    if system is not None:
        lines, missing = preflight(system, settings)
        print_doctor(lines, missing)
        return 2 if missing else 0
    lines, missing = examine(settings, ledger_path(trials, settings), trials is not None)
    print_doctor(lines, missing)
    return 2 if missing else 0
