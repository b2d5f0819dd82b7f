"""status: how far each benchmark, system, reader and judge is, and the command that goes on."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from memtrials.index import WORK_KINDS, LedgerIndex
from memtrials.records import AnswerBody, Header, Kind, VerdictBody

COLUMNS = ("tasks", "ingested", "fetched", "answered", "judged", "failed", "given up", "in flight", "void", "spent")


class Place(NamedTuple):
    """What a row is about, as deep as work has begun there."""

    benchmark: str
    system: str | None = None
    fetch: str | None = None
    reader: str | None = None
    judge: str | None = None

    def met_by(self, header: Header) -> bool:
        """Whether a record is about this place or stands on the way to it."""
        return all(getattr(header, name) in (None, value) for name, value in self._asdict().items())


def status_rows(index: LedgerIndex) -> list[dict[str, Any]]:
    """One row for each benchmark, system, fetch configuration, reader and judge, as far as each has begun.

    spent counts tokens of model calls that were recorded, in and out (null: no call reported usage).
    """
    rows = []
    for benchmark in index.benchmarks:
        tasks = [task for name, task in index.tasks if name == benchmark]
        queries = sum(len(index.task(benchmark, task).queries) for task in tasks)
        for place in _places(index, benchmark) or [Place(benchmark)]:
            row = {**place._asdict(), **_counts(index, place, len(tasks))}
            rows.append({**row, "next": _next(row, queries)})
    return rows


def _places(index: LedgerIndex, benchmark: str) -> list[Place]:
    """Every reader with every judge of each system and fetch configuration."""
    seen: dict[Place, None] = {}
    kinds: tuple[Kind, ...] = (*WORK_KINDS[2:], "failure")
    for kind in kinds:
        for h in index.of(kind):
            if h.benchmark == benchmark and h.system:
                seen.setdefault(Place(benchmark, h.system, h.fetch, h.reader, h.judge))
    found = []
    for system in dict.fromkeys(p.system for p in seen):
        here = [p for p in seen if p.system == system]
        for fetch in _begun(p.fetch for p in here):
            there = [p for p in here if p.fetch == fetch]
            readers, judges = _begun(p.reader for p in there), _begun(p.judge for p in there)
            found += [Place(benchmark, system, fetch, reader, judge) for reader in readers for judge in judges]
    return found


def _begun(ids: Iterable[str | None]) -> list[str | None]:
    """The distinct ids in order; only None where none has begun."""
    return list(dict.fromkeys(i for i in ids if i is not None)) or [None]


def _counts(index: LedgerIndex, place: Place, tasks: int) -> dict[str, Any]:
    def mine(kind: Kind, *names: str) -> list[Header]:
        wanted = [(name, getattr(place, name)) for name in ("benchmark", *names)]
        return [h for h in index.of(kind) if all(getattr(h, name) == value for name, value in wanted)]

    answers = mine("answer", "system", "fetch", "reader") if place.reader else []
    verdicts = mine("verdict", "system", "fetch", "judge") if place.judge else []
    verdicts = [h for h in verdicts if h.reader in (None, place.reader)]
    open_failures = [w for w, some in index.failures.items() if w not in index.done and place.met_by(some[-1])]
    given_up = sum(index.given_up(work) for work in open_failures)
    return {
        "tasks": tasks,
        "ingested": len(mine("ingest", "system")) if place.system else 0,
        "fetched": len(mine("retrieval", "system", "fetch")) if place.fetch else 0,
        "answered": len(answers),
        "judged": len(verdicts),
        "failed": len(open_failures) - given_up,
        "given up": given_up,
        "in flight": len(index.in_flight),
        "void": sum(h.id in index.void_ids and h.system is not None and place.met_by(h) for h in index.ledger.headers),
        "spent": _tokens(index, answers, verdicts),
    }


def _tokens(index: LedgerIndex, answers: list[Header], verdicts: list[Header]) -> int | None:
    calls = [index.ledger.body(h, AnswerBody).call for h in answers]
    calls += [index.ledger.body(h, VerdictBody).call for h in verdicts]
    known = [c.prompt_tokens + (c.completion_tokens or 0) for c in calls if c and c.prompt_tokens is not None]
    return sum(known) if known else None


def _next(row: dict[str, Any], queries: int) -> str:
    """The command that goes on from here."""
    where = f" --benchmark {row['benchmark']}"
    if row["system"] is None:
        return f"memtrials replay SYSTEM{where}"
    name = _name(row["system"])
    imported = name.startswith("imported-")
    if row["ingested"] < row["tasks"] and not imported:
        return f"memtrials replay {name}{where}"
    if row["fetched"] < queries and not imported:
        return f"memtrials fetch {row['system']}{where}"
    where += f" --system {row['system']}"
    if row["answered"] < row["fetched"]:
        return f"memtrials answer{' --reader ' + _name(row['reader']) if row['reader'] else ''}{where}"
    return f"memtrials metrics{where}" if row["judge"] else f"memtrials judge{where}"


def _name(config_id: str) -> str:
    return config_id.rpartition("-")[0]


def totals(index: LedgerIndex) -> dict[str, int]:
    """Records of the whole ledger by what became of them."""
    kinds = Counter(h.kind for h in index.ledger.headers)
    return {
        "records": len(index.ledger.headers),
        "void": sum(h.id in index.void_ids for h in index.ledger.headers),
        "twins": index.twins,
        "set aside": index.set_aside,
        **{f"{kind}s": count for kind, count in sorted(kinds.items())},
    }


def given_up_works(index: LedgerIndex) -> dict[str, list[str]]:
    """What was given up, by stage: `benchmark task query metric`."""
    found: dict[str, list[str]] = defaultdict(list)
    for work, failures in index.failures.items():
        if work not in index.done and index.given_up(work):
            last = failures[-1]
            place = [last.benchmark, last.task, last.query, last.metric, f"repeat {last.repeat}"]
            found[last.stage or ""].append(" ".join(part for part in place if part))
    return found
