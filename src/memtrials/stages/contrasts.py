"""Is one system better than another, and what do repeats tell: of the scores that `metrics` gathers.

A difference is between two cells of unlike systems that agree in all else: data, fetch configuration, reader, judge
(MEASURING §1, §6). What is unknown, as with imported results, counts as unlike.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, NamedTuple

from memtrials import benchmarks
from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex
from memtrials.metrics.differences import difference, difference_bounds, equivalence, holm, order_notes
from memtrials.metrics.numbers import Cell, Contrast, Number, Repeats, Scores
from memtrials.metrics.repeats import pass_rates, run_spread
from memtrials.records import Role, describe

PROMPTS = ("prompt", "profile", "guidance", "whole_message", "clean")
"""The settings that are how a reader is asked."""
SYSTEM: tuple[Role, ...] = ("system",)
ASKS_FOR = frozenset({"k", "budget", "protocol", "file_sha256"})
"""A fetch configuration without any of these is of a system that is asked in one way only: it stands beside any."""


@dataclass(frozen=True)
class Contrasting:
    """Which differences are wanted. reference: the system that all others are compared with (None: all pairs). primary:
    the metric whose tests are one family (None: a benchmark's first with verdicts). margin: of the equivalence tests,
    in the unit of the scores. allow_unlike: also between results that don't agree in what they should share."""

    reference: str | None = None
    primary: str | None = None
    margin: float | None = None
    allow_unlike: bool = False


ALL_PAIRS = Contrasting()


@dataclass(frozen=True)
class Side:
    """A cell in its ledger."""

    index: LedgerIndex
    cell: Cell


def unlike(one: Side, other: Side, apart: Collection[Role] = SYSTEM) -> tuple[str, ...]:
    """What two cells should share and don't, one phrase each; none when they may stand in one difference.

    apart: the roles in which they are meant to differ. The judge is never one of them, and of readers that are, the
    prompts still have to agree.
    """
    found = []
    if one.cell.benchmark != other.cell.benchmark:
        found.append(f"benchmark: {one.cell.benchmark} and {other.cell.benchmark}")
    data = [_data(side) for side in (one, other)]
    if data[0] != data[1]:
        found.append(f"data: {data[0][:12]} and {data[1][:12]}")
    roles: tuple[Role, ...] = ("system", "fetch", "reader", "judge")
    for role in roles:
        ids = (getattr(one.cell, role), getattr(other.cell, role))
        if ids[0] == ids[1]:
            continue
        if None in ids:
            found.append(f"{role}: {ids[0] or 'none'} and {ids[1] or 'none'}")
            continue
        settings = (_settings(one, ids[0]), _settings(other, ids[1]))
        names = describe(*settings)
        if role == "fetch" and "fetch" not in apart and not (names := _asked_otherwise(settings, names)):
            continue
        if role == "reader" and "reader" in apart:
            names = [name for name in names if name in PROMPTS and all("prompt" in s for s in settings)]
        if role == "judge" or role not in apart or (role == "reader" and names):
            found.append(f"{role}: {ids[0]} and {ids[1]} differ in {', '.join(names)}")
    return tuple(found)


def _asked_otherwise(settings: tuple[Mapping[str, Any], Mapping[str, Any]], names: Iterable[str]) -> list[str]:
    """In which of these settings two systems were asked otherwise. Under one budget it is the only one that counts, and
    how a system's items are rendered never does (MEASURING §8)."""
    if not all(ASKS_FOR.intersection(some) for some in settings):
        return []
    budgets = {some.get("budget") for some in settings}
    counting = None if len(budgets) > 1 or None in budgets else ("budget", "protocol")
    return [name for name in names if name != "rendering" and (counting is None or name in counting)]


def _settings(side: Side, config: str) -> Mapping[str, Any]:
    return side.index.config(config).settings


def _data(side: Side) -> str:
    """The hash of the release that a cell's tasks were built from."""
    first = next(task for name, task in side.index.tasks if name == side.cell.benchmark)
    return side.index.task(side.cell.benchmark, first).release.sha256


def is_control(index: LedgerIndex, system: str) -> bool:
    """Whether a system is a control: it stands apart and is in no family."""
    return bool(index.config(system).provenance.get("control"))


def contrast(
    one: Scores, other: Scores, margin: float | None = None, *, group: str | None = None, **marks: Any
) -> Contrast:
    """The first less the second over the questions scored for both. group: only questions of this type. marks: further
    fields of the Contrast."""
    questions = {**other.questions, **one.questions}
    scope = {p: cluster for p, (cluster, type_) in questions.items() if group is None or (type_ or "none") == group}
    a, b = ({p: value for p, value in side.means.items() if p in scope} for side in (one, other))
    found = difference(a, b, scope)
    both = [p for p in a if p in b]
    limited = one.unit in ("share", "score") and all(0.0 <= v <= 1.0 for side in (a, b) for v in side.values())
    return Contrast(
        one.cell,
        other.cell,
        one.metric,
        one.unit,
        found,
        (sum(a[p] for p in both) / len(both), sum(b[p] for p in both) / len(both)) if both else None,
        bounds=difference_bounds(a, b, scope) if found and found.left_out and limited else None,
        equivalence=equivalence(a, b, scope, margin) if margin is not None else None,
        group=group,
        **marks,
    )


def differences(
    index: LedgerIndex, scores: Sequence[Scores], asked: Contrasting, *, by_type: bool = False
) -> tuple[list[Contrast], list[str]]:
    """The differences of every benchmark, and notes on what isn't compared. by_type: also of each type.

    The primary metric's tests between systems that aren't controls are one family for each reader and judge, with
    Holm's adjustment; all else is unadjusted, and of types and secondary metrics controls are left out. Raises
    UserError for an unknown reference or metric, and a margin of 0 or less.
    """
    if asked.margin is not None and not asked.margin > 0:
        raise UserError(f"--margin {asked.margin:g}: an equivalence margin is above 0, in the unit of the scores")
    if asked.primary is not None and all(asked.primary != one.metric for one in scores):
        raise unknown("metric with numbers", asked.primary, {one.metric for one in scores})
    reference = _reference(index, asked.reference, scores)
    found: list[Contrast] = []
    notes: list[str] = []
    for name in dict.fromkeys(one.cell.benchmark for one in scores):
        mine = [one for one in scores if one.cell.benchmark == name]
        primary = _primary(name, mine, asked.primary)
        if primary is None:
            continue
        if not benchmarks.find(name).sample:
            notes.append(f"{name}: its questions are no sample of others, so no difference in them is tested")
            continue
        pairs, refused = _pairs(index, [one for one in mine if one.metric == primary], reference, asked.allow_unlike)
        found += _adjusted([_of_pair(index, pair, reference, asked.margin) for pair in pairs])
        notes += _refused(name, primary, refused)
        if by_type:
            types = dict.fromkeys(type_ or "none" for one in mine for _, type_ in one.questions.values())
            found += [
                _of_pair(index, pair, reference, asked.margin, group=type_, exploratory=True)
                for type_ in types
                for pair in pairs
                if not _has_control(index, pair)
            ]
        for metric in dict.fromkeys(one.metric for one in mine if one.cell.reader or one.cell.judge):
            if metric != primary:
                some = [one for one in mine if one.metric == metric]
                others, _ = _pairs(index, some, reference, asked.allow_unlike)
                found += [
                    _of_pair(index, pair, reference, asked.margin, exploratory=True)
                    for pair in others
                    if not _has_control(index, pair)
                ]
    return found, notes


class _Pair(NamedTuple):
    one: Scores
    other: Scores
    unlike: tuple[str, ...]


def _reference(index: LedgerIndex, name: str | None, scores: Iterable[Scores]) -> str | None:
    """The configuration id of the reference. Raises UserError for none or several with numbers."""
    if name is None:
        return None
    there = {one.cell.system for one in scores}
    found = [config for config in index.resolve(name, "system") if config in there]
    if not found:
        raise UserError(f"--reference {name}: it has no numbers here; check --system and --benchmark")
    if len(found) > 1:
        raise UserError(f"--reference {name}: {len(found)} configurations have that name: {', '.join(found)}; take one")
    return found[0]


def _primary(benchmark: str, scores: Sequence[Scores], wanted: str | None) -> str | None:
    """The primary metric of a benchmark; None where it has no numbers of it."""
    there = {one.metric for one in scores}
    if wanted is not None:
        return wanted if wanted in there else None
    return next((m.name for m in benchmarks.find(benchmark).metrics if m.name in there), None)


def _pairs(
    index: LedgerIndex, scores: Sequence[Scores], reference: str | None, allow_unlike: bool
) -> tuple[list[_Pair], list[_Pair]]:
    """Pairs of cells of two systems that may be compared, and those that may not. Where two systems have cells that
    agree in all else, only these are taken."""
    by_system: dict[str, list[Scores]] = defaultdict(list)
    for one in scores:
        by_system[one.cell.system].append(one)
    taken, refused = [], []
    for first, second in combinations(by_system, 2):
        if reference not in (None, first, second) or (is_control(index, first) and is_control(index, second)):
            continue
        all_pairs = [
            _Pair(a, b, unlike(Side(index, a.cell), Side(index, b.cell)))
            for a in by_system[first]
            for b in by_system[second]
        ]
        like = [pair for pair in all_pairs if not pair.unlike]
        if like or allow_unlike:
            taken += like or all_pairs
        else:
            refused += all_pairs
    return taken, refused


def _of_pair(index: LedgerIndex, pair: _Pair, reference: str | None, margin: float | None, **marks: Any) -> Contrast:
    """The pair's contrast: another system less the reference; without one, the system that is ahead comes first."""
    one, other = pair.one, pair.other
    if one.cell.system == reference or (reference is None and _is_ahead(other, one)):
        one, other = other, one
    return contrast(one, other, margin, control=_has_control(index, pair), unlike=pair.unlike, **marks)


def _has_control(index: LedgerIndex, pair: _Pair) -> bool:
    return any(is_control(index, one.cell.system) for one in (pair.one, pair.other))


def _is_ahead(one: Scores, other: Scores) -> bool:
    """Whether the first has the larger sum over the questions scored for both."""
    a, b = one.means, other.means
    return math.fsum(a[place] - b[place] for place in a if place in b) > 0


def _adjusted(contrasts: Sequence[Contrast]) -> list[Contrast]:
    """With Holm's p in each family: one reader and judge, or what is unlike."""
    families: dict[Any, list[int]] = defaultdict(list)
    for place, one in enumerate(contrasts):
        if one.found is not None and not one.control:
            families[("unlike",) if one.unlike else (one.first.reader, one.first.judge)].append(place)
    found = list(contrasts)
    for places in families.values():
        ps = [test.p for place in places if (test := contrasts[place].found) is not None]
        for place, p in zip(places, holm(ps), strict=True):
            found[place] = replace(found[place], adjusted=p, family=len(ps))
    return found


def _refused(benchmark: str, metric: str, refused: Sequence[_Pair]) -> list[str]:
    if not refused:
        return []
    roles = dict.fromkeys(phrase.partition(":")[0] for pair in refused for phrase in pair.unlike)
    systems = dict.fromkeys(one.cell.system for pair in refused for one in pair[:2])
    note = f"{benchmark}: {metric} of {', '.join(systems)} isn't compared, because {' and '.join(roles)} differ"
    return [f"{note} or are unknown; --allow-unlike compares them all the same"]


def order(index: LedgerIndex, numbers: Iterable[Number]) -> list[str]:
    """Notes on pairs of systems that a mean over questions and the mean over types of the same questions put in
    opposite order (MEASURING §6). Imported results are set beside one another, and the note says so."""
    whole = [n for n in numbers if n.group is None and n.value is not None and n.cell.reader]
    over_types = {(n.cell, n.metric, n.of): n for n in whole if n.types is not None}
    over_questions: dict[tuple[Cell, str, int], Number] = {}
    for number in (n for n in whole if n.types is None):  # the whole metric's stands before its parts of the same size
        over_questions.setdefault((number.cell, number.metric, number.of), number)
    both = [place for place in over_questions if place in over_types]
    notes = []
    for one, other in combinations(both, 2):
        (a, metric, _), (b, other_metric, _) = one, other
        if (a.benchmark, metric) != (b.benchmark, other_metric) or a.system == b.system:
            continue
        apart = unlike(Side(index, a), Side(index, b))
        if apart and not all(_is_imported(index, cell) for cell in (a, b)):
            continue
        names = {cell: index.config(cell.system).name for cell in (a, b)}
        if len(set(names.values())) == 1:
            names = {cell: cell.system for cell in (a, b)}
        questions, types = (
            {names[place[0]]: value for place in (one, other) if (value := shares[place].value) is not None}
            for shares in (over_questions, over_types)
        )
        beside = "; readers and judges of imported results are unlike" if apart else ""
        notes += [f"{a.benchmark}, {metric}: {note}{beside}" for note in order_notes(questions, types)]
    return notes


def _is_imported(index: LedgerIndex, cell: Cell) -> bool:
    return "file_sha256" in index.config(cell.system).settings


def repeats(scores: Iterable[Scores]) -> list[Repeats]:
    """What repeats tell of every number of verdicts or answers that has some (MEASURING §4)."""
    found = []
    for one in scores:
        if not (one.cell.reader or one.cell.judge) or all(len(runs) == 1 for runs in one.runs.values()):
            continue
        counts = []
        for runs in one.runs.values():
            trials: dict[tuple[str, ...], list[float]] = defaultdict(list)
            for run, value in runs.items():
                trials[run[:-1]].append(value)
            counts.append((sum(2 * sum(some) > len(some) for some in trials.values()), len(trials)))
        most = max(of for _, of in counts) if one.cell.judge else 1
        passes = [rates for k in range(2, most + 1) if (rates := pass_rates(counts, k)) is not None]
        found.append(Repeats(one.cell, one.metric, one.unit, run_spread(one.runs), passes))
    return found
