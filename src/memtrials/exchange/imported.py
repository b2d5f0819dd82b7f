"""How results that others made stand in a ledger.

Their configurations are named `imported-NAME` and know the file's SHA-256; what is unknown of them counts as unlike
everything else (MEASURING §1). There is no state, so an ingest has no namespace; where nobody says what a reader saw,
a retrieval's context is null and not empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from memtrials.index import LedgerIndex
from memtrials.records import (
    AnswerBody,
    Body,
    FailureBody,
    Header,
    IngestBody,
    Kind,
    Query,
    Record,
    RetrievalBody,
    Role,
    VerdictBody,
    config_record,
    new_id,
    now,
    sha256,
    text_sha256,
    work_key,
)

PREFIX = "imported"


class Imports:
    """Records of imported results that a ledger doesn't hold yet, gathered in `fresh` in the order to append them.

    Work that the ledger has done is found, not made again, so an import that was cut short goes on where it stopped.
    """

    def __init__(self, index: LedgerIndex, benchmark: str, name: str) -> None:
        self.index = index
        self.benchmark = benchmark
        self.name = f"{PREFIX}-{name}"
        self.fresh: list[Record] = []
        self._made: dict[tuple[str, int | None], Header] = {}

    def config(self, role: Role, known: Mapping[str, Any], claimed: str | None = None) -> str:
        """The id of a configuration of which only `known` is known. claimed: what its file says of it, as text."""
        provenance = {**({} if claimed is None else {"claimed": claimed}), "capabilities": [], "control": False}
        settings = {"system": PREFIX, "name": self.name.removeprefix(f"{PREFIX}-"), **known, "role": role}
        record = config_record(role, self.name, settings, provenance)
        key = record.header.key or ""
        if key not in self.index.configs and (key, None) not in self._made:
            self._made[key, None] = record.header
            self.fresh.append(record)
        return key

    def ingest(self, task: str, system: str, repeat: int = 1) -> Header:
        """The state that isn't here."""
        header = self.index.tasks[self.benchmark, task]
        body = IngestBody(namespace=None, system_version=None, capabilities=(), sessions=0, turns=0)
        content = sha256([header.content, system, None])
        return self._made_from(header, "ingest", "system", system, body, content=content, repeat=repeat)

    def retrieval(self, ingest: Header, query: Query, fetch: str, body: RetrievalBody, repeat: int = 1) -> Header:
        """What was retrieved; its content is null where the context is unknown."""
        content = None if body.context is None else text_sha256(body.context)
        return self._made_from(ingest, "retrieval", "fetch", fetch, body, content=content, query=query, repeat=repeat)

    def answer(self, trial: Header, reader: str, body: AnswerBody) -> Header:
        """What the reader said."""
        return self._made_from(trial, "answer", "reader", reader, body, content=text_sha256(body.text))

    def verdict(self, answer: Header, judge: str, metric: str, body: VerdictBody, repeat: int = 1) -> Header:
        """What the judge decided."""
        return self._made_from(answer, "verdict", "judge", judge, body, metric=metric, repeat=repeat)

    def no_answer(self, trial: Header, reader: str, message: str) -> None:
        """The reader's failure, once."""
        fields = self._fields("answer", trial, "reader", reader, None, None)
        name = (fields["key"], 1)
        if name not in self.index.failures and name not in self._made:
            header = Header(id=new_id(), kind="failure", stage="answer", class_="content", repeat=1, at=now(), **fields)
            self._made[name] = header
            self.fresh.append(Record(header, FailureBody(cause="reader", message=message, attempts=1)))

    def _made_from(
        self,
        parent: Header,
        kind: Kind,
        role: Role,
        config: str,
        body: Body,
        *,
        content: str | None = None,
        query: Query | None = None,
        metric: str | None = None,
        repeat: int = 1,
    ) -> Header:
        fields = self._fields(kind, parent, role, config, query, metric)
        name = (fields["key"], repeat)
        held = self.index.done.get(name) or self._made.get(name)
        if held is not None:
            return held
        header = Header(id=new_id(), kind=kind, content=content, repeat=repeat, at=now(), **fields)
        self._made[name] = header
        self.fresh.append(Record(header, body))
        return header

    def _fields(
        self, kind: Kind, parent: Header, role: Role, config: str, query: Query | None, metric: str | None
    ) -> dict[str, Any]:
        """The work's key, and what is copied down from the parent."""
        place: dict[str, Any] = {"benchmark": self.benchmark, "task": parent.task or ""}
        place["query"] = query.id if query else parent.query
        roles = {name: getattr(parent, name) for name in ("system", "fetch", "reader")} | {role: config}
        return {
            "key": work_key(kind, parent=parent, config=config, metric=metric, **place),
            "parents": (parent.id,),
            "type": query.type if query else parent.type,
            "metric": metric,
            **place,
            **roles,
        }


def append(index: LedgerIndex, records: Sequence[Record], together: int = 500) -> int:
    """Append records to the index's ledger, many at a time; how many."""
    if records:
        index.ledger.check_writable()
    for first in range(0, len(records), together):
        index.ledger.append(*records[first : first + together])
    return len(records)
