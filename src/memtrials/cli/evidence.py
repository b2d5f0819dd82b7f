"""Numbers that others can check: sealed, verified, planned beforehand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memtrials.cli.exchange import export_group
from memtrials.cli.options import (
    COUNT,
    FILE,
    capping,
    emit,
    json_option,
    options_of,
    selected,
    selecting,
    settings_now,
    trials_option,
)
from memtrials.cli.root import cli
from memtrials.errors import UserError


@cli.command()
@click.option(
    "--out", type=FILE, help="The new file [default: beside the ledger]; with --run-dir the folder of evidence."
)
@click.option("--run-dir", type=FILE, help="Seal a folder that `export rows` wrote, into evidence/RUN_ID/ instead.")
@trials_option
@selecting
def seal(out: Path | None, run_dir: Path | None, **given: Any) -> int:
    """Write what the ledger holds and says now to a new file, to be cited by its SHA-256.

    The ledger may grow: what was sealed still verifies. A selection says which numbers are sealed.
    """
    from memtrials.records import now
    from memtrials.sealing.files import seal_run
    from memtrials.settings import checkout
    from memtrials.stages import sealing as stage

    if run_dir is not None:
        evidence = out or (checkout() or Path.cwd()) / "evidence"
        folder, sha256 = seal_run(run_dir, evidence, now())
        print(f"{folder}: sealed\nSHA-256 {sha256}")
        return 0
    found = stage.seal(options_of(given), out)
    print(f"{found.path}: {found.title}\nSHA-256 {found.sha256}")
    return 0


@cli.command()
@click.argument("sealed", metavar="SEAL", type=FILE)
@click.option("--plan", type=FILE, help="Say what was kept of this plan.")
@click.option("--trials", type=FILE, help="The ledger [default: the one beside the seal, else as for every command].")
@json_option
def verify(sealed: Path, plan: Path | None, trials: Path | None, as_json: bool) -> int:
    """Check a ledger against its SEAL, or the files of an evidence folder against the seal in it.

    Every sealed number is computed again: as published, with what was voided, and from the first trial of every
    question. Ends with 1 when something isn't as it was sealed; warnings don't change that.
    """
    from memtrials.report import evidence as report
    from memtrials.report.terminal import console
    from memtrials.settings import ledger_path
    from memtrials.stages import planning
    from memtrials.stages import sealing as stage

    settings = settings_now()
    if sealed.is_dir():
        if plan is not None:
            raise UserError("--plan goes with the seal of a ledger, not with a folder")
        found = stage.verify_folder(sealed)
    else:
        content = stage.read_seal(sealed)
        ledger = trials or stage.ledger_of(sealed, content) or ledger_path(None, settings)
        found = stage.verify(sealed, content, ledger, settings)
        if plan is not None and not found.failures:
            found.plan = planning.kept(plan, content, ledger)
    if as_json:
        emit(report.as_json(found))
    else:
        report.print_verified(found, console())
    return int(bool(found.failures))


@cli.command()
@click.argument("systems", nargs=-1, required=True)
@click.option("--metric", required=True, help="The primary metric.")
@click.option("--reference", help="The system that all others are compared with [default: all pairs].")
@click.option("--reader", help="The reader's model.")
@click.option("--judge", help="The judge's model.")
@click.option("--repeat", type=COUNT, default=1, show_default=True, help="Trials of each question.")
@capping
@click.option("--out", type=FILE, help="The new file [default: beside the ledger].")
@trials_option
@selecting
def plan(out: Path | None, **given: Any) -> int:
    """Write down what will be measured of SYSTEMS (names, or TOML files) before a verdict on them exists.

    Publish the plan's SHA-256; `memtrials verify SEAL --plan FILE` says later what was kept.
    """
    from memtrials.stages import planning as stage

    names = ("systems", "metric", "reference", "reader", "judge", "repeat", "max_cost", "max_requests")
    request = stage.PlanRequest(**{name: given.pop(name) for name in names})
    found = stage.plan(request, options_of(given), out)
    print(f"{found.path}: {found.title}\nSHA-256 {found.sha256}")
    return 0


@export_group.command("inmind-package")
@click.option("--out", type=FILE, required=True, help="The new folder.")
@click.option("--reader", help="Whose answers [default: the system's current reader].")
@click.option("--allow-partial", is_flag=True, help="Leave out tasks without a complete trial.")
@click.option("--allow-voided", is_flag=True, help="Export although results were voided after their verdict.")
@trials_option
@selecting
def export_package(out: Path, reader: str | None, allow_partial: bool, allow_voided: bool, **given: Any) -> int:
    """One system's submission with its configurations, the hashes of data and prompts, verdicts, and a seal of all."""
    from memtrials.exchange.cells import benchmark_in
    from memtrials.stages import packaging

    options, index, chosen = selected(given)
    benchmark = benchmark_in(index, "inmind", options.selection.benchmark)
    request = packaging.PackageRequest(benchmark, reader, allow_partial, allow_voided)
    found = packaging.package(request, options, index, chosen, out)
    print(f"{out}: {', '.join(packaging.FILES)}\nSHA-256 of the seal {found}")
    return 0
