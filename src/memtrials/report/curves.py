"""Scores against budgets, seconds and dollars, as JSON and as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from memtrials.metrics.numbers import Tradeoff

if TYPE_CHECKING:
    from rich.console import Console


def as_json(points: Iterable[Tradeoff], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Every point with what it was measured on."""
    return [
        {
            **point.cell._asdict(),
            "system_name": names.get(point.cell.system),
            **{name: value for name, value in asdict(point).items() if name != "cell"},
        }
        for point in points
    ]


def print_curves(
    points: Sequence[Tradeoff], label: Callable[[str], str], fetch: Callable[[Tradeoff], str], console: Console
) -> None:
    """A table for each benchmark, metric, reader and judge under which a system was asked with a budget."""
    from rich.table import Table

    groups: dict[tuple[str | None, ...], list[Tradeoff]] = defaultdict(list)
    for point in points:
        cell = point.cell
        groups[cell.benchmark, point.metric, point.class_, cell.reader, cell.judge].append(point)
    for (benchmark, metric, class_, reader, judge), some in groups.items():
        if not any(point.budget for point in some):
            continue
        who = " / ".join(label(config) for config in (reader, judge) if config)
        title = f"{benchmark}  {metric} against budget ({who}), class {class_}"
        table = Table(title=title, title_justify="left", header_style="bold")
        table.add_column("system", no_wrap=True)
        for name in ("budget", metric or "", "tokens", "cut", "latency", "cost", "frontier"):
            table.add_column(name, justify="right")
        systems = list(dict.fromkeys(point.cell.system for point in some))
        for point in sorted(some, key=lambda p: (systems.index(p.cell.system), p.budget or float("inf"))):
            table.add_row(
                label(point.cell.system),
                fetch(point),
                _score(point),
                "–" if point.context_tokens is None else f"{point.context_tokens:,.0f}",
                f"{point.cut} of {point.trials}",
                "–" if point.seconds is None else f"{point.seconds * 1000:.1f} ms",
                "–" if point.usd is None else f"${point.usd:.6f}",
                " ".join(
                    name
                    for name, is_on in (("latency", point.on_latency_frontier), ("cost", point.on_cost_frontier))
                    if is_on
                ),
            )
        console.print(table)


def _score(point: Tradeoff) -> str:
    between = f" ({point.interval[0]:.2f}–{point.interval[1]:.2f})" if point.interval else ""
    return f"{point.value:.3f}{between}\nn = {point.n:,}"
