"""The numbers of `metrics` as a terminal table, JSON or CSV. Every form carries n, coverage, interval and class."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from memtrials import benchmarks
from memtrials.metrics.numbers import Attribution, Cell, Departure, Number, ProbeRate, Report
from memtrials.metrics.recipes import RECIPES
from memtrials.report import contrasts, curves
from memtrials.report.waterfalls import print_waterfall

if TYPE_CHECKING:
    from rich.console import Console

    from memtrials.exchange.published import Compared

CLASSES = {
    "P": "published protocol",
    "M": "another model or protocol",
    "D": "demonstration model",
    "R": "rule, no model",
}


AT_K = re.compile(r".+@\d+")
"""The names of measures at a cut-off of their own."""
UNDER_BUDGET = {"budget", "protocol"}
"""What of a fetch configuration unlike systems share under a budget."""
LENIENT = "accepts swapped"
"""What is said of a judge that takes too many answers to other questions for right."""


def as_json(report: Report) -> dict[str, Any]:
    """The report as one JSON object: `numbers` (tidy, one object each), `attributions`, `agreements`, `probes` and what
    goes with them."""
    return {
        "stage": "metrics",
        "numbers": [_row(number, report) for number in report.numbers],
        "attributions": [
            {**attribution.cell._asdict(), **{k: v for k, v in asdict(attribution).items() if k != "cell"}}
            for attribution in report.attributions
        ],
        "agreements": [
            {**a.cell._asdict(), **{k: v for k, v in asdict(a).items() if k != "cell"}} for a in report.agreements
        ],
        "probes": [{**asdict(rate), "judge_name": report.names[rate.judge]} for rate in report.probes],
        "fetch_settings": report.fetches,
        "controls": sorted(report.controls),
        "view": report.view,
        "departures": [
            {**d.cell._asdict(), **{k: v for k, v in asdict(d).items() if k != "cell"}} for d in report.departures
        ],
        **contrasts.as_json(report.differences, report.repeats),
        "curves": curves.as_json(report.tradeoffs, report.names),
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


def flat_rows(report: Report) -> list[dict[str, Any]]:
    """One row for each number, all with the same columns, lists split into columns or joined to text."""
    rows = [_row(number, report) for number in report.numbers]
    for row in rows:
        between = row.pop("interval")
        row["interval_low"], row["interval_high"] = between or (None, None)
        row["missing"] = "; ".join(f"{cause}:{count}" for cause, count in sorted(row["missing"].items()))
        row["probes"] = " ".join(f"{kind}:{share:.3f}" for kind, share in row["probes"].items())
        row["models"] = " ".join(row["models"])
    return rows


def as_csv(report: Report) -> str:
    """One line for each number."""
    out = io.StringIO()
    rows = flat_rows(report)
    if rows:
        writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return out.getvalue()


class Line(NamedTuple):
    """A number as a printed table of one line for each shows it. by: the reader and judge it depends on."""

    system: str
    number: str
    by: str
    value: str
    interval: str
    n: str
    class_: str
    notes: str


def lines(report: Report) -> dict[str, list[Line]]:
    """Every number by the title of its table, controls last."""
    return {
        title: [_line(n, report) for n in sorted(some, key=lambda n: n.cell.system in report.controls)]
        for title, some in _tables(report).items()
    }


def _line(number: Number, report: Report) -> Line:
    named = ", ".join(part for part in (number.metric, number.part) if part)
    known = number.value is not None or number.score is not None
    between = [_in_unit(bound, number.unit) for bound in number.interval or ()]
    return Line(
        _row_label(number.cell.system, number.group, report),
        named,
        " / ".join(_label(config, report) for config in (number.cell.reader, number.cell.judge) if config),
        _value(number) if known else "–",
        " to ".join(between),
        f"{number.n:,} of {number.of:,}",
        number.class_ or "",
        "; ".join(_remarks(number) if known else [number.reason or "unknown"]),
    )


def print_report(report: Report, console: Console) -> None:
    """Tables for people: by benchmark and unlike conditions, systems as rows, controls apart."""
    if not report.numbers:
        console.print("no results yet: replay, fetch, answer and judge come first")
    for title, all_numbers in _tables(report).items():
        rows = [n for n in all_numbers if n.unit == "value"]
        some_numbers = [n for n in all_numbers if n.unit != "value"]
        words = [n for n in some_numbers if n.metric.rpartition("-")[0] in RECIPES]
        extents = _extents(some_numbers)
        numbers = [n for n in some_numbers if not AT_K.fullmatch(n.metric) and n not in words and n not in extents]
        shares = [n for n in numbers if n.unit == "share" and n.reason != "needs a model judge"]
        _print_table(f"{title}: verdicts", [n for n in shares if "@k" not in n.metric], report, console)
        unjudged = dict.fromkeys(n.metric for n in numbers if n.reason == "needs a model judge")
        if unjudged:
            console.print(f"  not measured ({', '.join(unjudged)}): needs a model judge", style="dim", soft_wrap=True)
        measured = [n for n in shares if "@k" in n.metric] + [n for n in numbers if n.unit != "share"]
        _print_table(f"{title}: retrieval and cost", measured, report, console)
        _print_extents(f"{title}: tokens of contexts and histories", extents, report, console)
        _print_words(f"{title}: words of answers and gold answers", words, report, console)
        _print_rankings(f"{title}: evidence among the first k", some_numbers, report, console)
        _print_rows(f"{title}: values of whole trials", rows, report, console)
    contrasts.print_differences(report, lambda config: _label(config, report), console)
    contrasts.print_repeats(report, lambda config: _label(config, report), console)
    curves.print_curves(
        report.tradeoffs,
        lambda config: _label(config, report),
        lambda p: f"{p.budget:,}" if p.budget else _condition(p.cell.fetch, report.fetches[p.cell.fetch]) or "none",
        console,
    )
    print_attributions(report, console)
    for line in departure_lines(report.departures, report.names):
        console.print(f"  {line}", soft_wrap=True, markup=False)
    if report.agreements:
        _print_agreements(report, console)
    if report.probes:
        _print_probes(report, console)
    for class_ in sorted({n.class_ for n in report.numbers if n.class_}):
        console.print(f"  class {class_}: {CLASSES[class_]}", style="dim")
    for note in report.notes:
        console.print(f"  {note}", style="dim", soft_wrap=True, markup=False)


def _tables(report: Report) -> dict[str, list[Number]]:
    """Numbers by title: benchmark and what a table's numbers share beside it. A system that knows no k stands in every
    table of its benchmark; `--by system|reader|judge` makes one table for each of those."""
    each, conditions = _each_condition(report), _conditions(report)
    tables: dict[str, list[Number]] = {}
    subset = " (subset)" if any(n.subset for n in report.numbers) else ""
    subset += f" (view {report.view})" if report.view else ""
    for number in sorted(report.numbers, key=lambda n: list(conditions).index(n.cell.benchmark)):
        cell = number.cell
        part = ""
        if report.by in ("system", "reader", "judge"):
            config = getattr(cell, report.by)
            part = f"  {report.by} {_label(config, report)}" if config else f"  no {report.by}"
        for condition in _places_of(cell, each, conditions):
            tables.setdefault(f"{cell.benchmark}{subset}  {condition}".rstrip() + part, []).append(number)
    return tables


def _conditions(report: Report) -> dict[str, list[str]]:
    """The ways in which systems were asked, by benchmark, in order of appearance."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    each = _each_condition(report)
    for number in report.numbers:
        some = found[number.cell.benchmark]
        if condition := each[number.cell.fetch]:
            some.setdefault(condition)
    return {benchmark: list(some) or [""] for benchmark, some in found.items()}


def _each_condition(report: Report) -> dict[str, str]:
    """The condition of each fetch configuration. A budget is one for all systems, whatever else they were told, unless
    one of them was asked in several ways within it."""
    within: dict[tuple[str, Any], set[str]] = defaultdict(set)
    for cell in dict.fromkeys(number.cell for number in report.numbers):
        within[cell.system, report.fetches[cell.fetch].get("budget")].add(cell.fetch)
    several = {fetch for fetches in within.values() if len(fetches) > 1 for fetch in fetches}
    alone = {fetch for fetch, settings in report.fetches.items() if "budget" in settings} - several
    return {
        fetch: _condition(fetch, {k: v for k, v in settings.items() if fetch not in alone or k in UNDER_BUDGET})
        for fetch, settings in report.fetches.items()
    }


def _places_of(cell: Cell, each: Mapping[str, str], conditions: dict[str, list[str]]) -> list[str]:
    """The conditions a fetch configuration stands under: its own, or every one where the system knows no k."""
    own = each[cell.fetch]
    return [own] if own else conditions[cell.benchmark]


def _condition(fetch: str, settings: dict[str, Any]) -> str:
    """What of a fetch configuration must agree in a column. Imported results are unlike all others, and so is what is
    shown by limits of a system's own."""
    if "file_sha256" in settings:
        return f"imported from {settings['file_sha256'][:8]}…, asked in an unknown way"
    if any(isinstance(value, dict) for value in settings.values()):
        return f"asked as {fetch}"
    if not {"k", "protocol", "budget"} & settings.keys():
        return ""
    return ", ".join(f"{name} = {value}" for name, value in settings.items() if name != "rendering")


def _column(number: Number) -> tuple[str | None, ...]:
    """What a column's numbers share: metric, part of the questions, reader, judge, class."""
    return (number.metric, number.part, number.cell.reader, number.cell.judge, number.class_)


def _label(config: str, report: Report) -> str:
    """A configuration's name; its id where several of the report have that name."""
    name = report.names[config]
    return config if list(report.names.values()).count(name) > 1 and _alike(config, report) else name


def _alike(config: str, report: Report) -> bool:
    """Whether another configuration in the same role has the same name."""
    for role in ("system", "reader", "judge"):
        ids = {getattr(n.cell, role) for n in report.numbers} - {None}
        ids |= {rate.judge for rate in report.probes} if role == "judge" else set()
        if config in ids and sum(report.names[i] == report.names[config] for i in ids) > 1:
            return True
    return False


def _print_table(title: str, numbers: Sequence[Number], report: Report, console: Console) -> None:
    from rich.table import Table

    if not numbers:
        return
    order = {metric: n for n, metric in enumerate(dict.fromkeys(number.metric for number in numbers))}
    shown = [n for n in numbers if n.value is not None or n.score is not None] or numbers
    columns = sorted(dict.fromkeys(map(_column, shown)), key=lambda column: order[column[0] or ""])
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("system", no_wrap=True)
    for column in columns:
        metric, part, reader, judge, class_ = column
        who = " / ".join(_label(c, report) for c in (reader, judge) if c)
        name = (metric or "") if judge else (metric or "").replace("-seconds", "").replace("-", " ")
        lenient = any(n.lenient and _column(n) == column for n in shown)
        heading = (name, part or "", who, f"class {class_}" if class_ else "", LENIENT if lenient else "")
        table.add_column("\n".join(line for line in heading if line), justify="right")
    rows: dict[tuple[str, str | None], list[Number]] = defaultdict(list)
    for number in numbers:
        rows[number.cell.system, number.group].append(number)
    ordered = sorted(rows, key=lambda row: row[0] in report.controls)
    first_control = next((row for row in ordered if row[0] in report.controls), None)
    for row in ordered:
        if row == first_control and row != ordered[0]:
            table.add_section()
        by_column = {_column(n): n for n in rows[row]}
        by_metric = {n.metric: n for n in rows[row]}
        cells = [_shown(by_column.get(column) or _null_of(by_metric, column[0] or "")) for column in columns]
        if not any(cells):
            continue
        table.add_row(_row_label(row[0], row[1], report), *cells)
    console.print(table)
    _print_unmeasured((n for n in numbers if n.unit == "dollars" and _column(n) not in columns), console)


def _print_unmeasured(numbers: Iterable[Number], console: Console) -> None:
    """What has no column, by the reason."""
    without: dict[str, dict[str, None]] = defaultdict(dict)
    for number in numbers:
        without[number.reason or ""][number.metric] = None
    for reason, names in without.items():
        console.print(f"  not measured ({', '.join(names)}): {reason}", style="dim", soft_wrap=True, markup=False)


EXTREMES = ("median", "min", "max")


def _extents(numbers: Iterable[Number]) -> list[Number]:
    """Those of how long contexts are, where more than the mean was asked for."""
    some = list(numbers)
    named = {n.metric.rpartition("-")[0] for n in some if n.metric.endswith("-median")}
    return [n for n in some if n.metric in named or n.metric.rpartition("-")[0] in named]


def _print_extents(title: str, numbers: Iterable[Number], report: Report, console: Console) -> None:
    """A row for each system and what was counted; mean, median, least and most."""
    from rich.table import Table

    rows: dict[tuple[str, str | None, str], dict[str, Number]] = defaultdict(dict)
    for number in numbers:
        name, _, which = number.metric.rpartition("-")
        of, column = (name, which) if which in EXTREMES else (number.metric, "mean")
        rows[number.cell.system, number.group, of][column] = number
    if not rows:
        return
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("system", no_wrap=True)
    table.add_column("")
    for heading in ("mean", *EXTREMES, "n"):
        table.add_column(heading, justify="right")
    for (system, group, of), row in sorted(rows.items(), key=lambda row: row[0][0] in report.controls):
        cells = [_value(row[name]) if row[name].value is not None else "–" for name in ("mean", *EXTREMES)]
        said = row["mean"].reason or f"{row['mean'].n:,}"
        table.add_row(_row_label(system, group, report), of.replace("-", " "), *cells, said)
    console.print(table)


def _print_words(title: str, numbers: Iterable[Number], report: Report, console: Console) -> None:
    """A row for each system and measure of a recipe, a column for each reader and class."""
    from rich.table import Table

    rows: dict[tuple[str, str | None, str], dict[tuple[str, str], Number]] = defaultdict(dict)
    columns: dict[tuple[str, str], None] = {}
    without: list[Number] = []
    for number in numbers:
        if number.value is None and number.score is None:
            without.append(number)
            continue
        column = (_label(number.cell.reader or "", report), number.class_ or "")
        columns[column] = None
        part = ", ".join(name for name in (number.metric, number.part) if name)
        rows[number.cell.system, number.group, part][column] = number
    if rows:
        table = Table(title=title, title_justify="left", header_style="bold")
        table.add_column("system", no_wrap=True)
        table.add_column("measure", no_wrap=True)
        for reader, class_ in columns:
            table.add_column(f"{reader}\nclass {class_}", justify="right")
        for (system, group, part), row in sorted(rows.items(), key=lambda row: row[0][0] in report.controls):
            cells = [_shown(row.get(column)) for column in columns]
            table.add_row(_row_label(system, group, report), part, *cells)
        console.print(table)
    _print_unmeasured(without, console)


def _print_rankings(title: str, numbers: Sequence[Number], report: Report, console: Console) -> None:
    """A row for each system and ranking measure, a column for each k."""
    from rich.table import Table

    rows: dict[tuple[str, str | None, str], dict[int, Number]] = defaultdict(dict)
    without: dict[str, str] = {}
    for number in (n for n in numbers if AT_K.fullmatch(n.metric)):
        if number.value is None:
            without[number.cell.system] = number.reason or ""
        else:
            measure, _, cutoff = number.metric.rpartition("@")
            rows[number.cell.system, number.group, measure][int(cutoff)] = number
    if rows:
        table = Table(title=title, title_justify="left", header_style="bold")
        table.add_column("system", no_wrap=True)
        table.add_column("measure", no_wrap=True)
        table.add_column("n", justify="right")
        cutoffs = sorted({k for row in rows.values() for k in row})
        for k in cutoffs:
            table.add_column(f"@{k}", justify="right")
        before = None
        for (system, group, measure), row in sorted(rows.items(), key=lambda row: row[0][0] in report.controls):
            label = _row_label(system, group, report)
            n = " ".join(dict.fromkeys(f"{number.n:,}" for number in row.values()))
            cells = [_in_short(row[k]) if k in row else "" for k in cutoffs]
            table.add_row(label if label != before else "", measure, n, *cells)
            before = label
        console.print(table)
    for system in (s for s in without if all(row[0] != s for row in rows)):
        console.print(f"  {_label(system, report)}: {without[system]}", style="dim", soft_wrap=True, markup=False)


def _print_rows(title: str, numbers: Sequence[Number], report: Report, console: Console) -> None:
    """A row for each system and value, those that the benchmark shows or that were named; nulls below, and of a type or
    task that they are split by only where it has nothing else."""
    from rich.table import Table

    if not numbers:
        return
    about = benchmarks.find(numbers[0].cell.benchmark).rows
    assert about is not None
    there = dict.fromkeys(number.metric for number in numbers)
    shown = about.shown if set(there) == set(about.names) else tuple(there)
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("system", no_wrap=True)
    table.add_column("value", no_wrap=True)
    for heading in ("mean", "p50", "p95", "n"):
        table.add_column(heading, justify="right")
    rows: dict[tuple[str, str | None], list[Number]] = defaultdict(list)
    for number in (n for n in numbers if n.metric in shown):
        rows[number.cell.system, number.group].append(number)
    null: list[str] = []
    for (system, group), some in sorted(rows.items(), key=lambda row: row[0][0] in report.controls):
        label = _row_label(system, group, report)
        known = [n for n in sorted(some, key=lambda n: shown.index(n.metric)) if n.value is not None]
        for place, number in enumerate(known):
            cells = [_in_unit(v, number.unit) for v in (number.value, number.p50, number.p95) if v is not None]
            table.add_row("" if place else label, number.metric, *cells, f"{number.n:,} of {number.of:,}")
        reasons: dict[str, list[str]] = defaultdict(list)
        for number in (n for n in some if n.value is None and (group is None or not known)):
            reasons[number.reason or ""].append(number.metric)
        null += [f"{label}, no {', '.join(names) if known else 'value'}: {reason}" for reason, names in reasons.items()]
    if table.row_count:
        console.print(table)
    rest = len(there) - len(shown)
    null += [f"{rest} more values: --format csv or json, or --metric NAME"] if rest else []
    for line in null:
        console.print(f"  {line}", style="dim", soft_wrap=True, markup=False)


def _in_short(number: Number) -> str:
    text = f"{number.value:.3f}"
    return f"{text} ({number.interval[0]:.2f}–{number.interval[1]:.2f})" if number.interval else text


def _row_label(system: str, group: str | None, report: Report) -> str:
    control = " (control)" if system in report.controls else ""
    return f"{_label(system, report)}{control}" + (f"  {group}" if group is not None else "")


def _null_of(by_metric: dict[str, Number], metric: str) -> Number | None:
    number = by_metric.get(metric)
    return number if number is not None and number.value is None and number.score is None else None


def _shown(number: Number | None) -> str:
    if number is None:
        return ""
    if number.value is None and number.score is None:
        return f"– {number.reason or ''}".rstrip()
    text = _value(number)
    if number.interval and number.unit in ("share", "score"):
        text += f" ({number.interval[0]:.2f}–{number.interval[1]:.2f})"
    if number.status in ("lower bound", "partial"):
        text += f"\n{number.status}, {number.n} of {number.of}"
    elif number.unit == "rank":
        text += f" (n = {number.n})"
    elif number.unit in ("share", "score"):
        text += f"\nn = {number.n:,}"
    if number.loaded:
        text += " loaded"
    return "\n".join([text, *_marks(number)])


def _value(number: Number) -> str:
    value = number.value if number.value is not None else number.score
    assert value is not None
    return _in_unit(value, number.unit)


def _in_unit(value: float, unit: str) -> str:
    return {
        "share": f"{value:.3f}",
        "score": f"{value:.3f}",
        "seconds": f"{value * 1000:.1f} ms",
        "tokens": f"{value:,.0f}",
        "ratio": f"{value:.3f}",
        "value": f"{value:,.3f}",
        "dollars": f"${value:.6f}",
        "rank": f"{value:g}",
    }[unit]


def _remarks(number: Number) -> list[str]:
    """All that has to be said beside a value, its interval and n."""
    said = [number.status] if number.status in ("lower bound", "partial") else []
    said += ["loaded"] if number.loaded else []
    said += [f"{n} {_in_unit(v, number.unit)}" for n, v in (("p50", number.p50), ("p95", number.p95)) if v is not None]
    return [*said, *_marks(number), *([LENIENT] if number.lenient else [])]


def _marks(number: Number) -> list[str]:
    said = []
    if number.status in ("lower bound", "partial") and number.low is not None and number.high is not None:
        said.append(f"bounds {number.low:.3f}–{number.high:.3f}")
    if number.flagged:
        said.append(f"{number.flagged} flagged")
    if number.loose:
        said.append(f"{number.loose} read otherwise by a strict rule")
    if number.raised:
        said.append(f"{number.raised} with a larger limit than published")
    if number.types is not None:
        said.append(f"{number.types} types")
    if number.models:
        said.append(f"{len(number.models)} snapshots")
    return said


def print_attributions(report: Report, console: Console) -> None:
    """The waterfalls alone."""
    for title, some in _attributions(report).items():
        _print_attributions(title, some, report, console)


def _attributions(report: Report) -> dict[str, list[Attribution]]:
    found: dict[str, list[Attribution]] = defaultdict(list)
    each, conditions = _each_condition(report), _conditions(report)
    for attribution in report.attributions:
        cell = attribution.cell
        who = " / ".join(_label(c, report) for c in (cell.reader, cell.judge) if c)
        for condition in _places_of(cell, each, conditions):
            what = f"questions end, by {attribution.metric}" if attribution.metric else "tasks end"
            found[f"{cell.benchmark}  {condition}: where {what} ({who})"].append(attribution)
    return found


def _print_agreements(report: Report, console: Console) -> None:
    """How far judges agree, and on how many answers they don't; the answers themselves are in the JSON."""
    from rich.table import Table

    table = Table(title="where judges decided the same", title_justify="left", header_style="bold")
    for name in ("system", "metric", "judges"):
        table.add_column(name)
    for name in ("band", "n", "alpha", "kappa", "equal", "flips", "majority"):
        table.add_column(name, justify="right")
    for a in report.agreements:
        judges = "\n".join(_label(r, report) if r in report.names else r for r in a.raters)
        band = "–" if a.low is None else f"{a.low:.3f}–{a.high:.3f}"
        ties = f" ({a.ties} ties)" if a.ties else ""
        values = [_plain(value) for value in (a.alpha, a.kappa, a.raw)]
        row = (band, str(a.n), *values, str(len(a.flips)), _plain(a.majority) + ties)
        table.add_row(_row_label(a.cell.system, None, report), a.metric, judges, *row)
    console.print(table)


def print_compared(title: str, cells: Sequence[Compared], columns: Mapping[str, int], console: Console) -> None:
    """Published cells beside recomputed ones. columns: decimals by column."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    for name in ("system", "cell"):
        table.add_column(name, no_wrap=True)
    for name in ("published", "recomputed", "difference", "in the file"):
        table.add_column(name, justify="right")
    table.add_column("")
    for cell in cells:
        decimals = columns[cell.column]
        values = (cell.published, cell.recomputed, cell.difference, cell.stored)
        shown = ["–" if value is None else f"{value:.{decimals}f}" for value in values]
        differing = [f"{place} {stored:g} → {recomputed:g}" for place, (stored, recomputed) in cell.differing.items()]
        said = [cell.status + (f" (n = {cell.n:,})" if cell.n else "")]
        if differing:
            more = " …" if len(differing) > 1 else ""
            said.append(f"{len(differing)} of the file's own values differ: {differing[0]}{more}")
        table.add_row(cell.system, cell.column, *shown, "\n".join([*said, *([cell.note] if cell.note else [])]))
    console.print(table)


def departure_lines(departures: Iterable[Departure], names: Mapping[str, str], most: int = 3) -> list[str]:
    """What is said of values that came with imported answers: their mean, the recomputed one, who differs."""
    lines = []
    for d in departures:
        line = f"{names[d.cell.system]}: {d.measure} {d.recomputed:.4f} recomputed, {d.stored:.4f} as {d.stored_name} "
        line += f"in the file (n = {d.n}); {len(d.differing)} differ"
        some = [f"{place} {stored:g} → {recomputed:g}" for place, (stored, recomputed) in d.differing.items()]
        lines.append(line + (f": {', '.join(some[:most])}" if some else "") + (" …" if len(some) > most else ""))
    return lines


def _print_probes(report: Report, console: Console) -> None:
    """What judges make of constructed answers: only gold should be accepted."""
    from rich.table import Table

    kinds = list(dict.fromkeys(rate.kind for rate in report.probes))
    rows: dict[tuple[str, str, str], dict[str, ProbeRate]] = defaultdict(dict)
    for rate in report.probes:
        rows[rate.benchmark, rate.judge, rate.metric][rate.kind] = rate
    table = Table(title="constructed answers that judges accept", title_justify="left", header_style="bold")
    for name in ("benchmark", "judge", "metric"):
        table.add_column(name)
    for kind in kinds:
        table.add_column(kind, justify="right")
    table.add_column("")
    for (benchmark, judge, metric), rates in rows.items():
        cells = [_accepted(rates.get(kind)) for kind in kinds]
        flag = LENIENT if any(rate.flagged for rate in rates.values()) else ""
        table.add_row(benchmark, _label(judge, report), metric, *cells, flag)
    console.print(table)


def _accepted(rate: ProbeRate | None) -> str:
    return "–" if rate is None else f"{rate.accepted:.3f}\n{rate.n} of {rate.of}"


def _plain(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _print_attributions(title: str, attributions: Iterable[Attribution], report: Report, console: Console) -> None:
    from rich.table import Table

    some = list(attributions)
    if some[0].metric is not None:
        columns = [(_row_label(a.cell.system, _trial_of(a), report), a) for a in some]
        print_waterfall(title, columns, console)
        return
    classes = list(dict.fromkeys(c for a in some for c in a.counts))
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("system", no_wrap=True)
    for class_ in classes:
        table.add_column(class_, justify="right")
    table.add_column("n", justify="right")
    table.add_column("blind-spot gap", justify="right")
    for a in some:
        gap = "–" if a.gap is None else f"{a.gap:+.3f}"
        if a.gap_interval:
            gap += f" ({a.gap_interval[0]:.2f}–{a.gap_interval[1]:.2f})"
        name = _row_label(a.cell.system, _trial_of(a), report)
        table.add_row(name, *(str(a.counts.get(c, 0)) for c in classes), str(a.n), gap)
    console.print(table)


def _trial_of(attribution: Attribution) -> str | None:
    return f"trial {attribution.ordinal}" if attribution.ordinal != 1 else None
