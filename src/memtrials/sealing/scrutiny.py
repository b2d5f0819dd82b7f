"""How a ledger's verdicts may have been chosen: what was voided, tried and repeated with the verdicts known.

None of this is wrong in itself, and all of it belongs beside a number (MEASURING §12).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from memtrials.index import LedgerIndex
from memtrials.judging.probing import probed
from memtrials.metrics.numbers import Cell
from memtrials.records import AnswerBody, Call, ConfigBody, FailureBody, Header, VerdictBody
from memtrials.systems import names


class Family(NamedTuple):
    """What configurations vary: one benchmark and metric, one system, reader and judge by what they are called."""

    benchmark: str
    metric: str
    system: str
    reader: str | None
    judge: str

    @property
    def whose(self) -> str:
        """System, reader and judge, for people."""
        return " / ".join(part for part in (self.system, self.reader, self.judge) if part)


@dataclass(frozen=True)
class Voided:
    """Trials that were voided after a verdict on them was known. right, wrong: these verdicts. again: trials of them
    that were made once more since."""

    trials: int
    right: int
    wrong: int
    again: int


@dataclass(frozen=True)
class Retries:
    """What was asked again because of what came back: empty, refused or unreadable. failures: recorded ones, with their
    attempts in all; rescued: results that came after replies of no use."""

    failures: int
    attempts: int
    rescued: int


@dataclass(frozen=True)
class Scrutiny:
    """Everything that `verify` says beside whether bytes and numbers are as they were sealed.

    configurations: how many each family has, voided ones too. late: repeats that were added after a verdict on their
    question existed, by benchmark and system.
    """

    voided: Voided
    configurations: Mapping[Family, int]
    retries: Retries
    late: Mapping[tuple[str, str], int]


def scrutinise(index: LedgerIndex) -> Scrutiny:
    """Look at a ledger. index: one that counts what was voided, too."""
    verdicts = [h for h in index.of("verdict") if not probed(h)]
    return Scrutiny(_voided(index, verdicts), _configurations(index, verdicts), _retries(index), _late(index, verdicts))


def _voided(index: LedgerIndex, verdicts: Iterable[Header]) -> Voided:
    voided_at: dict[str, int] = {}
    position = index.ledger.position
    for void in index.of("void"):
        for record_id in void.parents:
            voided_at.setdefault(record_id, position(void.id))
    gone = {h.id: h for h in index.revived}
    for header in gone.values():  # parents stand before their children
        above = [voided_at[p] for p in header.parents if p in voided_at]
        voided_at[header.id] = min([*above, voided_at.get(header.id, len(index.ledger.headers))])
    known = [h for h in verdicts if h.id in gone and position(h.id) < voided_at[h.id]]
    scores = [index.ledger.body(h, VerdictBody).score for h in known]
    right = sum(score >= 0.5 for score in scores)
    trials = {_trial(index, h) for h in known}
    decided = {_question(h) for h in verdicts if h.id not in gone}
    again = {_trial(index, h) for h in known if _question(h) in decided}
    return Voided(len(trials), right, len(scores) - right, len(again))


def _trial(index: LedgerIndex, verdict: Header) -> str:
    """The id of the retrieval that a verdict is about."""
    header = verdict
    while header.kind != "retrieval":
        header = index.parent(header)
    return header.id


def _question(header: Header) -> tuple[str | None, ...]:
    """Whose result on which question a verdict decides."""
    whose = (header.system, header.fetch, header.reader, header.judge, header.metric)
    return (header.benchmark, header.task, header.query, *whose)


def _configurations(index: LedgerIndex, verdicts: Iterable[Header]) -> dict[Family, int]:
    found: dict[Family, set[Cell]] = defaultdict(set)
    for h in verdicts:
        cell = Cell(h.benchmark or "", h.system or "", h.fetch or "", h.reader, h.judge)
        found[family(index, cell, h.metric or "")].add(cell)
    return {key: len(cells) for key, cells in found.items()}


def family(index: LedgerIndex, cell: Cell, metric: str) -> Family:
    """The family of a number that a judge decided."""
    reader = index.config(cell.reader).name if cell.reader else None
    judge = index.config(cell.judge or "").name
    return Family(cell.benchmark, metric, system_of(index.config(cell.system)), reader, judge)


def system_of(config: ConfigBody) -> str:
    """The system that a configuration is one of: by its name where that is one of ours or an import's, else by its
    kind, because files that differ in name only may be one system in several configurations."""
    kind = config.settings.get("system")
    return config.name if kind is None or config.name in names() or kind == "imported" else str(kind)


def _retries(index: LedgerIndex) -> Retries:
    failed = [h for h in index.ledger.headers if h.kind == "failure" and h.class_ == "content"]
    attempts = sum(index.ledger.body(h, FailureBody).attempts for h in failed)
    return Retries(len(failed), attempts, sum(call is not None and _was_rescued(call) for call in _calls(index)))


def _calls(index: LedgerIndex) -> Iterable[Call | None]:
    for header in index.of("answer"):
        yield index.ledger.body(header, AnswerBody).call
    for header in index.of("verdict"):
        yield index.ledger.body(header, VerdictBody).call


def _was_rescued(call: Call) -> bool:
    return bool(call.wasted_prompt_tokens or call.wasted_completion_tokens)


def _late(index: LedgerIndex, verdicts: Iterable[Header]) -> dict[tuple[str, str], int]:
    """A judge's own repeats don't count: each decides what was decided before."""
    position = index.ledger.position
    judged_at: dict[tuple[str | None, ...], int] = {}
    for h in verdicts:
        whose = (h.benchmark, h.system, h.task)
        for place in (whose, (*whose, h.query, h.fetch), (*whose, h.query, h.fetch, h.reader)):
            judged_at.setdefault(place, position(h.id))
    found: dict[tuple[str, str], int] = defaultdict(int)
    for h in (*index.of("ingest"), *index.of("retrieval"), *index.of("answer")):
        under = (h.query, h.fetch, h.reader)[: {"ingest": 0, "retrieval": 2, "answer": 3}[h.kind]]
        first = judged_at.get((h.benchmark, h.system, h.task, *under))
        if (h.repeat or 1) > 1 and first is not None and first < position(h.id):
            found[h.benchmark or "", h.system or ""] += 1
    return dict(found)


def warnings(found: Scrutiny, shown: Mapping[Family, Collection[Cell]]) -> list[str]:
    """What a reader of the numbers should know. shown: the cells of each family that the numbers are of."""
    said: list[str] = []
    voided = found.voided
    if voided.trials:
        only = " (only failures)" if not voided.right and voided.wrong else ""
        name = "void and re-run" if voided.again else "voided"
        said.append(
            f"{name}{only}: {voided.trials} trials were voided after their verdict was known, {voided.right} right and "
            f"{voided.wrong} wrong; {voided.again} of them were made again"
        )
    tried: dict[tuple[str, str, int, int], list[str]] = defaultdict(list)
    for key, cells in shown.items():
        if (count := found.configurations.get(key, 0)) > 1:
            tried[key.benchmark, key.whose, count, len(cells)].append(key.metric)
    for (benchmark, whose, count, of_them), metrics in tried.items():
        about = f"{benchmark} {', '.join(metrics)}"
        said.append(f"best of {count}: {whose} has {count} configurations on {about}; {of_them} shown")
    for (benchmark, system), count in found.late.items():
        said.append(f"repeats added after verdicts existed: {count} of {system} on {benchmark}")
    return said
