"""build: validate a benchmark's data and record its tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtrials import benchmarks, datasets, locks
from memtrials.benchmarks.base import Benchmark, Loaded, LoadOptions
from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.outcome import Outcome
from memtrials.records import Header, Record, TaskBody, clean_text, new_id, now, sha256, work_key
from memtrials.settings import Settings
from memtrials.stages.common import Options

BATCH = 200


@dataclass(frozen=True)
class BuildRequest:
    """Which benchmark to build from which folder. data None: what comes along, or what `memtrials data get` got."""

    benchmark: str
    data: Path | None = None
    variant: str | None = None
    allow_modified: bool = False
    export_timelines: Path | None = None


def run(request: BuildRequest, options: Options) -> Outcome:
    """Record the tasks of a release. Raises UserError for bad data or other bytes under a name the ledger holds."""
    benchmark, loaded = load(request, options.settings)
    ledger = Ledger.open(options.trials, create=True)
    try:
        return _build(benchmark, loaded, request, options, ledger)
    finally:
        ledger.close()


def load(request: BuildRequest, settings: Settings) -> tuple[Benchmark, Loaded]:
    """The benchmark and its validated release. Raises UserError."""
    benchmark = benchmarks.find(request.benchmark)
    _, _, named = request.benchmark.partition("@")
    if request.variant and named and request.variant != named:
        raise UserError(f"two variants: {request.benchmark} and --variant {request.variant}; name one")
    variant = request.variant or named or None
    if variant is not None and variant not in benchmark.variants:
        raise unknown(f"variant of {benchmark.name}", variant, benchmark.variants)
    bundled = benchmark.bundled() if benchmark.bundled else None
    data = request.data or bundled or datasets.folder_for_build(benchmark.name, variant, settings)
    return benchmark, benchmark.load(data, LoadOptions(variant, request.allow_modified))


def pending(index: LedgerIndex, loaded: Loaded) -> list[tuple[str, str | None, TaskBody]]:
    """Tasks of the release that the ledger doesn't hold yet. Raises UserError when it holds another release."""
    for name, task in index.tasks:
        if name == loaded.name:
            held = index.task(name, task).release.sha256
            if held != loaded.release.sha256:
                raise UserError(
                    f"{index.ledger.path} holds {name} with data {held[:12]}…, this data is "
                    f"{loaded.release.sha256[:12]}…; use another ledger (--trials), or the data it was built from"
                )
            break
    return [task for task in loaded.tasks if (task_key(loaded.name, task[0]), None) not in index.done]


def task_key(benchmark: str, task: str) -> str:
    """The name of the work of building a task."""
    return work_key("task", benchmark=benchmark, task=task)


def task_record(benchmark: str, task: str, type_: str | None, body: TaskBody) -> Record:
    """The record of a task; its content is the SHA-256 of timeline digest, queries and gold."""
    content = sha256(
        [
            sha256(list(body.sessions)),
            [[q.id, q.text, q.date, q.type, q.after] for q in body.queries],
            [[g.query, list(g.answers), list(g.evidence), g.abstention, dict(g.details)] for g in body.gold],
        ]
    )
    header = Header(
        id=new_id(),
        kind="task",
        key=task_key(benchmark, task),
        content=content,
        parents=(),
        benchmark=benchmark,
        task=task,
        type=type_,
        at=now(),
    )
    return Record(header, body)


def _build(benchmark: Benchmark, loaded: Loaded, request: BuildRequest, options: Options, ledger: Ledger) -> Outcome:
    owed = pending(LedgerIndex(ledger), loaded)
    notes = [loaded.release.attribution, *loaded.notes]
    outcome = Outcome("build", pending=len(owed), notes=notes, dry_run=options.dry_run, details=_details(loaded))
    if options.dry_run:
        outcome.left = outcome.pending
        return outcome
    if owed:
        options.trials.parent.mkdir(exist_ok=True)
        ledger.check_writable()
        with locks.hold(options.trials, [locks.Claim("build", loaded.name)], None):
            ledger.refresh()
            owed = pending(LedgerIndex(ledger), loaded)
            outcome.pending = len(owed)
            _append(ledger, loaded.name, owed)
        outcome.done = outcome.appended = len(owed)
    if request.export_timelines is not None:
        _export(benchmark, loaded, request.export_timelines)
        outcome.notes.append(f"{len(loaded.tasks)} timelines written to {request.export_timelines}")
    return outcome


def _details(loaded: Loaded) -> dict[str, Any]:
    release = loaded.release
    return {
        "benchmark": loaded.name,
        "tasks": len(loaded.tasks),
        "data_sha256": release.sha256,
        "files": {f.path: f.sha256 for f in release.files},
        "constants": release.constants,
    }


def _append(ledger: Ledger, name: str, owed: Sequence[tuple[str, str | None, TaskBody]]) -> None:
    for first in range(0, len(owed), BATCH):
        ledger.append(*(task_record(name, *task) for task in owed[first : first + BATCH]))


def _export(benchmark: Benchmark, loaded: Loaded, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for task, _, body in loaded.tasks:
            timeline = benchmark.export_timeline(Path(body.data), loaded.name, task, body)
            path = folder / f"{benchmark.name}-task-{task}.json"
            text = json.dumps(timeline, ensure_ascii=False, indent=2)
            path.write_text(clean_text(text) + "\n", "utf-8")
    except OSError as error:
        raise UserError(f"{folder}: timelines can't be written ({error.strerror})") from None
