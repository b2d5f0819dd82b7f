"""What was precomputed of histories: made of conversations alone, checked, and got ready for the systems that take it.

replay gives a system that can `enrich` what its `[state]` names (`enrichment`, `snapshot`) and, for tasks that need it,
what the data itself concluded. All of it is read before the first state is begun.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from memtrials import benchmarks
from memtrials.benchmarks.base import Loaded
from memtrials.benchmarks.enrichment import (
    Cutoff,
    Graph,
    Naming,
    Precomputed,
    Sitting,
    manifest_of,
    merged,
    neutral,
    problems,
    read_enrichment,
    read_snapshot,
)
from memtrials.benchmarks.source_replay import snapshot_line, source_graph, source_line
from memtrials.errors import UserError
from memtrials.records import Release, TaskBody, file_sha256
from memtrials.settings import Settings
from memtrials.stages.build import BuildRequest, load
from memtrials.systems import SystemSpec
from memtrials.systems.times import iso_time

ENRICH = "enrich"


# --- for replay -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """What a system is given beside the sessions of one benchmark's tasks. file: None for what the data has alone."""

    benchmark: str
    file: Precomputed | None = None

    def graph(self, data: Path, task: str, body: TaskBody) -> Graph | None:
        """A task's, as a system may see it; None for nothing. Raises UserError where parts don't go together."""
        kind = benchmarks.find(self.benchmark)
        parts = []
        if ENRICH in body.needs and kind.derived is not None:
            parts.append(kind.derived(data, self.benchmark, task, body))
        if self.file is not None and (found := self.file.graph(_naming(self.benchmark).namespace(task), task)):
            parts.append(found)
        if not any(parts):
            return None
        whole = merged(parts)
        where = self.file.path if self.file is not None else data
        for problem in problems(whole):
            raise UserError(f"{where}, task {task} of {self.benchmark}: {problem}")
        history = _naming(self.benchmark).history(data, self.benchmark, task, body)
        try:
            return neutral(whole, history)
        except UserError as error:
            raise UserError(f"{where}, task {task} of {self.benchmark}: {error}") from None


def given(spec: SystemSpec, benchmark: str, tasks: Mapping[str, tuple[Path, TaskBody]]) -> Given:
    """What a system is given for these tasks, by task with where its data is now; all of it is read once.

    Raises UserError for a system that can't take what the data concluded, and for a file that isn't right for them.
    """
    wanted = any(ENRICH in body.needs for _, body in tasks.values())
    if wanted and (ENRICH not in spec.plugin.capabilities or spec.plugin.baseline(spec.fetch)):
        raise UserError(
            f"{benchmark} comes with memories that were derived from it, and {spec.name} looks in what was said alone; "
            "leave it out, or name another benchmark with --benchmark"
        )
    file = None
    if spec.precomputed is not None:
        release = next(iter(tasks.values()))[1].release
        file = opened(spec.precomputed, "snapshot" in spec.state, benchmark, release)
        if file.sha256 not in (spec.state.get("snapshot"), spec.state.get("enrichment")):
            raise UserError(f"{file.path}: changed while it was read; start again")
    found = Given(benchmark, file)
    for task, (data, body) in tasks.items():
        found.graph(data, task, body)
    return found


def opened(path: Path, snapshot: bool, benchmark: str, release: Release) -> Precomputed:
    """A file for tasks of a benchmark. Raises UserError where it isn't right, or is of another benchmark alone."""
    naming = _naming(benchmark)
    if snapshot:
        return read_snapshot(path, naming.origin(benchmark, release))
    file = read_enrichment(path)
    if not any(namespace.startswith(naming.namespace("")) for namespace in file.rows):
        raise UserError(
            f"{path}: holds nothing of {benchmark}, whose namespaces are {naming.namespace('<task>')}; its first is "
            f"{next(iter(file.rows))!r}"
        )
    return file


def _naming(benchmark: str) -> Naming:
    naming = benchmarks.find(benchmark).naming
    if naming is None:
        raise UserError(f"{benchmark} has no names by which something precomputed could be told apart")
    return naming


# --- commands ---------------------------------------------------------------------------------------------------


def build(request: BuildRequest, out: Path, settings: Settings) -> dict[str, Any]:
    """Make a snapshot of a benchmark's conversations, with its manifest, by the source replay; what it holds.

    Raises UserError for data that isn't right, and for a file that is there already.
    """
    if out.suffix != ".jsonl":
        raise UserError(f"{out}: a snapshot's file is called NAME.jsonl")
    for path in (out, manifest_of(out)):
        if path.exists():
            raise UserError(f"{path}: is there already; name a new file")
    _, loaded = load(request, settings)
    naming = _naming(loaded.name)
    part = out.with_name(out.name + ".part")
    try:
        with part.open("xb") as file:
            source, counts = _write(file, naming, loaded)
            file.flush()
            os.fsync(file.fileno())
        manifest = {
            "workflow_id": naming.workflow,
            "dataset": {"name": naming.dataset(loaded.name), "sha256": loaded.release.files[0].sha256},
            "artifact": {"path": out.name, "sha256": file_sha256(part)},
            "source": {"sha256": source},
            "counts": counts,
        }
        with manifest_of(out).open("x", encoding="utf-8", newline="\n") as file_:
            file_.write(json.dumps(manifest, ensure_ascii=False, indent=2) + "\n")
        part.replace(out)
    except FileExistsError:
        raise UserError(f"{part}: somebody else is writing it, or was killed; remove it when nobody is") from None
    except OSError as error:
        raise UserError(f"{out}: can't be written ({error.strerror})") from None
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise
    return {"benchmark": loaded.name, "file": str(out), **manifest}


def _write(file: BinaryIO, naming: Naming, loaded: Loaded) -> tuple[str, dict[str, int]]:
    source = hashlib.sha256()
    counts: Counter[str] = Counter()
    for task, _, body in loaded.tasks:
        history = naming.history(Path(body.data), loaded.name, task, body)
        source.update(source_line(task, history))
        cutoff, visible = _visible(body, history)
        namespace = naming.namespace(task)
        graph = source_graph(namespace, task, visible)
        file.write(snapshot_line(namespace, task, cutoff, graph))
        counts.update(_counts(graph), snapshots=1, sessions_left_out=len(history) - len(visible))
    return source.hexdigest(), dict(counts)


def _visible(body: TaskBody, history: Sequence[Sitting]) -> tuple[Cutoff, list[tuple[Sitting, str]]]:
    """The sessions that a snapshot reaches to, with their times: those before the question, where there is one with a
    date, else all."""
    timed = [(sitting, iso_time(sitting.time)) for sitting in history]
    dates = [query.date for query in body.queries if query.date is not None]
    if len(dates) == 1 == len(body.queries):
        until = iso_time(dates[0])
        return Cutoff("question_date", dates[0]), [(sitting, time) for sitting, time in timed if time <= until]
    return Cutoff("final_session", history[-1].name), timed


def _counts(graph: Graph) -> dict[str, int]:
    return {
        "entities": len(graph.entities),
        "threads": len(graph.threads),
        "derived_memories": len(graph.derived),
        "links": len(graph.links),
    }


def validate(request: BuildRequest, path: Path, settings: Settings) -> dict[str, Any]:
    """Check a file as replay would for all of a benchmark's tasks; what it holds. A file with a manifest is a snapshot.

    Raises UserError for the first thing that is wrong.
    """
    _, loaded = load(request, settings)
    snapshot = manifest_of(path).exists()
    file = opened(path, snapshot, loaded.name, loaded.release)
    found = Given(loaded.name, file)
    counts: Counter[str] = Counter()
    for graph in _graphs(found, loaded):
        counts.update(_counts(graph), tasks=1)
    return {
        "benchmark": loaded.name,
        "file": str(path),
        "kind": "snapshot" if snapshot else "enrichment",
        "sha256": file.sha256,
        "counts": dict(counts),
    }


def _graphs(found: Given, loaded: Loaded) -> Iterator[Graph]:
    for task, _, body in loaded.tasks:
        if (graph := found.graph(Path(body.data), task, body)) is not None:
            yield graph
