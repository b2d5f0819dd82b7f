"""A system that takes scripted lives: pages in a file, found by shared words. It can correct, forget, link and restart.

A test names it with `monkeypatch.setitem(systems.BUILT_IN, "notebook", "support.notebook")`; `HEARD` is all that
crossed its interface. Run as a program it is the command line with this system, and kills itself as soon as it is told
of what `NOTEBOOK_DIES_AT` says.
"""

import json
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memtrials import systems
from memtrials.benchmarks.life import Correct, Forget, Life, LifeEvent, Remember
from memtrials.benchmarks.timeline import Session
from memtrials.cli import main
from memtrials.errors import WorkFailedError
from memtrials.records import Item, Memory
from memtrials.systems.base import Capability, Meter, Plugin, Retrieved, Surroundings
from memtrials.systems.life import Done
from memtrials.systems.store import StateFiles

HEARD: list[tuple[Any, ...]] = []
TROUBLE: list[str] = []
"""Words of what it fails to take in."""
DIES_AT = "NOTEBOOK_DIES_AT"
TOML = '[state]\nsystem = "notebook"\n'


@dataclass
class Book:
    """What is known by name, and what was written: name, kind, text, episode, and whether it still holds."""

    known: list[str] = field(default_factory=list)
    ties: list[str] = field(default_factory=list)
    pages: list[dict[str, Any]] = field(default_factory=list)

    def write(self, name: str, kind: str, text: str, episode: str | None) -> None:
        self.pages.append({"name": name, "kind": kind, "text": text, "episode": episode, "holds": True})


class Notebook:
    capabilities: frozenset[Capability] = frozenset(("correct", "forget", "link", "restart", "deterministic"))
    embedded = True

    def __init__(self, folder: Path) -> None:
        self.files = StateFiles(folder)
        self.meter = Meter()
        self.books: dict[str, Book] = {}

    def begin_life(self, namespace: str, user: str, life: Life) -> Sequence[Done]:
        HEARD.append(("begin_life", namespace, user, life))
        self.files.folder.mkdir(parents=True, exist_ok=True)
        self.books[namespace] = Book([entity.external_id for entity in life.entities])
        self._keep(namespace)
        return [Done("remember", outcome={"known": len(life.entities)})]

    def live(self, namespace: str, event: LifeEvent) -> Sequence[Done]:
        HEARD.append(("live", namespace, event))
        told = repr(event)
        if any(words in told for words in TROUBLE):
            raise WorkFailedError("system", "content", "the pen is dry")
        if (fatal := os.environ.get(DIES_AT)) and fatal in told:
            os.kill(os.getpid(), signal.SIGKILL)
        book = self.books[namespace]
        done = self._write(book, event)
        self._keep(namespace)
        return done

    def _write(self, book: Book, event: LifeEvent) -> Sequence[Done]:
        if isinstance(event, Remember):
            assert set(event.entity_external_ids) <= set(book.known)
            book.write(event.external_id, "episode", event.text, None)
            book.write(event.derived_id, "derived_memory", f"So {event.text}", event.external_id)
            return [Done("remember_episode"), Done("remember", event.event_id, {"pages": 2})]
        if isinstance(event, Correct):
            about = [p for p in book.pages if event.target_external_id in (p["name"], p["episode"])]
            assert about, "a correction is of something that was written"
            for page in about:
                page["holds"] = False
            episode = about[0]["episode"] or about[0]["name"]
            book.write(event.replacement_external_id, "derived_memory", event.replacement_text, episode)
            return [Done("correct", event.event_id)]
        if isinstance(event, Forget):
            for name in event.target_external_ids:
                assert any(name in (p["name"], f"{p['name']}:observation") for p in book.pages)
            book.pages = [p for p in book.pages if p["name"] not in event.target_external_ids]
            return [Done("forget", event.event_id)]
        names = {*book.known, *(p["name"] for p in book.pages)}
        assert {event.from_external_id, event.to_external_id} <= names
        book.ties.append(event.external_id)
        return [Done("link", event.event_id, {"relation": event.relation})]

    def restart(self, namespace: str) -> tuple[int, Sequence[Done]]:
        HEARD.append(("restart", namespace))
        self.books = {namespace: Book(**json.loads(self.files.part(namespace).read_bytes()))}
        book = self.books[namespace]
        return len(book.known) + len(book.pages) + len(book.ties), [Done("restart")]

    def _keep(self, namespace: str) -> None:
        self.files.part(namespace).write_text(json.dumps(self.books[namespace].__dict__))

    def query(self, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]) -> Retrieved:
        HEARD.append(("query", namespace, text, date, dict(settings)))
        asked = _words(text)
        pages = [p for p in self.books[namespace].pages if p["holds"]]
        best = sorted(pages, key=lambda p: -len(asked & _words(p["text"])))[: settings["k"]]
        items = tuple(
            Item(
                rank,
                p["text"],
                float(len(asked & _words(p["text"]))),
                memory=Memory(p["kind"], f"page {p['text']}", p["name"], p["episode"]),
            )
            for rank, p in enumerate(best, 1)
        )
        return Retrieved("\n".join(item.text for item in items), items, pieces=tuple(item.text for item in items))

    def create(self, namespace: str, user: str) -> None:
        raise NotImplementedError

    def add(self, namespace: str, session: Session) -> None:
        raise NotImplementedError

    def fork(self, source: str, namespace: str) -> None:
        raise NotImplementedError

    def freeze(self, namespace: str) -> None:
        HEARD.append(("freeze", namespace))
        self.books.pop(namespace)
        self.files.settle(namespace)

    def discard(self, namespace: str) -> None:
        HEARD.append(("discard", namespace))
        self.books.pop(namespace, None)
        self.files.remove(namespace)

    def exists(self, namespace: str) -> bool:
        return self.files.path(namespace).exists()

    def close(self) -> None:
        """Nothing is open."""


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _open(state: Mapping[str, Any], around: Surroundings) -> Notebook:
    HEARD.append(("open", dict(state), str(around.stores)))
    return Notebook(around.stores)


PLUGINS = {"notebook": Plugin("notebook", "1", _open, fetch={"k": 10}, capabilities=Notebook.capabilities, lives=True)}

if __name__ == "__main__":
    systems.BUILT_IN["notebook"] = "support.notebook"
    main()
