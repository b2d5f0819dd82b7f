"""Runs in the shapes of a retrieval harness: rows of questions with what was retrieved, a header, a report.

One run is one benchmark, system and fetch configuration, one retrieval of each question. What the harness knows and a
ledger doesn't is null, or an error where the harness needs it. Source: `ebigunso/character-memory-evals`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from memtrials import __version__
from memtrials.benchmarks import locomo, locomo_ranking, longmemeval, longmemeval_ranking
from memtrials.benchmarks.base import turn_id
from memtrials.errors import UserError
from memtrials.exchange.cells import retrievals
from memtrials.index import LedgerIndex
from memtrials.ledger import sync_path
from memtrials.metrics.context import efficiency
from memtrials.metrics.retrieval import RANKING_MEASURES, places
from memtrials.metrics.rows import (
    BASE_KEYS,
    Row,
    metric_support,
    nearest_percentile,
    ranking_keys,
    registry_coverage,
)
from memtrials.records import Gold, Header, IngestBody, Item, RetrievalBody, TaskBody, canonical, text_sha256
from memtrials.selection import Chosen
from memtrials.tokens import count_tokens

OBSERVATION, DERIVED = "observation", "derived_memory"

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
class Dataset:
    """How a benchmark stands in the harness. kind: its name for the type of data; levels: cut-offs by level, the turns'
    first; history(data, benchmark, task, body); ingest_counts: its latency is from the first session to the answer."""

    kind: str
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


DATASETS: dict[str, Dataset] = {
    "longmemeval": Dataset(
        "long_mem_eval_s",
        {"turn": longmemeval_ranking.OF_TURNS, "session": longmemeval_ranking.OF_SESSIONS},
        _longmemeval_history,
        _longmemeval_evidence,
        lambda task, query: task,
        lambda type_, gold: type_,
        ingest_counts=True,
    ),
    "locomo": Dataset(
        "lo_co_mo",
        {"dialog": locomo_ranking.OF_DIALOG, "session": locomo_ranking.OF_SESSIONS},
        _locomo_history,
        _locomo_evidence,
        lambda task, query: f"{task}:qa:{int(query) + 1}",
        lambda type_, gold: gold.details["category"],
    ),
}
WHOLE = {"longmemeval@s": "longmemeval_s", "locomo@10": "locomo"}
"""The harness' names of data that it knows; others have ours."""


def dataset_of(benchmark: str) -> Dataset:
    """How a benchmark stands in the harness. Raises UserError where it doesn't."""
    base = benchmark.partition("@")[0]
    if base not in DATASETS:
        raise UserError(f"rows are written of {' and '.join(DATASETS)}; the harness knows no {base}")
    return DATASETS[base]


# --- rows -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What a run is about. trials: one retrieval for each question, in the order of the data."""

    run_id: str
    benchmark: str
    system: str
    fetch: str
    trials: Sequence[Header]

    @property
    def dataset(self) -> Dataset:
        """How its benchmark stands in the harness."""
        return dataset_of(self.benchmark)

    @property
    def name(self) -> str:
        """What the harness calls its data."""
        return WHOLE.get(self.benchmark, self.benchmark.replace("@", "_"))


def run_of(
    index: LedgerIndex, benchmark: str, chosen: Chosen, run_id: str | None, trial: int, *, allow_partial: bool
) -> Run:
    """The run that is selected: trial `trial` of the first state of every question.

    run_id None: the ledger's name and the beginning of its SHA-256. Raises UserError when more than one system or fetch
    configuration is selected, or when questions have no such retrieval, and for an id that can't name a folder.
    """
    dataset_of(benchmark)
    run_id = run_id if run_id is not None else default_id(index.ledger.path)
    if run_id in ("", ".", "..") or any(c in run_id for c in "/\\:\0"):
        raise UserError(f"{run_id!r} can't name a run: it has to be one file name without / \\ and :")
    (system, fetch), found = retrievals(index, benchmark, chosen, trial)
    by_place = {(header.task or "", header.query or ""): header for header in found}
    wanted = [
        (task, query.id)
        for name, task in index.tasks
        if name == benchmark
        for query in index.task(name, task).queries
        if (name, task, query.id) in chosen.queries
    ]
    missing = [place for place in wanted if place not in by_place]
    if missing and not allow_partial:
        raise UserError(
            f"{len(missing)} of {len(wanted)} questions have no trial {trial}; fetch them or --allow-partial"
        )
    return Run(run_id, benchmark, system, fetch, [by_place[place] for place in wanted if place in by_place])


def default_id(ledger: Path) -> str:
    """The ledger's name and 8 hex digits of its SHA-256."""
    with ledger.open("rb") as file:
        return f"{ledger.stem}-{hashlib.file_digest(file, 'sha256').hexdigest()[:8]}"


def rows(index: LedgerIndex, run: Run, data: Path | None) -> Iterator[dict[str, Any]]:
    """A row for each question. data: the release that was built from, if it moved. Raises UserError where a context or
    a time that a row needs is unknown, and where the data is missing."""
    task: str | None = None
    for header in run.trials:
        body = index.task(run.benchmark, header.task or "")
        if header.task != task:
            task = header.task or ""
            history = run.dataset.history(data or Path(body.data), run.benchmark, task, body)
            full = None if history.text is None else _extent(history.text)
        yield _row(index, run, header, history, full)


def _extent(text: str) -> tuple[int, int, int]:
    """Characters, words and tokens."""
    return len(text), len(text.split()), count_tokens(text)


def _row(
    index: LedgerIndex, run: Run, header: Header, history: History, full: tuple[int, int, int] | None
) -> dict[str, Any]:
    task = index.task(run.benchmark, header.task or "")
    query, gold = task.query(header.query or ""), task.gold_of(header.query or "")
    body = index.ledger.body(header, RetrievalBody)
    place = f"{header.task}/{header.query} of {run.system}"
    if body.context is None:
        raise UserError(f"{place}: nobody knows its context, and a row needs it; import the file of memories, too")
    chars, words, tokens = _extent(body.context)
    full_tokens = full[2] if full else None
    ratios = efficiency(tokens, full_tokens)
    evidence = run.dataset.evidence(history, gold)
    shown = index.shown(body)
    items = None if shown is None else sorted(shown, key=lambda item: item.rank)
    retrieved = [retrieved_item(item, history) for item in items or ()]
    composition = _composition(items, retrieved)
    metrics: dict[str, float | None] = dict.fromkeys([*BASE_KEYS, *ranking_keys(run.dataset.levels)])
    metrics |= {
        "retrieved_context_tokens": tokens,
        "full_history_tokens": full_tokens,
        "context_compression_ratio": ratios.compression,
        "context_reduction_rate": ratios.reduction,
        **_counts(composition),
        **_ranking(run.dataset, items, history, evidence),
    }
    derived = [one for one in retrieved if one["kind"] == DERIVED]
    known = items is not None
    nameless = sum(one["external_id"] is None for one in retrieved) if known else None
    sourceless = sum(one["episode_external_id"] is None for one in derived) if known else None
    provenance = _share(len(derived) - (sourceless or 0), len(derived)) if known else None
    metrics |= {
        "provenance_coverage": provenance,
        "returned_items_without_external_id": nameless,
        "returned_derived_memories_without_provenance": sourceless,
        "suppressed_or_deleted_items_returned": None,
        "superseded_items_returned_as_current": None,
        "returned_items_with_authoritative_validation": None,
    }
    return {
        "run_id": run.run_id,
        "question_id": run.dataset.question(header.task or "", query.id),
        "question": body.question,
        "question_type": run.dataset.type(query.type, gold),
        "gold_episode_ids": list(evidence.episodes),
        "gold_observation_ids": list(evidence.observations),
        "retrieved": retrieved,
        "context_text": body.context,
        "context_char_count": chars,
        "context_word_count": words,
        "write_outcomes": [],
        "link_outcomes": [],
        "lifecycle_outcomes": [],
        "retrieval_outcomes": [],
        "metrics": dict(sorted(metrics.items())),
        "latency_ms": _latency(index, run.dataset, header, body, place),
        "context": {
            "retrieved_context_chars": chars,
            "retrieved_context_words": words,
            "retrieved_context_tokens": tokens,
            "full_history_chars": full[0] if full else None,
            "full_history_words": full[1] if full else None,
            "full_history_tokens": full_tokens,
            "compression_ratio": ratios.compression,
            "reduction_rate": ratios.reduction,
        },
        "composition": composition,
        "integrity": {
            "returned_items_without_external_id": nameless,
            "returned_derived_memories_without_provenance": sourceless,
            "suppressed_or_deleted_returned_count": None,
            "superseded_current_returned_count": None,
            "provenance_coverage": provenance,
            "context_validation_pass_rate": None,
            "suppressed_memory_leakage_rate": None,
            "orphan_vector_leakage_rate": None,
            "superseded_current_leakage_rate": None,
            "cross_store_id_validation_pass_rate": None,
        },
    }


def retrieved_item(item: Item, history: History) -> dict[str, Any]:
    """An item as the harness lists it: as the system says what it is. Where it doesn't: an observation where it is
    exactly one turn, else a derived memory, which has no name there and the session of its turns where that is one. The
    text's hash stands for a service's own id."""
    if (memory := item.memory) is not None:
        return {
            "kind": memory.kind,
            "internal_id": memory.internal_id,
            "external_id": history.named(memory.external_id),
            "episode_external_id": history.named(memory.episode_external_id),
            "score": item.score,
            "rank": item.rank,
            "rationale": list(memory.rationale),
            "text": item.text,
        }
    sessions = dict.fromkeys(history.session_of(turn) for turn in item.turns or ())
    is_turn = item.turns is not None and len(item.turns) == 1
    return {
        "kind": OBSERVATION if is_turn else DERIVED,
        "internal_id": text_sha256(item.text),
        "external_id": history.turns[item.turns[0]] if item.turns and is_turn else None,
        "episode_external_id": next(iter(sessions)) if len(sessions) == 1 else None,
        "score": item.score,
        "rank": item.rank,
        "rationale": [],
        "text": item.text,
    }


def _composition(items: Sequence[Item] | None, retrieved: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How many items of each kind, and how many with a reason; null where a system doesn't say what it retrieved."""
    kinds = {
        "episodes": "episode",
        "observations": OBSERVATION,
        "derived_memories": DERIVED,
        "memory_threads": "memory_thread",
        "entities": "entity",
    }
    if items is None:
        return dict.fromkeys(("total_items", *kinds, "items_with_rationale", "rationale_coverage"))
    reasoned = sum(any(reason.strip() for reason in one["rationale"]) for one in retrieved)
    return {
        "total_items": len(retrieved),
        **{name: sum(one["kind"] == kind for one in retrieved) for name, kind in kinds.items()},
        "items_with_rationale": reasoned,
        "rationale_coverage": _share(reasoned, len(retrieved)),
    }


def _counts(composition: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics that say again what the composition says; no entities are null."""
    return {
        "num_retrieved_items": composition["total_items"],
        "num_relevant_episodes": composition["episodes"],
        "num_relevant_observations": composition["observations"],
        "num_derived_memories": composition["derived_memories"],
        "num_active_threads": composition["memory_threads"],
        "num_entities": composition["entities"] or None,
        "retrieval_rationale_coverage": composition["rationale_coverage"],
    }


def _share(count: int, of: int) -> float:
    """The share of all, 1.0 of none."""
    return count / of if of else 1.0


def _ranking(
    dataset: Dataset, items: Sequence[Item] | None, history: History, evidence: Evidence
) -> dict[str, float | None]:
    """The ranking measures: of turns, and of the sessions that the retrieved turns are of, or of the episodes. Which
    items take up a place, whatever they hold, is said in `places`; none of them where one doesn't say what it is of."""
    of_turns, of_sessions = places(items), places(items, "session")
    if of_turns is None or of_sessions is None:
        return {}
    turns = [{history.raw[history.turns[turn]] for turn in some} for some in of_turns]
    sessions = [{history.raw[history.session_of(turn)] for turn in some} for some in of_sessions]
    found: dict[str, float | None] = {}
    for level, cutoffs in dataset.levels.items():
        ranking, gold = (sessions, evidence.episodes) if level == "session" else (turns, evidence.observations)
        for name, measure in RANKING_MEASURES.items():
            found |= {f"{level}_{name.replace('-', '_')}@{k}": measure(ranking, gold, k) for k in cutoffs}
    return found


def _latency(index: LedgerIndex, dataset: Dataset, header: Header, body: RetrievalBody, place: str) -> int:
    """Whole milliseconds, cut, of the retrieval; with the ingest before it where the harness counts that, too."""
    ingest = index.ledger.body(index.parent(header), IngestBody)
    efforts = [body.effort, *([ingest.effort] if dataset.ingest_counts else [])]
    if any(effort is None for effort in efforts):
        raise UserError(f"{place}: nobody timed it, and a row needs a latency; imported results can't be rows")
    return int(sum(effort.seconds for effort in efforts if effort) * 1000)


# --- header and report ------------------------------------------------------------------------------------------


def header_of(index: LedgerIndex, run: Run) -> dict[str, Any]:
    """The run's header. config: JSON of the ledger's own names and settings of what was run. generated_at: when the
    newest of its retrievals was made, so that a ledger gives the same bytes again. Commits aren't in a ledger, nor is
    where states lie."""
    release = index.task(run.benchmark, run.trials[0].task or "").release
    system, fetch = index.config(run.system), index.config(run.fetch)
    versions = {index.ledger.body(index.parent(h), IngestBody).system_version for h in run.trials}
    config = canonical(
        {
            "run_id": run.run_id,
            "benchmark": run.benchmark,
            "system": {"id": run.system, "settings": system.settings},
            "fetch": {"id": run.fetch, "settings": fetch.settings},
        }
    ).decode()
    lexical = system.settings.get("retriever") == "bm25"
    return {
        "run_id": run.run_id,
        "dataset": run.name,
        "dataset_kind": run.dataset.kind,
        "input_sha256": release.files[0].sha256 if len(release.files) == 1 else release.sha256,
        "embedding_bindings": {run.name: _binding(system.settings)},
        "harness_commit": f"unknown (memtrials {__version__})",
        "library_commit": " ".join(sorted(v for v in versions if v)) or "unknown",
        "generated_at": f"{max(h.at for h in run.trials)[:19]}Z",
        "config": config,
        "config_sha256": text_sha256(config),
        "adapter": {"adapter": "bm25", "mode": "lexical"} if lexical else {"adapter": "real", "mode": "live"},
        "storage_root": None,
        "storage_root_sha256": None,
        "retain_reason": None,
    }


def _binding(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Where vectors come from; None where the system doesn't tell."""
    if settings.get("retriever") == "bm25":
        return {"kind": "bm25"}
    name = settings.get("embedding")
    if not isinstance(name, str):
        return None
    provider, _, model = name.rpartition(":")
    own = name.rpartition("-")[2]
    size = settings.get("dimensions", None if provider else int(own) if own.isdigit() else None)
    named = "open_ai" if provider == "openai" else provider or name.rpartition("-")[0]
    return {"kind": "live", "provider": named, "model": model, "vector_size": size}


def report_of(metrics: Sequence[Row], latencies: Sequence[int], dataset: Dataset) -> dict[str, Any]:
    """The report of a run's rows: mean and nearest-rank percentiles of each metric over the rows that have it."""
    keys = sorted({key for row in metrics for key in row})
    support = metric_support(metrics)
    return {
        "num_questions": len(metrics),
        "metrics": {key: _summary([v for row in metrics if (v := row.get(key)) is not None]) for key in keys},
        "metric_support": {key: support[key] for key in keys},
        "registry_coverage": registry_coverage(metrics, [*BASE_KEYS, *ranking_keys(dataset.levels)]),
        "latency": {"latency_ms": _summary(latencies)},
        "degradation": {"any_degradation": False},
    }


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    middle = nearest_percentile(values, 50)
    mean = math.fsum(values) / len(values) if values else None
    return {"mean": mean, "median": middle, "p50": middle, "p95": nearest_percentile(values, 95)}


# --- files ------------------------------------------------------------------------------------------------------


def write(index: LedgerIndex, run: Run, out: Path, data: Path | None) -> Path:
    """Write a run's folder `out/RUN_ID` with `results.jsonl`, `header.json` and `report.json`; which one it is.

    It is there whole or not at all: built beside its place, synced, and moved there. Raises UserError where something
    has its name, and where it can't be written.
    """
    folder = out / run.run_id
    if os.path.lexists(folder):
        raise UserError(f"{folder} is there already and stays as it is; give another --run-id or --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
        part = out / f".{run.run_id}.{secrets.token_hex(4)}.part"
        part.mkdir()
    except OSError as error:
        raise UserError(f"{out}: can't be written ({error.strerror})") from None
    try:
        _write_files(index, run, part, data)
        part.rename(folder)  # fails where a folder with something in it has come there since
        sync_path(out)
    except OSError as error:
        raise UserError(f"{folder}: can't be written ({error.strerror})") from None
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return folder


def _write_files(index: LedgerIndex, run: Run, folder: Path, data: Path | None) -> None:
    metrics: list[Row] = []
    latencies: list[int] = []
    with (folder / "results.jsonl").open("xb") as file:
        for row in rows(index, run, data):
            metrics.append(row["metrics"])
            latencies.append(row["latency_ms"])
            file.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    for name, value in (
        ("header.json", header_of(index, run)),
        ("report.json", report_of(metrics, latencies, run.dataset)),
    ):
        with (folder / name).open("xb") as file:
            file.write(json.dumps(value, ensure_ascii=False, indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    sync_path(folder)


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
