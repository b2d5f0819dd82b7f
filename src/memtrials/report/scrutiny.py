"""What a person reads of suspects and of an audit, and the same as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from memtrials.report.suspects import Looked, Suspect

if TYPE_CHECKING:
    from rich.console import Console

    from memtrials.metrics.audit import Rate
    from memtrials.metrics.audited import AuditReport, Sampled

LONGEST = 60
"""Characters of a question or gold that a table shows."""


def print_suspects(found: Sequence[Suspect], looked: Sequence[Looked], console: Console) -> None:
    """Suspects by question; then what was looked at, and what couldn't be."""
    from rich.table import Table

    if not looked:
        console.print("no answer was judged yet: replay, fetch, answer and judge come first")
    if found:
        table = Table(title="questions worth a second look", title_justify="left", header_style="bold")
        for name in (
            "question",
            "metric",
            "signs",
            "oracle, judges failing",
            "systems right",
            "asked",
            "gold",
            "errata",
        ):
            table.add_column(name, overflow="fold")
        for one in found:
            counts = (f"{one.judges_failing} of {one.judges}", f"{one.right} of {one.systems}")
            place = f"{one.benchmark} {one.task}/{one.query}"
            texts = (_short(one.question), _short(one.gold), one.erratum or "")
            table.add_row(place, one.metric, ", ".join(one.signs), *counts, *texts)
        console.print(table)
    for some in looked:
        said = f"{some.benchmark} {some.metric}: {some.of} questions; from the evidence {some.oracle_fails} of "
        said += f"{some.by_oracle} fail under two judges; {some.none_right} of {some.by_systems} that two systems were "
        console.print(f"{said}judged on are right for none", soft_wrap=True)
        for reason in some.undecided:
            console.print(f"  can't be decided: {reason}", soft_wrap=True)


def print_sampled(done: Sampled, console: Console) -> None:
    """What was drawn, and whose each file is."""
    drawn = sum(stratum.drawn for some in done.key.populations for stratum in some.strata)
    console.print(
        f"{done.items}: {drawn} items for annotators; fill in `right` (yes or no) in every row", soft_wrap=True
    )
    console.print(f"  right means, {done.question}", soft_wrap=True)
    console.print(f"{done.key_path}: the key, which annotators must not see", soft_wrap=True)
    for some in done.key.populations:
        parts = [f"{s.drawn} of {s.size} {'accepted' if s.score else 'rejected'}" for s in some.strata]
        console.print(f"  {some.name}: {', '.join(parts)}", soft_wrap=True)
    if done.repeats:
        console.print(f"  {done.repeats} verdicts beyond each question's first are not in it", soft_wrap=True)


def print_audit(report: AuditReport, console: Console) -> None:
    """Judged and corrected shares and the judge's rates by system, differences, annotators."""
    from rich.table import Table

    key = report.key
    title = f"{key.benchmark} {key.metric}, judge {key.judge_name}: audit {key.audit}"
    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("system")
    outside = any(one.rogan_gladen is not None for one in report.systems)
    extra = ("by rates from outside",) if outside else ()
    for name in ("as judged", "corrected", "sensitivity", "specificity", "audited", *extra):
        table.add_column(name, justify="right")
    for one in report.systems:
        some = one.population
        control = " (control)" if some.control else ""
        reader = f"  {some.reader}" if some.reader else ""
        said = "–" if one.corrected.headline is None else _with_interval(one.shown, one.interval)
        said += f"\n{one.reason}" if one.reason else ""
        said += f"\n{some.status}, {one.n} of {some.of}" if some.status != "complete" else ""
        judged = _with_interval(one.judged, one.judged_interval)
        rates = (_rate(one.sensitivity), _rate(one.specificity))
        audited = "\n".join(f"{s.drawn} of {s.size} {'accepted' if s.score else 'rejected'}" for s in some.strata)
        more = ("–" if one.rogan_gladen is None else f"{one.rogan_gladen:.3f}",) if outside else ()
        table.add_row(f"{some.name}{control}{reader}", judged, said, *rates, audited, *more)
    console.print(table)
    for pair in report.differences:
        found = pair.found
        if not pair.enough:
            console.print(f"{pair.first} − {pair.second}: too few audited items for a difference", soft_wrap=True)
            continue
        bounds = "" if found.low is None or found.high is None else f" ({found.low:+.3f} to {found.high:+.3f})"
        said = f"{pair.first} − {pair.second}, corrected: {found.difference:+.3f}{bounds}, p = {found.p:.3g}"
        adjusted = f", Holm {pair.adjusted:.3g}" if len(report.differences) > 1 else ""
        console.print(f"{said}{adjusted}, {found.test}, n = {found.n}", soft_wrap=True)
    if people := report.annotators:
        values = (("equal", people.raw), ("kappa", people.kappa), ("alpha", people.alpha))
        said = ", ".join(f"{name} {value:.3f}" for name, value in values if value is not None)
        differing = f"{len(people.differing)} of {people.n} items differ"
        console.print(f"annotators: {', '.join(part for part in (said, differing) if part)}", soft_wrap=True)
    for note in report.notes:
        console.print(f"  {note}", style="dim", soft_wrap=True)


def audit_as_json(report: AuditReport) -> dict[str, Any]:
    """The report as one JSON object; every rate with its estimate, interval, audited items and headline (or null)."""
    key = report.key
    return {
        "stage": "audit score",
        "audit": key.audit,
        "benchmark": key.benchmark,
        "metric": key.metric,
        "judge": key.judge,
        "judge_name": key.judge_name,
        "systems": [
            {
                "system": one.population.system,
                "system_name": one.population.name,
                "fetch": one.population.fetch,
                "reader": one.population.reader,
                "control": one.population.control,
                "value": one.headline,
                "interval": one.interval,
                "reason": one.reason,
                "n": one.n,
                "of": one.population.of,
                "status": one.population.status,
                "judged": one.judged,
                "judged_interval": one.judged_interval,
                "corrected": _as_json(one.corrected),
                "sensitivity": _as_json(one.sensitivity),
                "specificity": _as_json(one.specificity),
                "rogan_gladen": one.rogan_gladen,
                "strata": [
                    {"score": s.score, "size": s.size, "drawn": s.drawn, "probability": s.probability}
                    for s in one.population.strata
                ],
            }
            for one in report.systems
        ],
        "differences": [
            {
                "first": pair.first,
                "second": pair.second,
                "value": pair.found.difference if pair.enough else None,
                **asdict(pair.found),
                "adjusted": pair.adjusted,
            }
            for pair in report.differences
        ],
        "annotators": asdict(report.annotators) if report.annotators else None,
        "notes": report.notes,
    }


def _as_json(rate: Rate) -> dict[str, Any]:
    return {**asdict(rate), "value": rate.headline}


def _rate(rate: Rate) -> str:
    if rate.headline is None:
        return f"– {rate.audited} audited"
    return f"{_with_interval(rate.headline, rate.interval)}\nn = {rate.audited}"


def _with_interval(value: float, interval: tuple[float, float] | None) -> str:
    return f"{value:.3f}" + (f" ({interval[0]:.2f}–{interval[1]:.2f})" if interval else "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
