"""audit: what people say of a sample of a judge's verdicts, and what follows for all of them (MEASURING §11).

`sample` writes two files. Annotators get the items: what the metric's judge was shown, and a column to fill in; no
verdict, system or judge. The key says which item is which, and how it was drawn; with it the verdicts are known, so it
isn't theirs to see. `score` reads both. Neither appends to the ledger.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec

from memtrials import benchmarks
from memtrials.benchmarks.base import Metric
from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex
from memtrials.judging.payloads import field_values
from memtrials.judging.probing import probed
from memtrials.ledger import Ledger
from memtrials.metrics import agreement, audit
from memtrials.metrics.audited import (
    Annotators,
    Audited,
    AuditReport,
    Compared,
    Judged,
    Key,
    Population,
    Sampled,
    Stratum,
)
from memtrials.metrics.differences import difference, holm
from memtrials.metrics.numbers import Cell, Place
from memtrials.metrics.statistics import mean_interval
from memtrials.records import AnswerBody, Header, RetrievalBody, VerdictBody
from memtrials.selection import choose
from memtrials.stages import metrics
from memtrials.stages.common import Options

FORMS = (".csv", ".jsonl")
RIGHT = "right"
ANSWERS = dict.fromkeys(("1", "yes", "y", "true", "right"), 1.0) | dict.fromkeys(
    ("0", "no", "n", "false", "wrong"), 0.0
)
"""What an annotator may write, in any case."""

MOST_TEXT = 2**31 - 1
"""Characters of one cell: a context may be longer than the 131,072 that the csv module reads by itself."""


# --- sample -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SampleRequest:
    """n: items in all, shared out over systems and verdicts. reader: None for all."""

    n: int
    seed: int
    out: Path
    metric: str | None = None
    judge: str | None = None
    reader: str | None = None


def sample(request: SampleRequest, options: Options) -> Sampled:
    """Draw items and write both files. Raises UserError for a name that isn't there, for several benchmarks, metrics or
    judges, too small a sample, and a file that exists."""
    if request.out.suffix not in FORMS:
        raise UserError(f"{request.out}: name a file that ends in {' or '.join(FORMS)}")
    with Ledger.open(options.trials) as ledger:
        index = LedgerIndex(ledger)
        key, metric, repeats = _draw(index, request, options)
        items = {one.item: one for some in key.populations for one in some.judged if one.item is not None}
        rows = [{"id": name, **_shown(index, key.benchmark, metric, items[name]), RIGHT: ""} for name in sorted(items)]
    key_path = request.out.with_name(request.out.stem + ".key.json")
    _write(key_path, msgspec.json.format(msgspec.json.encode(key), indent=1) + b"\n")
    try:
        _write(request.out, _as_csv(rows) if request.out.suffix == ".csv" else _as_lines(rows))
    except UserError:
        key_path.unlink()
        raise
    return Sampled(request.out, key_path, key, metric.about, repeats)


def _draw(index: LedgerIndex, request: SampleRequest, options: Options) -> tuple[Key, Metric, int]:
    chosen = choose(index, options.selection, "unit")
    judges = set(index.resolve(request.judge, "judge")) if request.judge else None
    readers = set(index.resolve(request.reader, "reader")) if request.reader not in (None, "all") else None
    verdicts = [
        h
        for h in index.of("verdict")
        if not probed(h)
        and chosen.holds(h)
        and (judges is None or h.judge in judges)
        and (readers is None or h.reader is None or h.reader in readers)
    ]
    benchmark = _only("benchmark", (h.benchmark for h in verdicts), None)
    metric = _only("metric", (h.metric for h in verdicts), request.metric)
    verdicts = [h for h in verdicts if h.metric == metric]
    judge = _only("judge", (h.judge for h in verdicts), None)
    firsts = _firsts(index, verdicts)
    populations = []
    fold = metrics.MetricsRequest(view="first", reader=request.reader, judge=judge, metrics=(metric,))
    shares = {n.cell: n for n in metrics.fold(index, fold, options).numbers if n.part is None}
    for cell, by_place in firsts.items():
        share, system = shares[cell], index.config(cell.system)
        judged = [_judged(index, header) for header in by_place.values()]
        populations.append(
            Population(
                system=cell.system,
                fetch=cell.fetch,
                reader=cell.reader,
                name=system.name,
                control=bool(system.provenance.get("control")),
                of=share.of,
                status=share.status or "partial",
                strata=[],
                judged=judged,
            )
        )
    ids = [one.verdict for some in populations for one in some.judged]
    name = _hash("audit", request.seed, request.n, *ids)[:12]
    key = Key(
        audit=name,
        benchmark=benchmark,
        metric=metric,
        judge=judge,
        judge_name=index.config(judge).name,
        seed=request.seed,
        populations=_with_draws(populations, request, name),
    )
    return key, benchmarks.find(benchmark).metric(metric), len(verdicts) - len(ids)


def _with_draws(populations: Sequence[Population], request: SampleRequest, name: str) -> list[Population]:
    """The populations with their strata, and items drawn: those whose hash is least, so that the same verdicts, number
    and seed draw the same ones. Items have another hash, so that their order tells nothing."""
    scores = [sorted({one.score for one in some.judged}, reverse=True) for some in populations]
    members = [
        [one for one in some.judged if one.score == score]
        for some, own in zip(populations, scores, strict=True)
        for score in own
    ]
    try:
        counts = iter(audit.allocate([len(some) for some in members], request.n))
    except ValueError as error:
        raise UserError(f"--n {request.n}: {error}; a stratum is one system's verdicts of one score") from None
    strata: list[Stratum] = []
    drawn: set[str] = set()
    for some, count in zip(members, counts, strict=True):
        strata.append(Stratum(some[0].score, len(some), count, count / len(some)))
        in_order = sorted(some, key=lambda one: _hash("draw", request.seed, one.verdict))
        drawn.update(one.verdict for one in in_order[:count])
    left = iter(strata)

    def named(one: Judged) -> Judged:
        if one.verdict not in drawn:
            return one
        return msgspec.structs.replace(one, item=_hash("item", name, one.verdict)[:12])

    return [
        msgspec.structs.replace(some, strata=[next(left) for _ in own], judged=list(map(named, some.judged)))
        for some, own in zip(populations, scores, strict=True)
    ]


def _only(what: str, found: Iterable[str | None], named: str | None) -> str:
    """The one name, or the named one. Raises UserError for none and for several."""
    names = list(dict.fromkeys(name for name in found if name))
    if not names:
        raise UserError("no verdict is selected; judge comes first, or check the selection")
    if named is not None:
        if named not in names:
            raise unknown(f"{what} with verdicts", named, names)
        return named
    if len(names) > 1:
        raise UserError(f"an audit is of one {what}; name one", [f"  --{what} {name}" for name in names])
    return names[0]


def _firsts(index: LedgerIndex, verdicts: Iterable[Header]) -> dict[Cell, dict[Place, Header]]:
    """Each question's first verdict in each cell, by trial, then answer, then itself."""

    def order(header: Header) -> list[int]:
        chain = [header]
        while chain[-1].kind not in ("ingest", "task"):
            chain.append(index.parent(chain[-1]))
        return [index.ledger.position(one.id) for one in reversed(chain)]

    found: dict[Cell, dict[Place, Header]] = defaultdict(dict)
    for header in sorted(verdicts, key=order):
        cell = Cell(header.benchmark or "", header.system or "", header.fetch or "", header.reader, header.judge)
        found[cell].setdefault((header.task or "", header.query or ""), header)
    return found


def _judged(index: LedgerIndex, header: Header) -> Judged:
    query = index.task(header.benchmark or "", header.task or "").query(header.query or "")
    score = index.ledger.body(header, VerdictBody).score
    return Judged(verdict=header.id, task=header.task or "", query=query.id, cluster=query.cluster, score=score)


def _shown(index: LedgerIndex, benchmark: str, metric: Metric, one: Judged) -> dict[str, str]:
    """What an annotator sees of an item: question, gold, and what else the metric's judge is shown, the answer last."""
    task = index.task(benchmark, one.task)
    made_from = index.parent(index.ledger.header(one.verdict))
    answer, context = None, ""
    if metric.reads == "answer":
        answer = index.ledger.body(made_from, AnswerBody).text
        made_from = index.parent(made_from)
    if "context" in metric.fields or metric.reads == "retrieval":
        context = index.ledger.body(made_from, RetrievalBody).context or ""
    known = field_values(context, task.query(one.query), answer, task.gold_of(one.query))
    others = [name for name in metric.fields if name not in ("query", "gold", "answer")]
    if metric.reads == "retrieval" and "context" not in others:
        others.append("context")
    shown = {"question": known["query"], "gold": known["gold"]} | {name: known[name] for name in others}
    return shown | ({"answer": known["answer"]} if metric.reads == "answer" else {})


def _hash(*parts: Any) -> str:
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def _as_csv(rows: Sequence[Mapping[str, str]]) -> bytes:
    """With a byte order mark, without which spreadsheets take UTF-8 for something else."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode("utf-8-sig", "backslashreplace")


def _as_lines(rows: Sequence[Mapping[str, str]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode("utf-8", "backslashreplace")


def _write(path: Path, content: bytes) -> None:
    """A new file. Raises UserError where there is one, which somebody may have filled in."""
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise UserError(f"{path} exists; move it away or name another --out") from None
    except OSError as error:
        raise UserError(f"{path}: can't be written ({error.strerror})") from None


# --- score ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ScoreRequest:
    """files: one for each annotator. key: None for the file that `sample` wrote beside the first. rates: sensitivity
    and specificity of the same judge, from a simple random sample or from outside."""

    files: tuple[Path, ...]
    key: Path | None = None
    rates: tuple[float, float] | None = None


def score(request: ScoreRequest, options: Options) -> AuditReport:
    """Read the annotations and estimate. Raises UserError for a key or file that can't be read, with every row that is
    wrong, and for a ledger that isn't the audited one."""
    key = _read_key(request.key or _beside(request.files[0]))
    by_file = {str(path): _annotations(path, key) for path in request.files}
    if len(by_file) < len(request.files):
        raise UserError("one file is named twice; each annotator has one of their own")
    labels = {item: sum(given[item] for given in by_file.values()) / len(by_file) for item in key.items}
    with Ledger.open(options.trials) as ledger:
        notes = _since(LedgerIndex(ledger), key)
    systems = [_audited(population, labels, request.rates) for population in key.populations]
    if any(p.status != "complete" for p in key.populations):
        notes.append(
            "questions without a verdict: a lower bound counts them as wrong, a partial result has no headline"
        )
    annotators = _agreement(by_file) if len(by_file) > 1 else None
    if annotators and annotators.differing:
        notes.append("where annotators differ, the estimates count the mean of their labels")
    return AuditReport(key, systems, _differences(systems, labels), annotators, notes)


def _beside(path: Path) -> Path:
    key = path.with_name(path.stem + ".key.json")
    if not key.exists():
        raise UserError(f"{key} isn't there; name the key that `audit sample` wrote with --key")
    return key


def _read_key(path: Path) -> Key:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Key)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not the key of an audit ({error})") from None


def _annotations(path: Path, key: Key) -> dict[str, float]:
    """The label of every item. Raises UserError with every row that is wrong, and items that are missing."""
    items = key.items
    found: dict[str, float] = {}
    problems = []
    for row, item, said in _rows(path):
        label = ANSWERS.get(said.lower())
        if item not in items:
            problems.append(f"{path}, row {row}: {item!r} isn't an item of audit {key.audit}")
        elif item in found:
            problems.append(f"{path}, row {row}: {item} is there twice")
        elif not said:
            problems.append(f"{path}, row {row} ({item}): {RIGHT} is empty")
        elif label is None:
            problems.append(f"{path}, row {row} ({item}): {RIGHT} is {said[:40]!r}, which is neither yes nor no")
        found[item] = -1.0 if label is None else label
    if missing := sorted(items.keys() - found.keys()):
        problems.append(
            f"{path}: {len(missing)} items are missing: {', '.join(missing[:5])}{' …' * (len(missing) > 5)}"
        )
    if problems:
        raise UserError(f"{path}: {len(problems)} problems; every item needs one row with yes or no", problems)
    return found


def _rows(path: Path) -> Iterator[tuple[int, str, str]]:
    """Row (as a spreadsheet or editor counts), item and what was said of it."""
    if path.suffix not in FORMS:
        raise UserError(f"{path}: annotations are a file that ends in {' or '.join(FORMS)}")
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; save it as CSV in UTF-8") from None
    if path.suffix == ".csv":
        csv.field_size_limit(MOST_TEXT)
        first = text.partition("\n")[0]
        separator = max(",;\t", key=first.count)  # some spreadsheets save with another than they read
        rows: Iterable[Any] = csv.DictReader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    else:
        rows = (line for line in text.split("\n"))
    number = 1 if path.suffix == ".csv" else 0
    try:
        for row in rows:
            number += 1
            if isinstance(row, str):
                if not row.strip():
                    continue
                row = json.loads(row)
            if not isinstance(row, dict) or not {"id", RIGHT} <= row.keys():
                raise UserError(f"{path}, row {number}: no id or no {RIGHT}; leave the columns as they are")
            item, said = (str("" if row[name] is None else row[name]).strip() for name in ("id", RIGHT))
            yield number, item, said
    except (csv.Error, json.JSONDecodeError) as error:
        raise UserError(f"{path}, row {number}: can't be read ({error})") from None


def _since(index: LedgerIndex, key: Key) -> list[str]:
    """What became of the ledger since. Raises UserError where it never held the audited verdicts."""
    then = {one.verdict for some in key.populations for one in some.judged}
    if strangers := then - {header.id for header in index.ledger.headers}:
        raise UserError(
            f"{index.ledger.path} lacks {len(strangers)} of the audited verdicts; name theirs with --trials"
        )
    cells = {(some.system, some.fetch, some.reader) for some in key.populations}
    now = {
        h.id: (h.system, h.fetch, h.reader, h.task, h.query)
        for h in index.of("verdict")
        if (h.benchmark, h.metric, h.judge) == (key.benchmark, key.metric, key.judge)
        and (h.system, h.fetch, h.reader) in cells
    }
    known = {(p.system, p.fetch, p.reader, one.task, one.query) for p in key.populations for one in p.judged}
    notes = []
    if new := sum(place not in known for place in now.values()):
        notes.append(f"{new} questions got a verdict after the sample was drawn; they are not in these numbers")
    if gone := len([name for name in then if name not in now]):
        notes.append(f"{gone} of the audited verdicts no longer count; the numbers are of what stood when it was drawn")
    return notes


def _audited(population: Population, labels: Mapping[str, float], rates: tuple[float, float] | None) -> Audited:
    strata, given, clusters = _of(population, labels)
    corrected = audit.corrected(strata, given, clusters)
    between = mean_interval(list(strata.values()), [clusters[place] for place in strata])
    judged = sum(strata.values()) / len(strata)
    return Audited(
        population,
        len(strata),
        judged,
        (between.low, between.high) if between else None,
        corrected,
        audit.sensitivity(strata, given, clusters, {1.0}),
        audit.specificity(strata, given, clusters, {1.0}),
        audit.rogan_gladen(judged, *rates) if rates else None,
    )


def _of(
    population: Population, labels: Mapping[str, float]
) -> tuple[dict[Place, float], dict[Place, float], dict[Place, str]]:
    """Stratum and cluster of every question, and the audited ones' labels."""
    strata = {(one.task, one.query): one.score for one in population.judged}
    given = {(one.task, one.query): labels[one.item] for one in population.judged if one.item is not None}
    return strata, given, {(one.task, one.query): one.cluster for one in population.judged}


def _differences(systems: Sequence[Audited], labels: Mapping[str, float]) -> list[Compared]:
    found = []
    members = [one for one in systems if not one.population.control]
    for first, second in combinations(members, 2):
        sides = [_of(side.population, labels) for side in (first, second)]
        one, other = (audit.values(strata, given) for strata, given, _ in sides)
        between = difference(one, other, {**sides[0][2], **sides[1][2]})
        if between is not None:
            enough = all(side.corrected.headline is not None for side in (first, second))
            found.append((_label(first, systems), _label(second, systems), between, enough))
    adjusted = holm([between.p for *_, between, _ in found])
    return [Compared(a, b, d, p, enough) for (a, b, d, enough), p in zip(found, adjusted, strict=True)]


def _label(one: Audited, systems: Sequence[Audited]) -> str:
    """A system's name; with fetch configuration and reader where several have it."""
    population = one.population
    if sum(other.population.name == population.name for other in systems) == 1:
        return population.name
    return " ".join(part for part in (population.system, population.fetch, population.reader) if part)


def _agreement(by_file: Mapping[str, Mapping[str, float]]) -> Annotators:
    given = list(by_file.values())
    pair = given if len(given) == 2 else None
    return Annotators(
        tuple(by_file),
        len(given[0]),
        agreement.raw_agreement(*pair) if pair else None,
        agreement.cohens_kappa(*pair) if pair else None,
        agreement.krippendorffs_alpha(given),
        tuple(flip.item for flip in agreement.flips(by_file)),
    )
