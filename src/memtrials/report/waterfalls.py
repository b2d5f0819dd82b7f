"""Where questions end, as a waterfall: one row for each class in its order, one column for each system."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from memtrials.metrics.attribution import BY_EVIDENCE
from memtrials.metrics.numbers import Attribution

if TYPE_CHECKING:
    from rich.console import Console


def print_waterfall(title: str, columns: Sequence[tuple[str, Attribution]], console: Console) -> None:
    """columns: systems by label. Each column sums to n."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("class")
    for label, _ in columns:
        table.add_column(label, justify="right")
    for class_ in BY_EVIDENCE:
        if any(class_ in a.counts for _, a in columns):
            table.add_row(class_, *(str(a.counts.get(class_, 0)) for _, a in columns))
    table.add_section()
    table.add_row("n", *(str(a.n) for _, a in columns))
    if any(a.whole for _, a in columns):
        shown = (f"{a.whole[0]} of {a.whole[1]}" if a.whole else "–" for _, a in columns)
        table.add_row("wrong ones that full-context gets right", *shown)
    console.print(table)
