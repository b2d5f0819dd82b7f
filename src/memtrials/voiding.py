"""void: take results out of the count, or put them back. Nothing is selected by verdict or score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from memtrials.errors import UserError, unknown
from memtrials.index import LedgerIndex
from memtrials.judging.probing import probed
from memtrials.ledger import Ledger
from memtrials.records import Header, Kind, Record, VerdictBody, VoidBody, new_id, now
from memtrials.selection import Selection, choose

VOIDABLE: tuple[Kind, ...] = ("ingest", "retrieval", "answer", "verdict", "failure")


def resolve(index: LedgerIndex, ids: Sequence[str], kinds: Sequence[Kind], selection: Selection) -> list[Header]:
    """The counting records that the command line means, in file order. A scripted life is one piece: with a retrieval
    that was made on its way goes its ingest, so that it is replayed again.

    Raises UserError for an unknown id, an id that is void already, or a command that names nothing at all.
    """
    if ids:
        for record_id in ids:
            if record_id not in index.ledger:
                raise unknown("record", record_id, [h.id for h in index.ledger.headers])
            if record_id in index.void_ids:
                raise UserError(f"record {record_id} is void already; to undo that, void the void record that names it")
            if (kind := index.ledger.header(record_id).kind) not in (*VOIDABLE, "task", "void"):
                raise UserError(f"record {record_id} is a {kind} record; void takes results, tasks and void records")
        return _whole(index, [h for h in index.ledger.headers if h.id in ids])
    if not kinds and selection == Selection():
        raise UserError(
            "void needs record ids, --kind, --config or a selection: it doesn't void a whole ledger unasked"
        )
    chosen = choose(index, selection, "unit")
    named = [h for kind in kinds or VOIDABLE for h in index.of(kind) if chosen.holds(h)]
    return _whole(index, named)


def _whole(index: LedgerIndex, named: Sequence[Header]) -> list[Header]:
    found = {h.id: h for h in named}
    for retrieval in (h for h in named if h.kind == "retrieval" and index.counts(h.id)):
        ingest = index.parent(retrieval)
        if ingest.fetch is not None:
            found[ingest.id] = ingest
    return sorted(found.values(), key=lambda h: index.ledger.position(h.id))


def void(ledger: Ledger, index: LedgerIndex, headers: Sequence[Header], reason: str) -> VoidBody:
    """Append one `void` record that names these. Its body counts what goes, and how many verdicts were right.

    Raises UserError where no reason is given.
    """
    if not reason.strip():
        raise UserError("--reason is empty; say why these are taken out, for it is recorded")
    body = tally(index, headers, reason)
    ledger.append(Record(Header(id=new_id(), kind="void", parents=tuple(h.id for h in headers), at=now()), body))
    return body


def tally(index: LedgerIndex, headers: Sequence[Header], reason: str) -> VoidBody:
    """What voiding these takes out: records by kind, children included, and verdicts on results, right and wrong."""
    below = index.descendants([h.id for h in headers])
    everything = {h.id: h for h in (*headers, *below)}.values()
    verdicts = (h for h in everything if h.kind == "verdict" and not probed(h))
    scores = [index.ledger.body(h, VerdictBody).score for h in verdicts]
    right = sum(score >= 0.5 for score in scores)
    kinds = dict(Counter(h.kind for h in everything))
    return VoidBody(reason=reason, kinds={str(k): n for k, n in kinds.items()}, right=right, wrong=len(scores) - right)
