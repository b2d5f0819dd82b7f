"""The states of embedded systems on this machine: what is there, what the ledger still needs, what can go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memtrials import locks
from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.records import IngestBody
from memtrials.systems.store import stores_folder


@dataclass(frozen=True)
class StoreFile:
    """One state. use: `counts` (an ingest that counts names it), `void` (none does), `half-built`."""

    path: Path
    system: str
    use: str
    bytes: int


def list_stores(index: LedgerIndex, ledger: Path) -> list[StoreFile]:
    """Every state beside a ledger, by system."""
    wanted = {
        (h.system, body.namespace)
        for h in index.of("ingest")
        for body in [index.ledger.body(h, IngestBody)]
        if body.namespace is not None
    }
    found = []
    folder = stores_folder(ledger)
    for path in sorted(folder.glob("*/*.sqlite")) + sorted(folder.glob("*/*.part")):
        system = path.parent.name
        use = "half-built" if path.suffix == ".part" else "counts" if (system, path.stem) in wanted else "void"
        found.append(StoreFile(path, system, use, path.stat().st_size))
    return found


def clean_stores(index: LedgerIndex, ledger: Path, *, everything: bool, dry_run: bool) -> list[StoreFile]:
    """Remove states that nothing counts on, and with `everything` all of them; what was (or would be) removed.

    Raises UserError while a replay or fetch works on the ledger.
    """
    busy = [h for h in locks.holders(ledger) if any(c.stage in ("replay", "fetch") for c in h.claims)]
    if busy and not dry_run:
        raise UserError(
            f"process {busy[0].pid} on {busy[0].host} works on these states ({busy[0].command}); wait for it"
        )
    removable = [s for s in list_stores(index, ledger) if everything or s.use != "counts"]
    if not dry_run:
        for store in removable:
            store.path.unlink(missing_ok=True)
        for folder in {store.path.parent for store in removable}:
            if not any(folder.iterdir()):
                folder.rmdir()
    return removable
