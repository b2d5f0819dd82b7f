"""suspects: questions whose gold is worth a second look, from verdicts that are there already.

Two signs: answers from the evidence alone are wrong for two judges, whoever read it; or no system has answered it. Hard
questions show them, too, so a suspect is one to read, not an error. Only metrics that read an answer are looked at.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from memtrials import benchmarks, errata
from memtrials.index import LedgerIndex
from memtrials.judging.probing import probed
from memtrials.records import Header, VerdictBody
from memtrials.selection import Chosen

JUDGES = 2
"""Judges that must agree that an answer from the evidence is wrong: one may be mistaken."""
SYSTEMS = 2
"""Systems, controls not counted, that must have been judged before nobody's answering says anything."""
ORACLES = frozenset(("in-context",))
ORACLE_HISTORIES = frozenset(("full-context",))
"""Systems whose context is the evidence, where the benchmark's histories hold nothing else."""


@dataclass(frozen=True)
class Suspect:
    """One question. judges_failing of `judges` have never accepted an answer from the evidence; `right` of `systems`
    (controls not counted) have an answer that some judge accepts. signs: `oracle fails`, `no system answers`, or both.
    erratum: what is known of its gold already."""

    benchmark: str
    metric: str
    task: str
    query: str
    type: str | None
    question: str
    gold: str
    signs: tuple[str, ...]
    judges_failing: int
    judges: int
    right: int
    systems: int
    erratum: str | None


@dataclass(frozen=True)
class Looked:
    """What could be looked at for one metric: of `of` questions, how many two judges decided from the evidence, and on
    how many two systems were judged; how many of these failed. undecided: why a sign can't be told."""

    benchmark: str
    metric: str
    of: int
    by_oracle: int
    oracle_fails: int
    by_systems: int
    none_right: int
    undecided: tuple[str, ...]


ORACLE, NOBODY = "oracle fails", "no system answers"


@dataclass
class _Seen:
    """Verdicts on one question. oracle: by judge, whether it accepted an answer from the evidence. systems: whether a
    judge accepted an answer of it. control_right: a control was right, so that there is an answer."""

    oracle: dict[str, bool] = field(default_factory=dict)
    systems: dict[str, bool] = field(default_factory=dict)
    control_right: bool = False


def suspects(index: LedgerIndex, chosen: Chosen) -> tuple[list[Suspect], list[Looked]]:
    """Suspects in the ledger's order, and what was looked at for each metric that was judged. Raises UserError for
    errata that can't be read."""
    found: list[Suspect] = []
    looked: list[Looked] = []
    for name in chosen.benchmarks:
        known = errata.listed(index, name).questions
        for metric in (m for m in benchmarks.find(name).metrics if m.reads == "answer"):
            verdicts = [h for h in index.of("verdict") if (h.benchmark, h.metric) == (name, metric.name)]
            seen = _seen(index, (h for h in verdicts if chosen.holds(h) and not probed(h)))
            if not seen:
                continue
            places = {p for p in index.questions(name, metric.asks) if (name, *p) in chosen.queries}
            mine = [
                _suspect(index, name, metric.name, place, some, known) for place, some in seen.items() if _signs(some)
            ]
            found += mine
            looked.append(_looked(name, metric.name, len(places), seen, mine))
    order = {place: n for n, place in enumerate(index.tasks)}
    return sorted(found, key=lambda one: order[one.benchmark, one.task]), looked


def _seen(index: LedgerIndex, verdicts: Iterable[Header]) -> dict[tuple[str, str], _Seen]:
    found: dict[tuple[str, str], _Seen] = defaultdict(_Seen)
    for verdict in verdicts:
        seen = found[verdict.task or "", verdict.query or ""]
        right = index.ledger.body(verdict, VerdictBody).score > 0.5
        system, judge = verdict.system or "", verdict.judge or ""
        if _is_oracle(index, verdict):
            seen.oracle[judge] = seen.oracle.get(judge, False) or right
        if index.config(system).provenance.get("control"):
            seen.control_right = seen.control_right or right
        else:
            seen.systems[system] = seen.systems.get(system, False) or right
    return found


def _is_oracle(index: LedgerIndex, verdict: Header) -> bool:
    """Whether an answer was made from the evidence and nothing else."""
    kind = index.config(verdict.system or "").settings.get("system")
    variant = (verdict.benchmark or "").partition("@")[2]
    return kind in ORACLES or (variant == "oracle" and kind in ORACLE_HISTORIES)


def _signs(seen: _Seen) -> tuple[str, ...]:
    oracle = sum(not right for right in seen.oracle.values()) >= JUDGES
    nobody = len(seen.systems) >= SYSTEMS and not any(seen.systems.values()) and not seen.control_right
    return (*((ORACLE,) if oracle else ()), *((NOBODY,) if nobody else ()))


def _suspect(
    index: LedgerIndex,
    benchmark: str,
    metric: str,
    place: tuple[str, str],
    seen: _Seen,
    known: Mapping[tuple[str, str], errata.Erratum],
) -> Suspect:
    task = index.task(benchmark, place[0])
    query = task.query(place[1])
    return Suspect(
        benchmark,
        metric,
        *place,
        query.type,
        query.text,
        " / ".join(task.gold_of(query.id).answers),
        _signs(seen),
        sum(not right for right in seen.oracle.values()),
        len(seen.oracle),
        sum(seen.systems.values()),
        len(seen.systems),
        known[place].what if place in known else None,
    )


def _looked(
    benchmark: str, metric: str, of: int, seen: Mapping[tuple[str, str], _Seen], found: Iterable[Suspect]
) -> Looked:
    by_oracle = sum(len(some.oracle) >= JUDGES for some in seen.values())
    by_systems = sum(len(some.systems) >= SYSTEMS for some in seen.values())
    undecided = []
    if not any(some.oracle for some in seen.values()):
        undecided.append("no oracle run: replay, fetch, answer and judge `in-context`, with two judges")
    elif not by_oracle:
        undecided.append("one judge alone decided on the oracle run: ask another one (judge --system in-context)")
    if not by_systems:
        most = max((len(some.systems) for some in seen.values()), default=0)
        undecided.append(f"systems judged, controls not counted: {most}; whether nobody answers takes {SYSTEMS}")
    signs = [one.signs for one in found]
    return Looked(
        benchmark,
        metric,
        of,
        by_oracle,
        sum(ORACLE in some for some in signs),
        by_systems,
        sum(NOBODY in some for some in signs),
        tuple(undecided),
    )
