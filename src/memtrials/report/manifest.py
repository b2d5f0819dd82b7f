"""The ingest manifest: one file for each benchmark and system, rewritten from the ledger, never read back."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.records import FailureBody, IngestBody
from memtrials.settings import checkout


def manifests_folder(ledger: Path) -> Path:
    """`manifests/` of the checkout for its own ledger, `X.manifests/` beside any other."""
    root = checkout()
    if root and ledger.resolve() == root / "results" / "trials.json":
        return root / "manifests"
    return ledger.with_suffix(".manifests")


def write_manifests(index: LedgerIndex, ledger: Path, systems: Sequence[str]) -> list[Path]:
    """Write the manifests of these system ids that aren't up to date; the files, whole or not at all.

    Raises UserError when one can't be written.
    """
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for header in index.of("ingest"):
        if header.system and header.system in systems:
            body = index.ledger.body(header, IngestBody)
            rows[header.benchmark or "", header.system].append(
                {
                    "task": header.task,
                    "repeat": header.repeat,
                    "status": "ok",
                    "namespace": body.namespace,
                    "user": body.user,
                    "sessions": body.sessions,
                    "turns": body.turns,
                    "seconds": body.effort.seconds if body.effort else None,
                    "at": header.at,
                    **({"stores": msgspec.to_builtins(body.stores)} if body.stores else {}),
                }
            )
    for failures in index.failures.values():
        last = failures[-1]
        if last.stage == "replay" and last.system in systems and (last.key, last.repeat) not in index.done:
            body_of_failure = index.ledger.body(last, FailureBody)
            rows[last.benchmark or "", last.system or ""].append(
                {
                    "task": last.task,
                    "repeat": last.repeat,
                    "status": "failed",
                    "message": body_of_failure.message,
                    "at": last.at,
                }
            )
    written = []
    folder = manifests_folder(ledger)
    for (benchmark, system), some in rows.items():
        path = folder / f"{benchmark}.{system}.json"
        manifest = {
            "benchmark": benchmark,
            "system": system,
            "ok": sum(row["status"] == "ok" for row in some),
            "failed": sum(row["status"] == "failed" for row in some),
            "states": some,
        }
        if cases := _cases([task for name, task in index.tasks if name == benchmark], some):
            manifest |= {"timestamp": max(row["at"] for row in some), "cases": cases}
        text = json.dumps(manifest, ensure_ascii=False, indent=2) + "\n"
        if path.is_file() and path.read_text("utf-8") == text:
            continue
        fresh = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            folder.mkdir(exist_ok=True)
            fresh.write_text(text, "utf-8")
            fresh.replace(path)
        except OSError as error:
            raise UserError(f"{path}: the manifest can't be written ({error.strerror})") from None
        written.append(path)
    return written


def _cases(tasks: Sequence[str], states: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first state of each task in the form that pipelines of memory services exchange: a case for each store, named
    by its task or, where a task has labelled stores, `conv_<place of the task>_user_<label>`. Empty without stores."""
    cases = []
    for state in states:
        for store in state.get("stores", ()) if state["repeat"] == 1 else ():
            label = store.get("label")
            name = f"conv_{tasks.index(state['task']) + 1}_user_{label.lower()}" if label else state["task"]
            other = state["user"]
            named = {"other_id": other} if other else {}
            cases.append({"case_id": name, "end_user_id": store["id"], "status": "ok", **named})
    return cases
