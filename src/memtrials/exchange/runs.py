"""Runs in the shapes of a retrieval harness: rows of questions with what was retrieved, a header, a report.

One run is one benchmark, system and fetch configuration, one retrieval of each question. What the harness knows and a
ledger doesn't is null, or an error where the harness needs it. Source: `ebigunso/character-memory-evals`.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from memtrials import __version__
from memtrials.errors import UserError
from memtrials.exchange.cells import retrievals
from memtrials.index import LedgerIndex
from memtrials.ledger import sync_path
from memtrials.metrics.rows import Returned, Row, composition, marks_of, metric_support, registry_coverage, summary
from memtrials.metrics.traces import outcomes as read_outcomes
from memtrials.records import Header, IngestBody, Item, RetrievalBody, canonical, file_sha256, text_sha256
from memtrials.selection import Chosen
from memtrials.tokens import count_tokens

Json = dict[str, Any]
OBSERVATION, DERIVED = "observation", "derived_memory"


@dataclass(frozen=True)
class Dataset:
    """How a benchmark stands in the harness. kind: its name for the type of data; name: for the data, by benchmark.
    file: where rows stand.

    rows: a row for each question. bindings: where vectors come from, by what they are for. report: of all rows.
    """

    kind: str
    name: Callable[[str], str]
    file: str
    rows: Callable[[LedgerIndex, Run, Path | None], Iterator[Json]]
    bindings: Callable[[LedgerIndex, Run], Json]
    report: Callable[[LedgerIndex, Run, Iterable[Json]], Json]


@dataclass(frozen=True)
class Run:
    """What a run is about. trials: one retrieval for each question, in the order of the data."""

    run_id: str
    benchmark: str
    dataset: Dataset
    system: str
    fetch: str
    trials: Sequence[Header]

    @property
    def name(self) -> str:
        """What the harness calls its data."""
        return self.dataset.name(self.benchmark)


def run_of(
    index: LedgerIndex,
    benchmark: str,
    dataset: Dataset,
    chosen: Chosen,
    run_id: str | None,
    trial: int,
    *,
    allow_partial: bool,
) -> Run:
    """The run that is selected: trial `trial` of the first state of every question.

    run_id None: the ledger's name and the beginning of its SHA-256. Raises UserError when more than one system or fetch
    configuration is selected, or when questions have no such retrieval, and for an id that can't name a folder.
    """
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
            f"{len(missing)} of {len(wanted)} questions have no trial {trial}; replay and fetch, or --allow-partial"
        )
    return Run(run_id, benchmark, dataset, system, fetch, [by_place[place] for place in wanted if place in by_place])


def default_id(ledger: Path) -> str:
    """The ledger's name and 8 hex digits of its SHA-256."""
    return f"{ledger.stem}-{file_sha256(ledger)[:8]}"


# --- rows -------------------------------------------------------------------------------------------------------


class Extent(NamedTuple):
    """How long a text is."""

    chars: int
    words: int
    tokens: int


def extent(text: str) -> Extent:
    """Of a text."""
    return Extent(len(text), len(text.split()), count_tokens(text))


class Reported(NamedTuple):
    """An operation's own report."""

    operation_id: str | None
    outcome: Json


@dataclass(frozen=True)
class Entry:
    """What a row is made of. gold: ids of episodes and of observations. retrieved: items as rows list them, None where
    nobody knows them. full: of the history, None where there is none. writes, links, lifecycle: operations so far."""

    question_id: str
    type: str | None
    gold: tuple[Sequence[str], Sequence[str]]
    retrieved: Sequence[Json] | None
    full: Extent | None
    metrics: Row
    writes: Sequence[Reported] = ()
    links: Sequence[Reported] = ()
    lifecycle: Sequence[Reported] = ()


def context_of(body: RetrievalBody, place: str) -> str:
    """A retrieval's context. Raises UserError where nobody knows it."""
    if body.context is None:
        raise UserError(f"{place}: nobody knows its context, and a row needs it; import the file of memories, too")
    return body.context


def listed(item: Item, kind: str, external_id: str | None, episode_external_id: str | None) -> Json:
    """An item of a row, by what it is and is called in the data. The text's hash stands for a name of its own where the
    system gives none."""
    memory = item.memory
    return {
        "kind": kind,
        "internal_id": memory.internal_id if memory else text_sha256(item.text),
        "external_id": external_id,
        "episode_external_id": episode_external_id,
        "score": item.score,
        "rank": item.rank,
        "rationale": list(memory.rationale) if memory else [],
        "text": item.text,
    }


def row(run: Run, entry: Entry, body: RetrievalBody, context: str, latency_ms: int) -> Json:
    """One question's row."""
    shown, metrics = extent(context), entry.metrics
    full = dict.fromkeys(Extent._fields) if entry.full is None else entry.full._asdict()
    return {
        "run_id": run.run_id,
        "question_id": entry.question_id,
        "question": body.question,
        "question_type": entry.type,
        "gold_episode_ids": list(entry.gold[0]),
        "gold_observation_ids": list(entry.gold[1]),
        "retrieved": list(entry.retrieved or ()),
        "context_text": context,
        "context_char_count": shown.chars,
        "context_word_count": shown.words,
        "write_outcomes": _sorted(entry.writes),
        "link_outcomes": _sorted(entry.links),
        "lifecycle_outcomes": _sorted(entry.lifecycle),
        "retrieval_outcomes": json.loads(body.raw) if body.raw and read_outcomes(body.raw) else [],
        "metrics": dict(sorted(metrics.items())),
        "latency_ms": latency_ms,
        "context": {
            **{f"retrieved_context_{name}": count for name, count in shown._asdict().items()},
            **{f"full_history_{name}": count for name, count in full.items()},
            "compression_ratio": metrics["context_compression_ratio"],
            "reduction_rate": metrics["context_reduction_rate"],
        },
        "composition": composition(None if entry.retrieved is None else as_returned(entry.retrieved)),
        "integrity": {name: metrics[key] for name, key in INTEGRITY.items()},
    }


INTEGRITY = {
    "returned_items_without_external_id": "returned_items_without_external_id",
    "returned_derived_memories_without_provenance": "returned_derived_memories_without_provenance",
    "suppressed_or_deleted_returned_count": "suppressed_or_deleted_items_returned",
    "superseded_current_returned_count": "superseded_items_returned_as_current",
    "provenance_coverage": "provenance_coverage",
    "context_validation_pass_rate": "context_validation_pass_rate",
    "suppressed_memory_leakage_rate": "suppressed_memory_leakage_rate",
    "orphan_vector_leakage_rate": "orphan_vector_leakage_rate",
    "superseded_current_leakage_rate": "superseded_current_leakage_rate",
    "cross_store_id_validation_pass_rate": "cross_store_id_validation_pass_rate",
}
"""What a row says of its items' integrity, by the metric that says it."""


def as_returned(retrieved: Iterable[Json]) -> list[Returned]:
    """Items as rows list them, as they are measured."""
    return [
        Returned(
            one["kind"],
            one["internal_id"],
            one["external_id"],
            one["episode_external_id"],
            any(reason.strip() for reason in one["rationale"]),
        )
        for one in retrieved
    ]


def _sorted(reports: Iterable[Reported]) -> list[Json]:
    """By the operations' ids, which isn't the order in which they were carried out."""
    return [one._asdict() for one in sorted(reports, key=lambda one: one.operation_id or "")]


def latency(index: LedgerIndex, header: Header, body: RetrievalBody, place: str, *, with_ingest: bool = False) -> int:
    """Whole milliseconds, cut, of the retrieval, or of the ingest with it. Raises UserError where nobody timed it."""
    ingest = index.ledger.body(index.parent(header), IngestBody)
    efforts = [body.effort, *([ingest.effort] if with_ingest else [])]
    if any(effort is None for effort in efforts):
        raise UserError(f"{place}: nobody timed it, and a row needs a latency; imported results can't be rows")
    return int(sum(effort.seconds for effort in efforts if effort) * 1000)


# --- header and report ------------------------------------------------------------------------------------------


def header_of(index: LedgerIndex, run: Run) -> Json:
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
        "embedding_bindings": run.dataset.bindings(index, run),
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


def binding(settings: Mapping[str, Any]) -> Json | None:
    """Where a system's vectors come from; None where it doesn't tell. Of a file it is known which it was: no more."""
    if settings.get("retriever") == "bm25":
        return {"kind": "bm25"}
    name = settings.get("embedding")
    if not isinstance(name, str):
        return None
    provider, _, model = name.partition(":") if ":" in name else ("", "", name)
    if provider == "frozen":
        unknown = dict.fromkeys(("source", "vector_size", "dimension_policy"))
        return {"kind": provider, "store_sha256": settings.get("embedding_revision"), "model": model, **unknown}
    if provider == "controllable":
        unknown = dict.fromkeys(("vector_size", "dimension_policy"))
        return {"kind": provider, "fixture_sha256": settings.get("embedding_revision"), **unknown}
    own = name.rpartition("-")[2]
    size = settings.get("dimensions", None if provider else int(own) if own.isdigit() else None)
    named = "open_ai" if provider == "openai" else provider or name.rpartition("-")[0]
    return {"kind": "live", "provider": named, "model": model, "vector_size": size}


@dataclass
class Folded:
    """What many rows say together. Add them one by one."""

    required: Sequence[str]
    metrics: list[Row] = field(default_factory=list)
    latencies: list[int] = field(default_factory=list)
    degraded: bool = False

    def add(self, row: Json) -> None:
        """Take a row in."""
        self.metrics.append(row["metrics"])
        self.latencies.append(row["latency_ms"])
        told = (one["outcome"] for name in ("write", "link", "lifecycle") for one in row[f"{name}_outcomes"])
        self.degraded = self.degraded or any(map(marks_of, told))

    def measured(self) -> Json:
        """Mean and nearest-rank percentiles of each metric over the rows that have it, and how far it is there."""
        keys = sorted({key for row in self.metrics for key in row})
        support = metric_support(self.metrics)
        return {
            "metrics": {key: summary([v for row in self.metrics if (v := row.get(key)) is not None]) for key in keys},
            "metric_support": {key: support[key] for key in keys},
            "registry_coverage": registry_coverage(self.metrics, self.required),
        }

    def latency(self) -> Json:
        """Of the rows."""
        return {"latency_ms": summary(self.latencies)}

    def degradation(self) -> Json:
        """Whether any operation was done in part only."""
        return {"any_degradation": self.degraded}


# --- files ------------------------------------------------------------------------------------------------------


def write(index: LedgerIndex, run: Run, out: Path, data: Path | None) -> Path:
    """Write a run's folder `out/RUN_ID` with its rows, `header.json` and `report.json`; which one it is.

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
    rows = folder / run.dataset.file
    with rows.open("xb") as file:
        for one in run.dataset.rows(index, run, data):
            file.write(json.dumps(one, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    with rows.open("rb") as file:
        report = run.dataset.report(index, run, map(json.loads, file))
    for name, value in (("header.json", header_of(index, run)), ("report.json", report)):
        with (folder / name).open("xb") as file:
            file.write(json.dumps(value, ensure_ascii=False, indent=2).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    sync_path(folder)
