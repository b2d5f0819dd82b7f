"""What a query brings back: objects near it, what the graph adds to them, and why each is there or isn't.

Whether an object may be shown is asked of the graph when it is admitted, whatever its vector says. All orders are
total: by score, then kind's rank, then id. Nothing depends on the clock, and a query's time isn't used.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal, get_args

import msgspec

from memtrials.errors import UserError
from memtrials.systems.ranking import Bm25, token_counts, tokens
from memtrials.systems.substrate.objects import KINDS, Derived, Kind, Observation, shown_text
from memtrials.systems.substrate.store import WAYS, Edge, Nearest, Store, Stored, Way, way

Mode = Literal["hybrid", "vector_only", "bm25_only"]
Section = Literal[
    "active_threads",
    "relevant_episodes",
    "salient_observations",
    "derived_memories",
    "preferences",
    "relationship_notes",
    "open_loops",
    "commitments",
    "character_signals",
]
SECTIONS: tuple[Section, ...] = get_args(Section)
"""In the order in which they are shown."""
BUDGETS: dict[Section, int] = {
    "active_threads": 6,
    "relevant_episodes": 8,
    "salient_observations": 16,
    "derived_memories": 12,
    "preferences": 8,
    "relationship_notes": 8,
    "open_loops": 8,
    "commitments": 8,
    "character_signals": 8,
}
_BY_KIND: dict[str, Section] = {
    "memory_thread": "active_threads",
    "episode": "relevant_episodes",
    "observation": "salient_observations",
}
_BY_TYPE: dict[str, Section] = {
    "user_preference": "preferences",
    "assistant_preference": "preferences",
    "relationship_note": "relationship_notes",
    "open_loop": "open_loops",
    "commitment": "commitments",
    "character_signal": "character_signals",
}
SOURCES: tuple[Kind, ...] = ("episode", "observation")
FANOUT = {"about_entity.derived_memory": (0, 20), "participant_entity.episode": (0, 5)} | {
    "part_of_thread.derived_memory": (0, 15)
}
DEPTH, NODES, NEIGHBOURS, HUB_EDGES = 2, 96, 16, 64
"""How far from a root the graph is walked: steps, objects in all, uncounted edges of one object, edges of hubs."""
VECTOR_WEIGHT, GRAPH_WEIGHT, SALIENCE_WEIGHT, INHERITED = 0.65, 0.25, 0.10, 0.75


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """What is looked for and how much is shown.

    sections: how many of each are shown, 0 for none. fanout: fewest and most memories taken from a hub, by way. alpha
    and gamma: smoothing of selectivity and its exponent. trace: whether to say why.
    """

    mode: Mode = "hybrid"
    object_types: tuple[Kind, ...] = KINDS
    sections: Mapping[Section, int] = msgspec.field(default_factory=lambda: dict(BUDGETS))
    max_vector_candidates: int = 48
    max_graph_roots: int = 12
    fanout: Mapping[str, tuple[int, int]] = msgspec.field(default_factory=lambda: dict(FANOUT))
    alpha: float = 1.0
    gamma: float = 1.0
    trace: bool = False

    def checked(self) -> Policy:
        """This policy, if its settings agree with each other. Raises UserError."""
        for name, value in (("alpha", self.alpha), ("gamma", self.gamma)):
            if not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} is {value}; it must be a number above 0")
        if not self.object_types or set(self.object_types) - set(KINDS):
            raise UserError(f"object_types is {list(self.object_types)}; name one or more of {', '.join(KINDS)}")
        if set(self.sections) != set(SECTIONS) or min(self.sections.values()) < 0:
            raise UserError(f"sections must give 0 or more for each of {', '.join(SECTIONS)}")
        if not 1 <= self.max_graph_roots <= self.max_vector_candidates:
            raise UserError(
                f"max_graph_roots is {self.max_graph_roots} and max_vector_candidates {self.max_vector_candidates}; "
                "roots are candidates, so 1 or more and no more than those"
            )
        if set(self.fanout) != set(FANOUT) or any(not 0 <= low <= high for low, high in self.fanout.values()):
            raise UserError(f"fanout must give 0 <= min <= max for each of {', '.join(FANOUT)}")
        if self.mode != "hybrid":
            for kind in self.object_types:
                if kind not in SOURCES:
                    raise UserError(
                        f"{self.mode} finds episodes and observations only; remove {kind} from object_types"
                    )
                if not self.sections[_BY_KIND[kind]]:
                    raise UserError(f"{self.mode} with {kind} needs a budget: {_BY_KIND[kind]} is 0")
        return self


class Found(msgspec.Struct, frozen=True):
    """An object that was brought back. score: its cosine or BM25, None where only the graph led to it.

    episode_external_id: of an observation's episode, or of the first one that a memory was derived from.
    """

    kind: Kind
    internal_id: str
    external_id: str
    episode_external_id: str | None
    score: float | None
    rank: int
    rationale: tuple[str, ...]
    text: str


class Retrieval(msgspec.Struct, frozen=True):
    """Items by rank, and one native outcome for each search that was made."""

    items: tuple[Found, ...]
    outcomes: tuple[dict[str, Any], ...]


def rendered(item: Found, mode: Mode) -> str:
    """What a reader sees of an item: kind, id and rank before its text, for BM25 the text alone."""
    return item.text if mode == "bm25_only" else f"[{item.kind}:{item.external_id} rank={item.rank}] {item.text}"


def context_text(found: Retrieval, mode: Mode) -> str:
    """What a reader sees: the items, each on lines of its own."""
    return "\n".join(rendered(item, mode) for item in found.items)


def selectivity(linked: int, total: int, alpha: float = 1.0) -> float:
    """How telling an entity is that `linked` of `total` memories carry: 1 for one that none does, 0 for all.

    ln((N + α)/(n + α)) / ln(N + α), within [0, 1]; 0 without memories.
    """
    if total <= 0 or (scale := math.log(total + alpha)) <= 0:
        return 0.0
    return min(1.0, max(0.0, math.log((total + alpha) / (linked + alpha)) / scale))


def retrieve(
    store: Store, text: str, time: str | None, policy: Policy, embed: Callable[[str], bytes | None]
) -> Retrieval:
    """Ask an open namespace. embed: the query's vector, None for a text without tokens. time: of asking, kept with the
    outcome. Raises UserError for a policy that contradicts itself."""
    policy.checked()
    if policy.mode == "bm25_only":
        return Retrieval(_lexical(store, text, policy), ())
    query = embed(text)
    if policy.mode == "hybrid":
        search = Search(store, policy)
        search.run(_nearest(store, query, policy.object_types, policy.max_vector_candidates))
        return search.result(time, policy.object_types)
    return _vector_only(store, query, time, policy)


def _nearest(store: Store, query: bytes | None, kinds: Sequence[Kind], count: int) -> Nearest | None:
    return None if query is None else store.nearest(query, kinds, count)


def _vector_only(store: Store, query: bytes | None, time: str | None, policy: Policy) -> Retrieval:
    """Episodes and observations by their vectors alone, each kind searched by itself, then merged by score."""
    items: list[Found] = []
    outcomes = []
    for kind in (kind for kind in SOURCES if kind in policy.object_types):
        budget = policy.sections[_BY_KIND[kind]]
        search = Search(store, msgspec.structs.replace(policy, trace=True))
        search.admit(_nearest(store, query, (kind,), budget))
        items += [_item(reached.stored, reached.hit, 0, "vector_only") for reached in search.reached.values()]
        outcomes.append(search.result(time, (kind,)).outcomes[0])
    items.sort(key=lambda item: (-(item.score or 0.0), item.kind, item.internal_id))
    return Retrieval(_ranked(items), tuple(outcomes))


def _lexical(store: Store, text: str, policy: Policy) -> tuple[Found, ...]:
    """Episodes and observations by BM25 over both; those without any token of the query fill what is left."""
    if not tokens(text):
        return ()
    documents = sorted(store.texts(SOURCES), key=lambda d: f"{d.kind}:{d.external_id}")
    scores = dict(Bm25([token_counts(shown_text(document.draft)) for document in documents]).rank(text).first())
    order = [*scores, *(n for n in range(len(documents)) if n not in scores)]
    left = {kind: policy.sections[_BY_KIND[kind]] for kind in policy.object_types}
    items = []
    for n in order:
        document = documents[n]
        if left.get(document.kind, 0) > 0:
            left[document.kind] -= 1
            item = _item(document, scores.get(n, 0.0), 0, "bm25_only")
            items.append(msgspec.structs.replace(item, internal_id=f"bm25:{document.kind}:{document.external_id}"))
    return _ranked(items)


def _ranked(items: Sequence[Found]) -> tuple[Found, ...]:
    return tuple(msgspec.structs.replace(item, rank=rank) for rank, item in enumerate(items, 1))


def _item(stored: Stored, score: float | None, rank: int, rationale: str) -> Found:
    draft = stored.draft
    episode = None
    if isinstance(draft, Observation):
        episode = draft.episode
    elif isinstance(draft, Derived) and draft.episodes:
        episode = draft.episodes[0]
    return Found(stored.kind, stored.id, stored.external_id, episode, score, rank, (rationale,), shown_text(draft))


@dataclass
class Reached:
    """An admitted object and how it was come by. root: the best score of a root that leads to it, itself included.

    proximity: steps from the nearest root. hit: its own cosine.
    """

    stored: Stored
    hit: float | None
    root: float
    proximity: int
    categories: set[str] = field(default_factory=set)

    @property
    def score(self) -> float:
        """0.65 · vector + 0.25 · graph + 0.10 · salience; without a hit of its own, three quarters of its root's."""
        vector = self.hit if self.hit is not None else INHERITED * self.root
        return VECTOR_WEIGHT * vector + GRAPH_WEIGHT / (self.proximity + 1) + SALIENCE_WEIGHT * self.stored.salience


class Search:
    """One search and its trace."""

    def __init__(self, store: Store, policy: Policy) -> None:
        self.store = store
        self.policy = policy
        self.reached: dict[str, Reached] = {}
        self._hits: dict[str, float] = {}
        self._nearest: Nearest | None = None
        self._roots = 0
        self._verdicts: dict[str, str | None] = {}
        self._get = cache(store.get)  # roots share their surroundings
        self._neighbours = cache(lambda id_: list(store.neighbours(id_)))
        self._trace: dict[str, list[dict[str, Any]]] = {
            name: []
            for name in (
                "vector_candidates",
                "graph_relations",
                "graph_expansions",
                "fanout_utilization",
                "selectivity_decisions",
                "lifecycle_filter_decisions",
                "stale_candidate_omissions",
                "section_assignments",
                "omissions",
            )
        }
        self._relations: set[tuple[str, str, str]] = set()

    def run(self, nearest: Nearest | None) -> None:
        """Candidates, roots and their surroundings."""
        roots = self.admit(nearest, self.policy.max_graph_roots)
        for root in roots:
            self._expand(root)

    def admit(self, nearest: Nearest | None, count: int | None = None) -> list[Reached]:
        """The candidates that the graph lets through, at most so many, as roots."""
        self._nearest = nearest
        roots: list[Reached] = []
        for rank, (id_, kind, score) in enumerate(nearest.hits if nearest else (), 1):
            candidate = {"kind": kind, "internal_id": id_}
            self._trace["vector_candidates"].append(
                {"object": candidate, "surface": kind, "score": score, "rank": rank}
            )
            stored = self._get(id_)
            reason = "missing_object" if stored is None else self._omitted(stored)
            if stored is None or reason is not None:
                self._trace["stale_candidate_omissions"].append(
                    {"candidate": candidate, "vector_score": score, "reason": reason}
                )
                continue
            self._hits[id_] = score
            if count is not None and len(roots) == count:
                self._omit(stored, "root_limit")
                continue
            roots.append(Reached(stored, score, score, 0, {"semantic"}))
        self.reached = {root.stored.id: root for root in roots}
        self._roots = len(roots)
        return roots

    def _omitted(self, stored: Stored) -> str | None:
        """Why the graph holds an object back, None if it doesn't; decided and recorded once."""
        if stored.id in self._verdicts:
            return self._verdicts[stored.id]
        by = self.store.superseded_by(stored.id)
        reason: str | None
        if by is not None:
            reason = "superseded"
        elif stored.retention != "active":
            reason = stored.retention
        elif not stored.is_current:
            reason = "not_current"
        else:
            reason = "archived" if stored.status == "archived" else None
        self._verdicts[stored.id] = reason
        self._trace["lifecycle_filter_decisions"].append(
            {
                "object": _ref(stored),
                "retention_state": stored.retention,
                "is_current": stored.is_current,
                "superseded_by": by,
                "action": "omit" if reason else "admit",
                "reason": reason,
            }
        )
        return reason

    def _omit(self, stored: Stored, reason: str) -> None:
        self._trace["omissions"].append({"object": _ref(stored), "reason": reason})

    def _expand(self, root: Reached) -> None:
        """Walk from a root, breadth first, within all limits."""
        seen = {root.stored.id}
        hub_edges = 0
        queue = deque([(root.stored, 0, _passing(root.stored))])
        while queue and len(seen) < NODES:
            node, depth, categories = queue.popleft()
            if depth == DEPTH:
                continue
            followed = self._followed(node, root.root, HUB_EDGES - hub_edges)
            hub_edges += sum(way(edge.relation, node.kind, edge.kind) is not None for edge, _ in followed)
            for edge, other in followed:
                self._relate(node, edge)
                if other.id not in seen and len(seen) < NODES:
                    seen.add(other.id)
                    self._reach(other, root.root, depth + 1, categories | {"graph_bound"})
                    queue.append((other, depth + 1, categories | _passing(other)))
        self._trace["graph_expansions"].append(
            {"root": _ref(root.stored), "reached": len(seen) - 1, "hub_edges": hub_edges, "partial": bool(queue)}
        )

    def _followed(self, node: Stored, score: float, hub_edges: int) -> list[tuple[Edge, Stored]]:
        """The edges of an object that are followed: to each admitted neighbour one, as many as limits allow."""
        followed: dict[str, tuple[Edge, Stored]] = {}
        caps: dict[Way | None, int] = {None: NEIGHBOURS}
        taken: Counter[Way | None] = Counter()
        for edge in self._neighbours(node.id):
            via = way(edge.relation, node.kind, edge.kind)
            if via is not None and via not in caps:
                caps[via] = self._cap(node, via, score)
            if edge.other in followed or taken[via] == caps[via] or (via and taken.total() - taken[None] == hub_edges):
                continue
            other = self._get(edge.other)
            if other is not None and self._omitted(other) is None:
                followed[edge.other] = edge, other
                taken[via] += 1
        for via in WAYS:
            if via in caps:
                low, high = self.policy.fanout[via.name]
                self._trace["fanout_utilization"].append(
                    {
                        "object": _ref(node),
                        "path": via.name,
                        "configured_min": low,
                        "configured_max": high,
                        "selected_cap": caps[via],
                        "taken": taken[via],
                    }
                )
        return list(followed.values())

    def _cap(self, hub: Stored, via: Way, score: float) -> int:
        """How many memories are taken from a hub: more from a telling one, and from one near the query."""
        low, high = self.policy.fanout[via.name]
        linked, total = self.store.linked(hub.id, via.name), self.store.linked("", via.memory)
        telling = None
        if linked is None or total is None:
            cap = min(high, max(low, 1))
        else:
            telling = selectivity(linked, total, self.policy.alpha)
            near = 1 + min(1.0, max(0.0, score))
            cap = min(high, max(low, math.floor(high * telling**self.policy.gamma * near)))
        self._trace["selectivity_decisions"].append(
            {
                "object": _ref(hub),
                "path": via.name,
                "linked": linked,
                "total": total,
                "selectivity": telling,
                "cap": cap,
                "fallback": telling is None,
            }
        )
        return cap

    def _relate(self, node: Stored, edge: Edge) -> None:
        ends = (node.id, edge.other) if edge.outward else (edge.other, node.id)
        relation = (ends[0], edge.relation, ends[1])
        if relation not in self._relations:
            self._relations.add(relation)
            self._trace["graph_relations"].append({"from": ends[0], "relation": edge.relation, "to": ends[1]})

    def _reach(self, stored: Stored, score: float, proximity: int, categories: set[str]) -> None:
        known = self.reached.setdefault(stored.id, Reached(stored, self._hits.get(stored.id), score, proximity))
        known.root = max(known.root, score)
        known.proximity = min(known.proximity, proximity)
        known.categories |= categories

    def result(self, time: str | None, kinds: Sequence[Kind]) -> Retrieval:
        """Fill the sections, and say what was done."""
        sections: dict[Section, list[Reached]] = {name: [] for name in SECTIONS}
        order = sorted(self.reached.values(), key=lambda r: (-r.score, KINDS.index(r.stored.kind), r.stored.id))
        for reached in order:
            section = _section(reached.stored)
            if section is None:
                self._omit(reached.stored, "not_shown")
            elif section == "active_threads" and reached.stored.status != "active":
                self._omit(reached.stored, "thread_not_active")
            elif len(sections[section]) == self.policy.sections[section]:
                self._omit(reached.stored, "section_full")
            else:
                sections[section].append(reached)
                self._assign(reached, section, len(sections[section]))
        scanned = self._nearest.scanned if self._nearest else None
        candidates = len(self._trace["vector_candidates"])
        summary = f"{candidates} candidates, {self._roots} roots, {len(self.reached)} objects in the graph"
        shown = [reached for name in SECTIONS for reached in sections[name]]
        items = [_item(reached.stored, reached.hit, rank, summary) for rank, reached in enumerate(shown, 1)]
        outcome: dict[str, Any] = {
            "pack": {name: [_ref(reached.stored) for reached in sections[name]] for name in SECTIONS},
            "rationale": {
                "summary": summary,
                "vector_candidate_count": candidates,
                "graph_relation_count": len(self._relations),
                "graph_verified_count": len(self.reached),
                "section_assignment_count": len(shown),
                "telemetry": {
                    "query_time": time,
                    "configured_object_types": list(kinds),
                    "root_count": self._roots,
                    "vector_recall_completeness": {"kind": "not_requested"}
                    if scanned is None
                    else {"kind": "exhaustive", "scanned": scanned},
                },
            },
            "trace": self._trace if self.policy.trace else None,
        }
        return Retrieval(tuple(items), (outcome,))

    def _assign(self, reached: Reached, section: Section, rank: int) -> None:
        stored = reached.stored
        categories = set(reached.categories)
        if stored.salience > 0:
            categories.add("salience")
        if self.store.replaces(stored.id):
            categories.add("lifecycle")
        self._trace["section_assignments"].append(
            {
                "object": _ref(stored),
                "section": section,
                "rank": rank,
                "score": reached.score,
                "reason": "near" if "semantic" in categories else "linked",
                "rationale_categories": sorted(categories),
            }
        )


def _passing(stored: Stored) -> set[str]:
    """What a path through an object is evidence of."""
    return {"entity": {"entity"}, "memory_thread": {"thread"}}.get(stored.kind, set())


def _section(stored: Stored) -> Section | None:
    """Where an object is shown; an entity never is."""
    if isinstance(stored.draft, Derived):
        return _BY_TYPE.get(stored.draft.derived_type, "derived_memories")
    return _BY_KIND.get(stored.kind)


def _ref(stored: Stored) -> dict[str, str]:
    return {"kind": stored.kind, "internal_id": stored.id, "external_id": stored.external_id}
