"""What `verify` found, for people and as JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from memtrials.sealing.findings import Recomputed, Verified

if TYPE_CHECKING:
    from rich.console import Console

WAYS = ("published", "with_voided", "first")


def as_json(found: Verified) -> dict[str, Any]:
    """Everything as one object; of a number its name, class and the four values."""
    return {
        "stage": "verify",
        "verified": not found.failures,
        "seal": found.seal,
        "sha256": found.sha256,
        "failures": found.failures,
        "warnings": found.warnings,
        "facts": found.facts,
        "numbers": [{**_labels(one), **{way: getattr(one, way) for way in WAYS}} for one in found.numbers],
        "plan": [asdict(one) for one in found.plan],
    }


def _labels(one: Recomputed) -> dict[str, Any]:
    names = ("benchmark", "system", "fetch", "reader", "judge", "metric", "part", "class", "n", "of")
    return {**{name: one.number[name] for name in names}, "sealed": one.sealed}


def print_verified(found: Verified, console: Console) -> None:
    """The seal, numbers that have a class or aren't the same in all ways, then facts, warnings and failures; the last
    line is the outcome."""
    from rich.table import Table

    console.print(found.seal, soft_wrap=True)
    console.print(f"SHA-256 of the seal: {found.sha256}")
    shown = [one for one in found.numbers if one.number["class"] or one.varies]
    if shown:
        table = Table(title="computed again", title_justify="left", header_style="bold")
        for column in ("number", "class"):
            table.add_column(column)
        for column in ("sealed", "as published", "with what was voided", "first trials", "n"):
            table.add_column(column, justify="right")
        for one in shown:
            values = [_plain(value) for value in (one.sealed, one.published, one.with_voided, one.first)]
            table.add_row(one.name, one.number["class"] or "–", *values, f"{one.number['n']} of {one.number['of']}")
        console.print(table)
    if others := len(found.numbers) - len(shown):
        console.print(f"  {others} numbers without a class are the same in all three ways")
    for fact in found.facts:
        console.print(f"  {fact}", soft_wrap=True)
    for thing in found.plan:
        word = {True: "kept: ", False: "not kept: ", None: ""}[thing.kept]
        console.print(f"plan, {thing.what}: {word}{thing.told}", soft_wrap=True)
    for warning in found.warnings:
        console.print(f"warning: {warning}", soft_wrap=True)
    for failure in found.failures:
        console.print(f"failed: {failure}", soft_wrap=True)
    console.print("not verified" if found.failures else "verified")


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
