"""compare: two ledgers, or two systems, fetch configurations or readers of one, question by question.

Results are paired where they agree in all but what is compared; single ones that are left on both sides are paired
with each other, if they may stand in one difference at all (MEASURING §6). Of their records every field is compared
that isn't VOLATILE. Nothing is appended.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from memtrials import benchmarks
from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.judging.probing import probed
from memtrials.ledger import Ledger
from memtrials.metrics.compared import Change, Comparison, Flip, Pair
from memtrials.metrics.numbers import Cell, Place, Scores
from memtrials.metrics.rows import marks_of
from memtrials.records import (
    AnswerBody,
    Body,
    FailureBody,
    Header,
    IngestBody,
    Item,
    Kind,
    RetrievalBody,
    Role,
    VerdictBody,
)
from memtrials.selection import choose
from memtrials.stages import metrics
from memtrials.stages.common import Options
from memtrials.stages.contrasts import Side, contrast, unlike

VOLATILE = frozenset(
    {
        "namespace",
        "user",
        "stores",
        "imported_from",
        "items_in",
        "request_id",
        "raw",
        "raw_before",
        "raw_after",
        "internal_id",
        "operation_id",
        "reported",
        "seconds",
        "charged_seconds",
        "prefix_seconds",
        "queued_seconds",
        "waited_seconds",
        "attempts",
        "workers",
        "cache_hits",
        "cache_misses",
        "wasted_prompt_tokens",
        "wasted_completion_tokens",
    }
)
"""The fields of bodies in which two runs of the same work differ: random ids, what systems and services write beside
them, times, and what it took. Of headers nothing is compared but what places a record: its question, configurations and
ordinals."""

DEFINING: tuple[Role, ...] = ("system", "fetch", "reader")
"""The roles in which single results of two ledgers may differ: that is what they are compared in."""
STAGES: Mapping[Kind, str] = {"retrieval": "fetch", "answer": "answer", "verdict": "judge"}
BODIES: Mapping[Kind, type[Body]] = {"retrieval": RetrievalBody, "answer": AnswerBody, "verdict": VerdictBody}

Run = tuple[int, ...]
"""A record's ordinals, from the ingest down to its own."""


@dataclass(frozen=True)
class CompareRequest:
    """What is compared. ledgers: two, or none for that of the options. named: configurations by role, as names or ids;
    two in a role are the two sides, one is for both. margin, allow_unlike: see `contrasts.Contrasting`."""

    ledgers: tuple[Path, ...] = ()
    named: Mapping[Role, tuple[str, ...]] = field(default_factory=dict)
    margin: float | None = None
    allow_unlike: bool = False


def run(request: CompareRequest, options: Options) -> Comparison:
    """Compare. Raises UserError for a side without results, results that can't be told apart or have nothing in common,
    and those that may not stand in one difference, with what differs."""
    if request.margin is not None and not request.margin > 0:
        raise UserError(f"--margin {request.margin:g}: an equivalence margin is above 0, in the unit of the scores")
    axis = _axis(request)
    first, second = _sides(request, options, axis)
    for side in (first, second):
        if not side.levels:
            raise UserError(f"{side.label}: no results are selected; an empty run is no run without changes")
    pairing = _Pairing(first, second, axis, request.allow_unlike)
    pairs: dict[tuple[Cell, Cell], Pair] = {}

    def of(a: Cell, b: Cell) -> Pair:
        asked = (a._replace(reader=None, judge=None), b._replace(reader=None, judge=None))
        return pairs.setdefault(asked, Pair(*asked))

    levels = dict.fromkeys([*first.levels, *second.levels])
    for kind, metric in reversed(levels):  # verdicts first: of what differs, a refusal names all
        mine, theirs = first.levels.get((kind, metric), {}), second.levels.get((kind, metric), {})
        for a, b, _ in pairing.of(metric or kind, mine, theirs):
            _compare_records(of(a, b), kind, metric, (first, mine[a]), (second, theirs[b]))
    scores = [{(one.metric, one.cell): one for one in side.scores} for side in (first, second)]
    for metric in dict.fromkeys(name for some in scores for name, _ in some):
        mine_, theirs_ = ({cell: one for (name, cell), one in some.items() if name == metric} for some in scores)
        for a, b, apart in pairing.of(metric, mine_, theirs_, note_alone=False):
            _compare_scores(of(a, b), mine_[a], theirs_[b], request.margin, apart)
    if not any(pair.questions for pair in pairs.values()):
        raise UserError(f"{first.label} and {second.label} have no results that can be compared", pairing.alone)
    for pair in pairs.values():
        pair.changes = {place: pair.changes[place] for place in sorted(pair.changes) if pair.changes[place]}
    return Comparison(first.label, second.label, list(pairs.values()), pairing.alone)


def _axis(request: CompareRequest) -> Role | None:
    """The role that two configurations are named in; None for two ledgers alone."""
    double = [role for role, names in request.named.items() if len(names) == 2]
    if any(len(names) > 2 for names in request.named.values()) or len(double) > 1:
        raise UserError("compare has two sides: name two systems, two fetch configurations or two readers")
    if len(request.ledgers) not in (0, 2):
        raise UserError("compare takes two ledgers, or none and two systems, fetch configurations or readers of one")
    if not request.ledgers and not double:
        raise UserError("name two ledgers, or what to compare in one: --system A --system B, --fetch …, --reader …")
    return double[0] if double else None


@dataclass
class _Results:
    """One side: its ledger, and its records and scores by what they are of."""

    label: str
    index: LedgerIndex
    levels: dict[tuple[Kind, str | None], dict[Cell, list[Header]]]
    scores: list[Scores]
    causes: Mapping[tuple[str, str | None, Cell, Place], str]

    def run_of(self, header: Header) -> Run:
        """The record's ordinals."""
        chain = [header.repeat or 1]
        while header.kind != "ingest":
            header = self.index.parent(header)
            chain.append(header.repeat or 1)
        return tuple(reversed(chain))


def _sides(request: CompareRequest, options: Options, axis: Role | None) -> Iterator[_Results]:
    """Both sides; one ledger is read once."""
    paths = request.ledgers or (options.trials, options.trials)
    read: dict[Path, LedgerIndex] = {}
    for place, path in enumerate(paths):
        if not path.is_file():
            raise UserError(f"{path}: there is no such ledger")
        if path not in read:
            read[path] = LedgerIndex(Ledger.open(path))
        index = read[path]
        named = {role: names[-1 if place else 0] for role, names in request.named.items() if names}
        label = str(path) if request.ledgers else named[axis] if axis else str(path)
        yield _results(label, index, {role: set(index.resolve(name, role)) for role, name in named.items()}, options)


def _results(label: str, index: LedgerIndex, only: Mapping[Role, Collection[str]], options: Options) -> _Results:
    """What of a ledger is made under these configurations, where it has that role at all."""
    selection = replace(options.selection, systems=tuple(only.get("system", ())))
    chosen = choose(index, selection, "unit")

    def kept(of: Header | Cell) -> bool:
        return all(getattr(of, role) is None or getattr(of, role) in ids for role, ids in only.items())

    levels: dict[tuple[Kind, str | None], dict[Cell, list[Header]]] = defaultdict(lambda: defaultdict(list))
    for kind in STAGES:
        for header in index.of(kind):
            if chosen.holds(header) and kept(header) and not (kind == "verdict" and probed(header)):
                levels[kind, header.metric][_cell(header)].append(header)
    causes = {}
    for work, failures in index.failures.items():
        last = failures[-1]
        if work not in index.done and chosen.holds(last) and last.query is not None and last.system is not None:
            cause = index.ledger.body(last, FailureBody).cause
            causes[last.stage or "", last.metric, _cell(last), (last.task or "", last.query)] = cause
    scores = metrics.scores(index, metrics.MetricsRequest(), replace(options, selection=selection))
    shown = [one for one in scores if kept(one.cell) and one.unit != "rank"]
    return _Results(label, index, dict(levels), shown, causes)


def _cell(header: Header) -> Cell:
    return Cell(header.benchmark or "", header.system or "", header.fetch or "", header.reader, header.judge)


class _Pairing:
    """Which cells of two sides are compared. alone: those that have no counterpart, in words."""

    def __init__(self, first: _Results, second: _Results, axis: Role | None, allow_unlike: bool) -> None:
        self.sides = (first, second)
        self.exact: tuple[Role, ...] = (axis,) if axis else ()
        self.apart: tuple[Role, ...] = DEFINING if axis is None else (axis,)
        self.allow_unlike = allow_unlike
        self._alone: dict[str, None] = {}

    @property
    def alone(self) -> list[str]:
        """Each once."""
        return list(self._alone)

    def of(
        self, what: str, mine: Iterable[Cell], theirs: Iterable[Cell], *, note_alone: bool = True
    ) -> list[tuple[Cell, Cell, tuple[str, ...]]]:
        """Pairs of cells with what should agree in them and doesn't, where that is allowed. Raises UserError."""
        a_left, b_left = list(mine), list(theirs)
        pairs: list[tuple[Cell, Cell, tuple[str, ...]]] = []
        for a in list(a_left):
            b = next((b for b in b_left if not self._unlike(a, b, self.exact)), None)
            if b is not None:
                pairs.append((a, b, ()))
                a_left.remove(a)
                b_left.remove(b)
        for base in dict.fromkeys(_base(cell) for cell in [*a_left, *b_left]):
            a_some, b_some = ([cell for cell in left if _base(cell) == base] for left in (a_left, b_left))
            if not (a_some and b_some):
                if not note_alone:
                    continue
                for side, some in zip(self.sides, (a_some, b_some), strict=True):
                    self._alone |= dict.fromkeys(f"only {side.label}: {what} of {_told(cell)}" for cell in some)
            elif len(a_some) == len(b_some) == 1:
                apart = self._unlike(a_some[0], b_some[0], self.apart)
                if apart and not self.allow_unlike:
                    raise UserError(
                        f"{what} of {self.sides[0].label} and {self.sides[1].label} can't stand in one difference; "
                        f"they differ in {'; '.join(apart)}. --allow-unlike compares them all the same"
                    )
                pairs.append((a_some[0], b_some[0], apart))
            else:
                listed = [
                    f"  {side.label}: {_told(cell)}"
                    for side, some in zip(self.sides, (a_some, b_some), strict=True)
                    for cell in some
                ]
                which = "name one for each side with --system, --fetch, --reader or --judge"
                raise UserError(f"{what}: it isn't clear which of these results are to be compared; {which}", listed)
        return pairs

    def _unlike(self, a: Cell, b: Cell, apart: Collection[Role]) -> tuple[str, ...]:
        if _base(a) != _base(b):
            return ("benchmark",)
        return unlike(Side(self.sides[0].index, a), Side(self.sides[1].index, b), apart)


def _base(cell: Cell) -> str:
    return cell.benchmark.partition("@")[0]


def _told(cell: Cell) -> str:
    return " / ".join(part for part in cell if part)


# --- records ----------------------------------------------------------------------------------------------------


def _compare_records(
    pair: Pair,
    kind: Kind,
    metric: str | None,
    one: tuple[_Results, list[Header]],
    other: tuple[_Results, list[Header]],
) -> None:
    """Every record of a kind beside that of the same question and ordinals."""
    (first, mine), (second, theirs) = one, other
    a_runs, b_runs = _by_run(first, mine), _by_run(second, theirs)
    for place in dict.fromkeys([*a_runs, *b_runs]):
        pair.questions.add(place)
        change = pair.changes[place]
        a_some, b_some = a_runs.get(place, {}), b_runs.get(place, {})
        for run_ in dict.fromkeys([*a_some, *b_some]):
            a, b = a_some.get(run_), b_some.get(run_)
            if a is not None and b is not None:
                _compare_two(change, kind, metric, (first, a), (second, b))
                continue
            there = a or b
            assert there is not None
            lacking, cells, mark = (second, theirs, 1) if b is None else (first, mine, 0)
            cause = lacking.causes.get((STAGES[kind], metric, _cell(cells[0]), place))
            change.missing.add(f"no {metric or kind} in {lacking.label}")
            if cause is not None:
                change.degradation[mark].add(f"no {metric or kind}: {cause} failure")


def _by_run(side: _Results, headers: Iterable[Header]) -> dict[Place, dict[Run, Header]]:
    runs: dict[Place, dict[Run, Header]] = defaultdict(dict)
    for header in headers:
        runs[_place(header)][side.run_of(header)] = header
    return runs


def _place(header: Header) -> Place:
    return header.task or "", header.query or ""


def _compare_two(
    change: Change, kind: Kind, metric: str | None, one: tuple[_Results, Header], other: tuple[_Results, Header]
) -> None:
    """Two records of the same place."""
    a, b = (side.index.ledger.body(header, BODIES[kind]) for side, header in (one, other))
    if isinstance(a, RetrievalBody) and isinstance(b, RetrievalBody):
        items = (one[0].index.retrieved(a), other[0].index.retrieved(b))
        _compare_items(change, *items)
        states = [side.index.ledger.body(side.index.parent(header), IngestBody) for side, header in (one, other)]
        change.fields |= {f"ingest.{name}" for name in changed(*states)}
        told = [_in_part(side.index, header, state) for (side, header), state in zip((one, other), states, strict=True)]
        a, b = (msgspec.structs.replace(body, items=None) for body in (a, b))
    else:
        told = [set(), set()]
    marks = [_marks(body) | partly for body, partly in zip((a, b), told, strict=True)]
    change.degradation[0].update(marks[0] - marks[1])
    change.degradation[1].update(marks[1] - marks[0])
    change.fields |= {f"{metric or kind}.{name}" for name in changed(a, b)}


def _compare_items(change: Change, a: Sequence[Item] | None, b: Sequence[Item] | None) -> None:
    named = [None if items is None else [(_identity(i), i.rank) for i in items] for items in (a, b)]
    one, other = named
    if one is None or other is None:
        change.identities |= one is not other
        change.ranks |= one is not other
        return
    change.identities |= sorted(name for name, _ in one) != sorted(name for name, _ in other)
    change.ranks |= sorted(one) != sorted(other)
    if sorted(one) == sorted(other):
        ordered = [sorted(items or (), key=lambda i: (_identity(i), i.rank)) for items in (a, b)]
        change.fields |= {f"items.{n}" for x, y in zip(*ordered, strict=True) for n in changed(x, y)}


def _identity(item: Item) -> tuple[str, ...]:
    """What makes an item that one: its text and turns, and of a memory of a kind whose it is by given ids."""
    memory = item.memory
    whose = () if memory is None else (memory.kind, memory.external_id or "", memory.episode_external_id or "")
    return (item.text, " ".join(item.turns or ()), *whose)


def _in_part(index: LedgerIndex, header: Header, state: IngestBody) -> set[str]:
    """In what respects something that was told before a query was done in part only, by the system's own reports."""
    after = index.task(header.benchmark or "", header.task or "").query(header.query or "").after
    told = (one.reported for one in state.operations if after is None or one.step <= after)
    return {mark for reported in told if reported is not None for mark in marks_of(json.loads(reported))}


def _marks(body: Body) -> set[str]:
    """In what respects a result is less than it should be."""
    marks = set()
    if isinstance(body, RetrievalBody):
        if body.fit is not None and body.fit.partial + body.fit.dropped:
            marks.add("context cut")
        if body.protocol is not None:
            marks.add(body.protocol)
    if isinstance(body, AnswerBody) and body.cut:
        marks.add("answer cut")
    if isinstance(body, VerdictBody) and body.flagged:
        marks.add("verdict flagged")
    return marks


def changed(one: msgspec.Struct, other: msgspec.Struct) -> set[str]:
    """The names of the fields in which two bodies differ, volatile ones left out; of a nested one with its parent's."""
    return set(_changed(msgspec.to_builtins(one), msgspec.to_builtins(other)))


def _changed(one: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> Iterator[str]:
    for name in sorted({*one, *other} - VOLATILE):
        a, b = _lasting(one.get(name)), _lasting(other.get(name))
        if isinstance(a, dict) or isinstance(b, dict):
            yield from _changed(a or {}, b or {}, f"{above}{name}.")
        elif a != b:
            yield above + name


def _lasting(value: Any) -> Any:
    """A value without volatile fields of what stands in a list."""
    if isinstance(value, list | tuple):
        return [_lasting(one) for one in value]
    if isinstance(value, dict):
        return {name: _lasting(one) for name, one in value.items() if name not in VOLATILE}
    return value


# --- scores -----------------------------------------------------------------------------------------------------


def _compare_scores(pair: Pair, one: Scores, other: Scores, margin: float | None, apart: tuple[str, ...]) -> None:
    """The difference of one metric, and the questions that it comes of. Of what is no sample there is none: what its
    questions say of themselves is all."""
    a, b = one.means, other.means
    for place in dict.fromkeys([*a, *b]):
        pair.questions.add(place)
        if one.unit == "value" and place in pair.changes and pair.changes[place].missing:
            continue  # there is no trial to have values
        if a.get(place) != b.get(place):
            pair.changes[place].metrics[one.metric] = (a.get(place), b.get(place))
    if one.cell.judge is not None:
        both = [place for place in a if place in b and a[place] != b[place]]
        pair.flips[len(pair.differences)] = [Flip("/".join(place), a[place], b[place]) for place in sorted(both)]
    if benchmarks.find(one.cell.benchmark).sample:
        pair.differences.append(contrast(one, other, margin, unlike=apart))
