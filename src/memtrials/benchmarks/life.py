"""What a system may see of a scripted life: who is known, and what happens, event by event."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec

from memtrials.embeddings.base import Embedder

DECLARED = "declared"
"""The embedding of a system whose vectors are those that each script declares."""

Relation = Literal[
    "has_observation",
    "observed_in",
    "mentions",
    "involves",
    "about",
    "derived_from",
    "part_of_thread",
    "supports",
    "contradicts",
    "supersedes",
    "resolves",
    "creates_open_loop",
    "fulfills_commitment",
    "associated_with",
]
RELATIONS: tuple[Relation, ...] = get_args(Relation)

Moment = Annotated[datetime, msgspec.Meta(tz=True)]


def moment(time: datetime) -> str:
    """A time as it is written: RFC 3339 in UTC, whole seconds where it has no fraction."""
    return time.astimezone(UTC).isoformat().replace("+00:00", "Z")


class SurfaceTexts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the three objects of one event say where they say different things."""

    episode: str
    observation: str
    derived: str


class ThreadMembership(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The thread that an event belongs to, and how surely."""

    thread_external_id: str
    confidence: float


class Happening(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, tag_field="kind"):
    """Anything in a life, by its place in it."""

    event_id: str
    timestamp: Moment


class Remember(Happening, frozen=True, kw_only=True, tag="remember"):
    """Something happens: an episode of that id, its observation and a derived memory, and a thread on its first use."""

    external_id: str
    text: str
    entity_external_ids: tuple[str, ...]
    thread: ThreadMembership | None
    salience: float
    surface_texts: SurfaceTexts | msgspec.UnsetType = msgspec.UNSET

    @property
    def observation_id(self) -> str:
        """The id of the observation that it implies."""
        return f"{self.external_id}:observation"

    @property
    def derived_id(self) -> str:
        """The id of the derived memory that it implies."""
        return f"{self.external_id}:derived"

    @property
    def said(self) -> list[str]:
        """Its texts: one, or `surface=text` for each of the three objects where they say different things."""
        if self.surface_texts is msgspec.UNSET:
            return [self.text]
        return [f"{surface}={text}" for surface, text in msgspec.structs.asdict(self.surface_texts).items()]


class Correct(Happening, frozen=True, kw_only=True, tag="correct"):
    """An earlier memory gives way to a new derived memory."""

    target_external_id: str
    replacement_external_id: str
    replacement_text: str


class Forget(Happening, frozen=True, kw_only=True, tag="forget"):
    """Memories are suppressed; what was derived from them too, only where both flags are true."""

    target_external_ids: tuple[str, ...]
    suppress_derived_from_target: bool
    apply_to_derived_from_target: bool


class Link(Happening, frozen=True, kw_only=True, tag="link"):
    """A typed edge. relation: one of RELATIONS."""

    external_id: str
    from_external_id: str
    relation: str
    to_external_id: str


class Restart(Happening, frozen=True, kw_only=True, tag="restart"):
    """The memory is closed and opened again from what it stored."""

    reopen_graph: bool
    reopen_stats: bool


LifeEvent = Remember | Correct | Forget | Link
"""What happens to a memory. `event_id` and every external id are opaque, unless its plugin is `named`."""


@dataclass(frozen=True)
class Known:
    """Somebody or something that is there from the beginning."""

    external_id: str
    entity_type: Literal["location", "person", "organization"]
    label: str


@dataclass(frozen=True)
class Life:
    """What a life begins with. name and namespace: the script's own where the plugin is `named`, else random ones.

    vectors: those that the script declares for its texts; a system that embeds by itself doesn't look at them.
    """

    name: str
    namespace: str
    entities: tuple[Known, ...]
    vectors: Embedder | None = None


class Script(NamedTuple):
    """A life by its author's names: what it begins with, its events, one for each step of the timeline, and a digest of
    each."""

    life: Life
    events: tuple[LifeEvent | Restart, ...]
    digests: tuple[str, ...]
