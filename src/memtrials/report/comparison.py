"""A comparison as JSON, and as tables and lines for people."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from memtrials import benchmarks
from memtrials.metrics.compared import Change, Comparison, Flip, Pair
from memtrials.report.contrasts import difference_json, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from memtrials.metrics.numbers import Cell, Contrast, Place

MOST, MOST_METRICS = 20, 6
"""Lines on single questions that are shown, and metrics in one of them; all are in the JSON."""


def as_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison as one JSON object: counts, and for each pair its `changes` by question and its `differences` with
    the `flips` of verdicts."""
    return {
        "stage": "compare",
        "first": comparison.first,
        "second": comparison.second,
        "differs": comparison.differs,
        **comparison.counts,
        "alone": list(comparison.alone),
        "pairs": [
            {
                "first": pair.first._asdict(),
                "second": pair.second._asdict(),
                "queries": len(pair.questions),
                "changes": [_change_json(place, change) for place, change in pair.changes.items()],
                "differences": [
                    {**difference_json(one), "flips": [flip._asdict() for flip in pair.flips.get(n, ())]}
                    for n, one in enumerate(pair.differences)
                ],
            }
            for pair in comparison.pairs
        ],
    }


def _change_json(place: Place, change: Change) -> dict[str, Any]:
    return {
        "task": place[0],
        "query": place[1],
        "missing": sorted(change.missing),
        "identities": change.identities,
        "ranks": change.ranks,
        "degradation": [sorted(marks) for marks in change.degradation],
        "metrics": change.metrics,
        "fields": sorted(change.fields),
    }


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Tables of differences, flips, questions that differ, and the summary."""
    print(f"first: {comparison.first}\nsecond: {comparison.second}")
    for pair in comparison.pairs:
        title = f"{pair.first.benchmark}: {_told(pair.first)} − {_told(pair.second)}"
        some = [one for one in pair.differences if one.found is None or one.found.higher or one.found.lower]
        print_table(title, some, _metric, console)
        if steady := len(pair.differences) - len(some):
            print(f"  no question differs in {steady} {'other ' if some else ''}metrics")
        for place, one in enumerate(pair.differences):
            _print_flips(one.metric, pair.flips.get(place, ()))
        if pair.changes and not some:
            print(title)
        _print_changes(pair)
    for line in comparison.alone:
        print(f"  {line}")
    print("summary: " + " ".join(f"{name}={count}" for name, count in comparison.counts.items()))
    if not comparison.differs:
        print("no difference")


def _told(cell: Cell) -> str:
    return f"{cell.system}, {cell.fetch}"


def _metric(one: Contrast) -> str:
    """The metric, with the reader and judge it depends on."""
    roles = (
        (one.first.reader, one.second.reader),
        (one.first.judge, one.second.judge),
    )
    who = [" − ".join(dict.fromkeys(c for c in pair if c)) for pair in roles if any(pair)]
    return "\n".join([one.metric, *who])


def _print_flips(metric: str, flips: Iterable[Flip]) -> None:
    """Which questions a metric's verdicts flipped on, by direction."""
    some = list(flips)
    for way, here in (
        ("up", [f for f in some if f.second > f.first]),
        ("down", [f for f in some if f.second < f.first]),
    ):
        if here:
            told = ", ".join(f"{f.question} ({f.first:g} → {f.second:g})" for f in here)
            print(f"  {metric} {way} from first to second, {len(here)}: {told}")


def _print_changes(pair: Pair) -> None:
    rows = benchmarks.find(pair.first.benchmark).rows
    shown = rows.shown if rows else ()
    for place, change in list(pair.changes.items())[:MOST]:
        print(f"  {'/'.join(place)}: {'; '.join(_aspects(change, shown))}")
    if len(pair.changes) > MOST:
        print(f"  … {len(pair.changes) - MOST} more questions differ; --json has all")


def _aspects(change: Change, first: Collection[str]) -> list[str]:
    """What of a question differs, in words. first: metrics that stand before others."""
    found = sorted(change.missing)
    found += ["identities"] * change.identities + ["ranks"] * change.ranks
    if any(change.degradation):
        found.append("degradation " + " against ".join(", ".join(sorted(m)) or "none" for m in change.degradation))
    ordered = sorted(change.metrics.items(), key=lambda one: one[0] not in first)
    some = [f"{metric} {_number(a)} → {_number(b)}" for metric, (a, b) in ordered]
    more = [f"{len(some) - MOST_METRICS} more metrics"] if len(some) > MOST_METRICS else []
    found += [*some[:MOST_METRICS], *more]
    return found + ([", ".join(sorted(change.fields))] if change.fields else [])


def _number(value: float | None) -> str:
    return "null" if value is None else f"{value:.4g}"
