"""plan: what will be measured, written down before a verdict exists, and what was kept of it.

A plan holds the hash of the ledger as it was. Whoever wants to be believed publishes the plan's own SHA-256 then.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from memtrials import benchmarks, systems
from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex
from memtrials.judging.probing import probed
from memtrials.ledger import Ledger
from memtrials.llm.money import cost
from memtrials.records import AnswerBody, Call, FailureBody, Header, VerdictBody, now
from memtrials.sealing import prefix
from memtrials.sealing.contents import read_content
from memtrials.sealing.files import file_sha256, write_once
from memtrials.sealing.findings import Kept
from memtrials.selection import Chosen, choose
from memtrials.stages.common import Options
from memtrials.stages.sealing import as_text, flags_of, selection_of

FORM = 1


@dataclass(frozen=True)
class PlanRequest:
    """What is planned. systems: names or TOML files. reference: the one that all others are compared with (None: all
    pairs). repeat: trials of each question. max_cost, max_requests: of all model calls for these systems."""

    systems: tuple[str, ...]
    metric: str
    reference: str | None = None
    reader: str | None = None
    judge: str | None = None
    repeat: int = 1
    max_cost: float | None = None
    max_requests: int | None = None


class Planned(NamedTuple):
    """A plan that was written: where, its SHA-256, its first line."""

    path: Path
    sha256: str
    title: str


def plan(request: PlanRequest, options: Options, out: Path | None = None) -> Planned:
    """Write a plan to a new file [default: beside the ledger]. Raises UserError when a verdict on one of the questions
    exists for one of these systems, void or not, for unknown names, or when the file exists."""
    with Ledger.open(options.trials) as ledger:
        content = planned(request, options, LedgerIndex(ledger))
    path = out or options.trials.with_name(f"{options.trials.stem}.plan.json")
    return Planned(path, write_once(path, as_text(content).encode()), content["plan"])


def planned(request: PlanRequest, options: Options, index: LedgerIndex) -> dict[str, Any]:
    """The content of a plan. Raises UserError as `plan` does."""
    selection = options.selection
    if selection.systems or selection.configs:
        raise UserError("plan takes systems as arguments, and no --system or --config: they may not exist yet")
    chosen = choose(index, selection, "unit")
    if len(chosen.benchmarks) != 1:
        raise UserError(
            f"a plan is about one benchmark; {index.ledger.path} holds {', '.join(chosen.benchmarks) or 'none'}; "
            "build one, or name it with --benchmark"
        )
    (name,) = chosen.benchmarks
    benchmark = benchmarks.find(name)
    if request.metric not in (known := [metric.name for metric in benchmark.metrics]):
        raise unknown("metric", request.metric, known)
    specs = {spec.name: spec for spec in (systems.load(system, options.settings) for system in request.systems)}
    if request.reference is not None and request.reference not in specs:
        raise unknown("system of this plan", request.reference, specs)
    questions = _questions(index, name, request.metric, chosen)
    before = _verdicts(index, index.ledger.headers, name, questions)
    for system in specs:
        if count := before.pop(system, 0):
            raise UserError(
                f"{count} verdicts of {system} on these questions are in {index.ledger.path} already: what is known "
                "can't be planned; plan in a new ledger, or on other questions (--split test)"
            )
    members = [spec.name for spec in specs.values() if not spec.plugin.control]
    pairs = (
        [(request.reference, other) for other in members if other != request.reference]
        if request.reference
        else list(combinations(members, 2))
    )
    title = (
        f"{request.metric} of {', '.join(specs)} on {name}: {len(questions)} questions, {request.repeat} trials each"
    )
    task = next(task for built, task in index.tasks if built == name)
    return {
        "plan": title,
        "form": FORM,
        "planned_at": now(),
        "ledger": prefix.describe(index.ledger),
        "benchmark": name,
        "data": index.task(name, task).release.sha256,
        "selection": flags_of(selection),
        "primary": request.metric,
        "systems": {spec.name: spec.id for spec in specs.values()},
        "comparisons": [list(pair) for pair in pairs],
        "reader": request.reader,
        "judge": request.judge,
        "n": len(questions),
        "repeat": request.repeat,
        "budget": {"max_cost": request.max_cost, "max_requests": request.max_requests},
        "verdicts_of_others": before,
    }


def _questions(index: LedgerIndex, benchmark: str, metric: str, chosen: Chosen) -> set[tuple[str, str]]:
    """The selected (task, query) that a metric asks about."""
    about = index.questions(benchmark, benchmarks.find(benchmark).metric(metric).asks)
    return {(task, query) for task, query in about if (benchmark, task, query) in chosen.queries}


def _verdicts(
    index: LedgerIndex, headers: Iterable[Header], benchmark: str, questions: set[tuple[str, str]]
) -> dict[str, int]:
    """Verdicts on these questions by the system's name, void or not."""
    found: dict[str, int] = defaultdict(int)
    for h in headers:
        asked = (h.task, h.query) in questions and h.benchmark == benchmark
        if h.kind == "verdict" and asked and h.system and not probed(h):
            found[index.config(h.system).name] += 1
    return dict(found)


# --- what was kept ----------------------------------------------------------------------------------------------


def kept(path: Path, seal: Mapping[str, Any], trials: Path) -> list[Kept]:
    """What a sealed ledger kept of a plan, one after the other. Raises UserError when the file isn't a plan, or is
    one of a newer form, or names what there isn't."""
    content = read_content(path, "plan", FORM)
    if content["primary"] not in (known := [m.name for m in benchmarks.find(content["benchmark"]).metrics]):
        raise unknown(f"metric in {path}", content["primary"], known)
    with Ledger.open(trials, first=seal["ledger"]["records"]) as ledger:
        index = LedgerIndex(ledger)
        rows = [r for r in seal["headline"] if r["benchmark"] == content["benchmark"] and not r["part"]]
        primary = [row for row in rows if row["metric"] == content["primary"]]
        return [
            Kept("the file", None, f"{content['plan']}; SHA-256 {file_sha256(path)}"),
            _beforehand(content, index),
            _data(content, seal),
            _selected(content, seal),
            _primary(content, rows),
            *_systems(content, primary),
            *_comparisons(content, primary),
            *(_role(role, content, primary) for role in ("reader", "judge") if content[role]),
            _n(content, primary),
            _repeats(content, index),
            *_budget(content, index),
        ]


def _beforehand(content: Mapping[str, Any], index: LedgerIndex) -> Kept:
    was = content["ledger"]
    with Ledger.open(index.ledger.path, first=was["records"]) as then:
        is_so = {**was, **prefix.describe(then), "name": was["name"]} == was
    if was["records"] > len(index.ledger.headers) or not is_so:
        return Kept("before any verdict", False, "the plan was made for another ledger, or this one was changed")
    chosen = choose(index, selection_of(content), "unit")
    questions = _questions(index, content["benchmark"], content["primary"], chosen)
    before = _verdicts(index, index.ledger.headers[: was["records"]], content["benchmark"], questions)
    known = sum(before.get(name, 0) for name in content["systems"])
    told = f"the ledger held {was['records']} records, {known} of them verdicts of these systems on these questions"
    return Kept("before any verdict", not known, told)


def _data(content: Mapping[str, Any], seal: Mapping[str, Any]) -> Kept:
    found = seal["data"].get(content["benchmark"], {}).get("sha256")
    return Kept("data", found == content["data"], f"{content['data'][:12]}… planned, {str(found)[:12]}… sealed")


def _selected(content: Mapping[str, Any], seal: Mapping[str, Any]) -> Kept:
    ignored = ("benchmark", "systems", "configs")
    one, other = (
        {k: v for k, v in told.items() if k not in ignored} for told in (content["selection"], seal["selection"])
    )
    return Kept("questions", one == other, f"{_flags(one)} planned, {_flags(other)} sealed")


def _flags(told: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {json.dumps(value)}" for name, value in told.items()) or "all"


def _primary(content: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Kept:
    metrics = list(dict.fromkeys(row["metric"] for row in rows))
    others = [metric for metric in metrics if metric != content["primary"]]
    told = f"{content['primary']} is primary" + (f"; {', '.join(others)} are secondary" if others else "")
    return Kept("primary metric", content["primary"] in metrics, told)


def _systems(content: Mapping[str, Any], primary: Sequence[Mapping[str, Any]]) -> list[Kept]:
    found = {row["system"]: row["system_name"] for row in primary}
    said = []
    for name, planned_id in content["systems"].items():
        others = [i for i, called in found.items() if called == name and i != planned_id]
        told = f"{planned_id} was measured" if planned_id in found else f"{planned_id} has no {content['primary']}"
        said.append(
            Kept(f"system {name}", planned_id in found, told + (f"; so was {', '.join(others)}" if others else ""))
        )
    strangers = sorted({called for called in found.values() if called not in content["systems"]})
    return [
        *said,
        *([Kept("no other system", False, f"{', '.join(strangers)} were measured, too")] if strangers else []),
    ]


def _comparisons(content: Mapping[str, Any], primary: Sequence[Mapping[str, Any]]) -> list[Kept]:
    ids = content["systems"]
    there = {row["system"] for row in primary if row["value"] is not None}
    return [
        Kept(f"comparison {one} : {other}", {ids[one], ids[other]} <= there, "both need the primary metric's headline")
        for one, other in content["comparisons"]
    ]


def _role(role: str, content: Mapping[str, Any], primary: Sequence[Mapping[str, Any]]) -> Kept:
    found = sorted({row[f"{role}_name"] for row in primary if row[f"{role}_name"]})
    return Kept(role, found == [content[role]], f"{content[role]} planned, {', '.join(found) or 'none'} sealed")


def _n(content: Mapping[str, Any], primary: Sequence[Mapping[str, Any]]) -> Kept:
    mine = [row for row in primary if row["system"] in content["systems"].values()]
    found = sorted({row["n"] for row in mine})
    told = f"{content['n']} planned, {' and '.join(map(str, found)) or 'none'} scored"
    return Kept("n", found == [content["n"]], told)


def _repeats(content: Mapping[str, Any], index: LedgerIndex) -> Kept:
    trials: dict[tuple[str | None, ...], int] = defaultdict(int)
    for h in index.of("retrieval"):
        if h.benchmark == content["benchmark"] and h.system in content["systems"].values():
            trials[h.system, h.fetch, h.task, h.query] += 1
    counts = sorted(set(trials.values()))
    made = " to ".join(str(count) for count in dict.fromkeys((counts[0], counts[-1]))) if counts else "none"
    told = f"{content['repeat']} trials of each question planned, {made} made"
    return Kept("repeats", counts == [content["repeat"]], told)


def _budget(content: Mapping[str, Any], index: LedgerIndex) -> list[Kept]:
    """Model calls for the planned systems: answers, verdicts and what failed, void or not."""
    caps = content["budget"]
    calls = [pair for h in index.ledger.headers if h.system in content["systems"].values() for pair in _call(index, h)]
    requests = sum(call.attempts for call, _ in calls)
    dollars = [cost(call, model) for call, model in calls]
    known = [d for d in dollars if d is not None]
    spent = sum(known) if len(known) == len(dollars) else None
    said = []
    if (cap := caps["max_requests"]) is not None:
        said.append(Kept("budget", requests <= cap, f"{cap} requests planned, {requests} made"))
    if (cap := caps["max_cost"]) is not None:
        told = f"{cap:g} dollars planned, {'unknown' if spent is None else f'{spent:.4f}'} spent"
        said.append(Kept("budget", None if spent is None else spent <= cap, told))
    return said


def _call(index: LedgerIndex, header: Header) -> list[tuple[Call, str]]:
    """The model call behind a record and the model, if there was one."""
    bodies: Mapping[str, type[AnswerBody | VerdictBody | FailureBody]] = {
        "answer": AnswerBody,
        "verdict": VerdictBody,
        "failure": FailureBody,
    }
    config = header.judge or header.reader
    if header.kind not in bodies or config is None:
        return []
    body = index.ledger.body(header, bodies[header.kind])
    model = str(index.config(config).settings.get("model"))
    return [(body.call, model)] if body.call is not None else []
