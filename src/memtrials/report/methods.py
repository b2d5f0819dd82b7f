"""methods: what a paper has to say of a run, from its records alone, and whom to cite. What isn't there is unknown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from memtrials import __version__, benchmarks
from memtrials.exchange.imported import PREFIX
from memtrials.index import LedgerIndex
from memtrials.judging.probing import probed
from memtrials.metrics.numbers import Report
from memtrials.records import (
    AnswerBody,
    ConfigBody,
    FailureBody,
    Header,
    IngestBody,
    Kind,
    VerdictBody,
    VoidBody,
    sha256,
)
from memtrials.selection import Chosen

UNKNOWN = "unknown"


def methods(index: LedgerIndex, chosen: Chosen, report: Report) -> str:
    """The paragraphs, an empty line, and BibTeX. report: the same selection's numbers, for the intervals they have."""
    told = [_data(index, chosen, name) for name in chosen.benchmarks]
    told += [*_systems(index, chosen), *_readers(index, chosen), *_judges(index, chosen)]
    told += [*_failures(index, chosen), *_void(index), _numbers(report)]
    return "\n".join([*told, "", *_citations(chosen.benchmarks)])


# --- what was run -----------------------------------------------------------------------------------------------


def _data(index: LedgerIndex, chosen: Chosen, name: str) -> str:
    tasks = [task for benchmark, task in index.tasks if benchmark == name and (name, task) in chosen.tasks]
    built = [task for benchmark, task in index.tasks if benchmark == name]
    release = index.task(name, built[0]).release
    questions = sum(place[0] == name for place in chosen.queries)
    files = ", ".join(f"{file.path} {file.sha256}" for file in release.files)
    known = "a known release" if release.known else "no known release"
    part = f"{len(tasks)} of {len(built)} tasks" if len(tasks) != len(built) else ""
    return (
        f"{name}: {_count(questions, 'question')} in {part or _count(len(tasks), 'task')}, built from {known} "
        f"(SHA-256 of its files: {files}).{_condition(name)}"
    )


def _condition(name: str) -> str:
    said = benchmarks.find(name).condition
    return f" {said[0].upper()}{said[1:]}." if said else ""


def _systems(index: LedgerIndex, chosen: Chosen) -> list[str]:
    """What each system is, how it was asked and how often."""
    told = []
    for (benchmark, system, fetch), trials in _grouped(index, chosen, "retrieval", "system", "fetch").items():
        body, asked = index.config(system), index.config(fetch)
        states = {index.parent(trial).id: index.parent(trial) for trial in trials}
        versions = {index.ledger.body(state, IngestBody).system_version or UNKNOWN for state in states.values()}
        how = _settings(asked, without=("role", "system", "name"))
        role = "a control" if body.provenance.get("control") else "a system"
        if _is_imported(body):
            role = "results that others made, imported"
        told.append(
            f"{body.name} ({system}), {role}, with {_settings(body)}, version {', '.join(sorted(versions))}, was asked "
            f"on {benchmark} with {how or UNKNOWN} ({fetch}): {_made(trials, 'retrieval')}"
            f" on {_count(len(states), 'state')}."
        )
    return told


def _readers(index: LedgerIndex, chosen: Chosen) -> list[str]:
    told = []
    for (benchmark, reader), answers in _grouped(index, chosen, "answer", "reader").items():
        body = index.config(reader)
        returned = {c.model_returned for a in answers if (c := index.ledger.body(a, AnswerBody).call) is not None}
        told.append(
            f"Answers on {benchmark} are by {_model(body, returned)} ({reader}), reader profile "
            f"{body.settings.get('profile', _absent(body))}, prompts {_prompts(body)}, "
            f"parameters {_parameters(body)}: {_made(answers, 'answer')}."
        )
    return told


def _judges(index: LedgerIndex, chosen: Chosen) -> list[str]:
    told = []
    for (benchmark, judge), verdicts in _grouped(index, chosen, "verdict", "judge").items():
        own = [verdict for verdict in verdicts if probed(verdict) is None]
        body = index.config(judge)
        returned = {c.model_returned for v in verdicts if (c := index.ledger.body(v, VerdictBody).call) is not None}
        metrics = ", ".join(sorted({verdict.metric or "" for verdict in own}))
        probes = f" It was also shown {_count(len(verdicts) - len(own), 'constructed answer')}."
        told.append(
            f"Verdicts on {benchmark}{f' ({metrics})' if metrics else ''} are by {_model(body, returned)} ({judge}), "
            f"prompts {_prompts(body)}, parameters {_parameters(body)}: {_made(own, 'verdict')}."
            f"{probes if len(own) < len(verdicts) else ''}"
        )
    return told


def _grouped(index: LedgerIndex, chosen: Chosen, kind: Kind, *roles: str) -> dict[tuple[str, ...], list[Header]]:
    """Selected records of a kind by benchmark and configurations, in file order."""
    found: dict[tuple[str, ...], list[Header]] = {}
    for header in index.of(kind):
        if header.benchmark in chosen.benchmarks and chosen.holds(header):
            who = (header.benchmark or "", *(getattr(header, role) or "" for role in roles))
            found.setdefault(who, []).append(header)
    return found


def _made(some: Sequence[Header], what: str) -> str:
    """How many records of how many questions, and how often each was repeated."""
    made = Counter((h.task, h.query, h.system, h.fetch, h.reader, h.metric) for h in some)
    questions = len({(h.task, h.query) for h in some})
    times = sorted(set(made.values()))
    each = "each once" if times == [1] else f"{'–'.join(map(str, dict.fromkeys((times[0], times[-1]))))} times each"
    return f"{_count(len(some), what)} of {_count(questions, 'question')}, {each}" if some else f"no {what}"


def _count(number: int, what: str) -> str:
    plural = f"{what[:-1]}ies" if what.endswith("y") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"


def _is_imported(body: ConfigBody) -> bool:
    return body.settings.get("system") == PREFIX


def _absent(body: ConfigBody) -> str:
    """What stands for something that a configuration doesn't have: rules have no prompts, of imports nobody knows."""
    return UNKNOWN if _is_imported(body) or body.settings.get("model") not in ("offline", "system") else "none"


def _settings(body: ConfigBody, without: Iterable[str] = ("role", "name")) -> str:
    some = {name: value for name, value in body.settings.items() if name not in without and value is not None}
    return ", ".join(f"{name} = {_value(value)}" for name, value in some.items()) or ("no settings" if without else "")


def _value(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _model(body: ConfigBody, returned: Iterable[str | None]) -> str:
    """The model that was asked for, and what answered under that name."""
    model = body.settings.get("model")
    if model == "offline":
        return f"rules without a model, version {body.settings.get('version', body.settings.get('rules', UNKNOWN))}"
    if model == "system":
        return "the system itself"
    names = sorted(name for name in returned if name)
    answered = f" (answered as {', '.join(names)})" if names and names != [model] else ""
    return f"{model or 'an unknown model'}{answered}"


def _prompts(body: ConfigBody) -> str:
    """Where they are from, and the hash of their texts by name."""
    texts = {name: body.settings[name] for name in ("prompt", "guidance", "prompts") if name in body.settings}
    return f"{body.provenance.get('prompts', UNKNOWN)} (SHA-256 {sha256(texts)})" if texts else _absent(body)


def _parameters(body: ConfigBody) -> str:
    if "parameters" not in body.settings:
        return _absent(body)
    return ", ".join(f"{k} = {_value(v)}" for k, v in body.settings["parameters"].items()) or "the provider's defaults"


def _failures(index: LedgerIndex, chosen: Chosen) -> list[str]:
    """Work that failed and that no later run did, by stage and cause."""
    left = Counter(
        (some[-1].stage or UNKNOWN, index.ledger.body(some[-1], FailureBody).cause)
        for work, some in index.failures.items()
        if work not in index.done and some[-1].benchmark in chosen.benchmarks and chosen.holds(some[-1])
    )
    told = [f"{count} in {stage} through the {cause}" for (stage, cause), count in sorted(left.items())]
    return [f"Work that failed and has no result: {', '.join(told)}."] if told else []


def _void(index: LedgerIndex) -> list[str]:
    bodies = [index.ledger.body(header, VoidBody) for header in index.of("void")]
    if not bodies:
        return []
    right, wrong = (sum(getattr(body, name) for body in bodies) for name in ("right", "wrong"))
    return [f"Results were voided {_count(len(bodies), 'time')}, {right} right and {wrong} wrong verdicts among them."]


# --- numbers ----------------------------------------------------------------------------------------------------


def _numbers(report: Report) -> str:
    """How scores become numbers, and the intervals that these have."""
    of_answers = (
        " of the mean over answers of the mean over verdicts" if any(n.cell.reader for n in report.numbers) else ""
    )
    told = [
        f"A question's score is the mean over its states of the mean over retrievals{of_answers}"
        if report.view is None
        else f"A question's score is that of its {report.view} record"
    ]
    if any(n.unit == "value" for n in report.numbers):
        told.append("values of whole trials have no intervals; their percentiles are by nearest rank")
    shown = [n for n in report.numbers if n.interval is not None]
    wilson = any(n.unit == "share" and n.types is None for n in shown)
    strata = any(n.types is not None for n in shown)
    other = any(n.unit not in ("share",) and n.types is None for n in shown)
    if wilson:
        told.append(
            "95 % intervals of shares are Wilson's at an effective sample size, n over the cluster-robust design "
            "effect, with Student's t at one degree of freedom less than there are clusters"
        )
    if strata:
        told.append("those of means over types use the variance of the stratified mean in the same form")
    if other:
        told.append("those of other means are cluster-robust t intervals")
    tests = sorted({one.found.test for one in report.differences if one.found is not None})
    if tests:
        told.append(f"differences are paired by question and tested by clusters ({', '.join(tests)}), with Holm's p")
    return f"{'; '.join(told)}. Computed by memtrials {__version__}."


# --- citations --------------------------------------------------------------------------------------------------


def _citations(names: Iterable[str]) -> list[str]:
    """BibTeX of the benchmarks and of memtrials."""
    found = {name.partition("@")[0]: dict(benchmarks.find(name).reference) for name in names}
    found["memtrials"] = {"title": "memtrials", "note": f"Version {__version__}"}
    return [_entry(key, fields) for key, fields in found.items()]


def _entry(key: str, fields: dict[str, str]) -> str:
    lines = "".join(f"  {name} = {{{value}}},\n" for name, value in fields.items())
    return f"@{'inproceedings' if 'booktitle' in fields else 'misc'}{{{key},\n{lines}}}"
