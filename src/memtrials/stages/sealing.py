"""seal and verify: what a ledger said, so that anyone can tell later whether it still does.

A seal is one JSON file whose first line says what class of numbers it holds. It is cited by its own SHA-256, which
stands nowhere in it. `verify` checks the ledger's bytes and computes every number again in three ways.
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
from memtrials.sealing.environment import environment
from memtrials.sealing.files import changed_files, file_sha256, read_object, write_once
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
        "data": {name: _data(index, name) for name in index.benchmarks},
        "configurations": {name: _configuration(index, name) for name in index.configs},
        "environment": environment(),
        "fingerprints": prefix.fingerprints(ledger),
    }


def headline(index: LedgerIndex, options: Options, view: View | None = None) -> list[dict[str, Any]]:
    """The scores of a ledger as `metrics --format json` has them, the class first; tokens and times aren't scores."""
    rows = as_json(fold(index, MetricsRequest(view=view), options))["numbers"]
    scores = [r for r in rows if r["unit"] in SCORES and (r["value"] is not None or r["score"] is not None)]
    return [json.loads(json.dumps({"class": row["class"], **row}, default=list)) for row in scores]


def _title(rows: Sequence[Mapping[str, Any]], selection: Selection) -> str:
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


def selection_of(flags: Mapping[str, Any]) -> Selection:
    """The selection of these flags, as a seal or plan holds them. Raises UserError for any other."""
    try:
        return msgspec.convert(flags, Selection)
    except msgspec.ValidationError as error:
        raise UserError(f"the sealed selection isn't one ({error})") from None


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
    content = read_object(path)
    if not {"seal", "form", "ledger", "selection", "headline", "fingerprints"} <= content.keys():
        raise UserError(f"{path}: not the seal of a ledger; `memtrials seal` writes one")
    if content["form"] > FORM:
        raise UserError(f"{path}: a seal of form {content['form']}, this version reads up to {FORM}; update memtrials")
    return content


def ledger_of(path: Path, content: Mapping[str, Any]) -> Path | None:
    """The ledger beside a seal that has the name it had then, if it is there."""
    beside = path.with_name(str(content["ledger"]["name"]))
    return beside if beside.is_file() else None


def verify(path: Path, content: Mapping[str, Any], trials: Path, settings: Settings) -> Verified:
    """Compare a ledger with its seal. path, content: the seal. Raises UserError for a ledger that can't be read."""
    found = Verified(str(content["seal"]), file_sha256(path))
    was = content["ledger"]
    if not prefix.is_intact(trials, was):
        found.failures = prefix.differences(trials, was, content["fingerprints"])
        return found
    options = Options(trials, settings, selection_of(content["selection"]))
    with Ledger.open(trials, first=was["records"]) as ledger, Ledger.open(trials) as whole:
        _recompute(found, content, ledger, options)
        found.facts.append(_unsealed(ledger, whole))
        looked = scrutinise(LedgerIndex(ledger, void_too=True))
        shown = _shown(LedgerIndex(ledger), content["headline"])
        found.warnings += warnings(looked, shown)
        found.facts += _facts(looked, shown)
        if len(whole.headers) > len(ledger.headers):
            later = warnings(scrutinise(LedgerIndex(whole, void_too=True)), shown)
            found.warnings += [f"since it was sealed: {one}" for one in later if one not in found.warnings]
    return found


def _recompute(found: Verified, content: Mapping[str, Any], ledger: Ledger, options: Options) -> None:
    every = LedgerIndex(ledger, void_too=True)
    ways = [headline(LedgerIndex(ledger), options), headline(every, options), headline(every, options, "first")]
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
    if missing:
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
        if cell.judge is not None:
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
