"""What a person reads on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtrials.progress import say
from memtrials.report.status import COLUMNS

if TYPE_CHECKING:
    from rich.console import Console

    from memtrials.datasets import Place
    from memtrials.outcome import Outcome
    from memtrials.states import StoreFile

SHOWN_FAILURES = 8
WIDE = 200


def console() -> Console:
    """Standard output; wide where it isn't a terminal, so that tables in a file aren't folded. Brackets are text."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDE, highlight=False, markup=False)


def print_outcome(outcome: Outcome, *, quiet: bool) -> None:
    """One line on what a stage did, its notes, and a table of what failed."""
    if outcome.error is not None:
        say(f"memtrials: {outcome.error}")
    if outcome.must_ask or not quiet:
        for note in outcome.notes:
            say(f"  {note}")
    if not quiet or outcome.failed or outcome.interrupted:
        say(_summary(outcome))
    for message, count in sorted(outcome.failures.items(), key=lambda pair: -pair[1])[:SHOWN_FAILURES]:
        say(f"  {count} failed: {message}")
    if outcome.failed:
        say(f"  run `{outcome.stage}` again to retry them")


def _summary(outcome: Outcome) -> str:
    skipped = f", {outcome.skipped} skipped" if outcome.skipped else ""
    if outcome.dry_run:
        facts = "".join(
            f", {value:,} {name.replace('_', ' ')}" for name, value in outcome.details.items() if isinstance(value, int)
        )
        facts += _dollars(outcome.details.get("cost_usd_min"), outcome.details.get("cost_usd_max"))
        return f"{outcome.stage}: would do {outcome.pending}{skipped}{facts}"
    if outcome.pending == 0:
        return f"{outcome.stage}: nothing to do{skipped}"
    parts = [f"{outcome.done} done"]
    parts += [f"{outcome.failed} failed"] if outcome.failed else []
    parts += [f"{outcome.sent} handed over"] if outcome.sent else []
    parts += [f"{outcome.left - outcome.sent} left"] if outcome.left > outcome.sent else []
    return f"{outcome.stage}: {', '.join(parts)}{skipped}"


def _dollars(least: float | None, most: float | None) -> str:
    if least is None:
        return "" if most is None else f", at most ${most:,.4f}"
    return f", ${least:,.4f} to ${most:,.4f}" if most is not None else f", at least ${least:,.4f}"


def print_status(
    path: Path, rows: Sequence[Mapping[str, Any]], totals: Mapping[str, int], given_up: Mapping[str, Sequence[str]]
) -> None:
    """The table of `status`."""
    from rich.table import Table

    table = Table(title=str(path), title_justify="left")
    for name in ("benchmark", "system", "fetch", "reader", "judge"):
        table.add_column(name, overflow="fold")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            *(row[name] or "–" for name in ("benchmark", "system", "fetch", "reader", "judge")),
            *("–" if row[name] is None else f"{row[name]:,}" for name in COLUMNS),
        )
    out = console()
    out.print(table)
    out.print(", ".join(f"{count:,} {name}" for name, count in totals.items()), soft_wrap=True)
    for stage, works in given_up.items():
        out.print(f"given up in {stage} ({len(works)}): {'; '.join(works[:SHOWN_FAILURES])}", soft_wrap=True)
    for command in dict.fromkeys(row["next"] for row in rows):
        out.print(f"next: {command}", soft_wrap=True)


def print_batches(found: Sequence[Mapping[str, Any]]) -> None:
    """One line for each batch in flight."""
    for batch in found:
        place = " ".join(batch[name] for name in ("benchmark", "system", "fetch", "reader", "judge") if batch[name])
        counts = f"{batch['requests']} requests"
        if batch["answered"] is not None:
            counts += f", {batch['answered']} answered, {batch['failed']} failed"
        print(f"{batch['id']}  {batch['stage']} {place}: {batch['state']}; {counts}; sent {batch['at']}")
    if not found:
        print("no batch in flight")


def print_stores(found: Sequence[StoreFile]) -> None:
    """States by system and use."""
    groups: dict[tuple[str, str], list[StoreFile]] = {}
    for store in found:
        groups.setdefault((store.system, store.use), []).append(store)
    for (system, use), some in groups.items():
        print(f"{system}  {use}: {len(some)} states, {sum(s.bytes for s in some) / 1e6:.1f} MB")
    if not found:
        print("no states")


def print_datasets(places: Sequence[Place]) -> None:
    """The table of `data list`."""
    from rich.table import Table

    table = Table("name", "size", "licence", "here", "where")
    for place in places:
        dataset = place.dataset
        here = "yes" if place.here else f"{_bytes(place.part)} of it" if place.part else "no"
        table.add_row(dataset.name, _bytes(dataset.size), dataset.licence, here, str(place.folder))
    console().print(table)


def _bytes(size: int | None) -> str:
    from rich import filesize

    return "–" if size is None else filesize.decimal(size)


def print_doctor(lines: Sequence[tuple[str, str, str]], missing: Sequence[str]) -> None:
    """Settings, their values and sources; then what is missing. Nothing is folded: values are there to be copied."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    for problem in missing:
        print(f"missing: {problem}")
    if not missing:
        print("nothing is missing")
