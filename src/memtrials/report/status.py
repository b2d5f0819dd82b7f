"""status: how far each benchmark, system, reader and judge is, and the command that goes on."""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from memtrials import benchmarks, systems
from memtrials.index import WORK_KINDS, LedgerIndex, Work, is_storage_probe
from memtrials.judging.probing import probed
from memtrials.llm.money import cost, embedding_cost, tokens_of
from memtrials.records import AnswerBody, Header, Kind, TaskBody, VerdictBody
from memtrials.systems.embedding import embedding_of, usage_of
from memtrials.systems.scripted import obstacle

PROGRESS = ("tasks", "ingested", "fetched", "answered", "judged", "probes", "failed", "given up", "in flight", "void")
COLUMNS = (*PROGRESS, "spent", "usd")


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
    """One row for each benchmark, system, fetch configuration, reader and judge, as far as each has begun, and one
    without a system for each judge that was probed.

    spent counts tokens that were sent for what was recorded, to models in and out and to be embedded (null: nobody
    reported usage); usd is what they cost (null: no usage, or a model without a price).
    """
    rows = []
    for benchmark in index.benchmarks:
        tasks = [task for name, task in index.tasks if name == benchmark]
        for place in _places(index, benchmark) or [Place(benchmark)]:
            made = _made(index, place)
            counts = _counts(index, place, made, len(tasks))
            rows.append({**place._asdict(), **counts, "next": _next(index, place, made, len(tasks))})
        probed_here = [Place(benchmark, judge=judge) for judge in _judges_probed(index, benchmark)]
        rows += [_probe_row(index, place, len(tasks)) for place in probed_here]
    return rows


def _judges_probed(index: LedgerIndex, benchmark: str) -> list[str]:
    """Judges that were asked about constructed answers, or are being asked in a batch."""
    asked = (h for kind in ("verdict", "failure") for h in index.of(kind) if probed(h))
    flying = (h for h, _ in index.open_batches.values() if _of_probes(h))
    return list(dict.fromkeys(h.judge for h in (*asked, *flying) if h.judge and h.benchmark == benchmark))


def _probe_row(index: LedgerIndex, place: Place, tasks: int) -> dict[str, Any]:
    """What a judge made of constructed answers, which belong to no system. How many it owes is the user's choice."""
    mine = {"benchmark": place.benchmark, "judge": place.judge}

    def is_mine(header: Header) -> bool:
        return all(getattr(header, name) == value for name, value in mine.items())

    verdicts = [h for h in index.of("verdict") if probed(h) and is_mine(h)]
    last = {work: some[-1] for work, some in index.failures.items() if work not in index.done}
    failed = [work for work, failure in last.items() if probed(failure) and is_mine(failure)]
    given_up = sum(index.given_up(work) for work in failed)
    flying = sum(len(body.work) for h, body in index.open_batches.values() if _of_probes(h) and is_mine(h))
    void = sum(h.id in index.void_ids and probed(h) is not None and is_mine(h) for h in index.ledger.headers)
    where = f" --benchmark {place.benchmark}"
    again = f"memtrials judge --probe --judge {shlex.quote(index.config(place.judge or '').name)}{where}"
    return {
        **place._asdict(),
        **dict.fromkeys(PROGRESS, 0),
        "tasks": tasks,
        "probes": len(verdicts),
        "failed": len(failed) - given_up,
        "given up": given_up,
        "in flight": flying,
        "void": void,
        **_spent(index, [], [], verdicts),
        "next": again if len(failed) > given_up or flying else f"memtrials metrics{where}",
    }


def _probes(failure: Header) -> bool:
    return probed(failure) is not None or is_storage_probe(failure)


def _of_probes(batch: Header) -> bool:
    """Whether a batch holds probes, which are about tasks and so belong to no system."""
    return batch.stage == "judge" and batch.system is None


def _places(index: LedgerIndex, benchmark: str) -> list[Place]:
    """Every reader with every judge of each system and fetch configuration."""
    seen: dict[Place, None] = {}
    kinds: tuple[Kind, ...] = (*WORK_KINDS[2:], "failure")
    flying = [header for header, _ in index.open_batches.values()]
    for headers in (*map(index.of, kinds), flying):
        for h in headers:
            if h.benchmark == benchmark and h.system and not is_storage_probe(h):
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


class Made(NamedTuple):
    """What counts of a place's work."""

    ingests: list[Header]
    trials: list[Header]
    answers: list[Header]
    verdicts: list[Header]


def _made(index: LedgerIndex, place: Place) -> Made:
    def mine(kind: Kind, *names: str) -> list[Header]:
        wanted = [(name, getattr(place, name)) for name in ("benchmark", *names)]
        return [h for h in index.of(kind) if all(getattr(h, name) == value for name, value in wanted)]

    verdicts = mine("verdict", "system", "fetch", "judge") if place.judge else []
    return Made(
        [h for h in mine("ingest", "system") if h.fetch in (None, place.fetch)] if place.system else [],
        mine("retrieval", "system", "fetch") if place.fetch else [],
        mine("answer", "system", "fetch", "reader") if place.reader else [],
        [v for v in verdicts if v.reader in (None, place.reader)],
    )


def _failures(index: LedgerIndex, place: Place) -> dict[Work, Header]:
    """The last failure of each piece of a place's work that isn't done. Probes of judges and stores belong to none."""
    last = {work: some[-1] for work, some in index.failures.items() if work not in index.done}
    return {work: failure for work, failure in last.items() if place.met_by(failure) and not _probes(failure)}


def _counts(index: LedgerIndex, place: Place, made: Made, tasks: int) -> dict[str, Any]:
    open_failures = _failures(index, place)
    given_up = sum(index.given_up(work) for work in open_failures)
    return {
        "tasks": tasks,
        "ingested": len(made.ingests),
        "fetched": len(made.trials),
        "answered": len(made.answers),
        "judged": len(made.verdicts),
        "probes": 0,
        "failed": len(open_failures) - given_up,
        "given up": given_up,
        "in flight": sum(
            len(body.work)
            for header, body in index.open_batches.values()
            if place.met_by(header) and not _of_probes(header)
        ),
        "void": sum(h.id in index.void_ids and h.system is not None and place.met_by(h) for h in index.ledger.headers),
        **_spent(index, [*made.ingests, *made.trials], made.answers, made.verdicts),
    }


def _spent(
    index: LedgerIndex, embedded: list[Header], answers: list[Header], verdicts: list[Header]
) -> dict[str, float | None]:
    calls = [(index.ledger.body(h, AnswerBody).call, h.reader) for h in answers]
    calls += [(index.ledger.body(h, VerdictBody).call, h.judge) for h in verdicts]
    made = [(call, config) for call, config in calls if call and config]
    tokens = [total for call, _ in made if (total := tokens_of(call)) is not None]
    dollars = [cost(call, str(index.config(config).settings.get("model"))) for call, config in made]
    for header in embedded:
        model, usage = embedding_of(index, header), usage_of(index, header)
        if model is not None and usage and usage["embedding_requests"]:
            tokens += [usage["embedding_tokens"]] if "embedding_tokens" in usage else []
            dollars.append(embedding_cost(usage, model))
    known = [d for d in dollars if d is not None]
    return {
        "spent": sum(tokens) if tokens else None,
        "usd": round(sum(known), 6) if known and len(known) == len(dollars) else None,
    }


def _next(index: LedgerIndex, place: Place, made: Made, tasks: int) -> str:
    """The command that goes on from here. What was given up isn't asked for again."""
    where = f" --benchmark {place.benchmark}"
    if place.system is None:
        return f"memtrials replay SYSTEM{where}"
    given_up = Counter(
        f.stage for (key, n), f in _failures(index, place).items() if n == 1 and index.given_up((key, n))
    )
    name = index.config(place.system).name
    if not name.startswith("imported-"):
        lives = _lives(index, place.benchmark)
        asked = _asked(index, place)
        if len({h.task for h in made.ingests}) + given_up["replay"] < tasks - _left_out(index, place, lives):
            file = "" if name in systems.names() else ".toml"  # a user's own; where it lies isn't recorded
            return f"memtrials replay {shlex.quote(name + file)}{asked if lives else ''}{where}"
        queries = sum(len(index.task(place.benchmark, h.task or "").queries) for h in made.ingests)
        if len({(index.parent(h).id, h.query) for h in made.trials}) + given_up["fetch"] < queries:
            return f"memtrials fetch {place.system}{asked}{where}"
    where += f" --system {place.system}"
    if not benchmarks.find(place.benchmark).readers:
        return f"memtrials metrics{where}"
    reader = f" --reader {shlex.quote(index.config(place.reader).name)}" if place.reader else ""
    if len(_parents(index, made.answers)) + given_up["answer"] < len(made.trials):
        return f"memtrials answer{reader}{where}"
    if place.judge is None:
        return f"memtrials judge{where}"
    if _unjudged(index, place, made) > given_up["judge"]:
        return f"memtrials judge --judge {shlex.quote(index.config(place.judge).name)}{reader}{where}"
    return f"memtrials metrics{where}"


def _asked(index: LedgerIndex, place: Place) -> str:
    """The flags by which a place's fetch configuration differs from its system's own, as its records have it."""
    if place.fetch is None:
        return ""
    settings, own = index.config(place.fetch).settings, index.config(place.system or "").provenance.get("fetch", {})
    flags = "".join(f" --{n} {settings[n]}" for n in ("k", "order") if n in settings and settings[n] != own.get(n))
    flags += f" --budget {settings['budget']}" if "budget" in settings else ""
    return flags + (" --date-in-query" if settings.get("date_in_query") else "")


def _lives(index: LedgerIndex, benchmark: str) -> list[TaskBody]:
    """The scripted lives of a benchmark."""
    bodies = (index.task(name, task) for name, task in index.tasks if name == benchmark)
    return [body for body in bodies if body.scripted]


def _left_out(index: LedgerIndex, place: Place, lives: Sequence[TaskBody]) -> int:
    """How many of them a place's system can't be told of."""
    if not lives:
        return 0
    plugin = systems.plugin(str(index.config(place.system or "").settings["system"]))
    return sum(obstacle(plugin, body.needs) is not None for body in lives)


def _parents(index: LedgerIndex, headers: Iterable[Header]) -> set[str]:
    return {index.parent(h).id for h in headers}


def _unjudged(index: LedgerIndex, place: Place, made: Made) -> int:
    """How many verdicts are missing of the metrics that this judge has begun here."""
    benchmark = benchmarks.find(place.benchmark)
    count = 0
    for metric in map(benchmark.metric, {v.metric or "" for v in made.verdicts}):
        judged = _parents(index, (v for v in made.verdicts if v.metric == metric.name))
        parents = made.trials if metric.reads == "retrieval" else made.answers
        about = index.questions(place.benchmark, metric.asks)
        count += sum(p.id not in judged for p in parents if (p.task, p.query) in about)
    return count


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
