"""Differences and what repeats tell, as tables and JSON. "Not significant" is never written as "equal"."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from memtrials.metrics.differences import ALPHA
from memtrials.metrics.numbers import Contrast, Repeats, Report

if TYPE_CHECKING:
    from rich.console import Console

Label = Callable[[str], str]
"""What a configuration is called."""


def as_json(differences: Iterable[Contrast], repeats: Iterable[Repeats] = ()) -> dict[str, Any]:
    """`differences` and `repeats`: one object each, with everything that the tables show and more."""
    return {
        "differences": [difference_json(one) for one in differences],
        "repeats": [
            {**one.cell._asdict(), **{name: value for name, value in asdict(one).items() if name != "cell"}}
            for one in repeats
        ],
    }


def difference_json(one: Contrast) -> dict[str, Any]:
    """A contrast; the test's own fields stand beside its sides'."""
    row = asdict(one)
    found, close = row.pop("found"), row.pop("equivalence")
    row["first"], row["second"] = one.first._asdict(), one.second._asdict()
    if close is not None and one.equivalence is not None:
        close |= {"p": one.equivalence.p, "shown": one.equivalence.shown}
    return {**row, **(found or {"difference": None, "n": 0}), "equivalence": close, "said": said(one)}


def print_differences(report: Report, label: Label, console: Console) -> None:
    """A table for each metric, reader and judge of a benchmark: what is tested, then controls. Secondary metrics are
    named only."""
    tables: dict[str, list[Contrast]] = defaultdict(list)
    secondary = dict.fromkeys(one.metric for one in report.differences if one.exploratory and one.group is None)
    for one in (one for one in report.differences if not one.exploratory or one.group is not None):
        who = " / ".join(label(c) for c in (one.first.reader, one.first.judge) if c) if not one.unlike else "unlike"
        kind = " (exploratory, unadjusted)" if one.exploratory else ""
        group = f" {one.group}" if one.group is not None else ""
        tables[f"{one.first.benchmark}: differences in {one.metric}{group}, {who}{kind}"].append(one)
    for title, some in tables.items():
        print_table(title, sorted(some, key=lambda one: one.control), lambda one: _sides(one, label, report), console)
    if secondary:
        console.print(f"  --json has exploratory differences, unadjusted, in {', '.join(secondary)}", style="dim")


def _sides(one: Contrast, label: Label, report: Report) -> str:
    """Who is less whom, with how they were asked where they have that in common."""
    systems = (one.first.system, one.second.system)
    sides = "\n − ".join(label(system) + (" (control)" if system in report.controls else "") for system in systems)
    settings = report.fetches[one.first.fetch]
    several = len({c.first.fetch for c in report.differences if c.first.benchmark == one.first.benchmark}) > 1
    if one.first.fetch != one.second.fetch or not several or "k" not in settings:
        return sides
    return f"{sides}\n k = {settings['k']}"


def print_table(title: str, contrasts: Sequence[Contrast], name: Callable[[Contrast], str], console: Console) -> None:
    """Contrasts, one row each; name: what stands in the first column."""
    from rich.table import Table

    if not contrasts:
        return
    family = next((one.family for one in contrasts if one.family), None)
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("first − second", no_wrap=True)
    for heading in ("means", "difference (95 %)", "p", *([f"p, Holm of {family}"] if family else [])):
        table.add_column(heading, justify="right")
    for heading in ("n", "higher : lower", "detectable"):
        table.add_column(heading, justify="right")
    table.add_column("")
    controls = any(one.control for one in contrasts) and not all(one.control for one in contrasts)
    for place, one in enumerate(contrasts):
        if controls and one.control and not contrasts[place - 1].control:
            table.add_section()
        adjusted = [_p(one.adjusted)] if family else []
        found = one.found
        if found is None or one.means is None:
            table.add_row(name(one), "–", "–", "–", *(["–"] if family else []), "0", "–", "–", said(one))
            continue
        number = "{:,.0f}" if one.unit == "tokens" else "{:.3f}"
        signed = "{:+,.0f}" if one.unit == "tokens" else "{:+.3f}"
        between = "" if found.low is None else f"\n{signed.format(found.low)} to {signed.format(found.high)}"
        n = f"{found.n:,}" + (f"\n{found.left_out:,} left out" if found.left_out else "")
        table.add_row(
            name(one),
            "\n".join(number.format(mean) for mean in one.means),
            signed.format(found.difference) + between,
            f"{_p(found.p)}\n{found.test}\nleast {_p(found.smallest_p)}",
            *adjusted,
            f"{n}\n{found.clusters:,} cluster" + ("s" if found.clusters > 1 else ""),
            f"{found.higher:,} : {found.lower:,}",
            "–" if found.detectable is None else number.format(found.detectable),
            said(one),
        )
    console.print(table)


def _p(p: float | None) -> str:
    return "–" if p is None else f"{p:.3g}"


def said(one: Contrast) -> str:
    """What a contrast shows, in words: one line each for the test, the equivalence test, what is missing and unlike."""
    found = one.found
    if found is None:
        return "no question is scored for both"
    p = found.p if one.adjusted is None else one.adjusted
    lines = ["not significant"]
    if p <= ALPHA:
        lines = ["the first is higher" if found.difference > 0 else "the first is lower"]
    elif found.smallest_p > ALPHA:
        lines = ["not significant: too few clusters to be"]
    if (close := one.equivalence) is not None:
        shown = "within" if close.shown else "not shown to be within"
        lines.append(f"{shown} {close.margin:g} of one another (p {_p(close.p)})")
    if one.bounds is not None:
        lines.append(f"with all missing scores {one.bounds[0]:+.3f} to {one.bounds[1]:+.3f}")
    if one.unlike:
        lines.append(f"unlike {', '.join(dict.fromkeys(phrase.partition(':')[0] for phrase in one.unlike))}")
    return "\n".join(lines)


def print_repeats(report: Report, label: Label, console: Console) -> None:
    """How far runs scatter and from which step; of pass@k and pass^k the largest k, the others are in the JSON."""
    from rich.table import Table

    if not report.repeats:
        return
    table = Table(title="what repeats tell", title_justify="left", header_style="bold")
    for name in ("benchmark", "system", "metric", "reader / judge"):
        table.add_column(name)
    for name in ("runs", "run-to-run SD", "by step", "pass@k", "pass^k"):
        table.add_column(name, justify="right")
    for one in report.repeats:
        who = " / ".join(label(c) for c in (one.cell.reader, one.cell.judge) if c)
        spread, last = one.spread, one.passes[-1] if one.passes else None
        steps = {} if spread is None else {step: v for step, v in spread.variances.items() if v is not None}
        sd = "–" if spread is None or spread.sd is None else f"{spread.sd:.4f}"
        least = f" (n = {last.n:,}, k = {last.k})" if last else ""
        table.add_row(
            one.cell.benchmark,
            label(one.cell.system),
            one.metric,
            who,
            "–" if spread is None else f"{spread.runs}\nn = {spread.n:,}",
            sd,
            "\n".join(f"{step} {variance**0.5:.4f}" for step, variance in steps.items()) or "–",
            f"{last.at_k:.3f}{least}" if last else "–",
            f"{last.hat_k:.3f}" if last else "–",
        )
    console.print(table)
