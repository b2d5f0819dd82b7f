"""What an export is about: one system, fetch configuration and reader on one benchmark, and one judge."""

from __future__ import annotations

from typing import NamedTuple

from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex, Pair
from memtrials.records import AnswerBody, Header
from memtrials.selection import Chosen


class Answered(NamedTuple):
    """A retrieval and one answer to it, or None where there is none."""

    retrieval: Header
    answer: Header | None


class Exported(NamedTuple):
    """Which system, fetch configuration and reader results are of; reader None: nobody answered."""

    system: str
    fetch: str
    reader: str | None


def benchmark_in(index: LedgerIndex, base: str, name: str | None) -> str:
    """The benchmark of that base name in a ledger. Raises UserError for none, or several when none is named."""
    built = [b for b in index.benchmarks if b.partition("@")[0] == base]
    if name is not None:
        built = [b for b in built if name in (b, base)]
        if not built:
            raise unknown("benchmark in this ledger", name, index.benchmarks)
    if not built:
        raise UserError(f"{index.ledger.path} holds no {base} benchmark; run `memtrials build {base} --data …` first")
    if len(built) > 1:
        raise UserError(f"{index.ledger.path} holds {', '.join(built)}; name one with --benchmark")
    return built[0]


def answers(
    index: LedgerIndex, benchmark: str, chosen: Chosen, reader: str | None, trial: int | None = None
) -> tuple[Exported, list[Answered]]:
    """The one cell that is selected, and what it holds in file order.

    trial: the first answer to that trial of the first state of every question; None: every retrieval with each of its
    answers, or with none. Raises UserError when nothing is selected, or more than one cell, which are listed.
    """
    readers = {pair.system: some for pair, some in index.readers_shown(reader).items() if pair.benchmark == benchmark}
    found: dict[Exported, list[Answered]] = {}
    for retrieval in index.of("retrieval"):
        if retrieval.benchmark != benchmark or not chosen.holds(retrieval):
            continue
        shown = readers.get(retrieval.system or "", set())
        said = [c for c in index.children.get(retrieval.id, ()) if c.kind == "answer" and c.reader in shown]
        some = [Answered(retrieval, answer) for answer in said if chosen.holds(answer)]
        if trial is not None:
            first = (index.parent(retrieval).repeat, retrieval.repeat) == (1, trial)
            some = [one for one in some if first and one.answer and one.answer.repeat == 1]
        elif not some:
            some = [Answered(retrieval, None)]
        for one in some:
            who = one.answer.reader if one.answer else next(iter(sorted(shown)), None)
            cell = Exported(retrieval.system or "", retrieval.fetch or "", who)
            found.setdefault(cell, []).append(one)
    if not found:
        raise UserError(f"no answers of {benchmark} are selected; answer comes first, or check --system and --reader")
    if len(found) > 1:
        listed = [f"  --system {c.system} --config {c.fetch} --reader {c.reader}" for c in found]
        raise UserError("an export is about one system, fetch configuration and reader; select one", listed)
    ((cell, trials),) = found.items()
    return cell, trials


def retrievals(index: LedgerIndex, benchmark: str, chosen: Chosen, trial: int) -> tuple[tuple[str, str], list[Header]]:
    """The one system and fetch configuration that are selected, and that trial of the first state of every question.

    Raises UserError when nothing is selected, or more than one of them, which are listed.
    """
    found: dict[tuple[str, str], list[Header]] = {}
    for header in index.of("retrieval"):
        first = header.benchmark == benchmark and (index.parent(header).repeat, header.repeat) == (1, trial)
        if first and chosen.holds(header):
            found.setdefault((header.system or "", header.fetch or ""), []).append(header)
    if not found:
        raise UserError(f"no retrievals of {benchmark} are selected; fetch comes first, or check --system and --trial")
    if len(found) > 1:
        listed = [f"  --system {system} --config {fetch}" for system, fetch in found]
        raise UserError("an export is about one system and fetch configuration; select one", listed)
    ((cell, some),) = found.items()
    return cell, some


def first_answers(index: LedgerIndex, trials: list[Header], reader: str | None) -> dict[str, str]:
    """The first answer to each retrieval that has one, by the retrieval's id: that of the current reader, or of a
    named one. Raises UserError when several readers have that name."""
    shown = index.readers_shown(reader)
    said = {
        trial.id: child
        for trial in trials
        for child in index.children.get(trial.id, ())
        if child.kind == "answer"
        and child.repeat == 1
        and child.reader in shown.get(Pair(trial.benchmark or "", trial.system or ""), ())
    }
    whose = {answer.reader or "" for answer in said.values()}
    if len(whose) > 1:
        raise UserError("answers of several readers; select one", [f"  --reader {name}" for name in sorted(whose)])
    return {name: index.ledger.body(answer, AnswerBody).text for name, answer in said.items()}


def last_verdicts(index: LedgerIndex, trials: list[Answered], metric: str, judge: str | None) -> dict[str, Header]:
    """The last verdict on each answer, by the answer's id. Raises UserError when several judges decided."""
    judges = set(index.resolve(judge, "judge")) if judge else None
    found: dict[str, Header] = {}
    whose: dict[str, None] = {}
    for answer in (trial.answer for trial in trials if trial.answer):
        for child in index.children.get(answer.id, ()):
            if child.kind == "verdict" and child.metric == metric and (judges is None or child.judge in judges):
                found[answer.id] = child
                whose[child.judge or ""] = None
    if len(whose) > 1:
        raise UserError("verdicts of several judges; select one", [f"  --judge {name}" for name in whose])
    return found


def model_of(index: LedgerIndex, config: str | None) -> str:
    """The model of a reader or judge; the configuration's name where it isn't known."""
    body = index.config(config or "")
    return str(body.settings.get("model") or body.name)
