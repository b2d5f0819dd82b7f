"""A life of 10,000 events in the embedded memory: what an event costs doesn't depend on how many came before."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.conftest import Report
from memtrials import systems
from memtrials.benchmarks.continuity.fixture import Query
from memtrials.benchmarks.continuity.rules import read
from memtrials.benchmarks.life import Known, Life, Restart
from memtrials.embeddings.base import Offline
from memtrials.embeddings.hashed import hashed_vector
from memtrials.settings import evaluation
from memtrials.systems.base import Surroundings
from memtrials.systems.substrate.memory import Substrate
from memtrials.systems.substrate.objects import Link, Ref
from memtrials.systems.substrate.plugin import EmbeddedSubstrate
from support.substrate import DIMENSIONS, SPACE, Words, corrected, forgotten, meet, remember

EVENTS, SEED = 10_000, 20261130
PEOPLE = [f"person{n}" for n in range(20)]
WINDOW = EVENTS // 10

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]


class Drawn:
    """Events drawn by chance: memories, most of all, that are linked, corrected and forgotten."""

    def __init__(self, folder: Path) -> None:
        self.memory = Substrate(folder, Words())
        self.memory.open_namespace(SPACE)
        meet(self.memory, *PEOPLE)
        self.draw = random.Random(SEED)
        self.open: list[str] = []
        self.kinds: dict[str, Callable[[int], object]] = {
            "remember": self.remember,
            "link": self.link,
            "correct": self.correct,
            "forget": self.forget,
        }

    def event(self, number: int) -> tuple[str, float]:
        """The next event's kind, and the seconds it took."""
        kind = self.draw.choices(list(self.kinds), (4, 4, 1, 1))[0] if len(self.open) > 1 else "remember"
        began = time.perf_counter()
        self.kinds[kind](number)
        return kind, time.perf_counter() - began

    def remember(self, number: int) -> None:
        words = " ".join(f"word{self.draw.randrange(2000)}" for _ in range(8))
        remember(self.memory, f"m{number}", words, [self.draw.choice(PEOPLE)], thread=f"thread{number % 50}")
        self.open.append(f"m{number}")

    def link(self, number: int) -> None:
        source, target = (Ref("episode", name) for name in self.draw.sample(self.open, 2))
        link = Link(external_id=f"l{number}", source=source, relation="associated_with", target=target)
        self.memory.link(SPACE, link)

    def taken(self) -> str:
        return self.open.pop(self.draw.randrange(len(self.open)))

    def correct(self, number: int) -> None:
        self.memory.correct(SPACE, corrected(self.taken(), f"c{number}", f"It was word{number}."))

    def forget(self, number: int) -> None:
        self.memory.forget(SPACE, forgotten(Ref("episode", self.taken()), dependents=True))


def test_an_event_costs_the_same_after_ten_thousand_others(tmp_path: Path, report: Report) -> None:
    life = Drawn(tmp_path / "states")
    early: dict[str, list[float]] = defaultdict(list)
    late: dict[str, list[float]] = defaultdict(list)
    for number in range(EVENTS):
        kind, took = life.event(number)
        if number < WINDOW:
            early[kind].append(took)
        elif number >= EVENTS - WINDOW:
            late[kind].append(took)
    assert set(early) == set(late) == set(life.kinds)
    slower = {kind: statistics.median(late[kind]) / statistics.median(early[kind]) for kind in life.kinds}
    for kind, factor in slower.items():
        cost = statistics.median(late[kind]) * 1000
        report(f"substrate, {kind} after {EVENTS} events / at first", f"{factor:.2f} ({cost:.1f} ms)", "< 2")
    assert max(slower.values()) < 2


def test_a_life_of_62_events_is_told_and_asked_within_two_seconds(tmp_path: Path, report: Report) -> None:
    scenario = read(evaluation() / "continuity" / "catalogue.json").scenario("combined-life")
    assert len(scenario.events) == 62
    known = tuple(Known(e.external_id, e.entity_type, e.label) for e in scenario.entities)
    words = Offline("bench", "words", "1", DIMENSIONS, lambda text: hashed_vector(text, DIMENSIONS))
    spec = systems.load("substrate-declared")
    system = spec.plugin.open(spec.state, Surroundings(tmp_path / "states", tmp_path / "cache"))
    assert isinstance(system, EmbeddedSubstrate)
    took = []
    for name in ("first", "second", "third"):
        began = time.perf_counter()
        system.begin_life(name, "user", Life(scenario.fixture_id, scenario.namespace, known, words))
        for event in scenario.events:
            if isinstance(event, Query):
                assert system.query(name, event.text, None, spec.fetch).items
            elif isinstance(event, Restart):
                system.restart(name)
            else:
                system.live(name, event)
        system.freeze(name)
        took.append(time.perf_counter() - began)
    system.close()
    report("substrate, a life of 62 events", f"{min(took):.2f} s", "< 2 s")
    assert min(took) < 2
