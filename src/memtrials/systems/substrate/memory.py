"""The embedded memory: namespaces, and the operations that write to them.

Sources are only ever added to; a correction or a suppression changes what an object counts for, never what it says. All
checks come before the first write, and each operation is one transaction together with its record, so that a retry
under the same operation id finds what was done and writes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from memtrials.errors import UserError, WorkFailedError
from memtrials.systems.substrate.identity import batch_id, internal_id, operation_id
from memtrials.systems.substrate.objects import (
    Correction,
    Derived,
    Draft,
    Episode,
    Forgetting,
    Kind,
    Link,
    Object,
    Observation,
    Outcome,
    Ref,
    Target,
    content,
    kind_of,
    ref_of,
    references,
    refused,
    surface,
)
from memtrials.systems.substrate.retrieval import Policy, Retrieval, retrieve
from memtrials.systems.substrate.store import Store, Stored, file_of, files

CASCADE_WARNING = "cascade-suppresses-current-replacement"


class Embeddings(Protocol):
    """What turns texts into vectors of float32, as bytes; None for a text without tokens."""

    def vectors(self, texts: Sequence[str], role: Literal["document", "query"]) -> list[bytes | None]:
        """The vectors of the texts, in order."""


class Candidate(msgspec.Struct, frozen=True):
    """One thing a plan would do. subject: the internal id it concerns."""

    action: Literal["object", "link", "vector", "statistics"]
    subject: str


class Plan(msgspec.Struct, frozen=True):
    """A write that was prepared: it can be looked at, validated and committed, and has done nothing yet."""

    namespace: str
    operation_id: str
    objects: tuple[Object, ...]
    links: tuple[Link, ...]
    candidates: tuple[Candidate, ...]

    @property
    def indexed(self) -> bool:
        """Whether vectors are among what it writes."""
        return any(candidate.action == "vector" for candidate in self.candidates)


class Verdict(msgspec.Struct, frozen=True):
    """What validation says of a candidate. reason: None for one that is accepted."""

    candidate: Candidate
    reason: str | None

    @property
    def accepted(self) -> bool:
        """Whether it can be committed."""
        return self.reason is None


class Substrate:
    """Namespaces in one folder, each in a file by its name unless another is given. Every method but those that open
    one raises WorkFailedError for a namespace that is neither opened nor reattached, and for whatever it turns down."""

    def __init__(self, folder: Path, embeddings: Embeddings) -> None:
        self.folder = folder
        self.embeddings = embeddings
        self._stores: dict[str, Store] = {}

    def open_namespace(self, namespace: str, file: Path | None = None) -> None:
        """Begin an empty namespace. Raises UserError when any part of it exists."""
        self._free(namespace)
        self._stores[namespace] = Store.create(file or file_of(self.folder, namespace), namespace)

    def reattach_namespace(self, namespace: str, file: Path | None = None) -> int:
        """Take a namespace up from its file; how many identities it holds. Raises UserError naming all that is
        missing."""
        self._free(namespace)
        store = self._stores[namespace] = Store.reattach(file or file_of(self.folder, namespace), namespace)
        return store.count()

    def detach(self, namespace: str) -> None:
        """Close a namespace and keep its file."""
        self.store(namespace).close()
        del self._stores[namespace]

    def discard(self, namespace: str) -> None:
        """Remove a namespace with all that is in it; does nothing for one that isn't there."""
        if store := self._stores.pop(namespace, None):
            store.close()
        for file in files(file_of(self.folder, namespace)):
            with suppress(FileNotFoundError, NotADirectoryError):
                file.unlink()

    def close(self) -> None:
        """Close every namespace."""
        for namespace in list(self._stores):
            self.detach(namespace)

    def store(self, namespace: str) -> Store:
        """An open namespace."""
        if namespace not in self._stores:
            raise refused(f"namespace {namespace!r} is neither opened nor reattached")
        return self._stores[namespace]

    def _free(self, namespace: str) -> None:
        if namespace in self._stores:
            raise UserError(f"namespace {namespace!r} is open already; detach it first")

    def prepare_remember(
        self,
        namespace: str,
        text: str,
        episode: str,
        observation: str,
        started_at: str,
        observed_at: str,
        raw_refs: tuple[str, ...],
        idempotency_key: str,
        *,
        salience: float = 0.5,
        index: bool = True,
    ) -> Plan:
        """What remembering a text as an episode with one observation would write; nothing is written. index: with
        vectors and statistics."""
        self.store(namespace)
        objects = (
            Episode(external_id=episode, summary=text, started_at=started_at, salience=salience, raw_refs=raw_refs),
            Observation(
                external_id=observation,
                text=text,
                episode=episode,
                observed_at=observed_at,
                salience=salience,
                raw_refs=raw_refs,
            ),
        )
        return _plan(namespace, idempotency_key, objects, index=index)

    def validate_plan(self, plan: Plan) -> list[Verdict]:
        """A verdict on each candidate, in order; nothing is written."""
        store = self.store(plan.namespace)
        coming = {ref_of(draft) for draft in plan.objects}
        drafts: list[Draft] = [*plan.objects, *plan.links]
        ids = [_id(plan.namespace, draft) for draft in drafts]
        reasons: dict[str, str | None] = {}
        for id_, draft in zip(ids, drafts, strict=True):
            reasons[id_] = (
                f"{draft.external_id}: its id occurs twice" if ids.count(id_) > 1 else _reason(store, draft, coming)
            )
        return [Verdict(candidate, reasons.get(candidate.subject)) for candidate in plan.candidates]

    def commit(self, plan: Plan) -> Outcome:
        """Write a plan. The same operation id again writes nothing and gives the same outcome. Raises WorkFailedError
        when a candidate is rejected or the id stood for something else."""
        store = self.store(plan.namespace)
        digest = _digest([*plan.objects, *plan.links])
        if done := _repeated(store, plan.operation_id, digest):
            self._repair(store, plan.objects if plan.indexed else ())
            return done
        for verdict in self.validate_plan(plan):
            if verdict.reason is not None:
                raise refused(verdict.reason)
        objects = [draft for draft in plan.objects if store.get(_id(plan.namespace, draft)) is None]
        links = [link for link in plan.links if store.link_content(link.external_id) is None]
        vectors = self._vectors(plan.namespace, objects if plan.indexed else ())
        outcome = Outcome(
            plan.operation_id,
            {
                "persisted_object_ids": [_id(plan.namespace, draft) for draft in objects],
                "persisted_link_ids": [_id(plan.namespace, link) for link in links],
                "vector_indexed_object_ids": [id_ for id_, _, _ in vectors],
                "vector_indexing_failure": None,
                "stats_update_status": {"failure": None},
                "repair_needed": [],
                "diagnostics": {"warnings": []},
            },
        )
        with store.transaction():
            for draft in objects:
                store.insert(draft)
            for link in links:
                store.insert_link(link)
            store.index(vectors)
            store.record(outcome, digest)
        return outcome

    def remember_episode(self, namespace: str, episode: Episode) -> Outcome:
        """Write an episode."""
        return self.ingest_enrichment(namespace, [episode])

    def remember_observation(self, namespace: str, observation: Observation) -> Outcome:
        """Write an observation of an episode that is there."""
        return self.ingest_enrichment(namespace, [observation])

    def ingest_enrichment(self, namespace: str, objects: Sequence[Object], links: Sequence[Link] = ()) -> Outcome:
        """Write objects and links together; they may name each other."""
        ids = [_id(namespace, draft) for draft in (*objects, *links)]
        return self.commit(_plan(namespace, batch_id(namespace, ids), tuple(objects), tuple(links)))

    def link(self, namespace: str, link: Link) -> Outcome:
        """Write one link between two objects."""
        store = self.store(namespace)
        id_ = operation_id(namespace, "link", link.external_id)
        digest = _digest([link])
        if done := _repeated(store, id_, digest):
            return done
        if reason := _reason(store, link, set()):
            raise refused(reason)
        outcome = Outcome(
            id_,
            {
                "link": {"internal_id": _id(namespace, link), **msgspec.json.decode(content(link))},
                "stats_update_status": {"failure": None},
            },
        )
        with store.transaction():
            if store.link_content(link.external_id) is None:
                store.insert_link(link)
            store.record(outcome, digest)
        return outcome

    def correct(self, namespace: str, correction: Correction) -> Outcome:
        """Supersede memories by a new one, which takes over their sources, and their entities and threads unless it
        has its own.

        A source stands for every live memory derived from it; a derived memory for itself alone. Sources stay as they
        are.
        """
        store = self.store(namespace)
        request = content(correction)
        id_ = operation_id(namespace, "correct", request.decode())
        digest = hashlib.sha256(request).digest()
        if done := _repeated(store, id_, digest):
            self._repair(store, [correction.replacement], suppressed=done.outcome["graph_mutated_object_ids"])
            return done
        found = [_target(store, target) for target in correction.targets]
        if len({target.id for target in found}) < len(found):
            raise refused("correct: a target is named twice")
        superseded = _unique(
            memory
            for target in found
            for memory in (
                [target] if target.kind == "derived_memory" else [m for m in store.grounded(target.id) if m.live]
            )
        )
        replacement = _inheriting(correction.replacement, found, superseded)
        if store.object(Ref("derived_memory", replacement.external_id)) is not None:
            raise refused(f"correct: {replacement.external_id} is there already, with other content or another origin")
        if reason := _reason(store, replacement, set()):
            raise refused(f"correct: {reason}")
        vectors = self._vectors(namespace, [replacement])
        new = _id(namespace, replacement)
        with store.transaction():
            store.insert(replacement)
            links = [store.supersede(new, memory.id) for memory in superseded]
            changed = [memory.id for memory in superseded if store.suppress(memory)]
            removed = [memory.id for memory in superseded if store.unindex(memory.id)]
            store.index(vectors)
            outcome = _lifecycle(
                id_,
                [new, *changed],
                links,
                [*removed, *(v[0] for v in vectors)],
                {"replacement": new, "superseded": [memory.id for memory in superseded]},
            )
            store.record(outcome, digest)
        return outcome

    def forget(self, namespace: str, forgetting: Forgetting) -> Outcome:
        """Suppress objects, and archive threads; nothing is deleted.

        Memories derived from the targets follow only if both flags say so; one that replaced another is then warned of.
        """
        store = self.store(namespace)
        request = content(forgetting)
        id_ = operation_id(namespace, "forget", request.decode())
        digest = hashlib.sha256(request).digest()
        if done := _repeated(store, id_, digest):
            self._repair(store, (), suppressed=done.outcome["trace"]["suppressed"])
            return done
        found = [_existing(store, ref) for ref in forgetting.targets]
        if len({target.id for target in found}) < len(found):
            raise refused("forget: a target is named twice")
        for target in found:
            if target.kind == "entity":
                raise refused(f"forget: {target.external_id} is an entity; only memories and threads can be forgotten")
        dependents: list[Stored] = []
        if forgetting.suppress_derived_from_target and forgetting.apply_to_derived_from_target:
            named = {target.id for target in found}
            dependents = _unique(
                memory
                for target in found
                for memory in store.grounded(target.id)
                if memory.live and memory.id not in named
            )
        replacements = [memory.external_id for memory in dependents if store.replaces(memory.id)]
        warnings = [{"code": CASCADE_WARNING, "external_ids": replacements}] if replacements else []
        suppressed = [*found, *dependents]
        with store.transaction():
            changed = [memory.id for memory in suppressed if store.suppress(memory)]
            removed = [memory.id for memory in suppressed if store.unindex(memory.id)]
            outcome = _lifecycle(
                id_, changed, [], removed, {"suppressed": [memory.id for memory in suppressed]}, warnings
            )
            store.record(outcome, digest)
        return outcome

    def retrieve(self, namespace: str, text: str, time: str | None = None, policy: Policy | None = None) -> Retrieval:
        """What a query brings back; changes nothing."""
        return retrieve(
            self.store(namespace),
            text,
            time,
            policy or Policy(),
            lambda query: self.embeddings.vectors([query], "query")[0],
        )

    def _vectors(self, namespace: str, objects: Iterable[Object]) -> list[tuple[str, Kind, bytes]]:
        drafts = list(objects)
        made = self.embeddings.vectors([surface(draft) for draft in drafts], "document") if drafts else []
        return [
            (_id(namespace, draft), ref_of(draft).kind, vector)
            for draft, vector in zip(drafts, made, strict=True)
            if vector is not None
        ]

    def _repair(self, store: Store, objects: Iterable[Object], suppressed: Iterable[str] = ()) -> None:
        """After a repeated operation: the vectors that should be there, no others, and statistics that are true."""
        owed: list[Object] = []
        for draft in objects:
            stored = store.get(_id(store.namespace, draft))
            if stored is not None and stored.live and stored.status != "archived" and not store.has_vector(stored.id):
                owed.append(draft)
        gone = [id_ for id_ in suppressed if (held := store.get(id_)) and _hidden(held) and store.has_vector(id_)]
        vectors = self._vectors(store.namespace, owed)
        with store.transaction():
            for id_ in gone:
                store.unindex(id_)
            store.index(vectors)
            store.recount()


def _hidden(held: Stored) -> bool:
    return not held.live or held.status == "archived"


def _id(namespace: str, draft: Draft) -> str:
    return internal_id(namespace, kind_of(draft), draft.external_id)


def _plan(
    namespace: str, id_: str, objects: tuple[Object, ...], links: tuple[Link, ...] = (), *, index: bool = True
) -> Plan:
    ids = [_id(namespace, draft) for draft in objects]
    candidates = [Candidate("object", subject) for subject in ids]
    candidates += [Candidate("link", _id(namespace, link)) for link in links]
    if index:
        candidates += [Candidate("vector", subject) for subject in ids]
        candidates += [Candidate("statistics", subject) for subject in ids]
    return Plan(namespace, id_, objects, links, tuple(candidates))


def _digest(drafts: Iterable[Draft]) -> bytes:
    return hashlib.sha256(b"\n".join(content(draft) for draft in drafts)).digest()


def _repeated(store: Store, id_: str, digest: bytes) -> Outcome | None:
    """What an operation of this id did, if it was carried out. Raises WorkFailedError when it was another one."""
    done = store.operation(id_)
    if done is None:
        return None
    if done[0] != digest:
        raise refused(f"operation {id_} was carried out with other content")
    return done[1]


def _reason(store: Store, draft: Draft, coming: set[Ref]) -> str | None:
    """Why a draft can't be written; None if it can or is there already, just so. coming: what the same batch brings."""
    try:
        data = content(draft)
    except WorkFailedError as error:
        return error.message
    if isinstance(draft, Link):
        there = store.link_content(draft.external_id)
        ends = [draft.source, draft.target]
    else:
        stored = store.get(_id(store.namespace, draft))
        there = content(stored.draft) if stored else None
        ends = [ref for _, ref, _ in references(draft)]
    if there is not None and there != data:
        return f"{draft.external_id}: it is there already with other content"
    if isinstance(draft, Derived):
        if not (draft.episodes or draft.observations):
            return f"{draft.external_id}: a derived memory needs an episode or observation as its source"
        if len(set(ends)) < len(ends):
            return f"{draft.external_id}: it names an object twice"
    for ref in ends:
        if ref not in coming and store.object(ref) is None:
            return f"{draft.external_id}: there is no {ref.kind} {ref.external_id!r}"
    return None


def _existing(store: Store, ref: Ref) -> Stored:
    stored = store.object(ref)
    if stored is None:
        raise refused(f"there is no {ref.kind} {ref.external_id!r}")
    return stored


def _target(store: Store, target: Target) -> Stored:
    """The object of a correction's target, whose references its stored ones confirm."""
    stored = _existing(store, Ref(target.kind, target.external_id))
    draft = stored.draft
    if isinstance(draft, Episode | Observation):
        episode = draft.external_id if isinstance(draft, Episode) else draft.episode
        given = [("raw", ref, ref in draft.raw_refs) for ref in target.raw_refs if ref.strip()]
        given += [("source", ref, ref == episode) for ref in target.source_refs if ref.strip()]
        if not given:
            raise refused(f"correct: {target.external_id} is a source and comes without a reference to its origin")
        for name, ref, confirmed in given:
            if not confirmed:
                raise refused(f"correct: {name} reference {ref!r} isn't one of {target.external_id}")
    return stored


def _unique(memories: Iterable[Stored]) -> list[Stored]:
    return list({memory.id: memory for memory in memories}.values())


def _inheriting(replacement: Derived, targets: Sequence[Stored], superseded: Sequence[Stored]) -> Derived:
    """A replacement with the sources of what it supersedes and corrects, and their entities and threads if it brings
    none of its own."""
    old = [memory.draft for memory in superseded if isinstance(memory.draft, Derived)]
    episodes = [t.external_id for t in targets if isinstance(t.draft, Episode)]
    observations = [t.external_id for t in targets if isinstance(t.draft, Observation)]
    return msgspec.structs.replace(
        replacement,
        episodes=_joined(replacement.episodes, *(d.episodes for d in old), episodes),
        observations=_joined(replacement.observations, *(d.observations for d in old), observations),
        entities=replacement.entities or _joined(*(d.entities for d in old)),
        threads=replacement.threads or _joined(*(d.threads for d in old)),
    )


def _joined(*ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(id_ for group in ids for id_ in group))


def _lifecycle(
    id_: str,
    objects: list[str],
    links: list[str],
    vectors: list[str],
    trace: dict[str, Any],
    warnings: Sequence[dict[str, Any]] = (),
) -> Outcome:
    return Outcome(
        id_,
        {
            "graph_mutated_object_ids": objects,
            "graph_mutated_link_ids": links,
            "vector_maintained_object_ids": vectors,
            "vector_maintenance_failure": None,
            "stats_update_status": {"failure": None},
            "trace": trace,
            "diagnostics": {"warnings": list(warnings)},
        },
    )
