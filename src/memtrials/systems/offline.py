"""Embeddings for which no model runs, selectable by name: hashed words, a store's vectors, a scenario's geometry.

A store or fixture is a file that EMBED_FILE names. Where it lies is no part of a system, what stands in it is: the
revision is its hash, so vectors of two files never meet in one state.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from pathlib import Path

from memtrials.embeddings.base import Offline
from memtrials.embeddings.controllable import Controllable
from memtrials.embeddings.frozen import FILE, Frozen, read_store
from memtrials.embeddings.hashed import hashed_vector
from memtrials.errors import UserError, unknown
from memtrials.settings import Settings

HASHED = "deterministic-"
"""What stands before the number of dimensions of hashed words: `deterministic-256`."""
FROZEN = "frozen:"
"""What stands before the model of a store: `frozen:MODEL`."""
AUTHORED = "controllable:"
"""What stands before the id of a scenario whose geometry is authored: `controllable:FIXTURE_ID`."""
NAMES = (f"{HASHED}SIZE", f"{FROZEN}MODEL", f"{AUTHORED}FIXTURE_ID")
_HASHED = re.compile(rf"{HASHED}([1-9]\d{{0,5}})", re.ASCII)


def is_offline(name: str) -> bool:
    """Whether an embedding of that name is one of these."""
    return _HASHED.fullmatch(name) is not None or any(
        name.startswith(kind) and bool(name.removeprefix(kind).strip()) for kind in (FROZEN, AUTHORED)
    )


def offline(name: str, settings: Settings, revision: str | None = None) -> Offline:
    """The embeddings of a name. revision: what it has to be, as recorded; None takes what is there.

    Raises UserError where the file isn't named, isn't right, or holds something else than what was recorded.
    """
    if match := _HASHED.fullmatch(name):
        size = int(match[1])
        made = Offline("memtrials", "deterministic", "1", size, lambda text: hashed_vector(text, size))
    else:
        path, digest = _file(name, settings)
        made = _frozen(name, path, digest) if name.startswith(FROZEN) else _authored(name, path, digest)
    if revision is not None and made.revision != revision:
        raise UserError(
            f"embedding {name!r} was {revision[:12]} when this state was made and what {FILE} names is "
            f"{made.revision[:12]}; name that file again, or replay anew"
        )
    return made


def _file(name: str, settings: Settings) -> tuple[Path, str]:
    named = settings.text(FILE)
    if named is None:
        raise UserError(f"embedding = {name!r} takes its vectors from the file that {FILE} names, which isn't set")
    path = Path(named)
    try:
        with path.open("rb") as file:
            return path, hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path} ({FILE}): can't be read ({error.strerror})") from None


@lru_cache(maxsize=4)
def _frozen(name: str, path: Path, digest: str) -> Offline:
    return Frozen(read_store(path), path, name.removeprefix(FROZEN)).embedder(digest)


@lru_cache(maxsize=4)
def _authored(name: str, path: Path, digest: str) -> Offline:
    from memtrials.benchmarks.continuity.rules import read

    fixture = read(path)
    wanted = name.removeprefix(AUTHORED)
    geometries = {s.fixture_id: s.geometry for s in fixture.scenarios if s.geometry is not None}
    if wanted not in geometries:
        raise unknown("scenario with an authored geometry", wanted, geometries)
    return Controllable(geometries[wanted]).embedder(wanted)
