"""Where questions fail whose gold names its evidence: the facts of each, from records in the ledger (MEASURING §7)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property

from memtrials import errata
from memtrials.benchmarks.base import Asks, Benchmark
from memtrials.index import LedgerIndex, probed_turn
from memtrials.judging.probing import probed
from memtrials.metrics.attribution import BY_EVIDENCE, Facts, by_evidence
from memtrials.metrics.numbers import Attribution, Cell, Place, Question
from memtrials.records import Gold, Header, Item, RetrievalBody, VerdictBody

ORACLE, WHOLE = "in-context", "full-context"
"""The kinds of control systems that show the evidence alone, and all that was said."""


class Known:
    """What a ledger knows of one benchmark beside the verdicts of a cell."""

    def __init__(self, index: LedgerIndex, benchmark: Benchmark, name: str) -> None:
        self.index = index
        self.benchmark = benchmark
        self.name = name
        self._stored: dict[tuple[str, str, str], bool | None] = {}
        self._texts: dict[tuple[str, str], str] = {}
        for probe in index.storage_probes:
            if probe.benchmark == name:
                self._read(probe)

    def _read(self, probe: Header) -> None:
        turn, body = probed_turn(probe), self.index.ledger.body(probe, RetrievalBody)
        self._texts[probe.task or "", turn] = body.question
        found: bool | None = None
        if (ids := _turns(body.items)) is not None:
            found = turn in ids
        elif body.question in (body.context or ""):
            found = True
        elif "verbatim" in self.index.config(probe.system or "").provenance.get("capabilities", ()):
            found = False
        self._stored[self.index.parent(probe).id, probe.task or "", turn] = found

    def stored(self, ingest: Header, turn: str) -> bool | None:
        """Whether a state holds a turn; None where that wasn't asked or can't be told."""
        return self._stored.get((ingest.id, ingest.task or "", turn))

    @cached_property
    def disputed(self) -> frozenset[Place]:
        """Questions whose gold is known to be wrong or in doubt. Errata are about the release."""
        listed = errata.listed(self.index, self.name)
        if not listed.released:
            return frozenset()
        return frozenset(place for place, entry in listed.questions.items() if entry.what != "garbled")

    @cached_property
    def scores(self) -> dict[tuple[str, str], set[float]]:
        """All scores that an answer has, whoever gave them, by the answer's id and metric."""
        found: dict[tuple[str, str], set[float]] = defaultdict(set)
        for verdict in self.index.of("verdict"):
            if verdict.benchmark == self.name and not probed(verdict):
                about = self.index.parent(verdict).id
                found[about, verdict.metric or ""].add(self.index.ledger.body(verdict, VerdictBody).score)
        return found

    @cached_property
    def control_scores(self) -> dict[tuple[str, str, str, str, Place], float]:
        """The score of a reader's first answer from all that a control shows, by the control's kind, reader, judge,
        metric and question."""
        found: dict[tuple[str, str, str, str, Place], float] = {}
        for verdict in self.index.of("verdict"):
            if verdict.benchmark != self.name or probed(verdict):
                continue
            if (kind := control_kind(self.index, verdict)) is not None:
                place = (verdict.task or "", verdict.query or "")
                name = (kind, verdict.reader or "", verdict.judge or "", verdict.metric or "", place)
                found.setdefault(name, self.index.ledger.body(verdict, VerdictBody).score)
        return found

    def facts(self, cell: Cell, metric: str, answered: Header, ingest: Header, trial: Header, score: float) -> Facts:
        """What is known of a trial with a verdict."""
        place = (trial.task or "", trial.query or "")
        evidence = frozenset(self.index.task(self.name, place[0]).gold_of(place[1]).evidence)
        body = self.index.ledger.body(trial, RetrievalBody)
        back, shown = _turns(self.index.retrieved(body)), _turns(self.index.shown(body))
        if back is None and body.context == "":
            back = shown = frozenset()
        elif shown is None and back is None:
            shown = self._verbatim(trial, body, evidence)
        stored = {turn: held for turn in evidence if (held := self.stored(ingest, turn)) is not None}
        return Facts(
            score,
            disputed=place in self.disputed,
            disagree=len(self.scores[answered.id, metric]) > 1,
            evidence=evidence,
            retrieved=None if back is None else evidence & back,
            shown=None if shown is None else evidence & shown,
            stored=stored,
            oracle=self.control_scores.get((ORACLE, cell.reader or "", cell.judge or "", metric, place)),
        )

    def _verbatim(self, trial: Header, body: RetrievalBody, evidence: frozenset[str]) -> frozenset[str] | None:
        """The evidence that stands word for word in the context of a system that gives no ids but returns turns
        unchanged; None where the words aren't known."""
        if "verbatim" not in self.index.config(trial.system or "").provenance.get("capabilities", ()):
            return None
        texts = {turn: self._texts.get((trial.task or "", turn)) for turn in evidence}
        if body.context is None or None in texts.values():
            return None
        return frozenset(turn for turn, text in texts.items() if text and text in body.context)


def control_kind(index: LedgerIndex, header: Header) -> str | None:
    """ORACLE or WHOLE for what was made from all that such a control has to show, else None."""
    state = index.config(header.system or "").settings
    if state.get("system") not in (ORACLE, WHOLE) or "window" in state:
        return None
    return None if "budget" in index.config(header.fetch or "").settings else str(state["system"])


def _turns(items: Sequence[Item] | None) -> frozenset[str] | None:
    """The turns of items; None where they don't name them."""
    if items is None or any(item.turns is None for item in items):
        return None
    return frozenset(turn for item in items for turn in item.turns or ())


def waterfalls(
    index: LedgerIndex,
    benchmark: Benchmark,
    name: str,
    verdicts: Iterable[Header],
    questions: Callable[[str, Asks], Mapping[Place, Question]],
    *,
    every_trial: bool,
) -> list[Attribution]:
    """Waterfalls of each cell by each metric that the benchmark names, over trials with ordinal 1 (every_trial: over
    each ordinal, too), whose counts sum to the metric's questions.

    verdicts: those that are wanted. questions: those of a benchmark that something asks about, which are selected.
    """
    known = Known(index, benchmark, name)
    found: dict[tuple[Cell, str], dict[int, dict[Place, Facts]]] = defaultdict(lambda: defaultdict(dict))
    for verdict in verdicts:
        if verdict.benchmark != name or verdict.metric not in benchmark.located:
            continue
        answered = index.parent(verdict)
        if answered.kind != "answer":
            continue
        trial = index.parent(answered)
        ingest = index.parent(trial)
        if any((h.repeat or 1) != 1 for h in (verdict, answered, ingest)):
            continue
        cell = Cell(name, verdict.system or "", verdict.fetch or "", verdict.reader, verdict.judge)
        score = index.ledger.body(verdict, VerdictBody).score
        facts = known.facts(cell, verdict.metric, answered, ingest, trial, score)
        found[cell, verdict.metric][trial.repeat or 1][verdict.task or "", verdict.query or ""] = facts
    return [
        _waterfall(known, cell, metric, ordinal, by_place, questions(name, benchmark.metric(metric).asks))
        for (cell, metric), by_ordinal in found.items()
        for ordinal, by_place in sorted(by_ordinal.items())
        if every_trial or ordinal == 1
    ]


def _waterfall(
    known: Known,
    cell: Cell,
    metric: str,
    ordinal: int,
    facts: Mapping[Place, Facts],
    questions: Mapping[Place, Question],
) -> Attribution:
    counts = Counter(by_evidence(facts.get(place, Facts(None))) for place in questions)
    wrong = [place for place in questions if place in facts and not facts[place].score]
    asked = [(WHOLE, cell.reader or "", cell.judge or "", metric, place) for place in wrong]
    whole = [known.control_scores[name] for name in asked if name in known.control_scores]
    return Attribution(
        cell,
        ordinal,
        known.index.config(cell.judge or "").settings.get("model") == "offline",
        len(questions),
        {class_: counts[class_] for class_ in BY_EVIDENCE if counts[class_]},
        slips=None,
        gap=None,
        gap_n=0,
        gap_interval=None,
        metric=metric,
        whole=(sum(score == 1.0 for score in whole), len(whole)) if whole else None,
    )


def stored_facts(index: LedgerIndex, benchmark: Benchmark, name: str) -> dict[tuple[str, str], float]:
    """Whether the fact of each task is in its state with ordinal 1, by system and task, where that was probed."""
    known = Known(index, benchmark, name)
    found: dict[tuple[str, str], float] = {}
    for ingest in index.of("ingest"):
        if ingest.benchmark != name or (ingest.repeat or 1) != 1:
            continue
        golds: Sequence[Gold] = index.task(name, ingest.task or "").gold
        held = [known.stored(ingest, turn) for gold in golds for turn in benchmark.probed(gold)]
        if told := [h for h in held if h is not None]:
            found[ingest.system or "", ingest.task or ""] = float(all(told))
    return found
