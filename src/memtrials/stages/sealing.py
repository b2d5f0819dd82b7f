"""seal and verify: what a ledger said, so that anyone can tell later whether it still does.

A seal is one JSON file whose first line says what class of numbers it holds. It is cited by its own SHA-256, which
stands nowhere in it. `verify` checks the ledger's bytes and what the seal says of them, and computes every number again
in three ways.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.metrics.numbers import Cell
from memtrials.records import now, sha256, text_sha256
from memtrials.report.tables import CLASSES, as_json
from memtrials.sealing import prefix
from memtrials.sealing.contents import read_content
from memtrials.sealing.environment import environment
from memtrials.sealing.files import changed_files, file_sha256, write_once
from memtrials.sealing.findings import Recomputed, Verified, is_same
from memtrials.sealing.scrutiny import Family, Scrutiny, family, scrutinise, warnings
from memtrials.selection import Selection
from memtrials.settings import Settings
from memtrials.stages.common import Options
from memtrials.stages.metrics import MetricsRequest, View, fold

FORM = 1
PLACE = ("benchmark", "system", "fetch", "reader", "judge", "metric", "part")
"""What names a number in a seal."""
SCORES = ("share", "score", "value")
"""The units of what is sealed."""
PROMPTS = ("prompt", "prompts", "guidance")
"""Settings of a configuration that hold prompt texts."""


class Sealed(NamedTuple):
    """A seal that was written: where, its SHA-256, and its first line."""

    path: Path
    sha256: str
    title: str


# --- seal -------------------------------------------------------------------------------------------------------


def seal(options: Options, out: Path | None = None) -> Sealed:
    """Seal what the ledger holds now. out: the new file [default: beside the ledger, named by the sealed bytes].

    Raises UserError when there is nothing to seal, or the file exists.
    """
    with Ledger.open(options.trials) as ledger:
        content = sealed(ledger, options)
    path = out or options.trials.with_name(f"{options.trials.stem}.seal-{content['ledger']['sha256'][:8]}.json")
    return Sealed(path, write_once(path, as_text(content).encode()), content["seal"])


def sealed(ledger: Ledger, options: Options) -> dict[str, Any]:
    """The content of a seal of this ledger, as it was read. Raises UserError where no number could be sealed."""
    index = LedgerIndex(ledger)
    rows = headline(index, options)
    if not rows:
        comes = "judge comes first, or replay where lives are scripted"
        raise UserError(f"{ledger.path}: no score is selected, so there is nothing to seal; {comes}")
    return {
        "seal": _title(rows, options.selection),
        "form": FORM,
        "sealed_at": now(),
        "ledger": prefix.describe(ledger),
        "selection": flags_of(options.selection),
        "headline": rows,
        **_made_with(index),
        "environment": environment(),
        "fingerprints": prefix.fingerprints(ledger),
    }


def headline(index: LedgerIndex, options: Options, view: View | None = None) -> list[dict[str, Any]]:
    """The scores of a ledger as `metrics --format json` has them, the class first; tokens and times aren't scores."""
    rows = as_json(fold(index, MetricsRequest(view=view), options))["numbers"]
    scores = [r for r in rows if r["unit"] in SCORES and (r["value"] is not None or r["score"] is not None)]
    return [json.loads(json.dumps({"class": row["class"], **row}, default=list)) for row in scores]


def _title(rows: Sequence[Mapping[str, Any]], selection: Selection) -> str:
    """The first line of a seal. `verify` compares it, so other words for the same numbers are another form."""
    classes = dict.fromkeys(row["class"] for row in rows if row["class"])
    meaning = ", ".join(f"class {c}: {CLASSES[c]}" for c in classes) or "no class: neither reader nor judge"
    counts = {what: list(dict.fromkeys(row[what] for row in rows)) for what in ("benchmark", "system")}
    part = f" (subset: {', '.join(f'{k} = {v}' for k, v in flags_of(selection).items())})" if selection.is_part else ""
    return (
        f"{meaning}; {len(rows)} numbers of {len(counts['system'])} systems on {', '.join(counts['benchmark'])}{part}"
    )


def flags_of(selection: Selection) -> dict[str, Any]:
    """The flags of a selection that were given."""
    usual, given = (msgspec.to_builtins(some) for some in (Selection(), selection))
    return {name: value for name, value in given.items() if value != usual[name]}


def selection_of(content: Mapping[str, Any]) -> Selection:
    """The selection of a seal or plan that was checked."""
    return msgspec.convert(content["selection"], Selection)


def _made_with(index: LedgerIndex) -> dict[str, dict[str, Any]]:
    """The data of every benchmark and every configuration, as JSON has them."""
    found = {
        "data": {name: _data(index, name) for name in index.benchmarks},
        "configurations": {name: _configuration(index, name) for name in index.configs},
    }
    plain: dict[str, dict[str, Any]] = json.loads(_compact(found))
    return plain


def _data(index: LedgerIndex, benchmark: str) -> dict[str, Any]:
    release = index.task(benchmark, next(task for name, task in index.tasks if name == benchmark)).release
    return {
        "sha256": release.sha256,
        "known": release.known,
        "files": msgspec.to_builtins(release.files, str_keys=True),
    }


def _configuration(index: LedgerIndex, name: str) -> dict[str, Any]:
    """A configuration with its prompts' hashes in place of their texts. sha256: what its id begins with."""
    body = index.config(name)
    prompts = {key: _hashes(body.settings[key]) for key in PROMPTS if key in body.settings}
    rest = {key: value for key, value in body.settings.items() if key not in PROMPTS}
    return {"role": body.role, "name": body.name, "sha256": sha256(body.settings), "prompts": prompts, "settings": rest}


def _hashes(texts: Any) -> Any:
    return {name: _hashes(text) for name, text in texts.items()} if isinstance(texts, dict) else text_sha256(str(texts))


def as_text(content: Mapping[str, Any]) -> str:
    """JSON for people, too: a key a line, numbers and configurations a line each; the first line says the class."""
    lines = [f"{json.dumps(key)}: {_value(value)}" for key, value in content.items()]
    return "{" + ",\n ".join(lines) + "}\n"


def _value(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n  " + ",\n  ".join(_compact(item) for item in value) + "\n ]"
    if isinstance(value, dict) and any(isinstance(item, dict) for item in value.values()):
        return "{\n  " + ",\n  ".join(f"{json.dumps(k)}: {_compact(v)}" for k, v in value.items()) + "\n }"
    return _compact(value)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


# --- verify -----------------------------------------------------------------------------------------------------


def read_seal(path: Path) -> dict[str, Any]:
    """A seal of a ledger. Raises UserError when the file isn't one, or of a newer form."""
    return read_content(path, "seal", FORM)


def ledger_of(path: Path, content: Mapping[str, Any]) -> Path | None:
    """The ledger beside a seal that has the name it had then, if it is there."""
    beside = path.parent / Path(content["ledger"]["name"]).name
    return beside if beside.is_file() else None


def verify(path: Path, content: Mapping[str, Any], trials: Path, settings: Settings) -> Verified:
    """Compare a ledger with its seal. path, content: the seal. Raises UserError for a ledger that can't be read."""
    options = Options(trials, settings, selection_of(content))
    found = Verified(_title(content["headline"], options.selection), file_sha256(path))
    if content["seal"] != found.seal:
        found.failures.append(f"title: {_compact(content['seal'])}, but what is sealed is {_compact(found.seal)}")
    was = content["ledger"]
    if not prefix.is_intact(trials, was):
        found.failures += prefix.differences(trials, was, content["fingerprints"])
        return found
    with Ledger.open(trials, first=was["records"]) as ledger, Ledger.open(trials) as whole:
        if differing := _differing(was, prefix.extent(ledger)):
            found.failures.append(f"ledger: not what its first {was['records']} records are: {'; '.join(differing)}")
            return found
        if content["fingerprints"] != prefix.fingerprints(ledger):
            found.failures.append("fingerprints: not those of the sealed records")
        index, every = LedgerIndex(ledger), LedgerIndex(ledger, void_too=True)
        for part, computed in _made_with(index).items():
            found.failures += _untrue(part, content[part], computed)
        _recompute(found, content, index, every, options)
        found.facts.append(_unsealed(ledger, whole))
        looked = scrutinise(every)
        shown = _shown(index, content["headline"])
        found.warnings += warnings(looked, shown)
        found.facts += _facts(looked, shown)
        if len(whole.headers) > len(ledger.headers):
            later = warnings(scrutinise(LedgerIndex(whole, void_too=True)), shown)
            found.warnings += [f"since it was sealed: {one}" for one in later if one not in found.warnings]
    return found


def _recompute(
    found: Verified, content: Mapping[str, Any], index: LedgerIndex, every: LedgerIndex, options: Options
) -> None:
    """Compute the numbers again. every: counts what was voided, too."""
    ways = [headline(index, options), headline(every, options), headline(every, options, "first")]
    published, voided, first = ({_place(row): row for row in rows} for rows in ways)
    for row in content["headline"]:
        place = _place(row)
        one = Recomputed(row, *(_quoted(rows.get(place)) for rows in (published, voided, first)))
        found.numbers.append(one)
        differing = _differing(row, published.get(place, {}))
        if differing:
            found.failures.append(f"{one.name}: not what is computed from the sealed records: {'; '.join(differing)}")
    sealed_places = {_place(row) for row in content["headline"]}
    missing = [place for place in published if place not in sealed_places]
    if len(sealed_places) < len(content["headline"]):
        found.failures.append("headline: some numbers are sealed twice")
    if not sealed_places:
        found.failures.append(f"headline: no number is sealed, {len(published)} computed")
    elif missing:
        found.warnings.append(f"left out of the seal: {len(missing)} numbers that the sealed records hold")


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in PLACE)


def _quoted(row: Mapping[str, Any] | None) -> float | None:
    return None if row is None else row["value"] if row["value"] is not None else row["score"]


def _differing(row: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """The fields of a sealed number that aren't the same now; those that only one version knows aren't compared."""
    if not again:
        return ["there is no such number"]
    return [
        f"{name} {_compact(value)} sealed, {_compact(again[name])} computed"
        for name, value in row.items()
        if name in again and not is_same(value, again[name])
    ]


def _untrue(part: str, sealed: Mapping[str, Any], computed: Mapping[str, Any]) -> list[str]:
    """What a part of a seal says that isn't so by the sealed records, a line for each entry."""
    said = []
    for name in dict.fromkeys((*sealed, *computed)):
        if name not in computed:
            said.append(f"{part} {name}: not in the sealed records")
        elif name not in sealed:
            said.append(f"{part} {name}: left out of the seal")
        elif not is_same(one := sealed[name], other := computed[name]):
            wrong = [
                key for key in dict.fromkeys((*one, *other)) if not is_same(one.get(key, ...), other.get(key, ...))
            ]
            said.append(f"{part} {name}: not what is in the sealed records: {', '.join(wrong)}")
    return said


def _unsealed(ledger: Ledger, whole: Ledger) -> str:
    added = whole.headers[len(ledger.headers) :]
    if not added:
        return f"all {len(ledger.headers)} records are sealed"
    kinds: dict[str, int] = defaultdict(int)
    for header in added:
        kinds[header.kind] += 1
    listed = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return (
        f"{len(ledger.headers)} records are sealed; {len(added)} unsealed ({whole.end - ledger.end:,} bytes): {listed}"
    )


def _shown(index: LedgerIndex, rows: Iterable[Mapping[str, Any]]) -> dict[Family, Collection[Cell]]:
    shown: dict[Family, set[Cell]] = defaultdict(set)
    for row in rows:
        cell = Cell(*(row[name] for name in Cell._fields))
        known = {cell.system, cell.reader or cell.judge, cell.judge} <= index.configs.keys()
        if cell.judge is not None and known:
            shown[family(index, cell, row["metric"])].add(cell)
    return dict(shown)


def _facts(looked: Scrutiny, shown: Mapping[Family, Collection[Cell]]) -> list[str]:
    """What was looked for and how much of it there is; warnings say the rest."""
    retries = looked.retries
    most = max((looked.configurations.get(family, 0) for family in shown), default=0)
    asked = f"{retries.failures} failures took {retries.attempts} attempts"
    return [
        f"voided after their verdict was known: {looked.voided.trials} trials",
        f"configurations of one system, reader and judge: {most} at most",
        f"content retries: {asked}; {retries.rescued} results came after replies of no use",
        f"repeats added after verdicts existed: {sum(looked.late.values()) or 'none'}",
    ]


def verify_folder(folder: Path) -> Verified:
    """Check the files that a folder's seal lists. Raises UserError when the seal can't be read."""
    names, wrong = changed_files(folder)
    found = Verified(f"{folder}: {len(names)} sealed files", file_sha256(folder / "seal.json"))
    found.failures = [f"{name}: {what}" for name, what in wrong.items()]
    return found
