"""Spies at every boundary that private fields might cross: systems, embeddings, readers, judges."""

import dataclasses
import re
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import memtrials.systems as all_systems
from memtrials.llm.offline import OfflineReader
from memtrials.records import AnswerBody
from memtrials.systems.base import Plugin
from memtrials.systems.embedding import CachedEmbedder, WordLlama
from support.canary import CanaryCopy
from support.model_server import ModelServer, always, ok
from support.trials import records, stage

INTERFACE = ("create", "add", "enrich", "fork", "freeze", "discard", "exists", "query", "query_with_gold", "close")


class Call(NamedTuple):
    """A call of a system's method; args without the gold that a control was handed."""

    system: str
    method: str
    args: tuple[Any, ...]
    gold: Any = None


class Asked(NamedTuple):
    """What the offline reader was asked."""

    question: str
    date: str | None
    context: str


@dataclasses.dataclass
class Crossed:
    """Everything that crossed a boundary in one run of all stages, with the run's files."""

    copy: CanaryCopy
    trials: Path
    cache: Path
    calls: list[Call] = dataclasses.field(default_factory=list)
    embedded: list[tuple[str, str]] = dataclasses.field(default_factory=list)  # role, text
    asked: list[Asked] = dataclasses.field(default_factory=list)
    requests: list[Any] = dataclasses.field(default_factory=list)
    to_judge: list[Any] = dataclasses.field(default_factory=list)
    guided: list[Any] = dataclasses.field(default_factory=list)

    def records(self, kind: str) -> list[dict[str, Any]]:
        """The ledger's records of a kind."""
        return records(self.trials, kind)


def spy_on(crossed: Crossed, patch: pytest.MonkeyPatch) -> None:
    """Stand at every boundary: each system's methods, texts to embed, the offline reader."""
    plugin_of, vectors, embed, read = all_systems.plugin, CachedEmbedder.vectors, WordLlama.embed, OfflineReader.answer

    def plugin(name: str) -> Plugin:
        plain = plugin_of(name)

        def opened(state: Any, surroundings: Any) -> Any:
            kind = state["retriever"] if name == "embedded" else name
            crossed.calls.append(Call(kind, "open", (dict(state), surroundings)))
            return watched(plain.open(state, surroundings), kind)

        return dataclasses.replace(plain, open=opened)

    def watched(system: Any, kind: str) -> Any:
        for method in INTERFACE:
            if hasattr(system, method):
                setattr(system, method, recorded(getattr(system, method), kind, method))
        return system

    def recorded(call: Callable[..., Any], kind: str, method: str) -> Callable[..., Any]:
        def spied(*args: Any) -> Any:
            gold = args[-1] if method == "query_with_gold" else None
            crossed.calls.append(Call(kind, method, args[:-1] if gold else args, gold))
            return call(*args)

        return spied

    def vectors_of(self: Any, texts: Any, role: Any) -> Any:
        crossed.embedded.extend((role, text) for text in texts)
        return vectors(self, texts, role)

    def embed_of(self: Any, text: str, role: Any) -> Any:
        crossed.embedded.append((role, text))
        return embed(self, text, role)

    async def read_by(self: OfflineReader, question: str, date: str | None, context: str) -> AnswerBody:
        crossed.asked.append(Asked(question, date, context))
        return await read(self, question, date, context)

    patch.setattr(all_systems, "plugin", plugin)
    patch.setattr(CachedEmbedder, "vectors", vectors_of)
    patch.setattr(WordLlama, "embed", embed_of)
    patch.setattr(OfflineReader, "answer", read_by)
    patch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_, **__: None)


def run_guided(benchmark: str, copy: CanaryCopy, systems: Sequence[str], folder: Path) -> Crossed:
    """Build, replay, fetch, answer offline and by a model, blind; then a guided reader, and a judge."""
    folder.mkdir()
    crossed = Crossed(copy, folder / "trials.json", folder.with_name(f"{folder.name}-cache"))
    env = {"MEMTRIALS_CACHE": str(crossed.cache)}
    (data,) = copy.folder.iterdir()
    with pytest.MonkeyPatch.context() as patch, ModelServer(always(ok("Noted."))) as server:
        spy_on(crossed, patch)
        env |= server.environment()
        stage(crossed.trials, "build", benchmark, "--data", str(data), "--allow-modified")
        stage(crossed.trials, "replay", *systems, env=env)
        stage(crossed.trials, "fetch", env=env)
        stage(crossed.trials, "answer", env=env)
        stage(crossed.trials, "answer", "--reader", "model-a", "--force", "--workers", "1", env=env)
        crossed.requests = server.requests[:]
        only = ("--system", "bm25", "--workers", "1")
        stage(crossed.trials, "answer", "--reader", "model-a", "--profile", "memorybear", "--force", *only, env=env)
        crossed.guided = server.requests[len(crossed.requests) :]
        del server.requests[:]
        server.script = always(ok('{"score": 0}'))
        stage(crossed.trials, "judge", "--judge", "model-j", *only, env=env)
        crossed.to_judge = server.requests[:]
    return crossed


def without_names(calls: list[Call]) -> list[Any]:
    """Calls with every namespace and user replaced by the order of its appearance, and without gold."""
    order: dict[str, str] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch("[0-9a-f]{16}", value):
            return order.setdefault(value, f"name {len(order)}")
        return value

    return [(c.system, c.method, tuple(map(plain, c.args))) for c in calls if c.method != "open"]
