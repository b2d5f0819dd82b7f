"""What the substrate keeps: drafts of objects and links as a caller hands them in, and what may be asked of them.

Drafts name each other by external ids; what they are stored under follows from `identity`. A draft's content is never
rewritten: whether it still holds (retention, currentness, a thread's status) is kept beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args

import msgspec

from memtrials.benchmarks.enrichment import DerivedType, EntityType, ObjectType, Stability, ThreadStatus
from memtrials.benchmarks.life import Relation
from memtrials.embeddings.surfaces import PREFIXES, normalised
from memtrials.errors import WorkFailedError

Kind = ObjectType
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order of their rank, which settles equal scores."""
Retention = Literal["active", "suppressed", "archived", "deleted"]

Text = Annotated[str, msgspec.Meta(pattern=r"\S")]
Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
Ids = tuple[Text, ...]

SURFACES = dict(zip(("episode", "observation", "derived_memory", "entity", "memory_thread"), PREFIXES, strict=True))
"""What stands before the text of an object of a kind when it is embedded."""


class Ref(NamedTuple):
    """An object by kind and external id."""

    kind: Kind
    external_id: str


class Draft(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True, kw_only=True):
    """Any object or link."""

    external_id: Text


class Episode(Draft, frozen=True, tag="episode"):
    """Something that happened. Times are RFC 3339, None where nobody knows them."""

    summary: Text
    started_at: str | None
    ended_at: str | None = None
    salience: Share = 0.5
    raw_refs: tuple[str, ...] = ()


class Observation(Draft, frozen=True, tag="observation"):
    """What was said or seen in one episode."""

    text: Text
    episode: Text
    observed_at: str | None
    salience: Share = 0.5
    raw_refs: tuple[str, ...] = ()


class Entity(Draft, frozen=True, tag="entity"):
    """Someone or something that memories are about."""

    entity_type: EntityType
    name: Text
    aliases: tuple[str, ...] = ()
    canonical_key: str | None = None
    summary: str | None = None


class Thread(Draft, frozen=True, tag="memory_thread"):
    """A matter that goes on. Its summary may be empty."""

    title: Text
    summary: str = ""
    status: ThreadStatus = "active"
    last_touched_at: str | None = None
    salience: Share = 0.5
    canonical_key: str | None = None


class Derived(Draft, frozen=True, tag="derived_memory"):
    """What was concluded from episodes or observations, at least one of them."""

    derived_type: DerivedType
    text: Text
    episodes: Ids = ()
    observations: Ids = ()
    entities: Ids = ()
    threads: Ids = ()
    confidence: Share = 1.0
    salience: Share = 0.5
    stability: Stability = "medium"
    is_current: bool = True
    supersedes: Ids = ()


class Link(Draft, frozen=True, tag="memory_link"):
    """A typed edge between two objects. It is not embedded and can't be an end of another."""

    source: Ref
    relation: Relation
    target: Ref
    confidence: Share = 1.0
    rationale: str | None = None


Object = Episode | Observation | Entity | Thread | Derived


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a correction is of. A source (episode, observation) needs a reference that its stored one confirms.

    raw_refs: where it was taken from; source_refs: the external id of its episode.
    """

    kind: Literal["episode", "observation", "derived_memory"]
    external_id: Text
    raw_refs: tuple[str, ...] = ()
    source_refs: tuple[str, ...] = ()


class Correction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Supersede what the targets led to by one new memory."""

    targets: Annotated[tuple[Target, ...], msgspec.Meta(min_length=1)]
    replacement: Derived


class Forgetting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Suppress the targets. Memories derived from them are touched only if both flags are set."""

    targets: Annotated[tuple[Ref, ...], msgspec.Meta(min_length=1)]
    suppress_derived_from_target: bool = False
    apply_to_derived_from_target: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """What an operation did; `outcome` is plain data and is kept, so that a retry gives it again."""

    operation_id: str
    outcome: dict[str, Any]


def refused(message: str) -> WorkFailedError:
    """The error of an operation that was turned down; nothing was written."""
    return WorkFailedError("system", "fatal", message)


def kind_of(draft: Draft) -> str:
    """The kind of a draft, as it is stored."""
    return str(draft.__struct_config__.tag)


def ref_of(draft: Object) -> Ref:
    """What others call an object by."""
    return Ref(next(kind for kind in KINDS if kind == kind_of(draft)), draft.external_id)


def content(value: Any) -> bytes:
    """The canonical JSON of a draft or request: compact, keys sorted. Raises WorkFailedError for a value that its type
    doesn't allow."""
    data = msgspec.json.encode(value, order="sorted")
    try:
        msgspec.json.decode(data, type=type(value))
    except msgspec.ValidationError as error:
        raise refused(f"{getattr(value, 'external_id', type(value).__name__)}: {error}") from None
    return data


def references(draft: Draft) -> Iterator[tuple[str, Ref, bool]]:
    """The edges that a draft implies: relation, the object at the other end, and whether the edge comes from there."""
    if isinstance(draft, Observation):
        yield "has_observation", Ref("episode", draft.episode), True
    elif isinstance(draft, Derived):
        ends: tuple[tuple[str, Kind, Ids], ...] = (
            ("derived_from", "episode", draft.episodes),
            ("derived_from", "observation", draft.observations),
            ("about", "entity", draft.entities),
            ("part_of_thread", "memory_thread", draft.threads),
            ("supersedes", "derived_memory", draft.supersedes),
        )
        for relation, kind, ids in ends:
            yield from ((relation, Ref(kind, external_id), False) for external_id in ids)


def shown_text(draft: Object) -> str:
    """The text an object has for a reader."""
    if isinstance(draft, Episode | Thread):
        return draft.summary
    return draft.name if isinstance(draft, Entity) else draft.text


def surface(draft: Object) -> str:
    """The text an object is embedded by. A thread without a summary has its title."""
    text = shown_text(draft)
    if isinstance(draft, Thread) and not text.strip():
        text = draft.title
    return surface_of(ref_of(draft).kind, text)


def surface_of(kind: Kind, text: str) -> str:
    """The words of an object as they are embedded: after the prefix of its kind, with blanks collapsed."""
    return SURFACES[kind] + normalised(text)
