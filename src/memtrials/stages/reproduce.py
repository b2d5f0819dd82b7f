"""reproduce: a published table from the files it was made of. Import, answer and judge where asked to, then compare."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from memtrials import benchmarks
from memtrials.benchmarks.base import PLAIN, Measure, every
from memtrials.errors import UserError
from memtrials.exchange import artifacts
from memtrials.exchange.departures import Pair, pairs
from memtrials.exchange.imported import PREFIX
from memtrials.exchange.published import Column, Compared, System, Table, load
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.llm.pool import NO_LIMITS, CallLimits
from memtrials.metrics.numbers import Number
from memtrials.metrics.statistics import percentile
from memtrials.outcome import Outcome
from memtrials.records import Header, RetrievalBody
from memtrials.selection import Selection
from memtrials.stages import answer, build, importing, judge, metrics
from memtrials.stages.common import Options


@dataclass(frozen=True)
class ReproduceRequest:
    """Which table, and where its files are. data: LoCoMo's file, or LongMemEval's where results should go to it.

    reader: answers the imported contexts again; judge: judges the answers again. Without them the files' own count.
    """

    table: str
    artifacts: Path
    data: Path | None = None
    reader: str | None = None
    judge: str | None = None
    profile: str = PLAIN
    prompts: str = "default"
    upstream: Path | None = None
    limits: CallLimits = NO_LIMITS


def prepare(request: ReproduceRequest, options: Options) -> Iterator[Outcome]:
    """The outcomes of build, import and, where asked for, answer and judge, each as it ends. Raises UserError."""
    table = load(request.table)
    files = [(system, _files(request.artifacts, system)) for system in table.systems]
    here = [(system, some) for system, some in files if some]
    if not here:
        names = ", ".join(s.answers for s in table.systems if s.answers)
        raise UserError(f"{request.artifacts}: holds none of {names}; name the folder of the released results")
    if request.data is not None or table.benchmark == "locomo":
        yield build.run(build.BuildRequest(table.benchmark, request.data), options)
    for system, some in here:
        yield importing.run(importing.ImportRequest(some, name=_own_name(system.name)), options)
    if request.reader is None and request.judge is None:
        return
    found = _systems(request, table, options)
    if request.reader is not None:
        selection = Selection(systems=tuple(one.id for one in found.values()))
        asked = answer.AnswerRequest(request.reader, request.profile, limits=request.limits)
        yield answer.run(asked, replace(options, selection=selection, force=True))
    if request.judge is not None:
        judged = judge.JudgeRequest(
            (request.judge,), ("accuracy",), request.prompts, request.upstream, limits=request.limits
        )
        for name, one in found.items():  # each has an imported reader of its own name
            whose = replace(judged, reader=request.reader or f"{PREFIX}-{_own_name(name)}")
            yield judge.run(whose, replace(options, selection=Selection(systems=(one.id,))))


def compare(request: ReproduceRequest, options: Options) -> list[Compared]:
    """Every cell of the table. Raises UserError."""
    table = load(request.table)
    found = _systems(request, table, options)
    with Ledger.open(options.trials) as ledger:
        index = LedgerIndex(ledger)
        here = replace(options, selection=Selection(systems=tuple(one.id for one in found.values())))
        whole = metrics.fold(index, metrics.MetricsRequest(), here).numbers
        by_type = metrics.fold(index, metrics.MetricsRequest(by="type"), here).numbers
        compared = []
        for system in table.systems:
            imported = found.get(system.name)
            cells = table.cells(system)
            if imported is None:
                compared += [
                    Compared(system.name, column, published, None, _why_not(system), note=system.notes.get(column))
                    for column, published in cells.items()
                ]
                continue
            measured = _Measured(index, imported, request, [*whole, *by_type])
            compared += [
                measured.cell(system, name, table.columns[name], published) for name, published in cells.items()
            ]
    return compared


# --- files and what was made of them ----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Imported:
    """A system of the table in the ledger."""

    id: str
    benchmark: str


def _files(folder: Path, system: System) -> list[Path]:
    """The files of a system that are here: none without its answers."""
    found = [_file(folder, name) for name in (system.answers, system.memories) if name]
    return [path for path in found if path] if found and found[0] else []


def _file(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _own_name(system: str) -> str:
    """What a system of the table is called in the ledger."""
    return system.lower()


def _why_not(system: System) -> str:
    return "no files were released: cannot be recomputed" if system.answers is None else f"missing: {system.answers}"


def _systems(request: ReproduceRequest, table: Table, options: Options) -> dict[str, _Imported]:
    """The imported systems by the table's name, found by the hashes of their files."""
    found = {}
    with Ledger.open(options.trials) as ledger:
        index = LedgerIndex(ledger)
        for system in table.systems:
            files = _files(request.artifacts, system)
            if files:
                known = {
                    "system": PREFIX,
                    "name": _own_name(system.name),
                    **artifacts.read(files[0]).hashes,
                    "role": "system",
                }
                mine = [config for config in index.configs if index.config(config).settings == known]
                ingests = [h for h in index.of("ingest") if h.system in mine]
                if ingests:
                    found[system.name] = _Imported(mine[0], ingests[-1].benchmark or "")
    return found


class _Measured:
    """The numbers of one imported system, by the reader and judge that count."""

    def __init__(
        self, index: LedgerIndex, system: _Imported, request: ReproduceRequest, numbers: Sequence[Number]
    ) -> None:
        self.index = index
        self.system = system
        self.benchmark = benchmarks.find(system.benchmark)
        self.answers = [h for h in index.of("answer") if h.system == system.id]
        self.reader = self._whose(self.answers, "reader", request.reader)
        self.answers = [h for h in self.answers if h.reader == self.reader]
        verdicts = [h for h in index.of("verdict") if h.system == system.id and h.reader == self.reader]
        self.judge = self._whose(verdicts, "judge", request.judge)
        self.numbers = [n for n in numbers if (n.cell.benchmark, n.cell.system) == (system.benchmark, system.id)]

    def _whose(self, headers: Sequence[Header], role: str, named: str | None) -> str | None:
        """The last configuration of a role in these records: of that name, or the imported one."""

        def counts(config: str) -> bool:
            body = self.index.config(config)
            return body.settings.get("system") == PREFIX if named is None else body.name == named

        found = [config for h in headers if (config := getattr(h, role)) and counts(config)]
        return found[-1] if found else None

    def cell(self, system: System, name: str, column: Column, published: float | None) -> Compared:
        """One cell."""
        if column.imported is not None:
            return self._as_imported(system, name, column, published)
        measure = next((m for m in self.benchmark.measures if m.name == column.metric), None)
        number = self._number(column, measure)
        if number is None or number.value is None:
            why = number.reason if number and number.reason else "no results" if number is None else number.status
            return Compared(system.name, name, published, None, str(why), note=system.notes.get(name))
        stored = self._stored(column, measure) if measure else {}
        recomputed = column.as_printed(number.value)
        own = column.as_printed(sum(p.stored for p in stored.values()) / len(stored)) if stored else None
        return Compared(
            system.name,
            name,
            published,
            recomputed,
            _status(published, recomputed, own),
            n=number.n,
            stored=own,
            exact=number.value,
            interval=number.interval,
            differing={"/".join(place): (p.stored, p.recomputed) for place, p in stored.items() if p.differs},
            note=system.notes.get(name),
        )

    def _number(self, column: Column, measure: Measure | None) -> Number | None:
        judge = None if measure else self.judge
        mine = [n for n in self.numbers if n.cell.reader is None or n.cell[3:] == (self.reader, judge)]
        wanted = (column.metric, column.part, column.type)
        return next((n for n in mine if (n.metric, n.part, n.group) == wanted), None)

    def _stored(self, column: Column, measure: Measure) -> dict[tuple[str, str], Pair]:
        """Values that came with the answers a cell is about."""
        part = next((p for p in self.benchmark.parts if p.name == column.part), None)
        about = self.index.questions(self.system.benchmark, part.asks if part else every)
        types = {(h.task or "", h.query or ""): h.type for h in self.answers}
        found = pairs(self.index, measure, self.answers)
        return {p: v for p, v in found.items() if p in about and column.type in (None, types[p])}

    def _as_imported(self, system: System, name: str, column: Column, published: float | None) -> Compared:
        values = []
        for header in (h for h in self.index.of("retrieval") if h.system == self.system.id):
            raw = self.index.ledger.body(header, RetrievalBody).raw
            value = json.loads(raw).get(column.imported) if raw else None
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.append(float(value))
        if not values:
            return Compared(system.name, name, published, None, f"{column.imported} isn't in the file")
        exact = percentile(values, 50) if column.summary == "p50" else sum(values) / len(values)
        own = column.as_printed(exact)
        status = "as imported" if own == published else "differs"
        note = system.notes.get(name)
        return Compared(system.name, name, published, None, status, n=len(values), stored=own, exact=exact, note=note)


def _status(published: float | None, recomputed: float | None, stored: float | None) -> str:
    if published is None:
        return "not published"
    if recomputed == published:
        return "match"
    return "differs: the file's own values give it" if stored == published else "differs"
