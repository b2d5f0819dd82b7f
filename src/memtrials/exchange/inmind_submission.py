"""InMind's submission format: one JSON object per task with both contexts and answers. Export, import, validation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtrials.benchmarks.inmind import BENCHMARK, DIRECT, INDIRECT
from memtrials.errors import UserError
from memtrials.exchange.cells import Answered, Exported, answers
from memtrials.exchange.imported import Imports
from memtrials.index import LedgerIndex
from memtrials.llm.local import is_bundled
from memtrials.records import AnswerBody, Record, RetrievalBody, Role, VoidBody, clean_text
from memtrials.selection import Chosen

FIELDS = {DIRECT: "naive", INDIRECT: "query"}


@dataclass(frozen=True)
class Row:
    """One valid line of a submission."""

    task: str
    system: str
    config: dict[str, Any]
    texts: dict[str, tuple[str, str]]  # query id: (context, answer)


# --- reading and validation -------------------------------------------------------------------------------------


def read(path: Path, tasks: Collection[str], *, allow_partial: bool) -> list[Row]:
    """The rows of a submission file. Raises UserError that lists every problem with its line number."""
    try:
        data = path.read_bytes().removeprefix(b"\xef\xbb\xbf")
        text = data.decode()
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text") from None
    problems: list[str] = []
    rows: list[Row] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        found = _problems(line, tasks, seen, number)
        if isinstance(found, Row):
            rows.append(found)
        else:
            problems += [f"{path}, line {number}: {problem}" for problem in found]
    missing = [task for task in tasks if task not in seen]
    if missing and not allow_partial:
        some = ", ".join(missing[:8]) + (" …" if len(missing) > 8 else "")
        problems.append(f"{path}: {len(missing)} tasks are missing ({some}); --allow-partial accepts that")
    if not rows and not problems:
        problems.append(f"{path}: no rows")
    if problems:
        summary = problems[0] if len(problems) == 1 else f"{path}: {len(problems)} problems"
        raise UserError(summary, problems if len(problems) > 1 else ())
    return rows


def _problems(line: str, tasks: Collection[str], seen: dict[str, int], number: int) -> Row | list[str]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        return [f"not valid JSON ({error})"]
    if not isinstance(row, dict):
        return ["not an object"]
    found: list[str] = []
    task_id = row.get("task_id")
    if isinstance(task_id, bool) or not isinstance(task_id, int):
        found.append(f"task_id is {json.dumps(task_id)}, an integer is expected")
    elif str(task_id) not in tasks:
        found.append(f"task_id {task_id} is not a task of this benchmark")
    elif str(task_id) in seen:
        found.append(f"task_id {task_id} occurs twice (first in line {seen[str(task_id)]})")
    else:
        seen[str(task_id)] = number
    if not isinstance(row.get("system"), str) or not row["system"].strip():
        found.append("system is missing or empty")
    if not isinstance(row.get("config"), dict):
        found.append("config is missing or not an object")
    texts = {}
    for query, field in FIELDS.items():
        value = row.get(field)
        if not isinstance(value, dict):
            found.append(f"{field} is missing or not an object")
            continue
        unusable = [part for part in ("context", "answer") if not isinstance(value.get(part), str)]
        found += [f"{field}.{part} is missing or not a text" for part in unusable]
        if not unusable:
            texts[query] = (clean_text(value["context"]), clean_text(value["answer"]))
    return found or Row(str(task_id), row["system"], row["config"], texts)


def tasks_of(index: LedgerIndex, benchmark: str) -> list[str]:
    """The task ids of a built benchmark, in order."""
    return [task for name, task in index.tasks if name == benchmark]


# --- import -----------------------------------------------------------------------------------------------------


def records(index: LedgerIndex, benchmark: str, path: Path) -> list[Record]:
    """The records that importing this file would append, each after what it is made from; none when it was imported.

    Raises UserError for an invalid file or one that holds several systems.
    """
    rows = read(path, tasks_of(index, benchmark), allow_partial=True)
    names = sorted({row.system for row in rows})
    if len(names) > 1:
        raise UserError(f"{path}: results of {len(names)} systems ({', '.join(names)}); one file holds one system")
    imports = Imports(index, benchmark, names[0])
    known = {"file_sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    claimed = json.dumps(rows[0].config, ensure_ascii=False)  # text, as everything that others made
    roles: tuple[Role, ...] = ("system", "fetch", "reader")
    system, fetch, reader = (imports.config(role, known, claimed) for role in roles)
    for row in rows:
        ingest = imports.ingest(row.task, system)
        for query, (context, answer) in row.texts.items():
            question = index.task(benchmark, row.task).query(query)
            body = RetrievalBody(question=question.text, date=question.date, context=context)
            imports.answer(imports.retrieval(ingest, question, fetch, body), reader, AnswerBody(text=answer))
    return imports.fresh


# --- export -----------------------------------------------------------------------------------------------------


def rows(
    index: LedgerIndex,
    benchmark: str,
    chosen: Chosen,
    reader: str | None,
    trial: int,
    *,
    allow_partial: bool,
    allow_voided: bool,
) -> list[dict[str, Any]]:
    """Submission rows of one system: trial `trial` of every question, first answer. `config` tells the truth.

    Raises UserError when more than one cell is selected, when tasks are missing, or when results of this system were
    voided after their verdicts were known.
    """
    cell, answered = answers(index, benchmark, chosen, reader, trial)
    by_task: dict[str, dict[str, Answered]] = {}
    for one in answered:
        by_task.setdefault(one.retrieval.task or "", {})[one.retrieval.query or ""] = one
    tasks = [task for task in tasks_of(index, benchmark) if (benchmark, task) in chosen.tasks]
    missing = [task for task in tasks if len(by_task.get(task, {})) < len(FIELDS)]
    if missing and not allow_partial:
        raise UserError(f"{len(missing)} of {len(tasks)} tasks have no complete trial; finish them or --allow-partial")
    if not allow_voided:
        _refuse_voided(index, benchmark, cell.system)
    whole = benchmark == f"{BENCHMARK.name}@released" and len(tasks) - len(missing) == BENCHMARK.published_tasks
    config = _true_config(index, cell, whole=whole)
    return [_row(index, task, by_task[task], cell.system, config) for task in tasks if task not in missing]


def _refuse_voided(index: LedgerIndex, benchmark: str, system: str) -> None:
    for header in index.of("void"):
        body = index.ledger.body(header, VoidBody)
        if body.right + body.wrong == 0:
            continue
        voided = [index.ledger.header(p) for p in header.parents if p in index.ledger]
        if any(h.benchmark == benchmark and h.system in (None, system) for h in voided):
            raise UserError(
                f"results of {system} were voided after their verdict was known ({body.right} right, {body.wrong} "
                f"wrong: {body.reason!r}); --allow-voided exports all the same"
            )


def _true_config(index: LedgerIndex, cell: Exported, *, whole: bool) -> dict[str, Any]:
    """What really made the rows. whole: they are all tasks of the published data, without which nothing is class P."""
    system, fetch, reader = (index.config(c or "") for c in cell)
    model = reader.settings.get("model")
    class_ = "P" if whole and reader.provenance.get("published") else "M"
    if model == "offline":
        class_ = "R"
    elif is_bundled(reader.settings):
        class_ = "D"
    return {
        "class": class_,
        "answer_model": model if model is not None else "unknown",
        "answer_parameters": reader.settings.get("parameters", {}),
        "prompts": reader.provenance.get("prompts"),
        "system": dict(system.settings),
        "fetch": dict(fetch.settings),
        "configurations": list(cell),
    }


def _row(
    index: LedgerIndex, task: str, pair: dict[str, Answered], system: str, config: dict[str, Any]
) -> dict[str, Any]:
    row: dict[str, Any] = {"task_id": int(task), "system": index.config(system).name, "config": config}
    for query, field in FIELDS.items():
        retrieval, answer = pair[query]
        assert answer is not None
        context = index.ledger.body(retrieval, RetrievalBody).context
        row[field] = {"context": context, "answer": index.ledger.body(answer, AnswerBody).text}
    return row
