"""LongMemEval and LoCoMo in the shapes of a retrieval harness (`runs.py`), and the official forms made of their rows.

What the harness calls sessions, turns and gold is what the data calls them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from memtrials.benchmarks import locomo, locomo_ranking, longmemeval, longmemeval_ranking
from memtrials.benchmarks.timeline import turn_id
from memtrials.errors import UserError
from memtrials.exchange import traces
from memtrials.exchange.runs import (
    DERIVED,
    OBSERVATION,
    Dataset,
    Entry,
    Extent,
    Folded,
    Json,
    Run,
    as_returned,
    binding,
    context_of,
    extent,
    latency,
    listed,
    row,
)
from memtrials.index import LedgerIndex
from memtrials.metrics.retrieval import RANKING_MEASURES, places
from memtrials.metrics.rows import BASE_KEYS, base_values, ranking_keys
from memtrials.metrics.traces import checked, outcomes, traced
from memtrials.records import Gold, Header, Item, RetrievalBody, TaskBody
from memtrials.tokens import count_tokens

# --- what the pieces of a history are called ---------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """The names of a task's sessions and turns in its data, and its text.

    sessions: by position, unique in the history. turns: by neutral turn id. raw: the data's own name of each, where a
    session stands more than once and so has others. text: every turn with who said it; None where it isn't there.
    """

    sessions: Sequence[str]
    turns: Mapping[str, str]
    raw: Mapping[str, str]
    text: str | None

    def session_of(self, turn: str) -> str:
        """The name of a neutral turn's session."""
        return self.sessions[int(turn.partition(".")[0])]

    def named(self, memory: str | None) -> str | None:
        """The name of what a system was given under a neutral one: a session, a turn. Others have theirs."""
        if memory is not None and memory.isdigit():
            return self.sessions[int(memory)]
        return memory if memory is None else self.turns.get(memory, memory)


class Evidence(NamedTuple):
    """Gold as the data names it: sessions and turns."""

    episodes: tuple[str, ...]
    observations: tuple[str, ...]


@dataclass(frozen=True)
class Told:
    """A benchmark of timelines. levels: cut-offs by level, the turns' first; history(data, benchmark, task, body);
    ingest_counts: its latency is from the first session to the answer."""

    levels: Mapping[str, tuple[int, ...]]
    history: Callable[[Path, str, str, TaskBody], History]
    evidence: Callable[[History, Gold], Evidence]
    question: Callable[[str, str], str]
    type: Callable[[str | None, Gold], str | None]
    ingest_counts: bool = False


def _longmemeval_history(data: Path, benchmark: str, task: str, body: TaskBody) -> History:
    timeline = json.loads(body.gold[0].details["timeline"])
    raw = [name for name, _ in timeline]
    assigned = longmemeval.identities(raw)
    own = dict(zip(assigned, raw, strict=True))
    turns = {}
    for position, (name, letters) in enumerate(timeline):
        for n in range(len(letters)):
            turns[turn_id(position, n)] = turn = f"{assigned[position]}:turn:{n + 1}"
            own[turn] = f"{name}:turn:{n + 1}"
    if not timeline:
        return History(assigned, turns, own, None)
    said = [turn for session in longmemeval.sessions(data, benchmark, task, body) for turn in session.turns]
    return History(assigned, turns, own, "\n".join(f"{turn.role}: {turn.content}" for turn in said))


def _longmemeval_evidence(history: History, gold: Gold) -> Evidence:
    positions = json.loads(gold.details["evidence_sessions"])
    return Evidence(
        tuple(dict.fromkeys(history.raw[history.sessions[position]] for position in positions)),
        tuple(dict.fromkeys(history.raw[history.turns[turn]] for turn in gold.evidence)),
    )


def _locomo_history(data: Path, benchmark: str, task: str, body: TaskBody) -> History:
    conversation = next(s["conversation"] for s in locomo.samples(data, body) if s["sample_id"] == task)
    numbers = locomo.session_numbers(conversation)
    sessions = [f"session_{number}" for number in numbers]
    turns = {turn: name for name, turn in locomo.turn_ids(conversation).items()}
    lines = [f"{turn['speaker']}: {turn['text']}" for name in sessions for turn in conversation[name]]
    return History(sessions, turns, {name: name for name in (*sessions, *turns.values())}, "\n".join(lines))


def _locomo_evidence(history: History, gold: Gold) -> Evidence:
    elements = json.loads(gold.details["evidence"])
    sessions = {history.session_of(turn) for _, turn, _ in elements if turn is not None}
    return Evidence(tuple(sorted(sessions)), tuple(element for element, _, _ in elements))


TOLD = {
    "longmemeval": Told(
        {"turn": longmemeval_ranking.OF_TURNS, "session": longmemeval_ranking.OF_SESSIONS},
        _longmemeval_history,
        _longmemeval_evidence,
        lambda task, query: task,
        lambda type_, gold: type_,
        ingest_counts=True,
    ),
    "locomo": Told(
        {"dialog": locomo_ranking.OF_DIALOG, "session": locomo_ranking.OF_SESSIONS},
        _locomo_history,
        _locomo_evidence,
        lambda task, query: f"{task}:qa:{int(query) + 1}",
        lambda type_, gold: gold.details["category"],
    ),
}
WHOLE = {"longmemeval@s": "longmemeval_s", "locomo@10": "locomo"}
"""The harness' names of data that it knows; others have ours."""


# --- rows -------------------------------------------------------------------------------------------------------


def _rows(told: Told, index: LedgerIndex, run: Run, data: Path | None) -> Iterator[Json]:
    """A row for each question. data: the release that was built from, if it moved. Raises UserError where a context or
    a time that a row needs is unknown, and where the data is missing."""
    task: str | None = None
    for header in run.trials:
        body = index.task(run.benchmark, header.task or "")
        if header.task != task:
            task = header.task or ""
            history = told.history(data or Path(body.data), run.benchmark, task, body)
            full = None if history.text is None else extent(history.text)
        yield _row(told, index, run, header, history, full)


def _row(told: Told, index: LedgerIndex, run: Run, header: Header, history: History, full: Extent | None) -> Json:
    task = index.task(run.benchmark, header.task or "")
    query, gold = task.query(header.query or ""), task.gold_of(header.query or "")
    body = index.ledger.body(header, RetrievalBody)
    place = f"{header.task}/{header.query} of {run.system}"
    context = context_of(body, place)
    evidence = told.evidence(history, gold)
    shown = index.shown(body)
    items = None if shown is None else sorted(shown, key=lambda item: item.rank)
    retrieved = None if items is None else [retrieved_item(item, history) for item in items]
    returned = None if retrieved is None else as_returned(retrieved)
    trace = checked(traced(outcomes(body.raw)), index.config(run.fetch).settings)
    metrics = dict.fromkeys(ranking_keys(told.levels)) | base_values(
        count_tokens(context), full.tokens if full else None, returned, trace
    )
    entry = Entry(
        told.question(header.task or "", query.id),
        told.type(query.type, gold),
        (evidence.episodes, evidence.observations),
        retrieved,
        full,
        metrics | _ranking(told, items, history, evidence),
    )
    return row(run, entry, body, context, latency(index, header, body, place, with_ingest=told.ingest_counts))


def retrieved_item(item: Item, history: History) -> dict[str, Any]:
    """An item as the harness lists it: as the system says what it is. Where it doesn't: an observation where it is
    exactly one turn, else a derived memory, which has no name there and the session of its turns where that is one. The
    text's hash stands for a service's own id."""
    if (memory := item.memory) is not None:
        return listed(item, memory.kind, history.named(memory.external_id), history.named(memory.episode_external_id))
    sessions = dict.fromkeys(history.session_of(turn) for turn in item.turns or ())
    episode = next(iter(sessions)) if len(sessions) == 1 else None
    if item.turns is not None and len(item.turns) == 1:
        return listed(item, OBSERVATION, history.turns[item.turns[0]], episode)
    return listed(item, DERIVED, None, episode)


def _ranking(told: Told, items: Sequence[Item] | None, history: History, evidence: Evidence) -> dict[str, float | None]:
    """The ranking measures: of turns, and of the sessions that the retrieved turns are of, or of the episodes. Which
    items take up a place, whatever they hold, is said in `places`; none of them where one doesn't say what it is of."""
    of_turns, of_sessions = places(items), places(items, "session")
    if of_turns is None or of_sessions is None:
        return {}
    turns = [{history.raw[history.turns[turn]] for turn in some} for some in of_turns]
    sessions = [{history.raw[history.session_of(turn)] for turn in some} for some in of_sessions]
    found: dict[str, float | None] = {}
    for level, cutoffs in told.levels.items():
        ranking, gold = (sessions, evidence.episodes) if level == "session" else (turns, evidence.observations)
        for name, measure in RANKING_MEASURES.items():
            found |= {f"{level}_{name.replace('-', '_')}@{k}": measure(ranking, gold, k) for k in cutoffs}
    return found


# --- runs -------------------------------------------------------------------------------------------------------


def _report(told: Told, index: LedgerIndex, run: Run, rows: Iterable[Json]) -> Json:
    """The report of a run's rows."""
    folded = Folded([*BASE_KEYS, *ranking_keys(told.levels)])
    for one in rows:
        folded.add(one)
    return {
        "num_questions": len(folded.metrics),
        **folded.measured(),
        "latency": folded.latency(),
        "degradation": folded.degradation(),
    }


def _dataset(kind: str, told: Told) -> Dataset:
    return Dataset(
        kind,
        lambda benchmark: WHOLE.get(benchmark, benchmark.replace("@", "_")),
        "results.jsonl",
        partial(_rows, told),
        lambda index, run: {run.name: binding(index.config(run.system).settings)},
        partial(_report, told),
    )


DATASETS = {
    "longmemeval": _dataset("long_mem_eval_s", TOLD["longmemeval"]),
    "locomo": _dataset("lo_co_mo", TOLD["locomo"]),
    "continuity": traces.DATASET,
}


def dataset_of(benchmark: str) -> Dataset:
    """How a benchmark stands in the harness. Raises UserError where it doesn't."""
    base = benchmark.partition("@")[0]
    if base not in DATASETS:
        raise UserError(f"rows are written of {', '.join(DATASETS)}; the harness knows no {base}")
    return DATASETS[base]


# --- official exports -------------------------------------------------------------------------------------------


def retrieval_log(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of LongMemEval as its retrieval log, items by rank."""
    return {
        "question_id": row["question_id"],
        "question": row["question"],
        "question_type": row["question_type"],
        "retrieval_results": _results(row),
    }


def locomo_row(row: Mapping[str, Any], prediction: str | None) -> dict[str, Any]:
    """A row of LoCoMo as its recall is computed of, with what was answered, if anything was. Each session of the
    retrieved turns stands once, at its first rank. Raises UserError for a question's id of another form."""
    sample, found, ordinal = row["question_id"].rpartition(":qa:")
    if not sample or not found or not ordinal.isdecimal():
        raise UserError(f"question_id {row['question_id']!r} isn't SAMPLE:qa:NUMBER, which LoCoMo's export needs")
    ranked = _results(row)["ranked_items"]
    sessions = [item["episode_external_id"] for item in ranked if item["episode_external_id"] is not None]
    return {
        "sample_id": sample,
        "qa_index": int(ordinal),
        "question_id": row["question_id"],
        "category": row["question_type"],
        "question": row["question"],
        "hypothesis": prediction,
        "prediction": prediction,
        "answer": None,
        "retrieved_dialog_ids": [item["external_id"] for item in ranked if item["kind"] == OBSERVATION],
        "retrieved_session_ids": list(dict.fromkeys(sessions)),
        "context": row["context_text"],
        "context_text": row["context_text"],
        "retrieval_results": _results(row),
    }


def _results(row: Mapping[str, Any]) -> dict[str, Any]:
    fields = ("rank", "kind", "external_id", "episode_external_id", "score", "text")
    ranked = sorted(row["retrieved"], key=lambda item: item["rank"])
    return {"ranked_items": [{name: item[name] for name in fields} for item in ranked]}
