"""export inmind-package: a submission with everything that lets others check it, in one new folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from memtrials.exchange import inmind_submission
from memtrials.exchange.cells import answers
from memtrials.index import LedgerIndex
from memtrials.records import Header, VerdictBody
from memtrials.sealing.files import SEAL, new_folder, write_once
from memtrials.selection import Chosen
from memtrials.stages import sealing
from memtrials.stages.common import Options

FILES = ("submission.jsonl", "configuration.json", "hashes.json", "verdicts.jsonl", SEAL)


@dataclass(frozen=True)
class PackageRequest:
    """Whose results, and what is let pass; see `inmind_submission.rows`."""

    benchmark: str
    reader: str | None
    allow_partial: bool = False
    allow_voided: bool = False


def package(request: PackageRequest, options: Options, index: LedgerIndex, chosen: Chosen, out: Path) -> str:
    """Write the folder; the SHA-256 of the seal in it, which is that of the ledger with the hashes of the other files.

    Trial 1 of every question is exported. Raises UserError as the submission does, when no verdict is there, or when
    the folder exists.
    """
    rows = inmind_submission.rows(
        index,
        request.benchmark,
        chosen,
        request.reader,
        1,
        allow_partial=request.allow_partial,
        allow_voided=request.allow_voided,
    )
    seal = sealing.sealed(index.ledger, options)
    cell, answered = answers(index, request.benchmark, chosen, request.reader, 1)
    exported = {str(row["task_id"]) for row in rows}
    results = {record.id for one in answered for record in one if record and record.task in exported}
    verdicts = [h for h in index.of("verdict") if index.standing(h.parents[0]) in results]
    used = sorted({name for name in (*cell, *(h.judge for h in verdicts)) if name})
    configurations = {name: msgspec.to_builtins(index.config(name)) for name in used}
    prompts = {name: seal["configurations"][name]["prompts"] for name in configurations}
    hashes = {"data": seal["data"][request.benchmark], "prompts": {name: p for name, p in prompts.items() if p}}
    contents = {
        "submission.jsonl": _lines(rows),
        "configuration.json": _pretty(configurations),
        "hashes.json": _pretty(hashes),
        "verdicts.jsonl": _lines(_verdict(index, header) for header in verdicts),
    }
    new_folder(out)
    files = {name: write_once(out / name, data) for name, data in contents.items()}
    return write_once(out / SEAL, sealing.as_text({**seal, "files": files}).encode())


def _verdict(index: LedgerIndex, header: Header) -> dict[str, Any]:
    body = index.ledger.body(header, VerdictBody)
    return {
        "task_id": int(header.task or ""),
        "query": header.query,
        "metric": header.metric,
        "judge": header.judge,
        "repeat": header.repeat,
        "score": body.score,
        "reason": body.reason,
    }


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def _pretty(value: Any) -> bytes:
    return (json.dumps(value, ensure_ascii=False, indent=2) + "\n").encode()
