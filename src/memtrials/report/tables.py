"""The numbers of `metrics` as a terminal table, JSON or CSV. Every form carries n, coverage, interval and class."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from memtrials.metrics.numbers import Attribution, Number, Report

if TYPE_CHECKING:
    from rich.console import Console

CLASSES = {
    "P": "published protocol",
    "M": "another model or protocol",
    "D": "demonstration model",
    "R": "rule, no model",
}


def as_json(report: Report) -> dict[str, Any]:
    """The report as one JSON object: `numbers` (tidy, one object each), `attributions`, `notes`, `configurations`."""
    return {
        "stage": "metrics",
        "numbers": [_row(number, report) for number in report.numbers],
        "attributions": [
            {**attribution.cell._asdict(), **{k: v for k, v in asdict(attribution).items() if k != "cell"}}
            for attribution in report.attributions
        ],
        "fetch_settings": report.fetches,
        "controls": sorted(report.controls),
        "notes": report.notes,
    }


def _row(number: Number, report: Report) -> dict[str, Any]:
    row = asdict(number)
    cell = row.pop("cell")
    class_ = row.pop("class_")
    names = {
        f"{role}_name": report.names.get(getattr(number.cell, role) or "") for role in ("system", "reader", "judge")
    }
    coverage = number.n / number.of if number.of else None
    return {
        **dict(zip(number.cell._fields, cell, strict=True)),
        **names,
        "metric": row.pop("metric"),
        "value": row.pop("value"),
        "class": class_,
        "coverage": coverage,
        **row,
        "missing": dict(number.missing),
    }


def as_csv(report: Report) -> str:
    """One line for each number; lists are split into columns."""
    out = io.StringIO()
    rows = [_row(number, report) for number in report.numbers]
    for row in rows:
        between = row.pop("interval")
        row["interval_low"], row["interval_high"] = between or (None, None)
        row["missing"] = " ".join(f"{cause}:{count}" for cause, count in sorted(row["missing"].items()))
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


def print_report(report: Report, console: Console) -> None:
    """Tables for people: by benchmark and unlike conditions, systems as rows, controls apart."""
    if not report.numbers:
        console.print("no results yet: replay, fetch, answer and judge come first")
    for (benchmark, condition), numbers in _tables(report).items():
        title = f"{benchmark}  {condition}".rstrip()
        shares = [n for n in numbers if n.unit == "share" and n.reason != "needs a model judge"]
        judged = [n for n in shares if "@k" not in n.metric]
        _print_table(f"{title}: verdicts", judged, report, console)
        unjudged = sorted({n.metric for n in numbers if n.reason == "needs a model judge"})
        if unjudged:
            console.print(f"  not measured ({', '.join(unjudged)}): needs a model judge", style="dim", soft_wrap=True)
        hits = [n for n in shares if "@k" in n.metric]
        measured = hits + [n for n in numbers if n.unit != "share"]
        _print_table(f"{title}: retrieval and cost", measured, report, console)
    for title, some in _attributions(report).items():
        _print_attributions(title, some, report, console)
    used = sorted({n.class_ for n in report.numbers if n.class_})
    for class_ in used:
        console.print(f"  class {class_}: {CLASSES[class_]}", style="dim")
    for note in report.notes:
        console.print(f"  {note}", style="dim", soft_wrap=True, markup=False)


def _conditions(report: Report) -> dict[str, list[str]]:
    """What the numbers of one table must share, by benchmark, in order of appearance."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for number in report.numbers:
        if condition := _condition(report.fetches[number.cell.fetch]):
            found[number.cell.benchmark].setdefault(condition)
    return {benchmark: list(some) for benchmark, some in found.items()}


def _places_of(benchmark: str, settings: dict[str, Any], conditions: dict[str, list[str]]) -> list[str]:
    """The conditions a fetch configuration stands under: its own, or every one where the system knows no k."""
    own = _condition(settings)
    return [own] if own else conditions.get(benchmark, [""])


def _tables(report: Report) -> dict[tuple[str, str], list[Number]]:
    """Numbers by benchmark and condition."""
    conditions = _conditions(report)
    tables: dict[tuple[str, str], list[Number]] = {(b, c): [] for b, some in conditions.items() for c in some}
    for number in report.numbers:
        benchmark = number.cell.benchmark
        for condition in _places_of(benchmark, report.fetches[number.cell.fetch], conditions):
            tables.setdefault((benchmark, condition), []).append(number)
    return tables


def _condition(settings: dict[str, Any]) -> str:
    return f"k = {settings['k']}, {settings['order']} order" if "k" in settings else ""


def _column(number: Number, report: Report) -> tuple[str, ...]:
    """What a column's numbers share: metric, reader, judge, class."""
    who = [report.names[c] for c in (number.cell.reader, number.cell.judge) if c]
    return (number.metric, " / ".join(who), number.class_ or "")


def _print_table(title: str, numbers: Sequence[Number], report: Report, console: Console) -> None:
    from rich.table import Table

    if not numbers:
        return
    columns = list(dict.fromkeys(_column(n, report) for n in numbers if n.value is not None or n.score is not None))
    columns = columns or list(dict.fromkeys(_column(n, report) for n in numbers))
    table = Table(title=title, title_justify="left", pad_edge=False, header_style="bold")
    table.add_column("system", no_wrap=True)
    for metric, who, class_ in columns:
        lines = [metric, who, f"class {class_}" if class_ else ""]
        table.add_column("\n".join(line for line in lines if line), justify="right")
    rows: dict[tuple[str, str | None], list[Number]] = defaultdict(list)
    for number in numbers:
        rows[number.cell.system, number.group].append(number)
    ordered = sorted(rows, key=lambda row: row[0] in report.controls)
    first_control = next((row for row in ordered if row[0] in report.controls), None)
    alike = _ambiguous(report)
    for row in ordered:
        if row == first_control and row != ordered[0]:
            table.add_section()
        by_column = {_column(n, report): n for n in rows[row]}
        by_metric = {n.metric: n for n in rows[row]}
        system, group = row
        label = system if report.names[system] in alike else report.names[system]
        control = " (control)" if system in report.controls else ""
        name = f"{label}{control}" + (f"  {group}" if group is not None else "")
        cells = [_shown(by_column.get(column) or _null_of(by_metric, column)) for column in columns]
        table.add_row(name, *cells)
    console.print(table)


def _null_of(by_metric: dict[str, Number], column: tuple[str, ...]) -> Number | None:
    number = by_metric.get(column[0])
    return number if number is not None and number.value is None and number.score is None else None


def _ambiguous(report: Report) -> set[str]:
    """Names that more than one system configuration has."""
    systems = {n.cell.system for n in report.numbers}
    names = [report.names[s] for s in systems]
    return {name for name in names if names.count(name) > 1}


def _shown(number: Number | None) -> str:
    if number is None:
        return ""
    if number.value is None and number.score is None:
        return f"– {number.reason or ''}".rstrip()
    value = number.value if number.value is not None else number.score
    assert value is not None
    text = {
        "share": f"{value:.3f}",
        "seconds": f"{value * 1000:.1f} ms",
        "tokens": f"{value:,.0f}",
        "rank": f"{value:g}",
    }[number.unit]
    if number.interval and number.unit == "share":
        text += f" ({number.interval[0]:.2f}–{number.interval[1]:.2f})"
    if number.status in ("lower bound", "partial"):
        text += f"\n{number.status}, {number.n} of {number.of}"
        if number.low is not None and number.high is not None:
            text += f"\nbounds {number.low:.3f}–{number.high:.3f}"
    elif number.unit == "rank":
        text += f" (n = {number.n})"
    if number.loaded:
        text += " loaded"
    return text


def _attributions(report: Report) -> dict[str, list[Attribution]]:
    found: dict[str, list[Attribution]] = defaultdict(list)
    for attribution in report.attributions:
        cell = attribution.cell
        who = " / ".join(report.names[c] for c in (cell.reader, cell.judge) if c and c in report.names)
        for condition in _places_of(cell.benchmark, report.fetches[cell.fetch], _conditions(report)):
            found[f"{cell.benchmark}  {condition}: where tasks end ({who})"].append(attribution)
    return found


def _print_attributions(title: str, attributions: Iterable[Attribution], report: Report, console: Console) -> None:
    from rich.table import Table

    some = list(attributions)
    classes = list(dict.fromkeys(c for a in some for c in a.counts))
    table = Table(title=title, title_justify="left", pad_edge=False, header_style="bold")
    table.add_column("system", no_wrap=True)
    for class_ in classes:
        table.add_column(class_, justify="right")
    table.add_column("n", justify="right")
    table.add_column("blind-spot gap", justify="right")
    for a in some:
        gap = "–" if a.gap is None else f"{a.gap:+.3f}"
        if a.gap_interval:
            gap += f" ({a.gap_interval[0]:.2f}–{a.gap_interval[1]:.2f})"
        control = " (control)" if a.cell.system in report.controls else ""
        trial = f"  trial {a.ordinal}" if a.ordinal != 1 else ""
        name = f"{report.names[a.cell.system]}{control}{trial}"
        table.add_row(name, *(str(a.counts.get(c, 0)) for c in classes), str(a.n), gap)
    console.print(table)
