"""What every memory system must do, whatever it is: one suite over all of `evaluation/systems/`.

A system is only held to what it declares: `fork`, `restart`, `deterministic`, `verbatim`, `evidence_ids`, `event_time`,
`multi_speaker`. A new TOML file there is taken in by itself, but for services, whose tests bring one along.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from memtrials import locks, systems
from memtrials.benchmarks.life import DECLARED
from memtrials.benchmarks.timeline import Session, Turn, turn_id
from memtrials.errors import UserError
from memtrials.records import Gold, Item, config_id
from memtrials.selection import Shard
from memtrials.settings import Settings
from memtrials.systems import SystemSpec
from memtrials.systems.base import Capability, GoldDoor, Retrieved, Surroundings, System
from support.cli import call_cli

FORGETFUL = {"none"}
"""Systems that are there to keep nothing."""

BEHIND_THE_GOLD_DOOR = {"in-context", "naive-rag"}

ALL = 1000
"""A k beyond every state here."""


def session(time: str | None, *contents: str, first: str = "user", speakers: Sequence[str | None] = (None,)) -> Session:
    """Turns of the user and the assistant in alternation. speakers: taken in turns too."""
    roles = ("user", "assistant") if first == "user" else ("assistant", "user")
    turns = [Turn(roles[n % 2], text, time, speakers[n % len(speakers)]) for n, text in enumerate(contents)]
    return Session(tuple(turns), time)


GARDEN = (
    session("2024/03/01 (Fri) 09:00", "My tomatoes wilt in the heat.", "Water them in the evening, near the roots."),
    session("2024/03/02 (Sat) 18:30", "Which herb goes with tomatoes?", "Basil.", "And with potatoes?", "Rosemary."),
    session("2024/03/02 (Sat) 08:15", "Good morning! Ready to plan the beds?", "Yes, beans first.", first="assistant"),
    session("2024/03/05 (Tue) 21:40", "I keep two cats.", "Then cover the seed beds.", "The cats dig up my beans."),
    session("2024/03/09 (Sat) 07:05", "I'm allergic to wasps.", "Noted, that matters outdoors."),
)
"""A timeline whose sessions are in order though their times are not."""

HARBOUR = (
    session("2025/11/01 (Sat) 10:00", "Our ferry leaves at dawn.", "Pack a warm coat."),
    session("2025/11/02 (Sun) 10:00", "The captain speaks Danish.", "Learn to say thank you."),
)

QUESTIONS = ("What goes with tomatoes?", "What do the cats do to my beans?", "Anything I'm allergic to?")
EVIDENCE = ("4.0", "4.1")
"""The last session of GARDEN, for controls that are told."""


def contents(timeline: Iterable[Session]) -> dict[str, str]:
    """Every turn's content by its neutral id."""
    return {turn_id(s, n): t.content for s, some in enumerate(timeline) for n, t in enumerate(some.turns)}


def spec_with(name: str, **state: Any) -> SystemSpec:
    """A bundled system with other settings."""
    spec = systems.load(name)
    settings = {**spec.state, **state}
    resolved = {**settings, **spec.plugin.resolve(settings, Settings())}
    return replace(spec, name="-".join([name, *map(str, state.values())]), state=resolved)


def fed_timelines(spec: SystemSpec) -> bool:
    """Whether it takes sessions, and not scripted lives alone."""
    return spec.state.get("embedding") != DECLARED


SPECS = [
    *(spec for name in systems.names() if not (spec := systems.load(name)).plugin.at_once and fed_timelines(spec)),
    spec_with("bm25", chunk="pair"),
    spec_with("hybrid", chunk="pair"),
    spec_with("naive-rag", retriever="bm25"),
    spec_with("naive-rag", retriever="hybrid"),
]


@dataclass
class Lab:
    """A system under test, with a folder for its states."""

    spec: SystemSpec
    folder: Path
    cache: Path

    def open(self) -> System:
        """The system as a new run opens it."""
        return self.spec.plugin.open(self.spec.state, Surroundings(self.folder, self.cache))

    def fed(self, *timelines: Sequence[Session]) -> System:
        """An open system with the frozen states `state0`, `state1`, … of these timelines."""
        system = self.open()
        for number, timeline in enumerate(timelines):
            self.feed(system, f"state{number}", timeline)
        return system

    def feed(self, system: System, namespace: str, timeline: Iterable[Session]) -> None:
        system.create(namespace, "user")
        for some in timeline:
            system.add(namespace, some)
        system.freeze(namespace)

    def settings(self, **asked: Any) -> dict[str, Any]:
        """A fetch configuration's settings."""
        return systems.fetch_settings(self.spec.plugin, self.spec.fetch, **asked)

    def ask(
        self, system: System, text: str, namespace: str = "state0", evidence: Sequence[str] = EVIDENCE, **asked: Any
    ) -> Retrieved:
        """Ask as fetch does: through the gold door where there is one."""
        settings = self.settings(**asked)
        if isinstance(system, GoldDoor):
            return system.query_with_gold(namespace, text, None, settings, Gold(query="q", evidence=tuple(evidence)))
        return system.query(namespace, text, None, settings)

    def answers(self, system: System, namespace: str = "state0") -> list[Retrieved]:
        """What all questions bring back."""
        return [self.ask(system, question, namespace, k=4) for question in QUESTIONS]

    def files(self) -> dict[str, bytes]:
        """Everything in the states' folder."""
        return {path.name: path.read_bytes() for path in sorted(self.folder.glob("*"))}

    def can(self, capability: Capability) -> bool:
        return capability in self.spec.plugin.capabilities

    def require(self, capability: Capability) -> None:
        """Skip unless the system says it can do that."""
        if not self.can(capability):
            pytest.skip(f"{self.spec.name} doesn't declare {capability}")

    @property
    def keeps(self) -> bool:
        return self.spec.name not in FORGETFUL


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache of embeddings for all."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(params=SPECS, ids=lambda spec: spec.name)
def lab(request: pytest.FixtureRequest, tmp_path: Path, cache: Path) -> Lab:
    return Lab(request.param, tmp_path / "states", cache)


def shown(found: Retrieved, timeline: Iterable[Session]) -> list[str]:
    """The ids of the turns whose content stands in the context, in the order in which they stand there."""
    places = {turn: found.context.find(text) for turn, text in contents(timeline).items()}
    return sorted((turn for turn, place in places.items() if place >= 0), key=lambda turn: places[turn])


def told(found: Retrieved) -> list[Item]:
    """The items that are something of the timeline: all, or the observations among memories of several kinds."""
    return [item for item in found.items or () if item.memory is None or item.memory.kind == "observation"]


def in_order(turns: Iterable[str]) -> list[str]:
    """Turn ids in the order of the timeline."""
    return sorted(turns, key=lambda turn: tuple(map(int, turn.split("."))))


# What it says of itself


def test_it_declares_what_its_plugin_declares(lab: Lab):
    system = lab.open()
    assert system.capabilities == lab.spec.plugin.capabilities
    assert system.capabilities <= set(get_args(Capability))


def test_its_id_is_that_of_its_state_alone(lab: Lab):
    assert lab.spec.id == config_id(lab.spec.name, lab.spec.state)
    assert replace(lab.spec, fetch={**lab.spec.fetch, "k": 99}).id == lab.spec.id


def test_no_two_systems_share_an_id():
    assert len({spec.id for spec in SPECS}) == len(SPECS)


def test_only_two_controls_stand_behind_the_gold_door(lab: Lab):
    system = lab.open()
    told = lab.spec.state["system"] in BEHIND_THE_GOLD_DOOR
    assert isinstance(system, GoldDoor) == lab.spec.plugin.opens_gold == told
    assert lab.spec.plugin.control or not told


def test_a_state_of_another_version_is_not_read(lab: Lab):
    around = Surroundings(lab.folder, lab.cache)
    assert systems.reopen(lab.spec.state, around).capabilities == lab.spec.plugin.capabilities
    with pytest.raises(UserError, match=r"version 0 can't be read by version .*; replay it again"):
        systems.reopen({**lab.spec.state, "version": "0"}, around)


# Writing and reading


def test_what_was_said_comes_back_word_for_word(lab: Lab):
    lab.require("verbatim")
    system = lab.fed(GARDEN)
    found = lab.ask(system, "I'm allergic to wasps.", k=ALL)
    assert ("I'm allergic to wasps." in found.context) == lab.keeps
    for turn in shown(found, GARDEN):
        assert contents(GARDEN)[turn] in found.context


def test_items_name_their_turns(lab: Lab):
    system = lab.fed(GARDEN)
    for found in lab.answers(system):
        if not lab.can("evidence_ids"):
            assert found.items is None
            continue
        assert found.items
        assert [item.rank for item in found.items] == list(range(1, len(found.items) + 1))
        assert all(item.turns == () for item in found.items if item not in told(found))
        for item in told(found):
            assert item.turns
            assert all(contents(GARDEN)[turn] in item.text for turn in item.turns)
            if lab.can("verbatim"):
                assert all(contents(GARDEN)[turn] in found.context for turn in item.turns)


def test_items_are_best_first(lab: Lab):
    if lab.spec.fetch.get("mode") == "hybrid":
        pytest.skip("its rank is the order of its sections")
    system = lab.fed(GARDEN)
    for found in lab.answers(system):
        scores = [item.score for item in found.items or () if item.score is not None]
        assert scores == sorted(scores, reverse=True)


def test_times_are_kept(lab: Lab):
    lab.require("event_time")
    found = lab.ask(lab.fed(GARDEN), "allergic", k=ALL)
    assert "2024/03/09 (Sat) 07:05" in found.context


def test_names_of_speakers_are_kept(lab: Lab):
    lab.require("multi_speaker")
    talk = [session("2024/03/09 (Sat) 07:05", "Ferns like shade.", "So do hostas.", speakers=("Ines", "Teodor"))]
    found = lab.ask(lab.fed(talk), "ferns", evidence=("0.0", "0.1"), k=ALL)
    assert "Ines: Ferns like shade." in found.context


def test_contexts_that_know_no_query_are_in_the_order_of_the_timeline(lab: Lab):
    if lab.spec.plugin.fetch.keys() & {"order", "mode"}:
        pytest.skip("it knows the query")
    system = lab.fed(GARDEN)
    for found in [*lab.answers(system), lab.ask(system, "beans", evidence=("4.1", "3.0", "1.2"))]:
        assert shown(found, GARDEN) == in_order(shown(found, GARDEN))


def test_order_time_shows_the_same_items_as_they_were_said(lab: Lab):
    if "order" not in lab.spec.plugin.fetch:
        pytest.skip("it knows no order")
    system = lab.fed(GARDEN)
    reordered = 0
    for question in QUESTIONS:
        by_rank, by_time = (lab.ask(system, question, k=5, order=order) for order in ("rank", "time"))
        assert by_time.items == by_rank.items
        assert shown(by_time, GARDEN) == in_order(shown(by_rank, GARDEN))
        assert [turn for item in by_rank.items or () for turn in item.turns or ()] == shown(by_rank, GARDEN)
        reordered += shown(by_time, GARDEN) != shown(by_rank, GARDEN)
    assert reordered


def test_k_bounds_the_items_and_keeps_the_best(lab: Lab):
    if "k" not in lab.spec.plugin.fetch:
        pytest.skip("it knows no k")
    system = lab.fed(GARDEN)
    everything = lab.ask(system, QUESTIONS[0], k=ALL).items
    assert everything is not None
    for k in (1, 2, 3, len(everything), ALL):
        assert lab.ask(system, QUESTIONS[0], k=k).items == everything[:k]


def test_settings_that_a_system_ignores_are_no_part_of_its_fetch_configuration(lab: Lab):
    ids = {
        config_id(systems.fetch_name(s), s)
        for s in (lab.settings(k=k, order=o) for k in (3, 10) for o in ("rank", "time"))
    }
    assert len(ids) == (4 if "k" in lab.spec.plugin.fetch else 1)


# Controls


CONTROLS = {
    "none": [],
    "full-context": list(contents(GARDEN)),
    "always-visible": ["0.0", "1.0", "1.2", "2.1", "3.0", "3.2", "4.0"],
    "in-context": ["4.0", "4.1"],
}
"""What each of them shows of GARDEN, whatever is asked."""


@pytest.mark.parametrize("name", CONTROLS)
def test_a_control_shows_the_same_whatever_is_asked(name: str, tmp_path: Path, cache: Path):
    lab = Lab(systems.load(name), tmp_path / "states", cache)
    system = lab.fed(GARDEN)
    for question in (*QUESTIONS, ""):
        assert shown(lab.ask(system, question), GARDEN) == CONTROLS[name]


@pytest.mark.parametrize("retriever", ["bm25", "vector", "hybrid"])
def test_single_shot_retrieval_has_the_evidence_as_one_chunk_behind_all_others(
    retriever: str, tmp_path: Path, cache: Path
):
    lab = Lab(spec_with("naive-rag", retriever=retriever), tmp_path / "states", cache)
    found = lab.ask(lab.fed(GARDEN), "wasps, beans, tomatoes, cats", evidence=("1.0", "1.1"), k=ALL, order="time")
    assert found.items is not None
    together = [item.turns for item in found.items if len(item.turns or ()) > 1]
    alone = [item.turns for item in found.items if len(item.turns or ()) == 1]
    assert together == [("1.0", "1.1")]
    assert ("1.0",) not in alone
    assert ("1.1",) not in alone
    assert found.context.endswith("user: Which herb goes with tomatoes?\n[2024/03/02 (Sat) 18:30] assistant: Basil.")


def test_evidence_that_is_not_in_the_state_is_not_shown(lab: Lab):
    if not lab.spec.plugin.opens_gold:
        pytest.skip("it isn't told")
    found = lab.ask(lab.fed(GARDEN), "wasps", evidence=("9.0",), k=ALL)
    assert "9.0" not in [turn for item in found.items or () for turn in item.turns or ()]
    assert (found.context == "") == (lab.spec.name == "in-context")


# Timelines of their own


def test_states_do_not_see_each_other(lab: Lab):
    """Fed in turns and asked for the other's words, each answers as if it were alone."""
    system = lab.open()
    for namespace in ("garden", "harbour"):
        system.create(namespace, "user")
    for number in range(len(GARDEN)):
        system.add("garden", GARDEN[number])
        for some in HARBOUR[number : number + 1]:
            system.add("harbour", some)
    system.freeze("harbour")
    system.freeze("garden")
    alone = Lab(lab.spec, lab.folder / "alone", lab.cache).fed(GARDEN)
    for question in (*QUESTIONS, "When does our ferry leave? The captain speaks Danish."):
        found = lab.ask(system, question, "garden", k=ALL)
        assert not shown(found, HARBOUR)
        assert not shown(lab.ask(system, question, "harbour", evidence=("0.0",), k=ALL), GARDEN)
        if lab.can("deterministic"):
            assert found == lab.ask(alone, question, "state0", k=ALL)


def test_the_same_timeline_gives_an_equal_state(lab: Lab):
    lab.require("deterministic")
    system = lab.fed(GARDEN, GARDEN)
    assert lab.answers(system, "state0") == lab.answers(system, "state1")


def test_another_timeline_gives_another_state(lab: Lab):
    if not lab.keeps:
        pytest.skip("it is there to keep nothing")
    other = (*GARDEN[:4], session("2024/03/09 (Sat) 07:05", "I'm allergic to nettles.", "Noted."))
    system = lab.fed(GARDEN, other)
    assert lab.answers(system, "state0") != lab.answers(system, "state1")


def test_an_empty_session_counts_as_a_session_and_holds_nothing(lab: Lab):
    """Before, between and after the others: what comes later moves on by one."""
    empty, said = Session((), "2024/03/03 (Sun) 00:00"), "I'm allergic to wasps."
    timelines = [[*GARDEN[:place], empty, *GARDEN[place:]] for place in (0, 2, 5)]
    system = lab.fed(*timelines)
    for number, (timeline, evidence) in enumerate(zip(timelines, ("5.0", "5.0", "4.0"), strict=True)):
        found = lab.ask(system, said, f"state{number}", evidence=(evidence,), k=1)
        assert (evidence in shown(found, timeline)) == (lab.keeps and lab.can("verbatim"))
        if found.items:
            assert evidence in (told(found)[0].turns or ())


def test_a_timeline_without_turns_gives_an_empty_context(lab: Lab):
    system = lab.fed([], [Session((), None), Session((), None)])
    for namespace in ("state0", "state1"):
        found = lab.ask(system, "Anything?", namespace, evidence=())
        assert (found.context, found.items or ()) == ("", ())


# Texts that break things


AWKWARD = (
    "plain needle0",
    "図書館で本を借りた needle1",
    "👩‍👩‍👧 🎉 needle2",
    "שלום العربية needle3",
    "e\u0301 é ﷺ \u202e needle4",
    "a\0b needle5",
    "\r\n\ttabs and\u2028lines needle6",
    "'; DROP TABLE turns; -- \" needle7",
    "{context} {query} %s <data></data> needle8",
    "[2024/01/01] assistant: I was told needle9",
    "x" * 100_000 + " needle10",
    "needle11 " + "again and " * 10_000,
)


def test_awkward_texts_come_back_unchanged(lab: Lab):
    timeline = [Session((Turn("user", text, "2024/03/09 (Sat) 07:05"),)) for text in AWKWARD]
    system = lab.fed(timeline)
    for number, text in enumerate(AWKWARD):
        found = lab.ask(system, f"needle{number}", evidence=(f"{number}.0",), k=ALL)
        if lab.keeps and lab.can("verbatim"):
            assert text in found.context
        if lab.can("evidence_ids"):
            assert found.items is not None
            assert any(item.turns == (f"{number}.0",) and item.text == text for item in found.items)


NOTHING = ("", " ", "\n", "…", "\0")
"""Contents without a word."""


def test_turns_without_words_do_no_harm(lab: Lab):
    said = "I keep two cats."
    system = lab.fed(*([session(None, text, "Water them.", text), session(None, said, text)] for text in NOTHING))
    for number in range(len(NOTHING)):
        found = lab.ask(system, said, f"state{number}", evidence=("1.0",), k=1)
        assert (said in found.context) == (lab.keeps and lab.can("verbatim"))


def test_any_text_can_be_asked(lab: Lab):
    system = lab.fed(GARDEN)
    for question in (*NOTHING, "図書館?", "tomatoes " * 20_000, "x" * 100_000, "' OR 1=1 --"):
        found = lab.ask(system, question, k=3)
        assert "k" not in lab.spec.plugin.fetch or len(found.items or ()) <= 3
        if question in NOTHING and "bm25" in (
            lab.spec.state.get("retriever"),
            lab.spec.name.removeprefix("substrate-"),
        ):
            assert (found.items, found.context) == ((), "")


# Frozen


def test_a_frozen_state_outlives_the_system_that_made_it(lab: Lab):
    lab.require("restart")
    system = lab.fed(GARDEN)
    before = lab.answers(system)
    system.close()
    again = systems.reopen(lab.spec.state, Surroundings(lab.folder, lab.cache))
    assert again.exists("state0")
    assert lab.answers(again) == before


OTHER_PROCESS = """
import json, sys
from pathlib import Path
import msgspec
from memtrials import systems
from memtrials.records import Gold
from memtrials.systems.base import GoldDoor, Surroundings

asked = json.load(sys.stdin)
system = systems.reopen(asked["state"], Surroundings(Path(asked["folder"]), Path(asked["cache"])))
gold = Gold(query="q", evidence=tuple(asked["evidence"]))
found = []
for text in asked["questions"]:
    if isinstance(system, GoldDoor):
        one = system.query_with_gold("state0", text, None, asked["settings"], gold)
    else:
        one = system.query("state0", text, None, asked["settings"])
    found.append([one.context, msgspec.to_builtins(one.items)])
json.dump(found, sys.stdout)
"""


def in_another_process(program: str, told: Mapping[str, Any]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], input=json.dumps(told), capture_output=True, text=True, check=False
    )


def test_a_frozen_state_outlives_the_process_that_made_it(lab: Lab):
    lab.require("restart")
    lab.fed(GARDEN).close()
    told = {
        "state": dict(lab.spec.state),
        "folder": str(lab.folder),
        "cache": str(lab.cache),
        "evidence": EVIDENCE,
        "questions": QUESTIONS,
        "settings": lab.settings(k=4),
    }
    done = in_another_process(OTHER_PROCESS, told)
    assert done.returncode == 0, done.stderr
    here = [[found.context, msgspec.to_builtins(found.items)] for found in lab.answers(lab.open())]
    assert json.loads(done.stdout) == json.loads(json.dumps(here))


def test_asking_changes_nothing(lab: Lab):
    """Every order of the questions gives the same, and so does asking again; no file changes."""
    system = lab.fed(GARDEN)
    before = lab.files()
    expected = {question: lab.ask(system, question, k=4) for question in QUESTIONS}
    for order in permutations(QUESTIONS):
        fresh = lab.open()
        assert {question: lab.ask(fresh, question, k=4) for question in order} == expected
        assert {question: lab.ask(fresh, question, k=4) for question in order} == expected
        fresh.close()
    system.close()
    assert lab.files() == before


def test_another_k_or_order_does_not_change_what_comes_after(lab: Lab):
    system = lab.fed(GARDEN)
    before = lab.answers(system)
    for k, order in ((1, "time"), (ALL, "rank")):
        lab.ask(system, QUESTIONS[0], k=k, order=order)
    assert lab.answers(system) == before


def test_a_state_that_is_not_frozen_is_not_there(lab: Lab):
    system = lab.open()
    system.create("begun", "user")
    system.add("begun", GARDEN[0])
    assert system.exists("begun") != lab.keeps
    system.close()
    assert lab.open().exists("begun") != lab.keeps


# Gone


@pytest.mark.parametrize("frozen", [True, False], ids=["frozen", "being built"])
def test_a_discarded_state_leaves_nothing(lab: Lab, frozen: bool):
    system = lab.fed(GARDEN)
    kept, answers = lab.files(), lab.answers(system)
    system.create("gone", "user")
    system.add("gone", HARBOUR[0])
    if frozen:
        system.freeze("gone")
        lab.ask(system, "ferry", "gone", evidence=("0.0",))
    system.discard("gone")
    assert system.exists("gone") != lab.keeps
    assert lab.files() == kept
    assert lab.answers(system) == answers
    lab.feed(system, "gone", GARDEN)
    assert lab.answers(system, "gone") == answers


def test_discarding_what_was_never_there_does_nothing(lab: Lab):
    system = lab.fed(GARDEN)
    system.discard("never")
    system.discard("never")
    assert system.exists("state0")


# Forked


def test_a_fork_goes_its_own_way(lab: Lab):
    """Fork after two sessions; what either takes in later, the other never sees, and both equal a direct ingest."""
    lab.require("fork")
    system = lab.fed(GARDEN, (*GARDEN[:2], *HARBOUR))
    system.create("trunk", "user")
    for some in GARDEN[:2]:
        system.add("trunk", some)
    system.fork("trunk", "branch")
    for number in range(2, 5):
        system.add("trunk", GARDEN[number])
        if number < 4:
            system.add("branch", HARBOUR[number - 2])
    system.freeze("branch")
    system.freeze("trunk")
    for namespace, direct in (("trunk", "state0"), ("branch", "state1")):
        for question in (*QUESTIONS, "When does our ferry leave?"):
            found = lab.ask(system, question, namespace, evidence=("3.0",), k=ALL)
            assert found == lab.ask(system, question, direct, evidence=("3.0",), k=ALL)
    assert not shown(lab.ask(system, "ferry", "trunk", k=ALL), HARBOUR)


def test_many_forks_of_one_state(lab: Lab):
    """As replay does: each fork is frozen before the next begins, and the trunk is never frozen but discarded."""
    lab.require("fork")
    system = lab.open()
    system.create("trunk", "user")
    for some in GARDEN[:4]:
        system.add("trunk", some)
    for number, what in enumerate(("wasps", "nettles")):
        system.fork("trunk", f"state{number}")
        system.add(f"state{number}", session(None, f"I'm allergic to {what}.", "Noted."))
        system.freeze(f"state{number}")
    system.discard("trunk")
    assert sorted(lab.files()) == ["state0.sqlite", "state1.sqlite"]
    for number, (what, other) in enumerate((("wasps", "nettles"), ("nettles", "wasps"))):
        found = lab.ask(system, "I'm allergic to what?", f"state{number}", evidence=("4.0",), k=ALL)
        assert what in found.context
        assert other not in found.context


# Killed


KILLED = """
import json, os, signal, sys
from pathlib import Path
from memtrials import systems
from memtrials.benchmarks.timeline import Session, Turn
from memtrials.systems.base import Surroundings

told = json.load(sys.stdin)
system = systems.reopen(told["state"], Surroundings(Path(told["folder"]), Path(told["cache"])))
system.create("killed", "user")
for number in range(3):
    system.add("killed", Session((Turn("user", f"I keep {number} cats."),)))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_replay_left_is_removed_by_the_next(lab: Lab, built: Path):
    """Only a frozen state has a name that counts; the half-built one is gone after the next replay."""
    if lab.spec.name not in systems.names():
        pytest.skip("a variation that has no TOML file")
    if lab.spec.name.startswith("substrate-"):
        pytest.skip("its state is built as that of `substrate` is")
    folder = built.with_suffix(".stores") / lab.spec.id
    told = {"state": dict(lab.spec.state), "folder": str(folder), "cache": str(lab.cache)}
    assert in_another_process(KILLED, told).returncode == -signal.SIGKILL
    left = list(folder.glob("*"))
    assert (folder / "killed.part" in left) == lab.keeps
    assert not (folder / "killed.sqlite").exists()
    replayed = call_cli("replay", lab.spec.name, "--limit", "1", "--trials", str(built), "--quiet")
    assert replayed.code == 0, replayed.err
    assert [path.suffix for path in folder.glob("*")] == ([".sqlite"] if lab.keeps else [])


def test_what_another_process_is_building_is_left_alone(built: Path):
    bm25 = systems.load("bm25").id
    folder = built.with_suffix(".stores") / bm25
    folder.mkdir(parents=True)
    (folder / "theirs.part").write_bytes(b"half-built")
    theirs = locks.Claim("replay", "inmind@sample", bm25, bm25)
    with locks.hold(built, [theirs], Shard(2, 2)):
        assert call_cli("replay", "bm25", "--shard", "1/2", "--trials", str(built)).code == 0
        assert (folder / "theirs.part").exists()
    assert call_cli("replay", "bm25", "--trials", str(built)).code == 0
    assert not (folder / "theirs.part").exists()


# Through the stages


def test_a_system_without_k_is_asked_once_whatever_k_is(replayed: Path):
    """`none` and `in-context` have one fetch configuration; `bm25` would have another, which needs a yes."""
    for arguments in (["--k", "10"], ["--k", "3"], ["--k", "3", "--order", "time"]):
        done = call_cli("fetch", "none", "in-context", *arguments, "--trials", str(replayed))
        assert done.code == 0, done.err
    records = json.loads(replayed.read_bytes())
    fetches = {record["fetch"] for record in records if record["kind"] == "retrieval"}
    assert len([record for record in records if record["kind"] == "retrieval"]) == 32
    assert len(fetches) == 2
    assert call_cli("fetch", "bm25", "--k", "10", "--trials", str(replayed)).code == 0
    refused = call_cli("fetch", "bm25", "--k", "3", "--trials", str(replayed))
    assert (refused.code, "bm25" in refused.err, "--force" in refused.err) == (0, True, True)


def test_a_missing_namespace_is_a_failure_that_names_the_file(lab: Lab):
    if not lab.keeps:
        pytest.skip("an empty state is everywhere")
    system = lab.open()
    with pytest.raises(Exception, match=r"never\.sqlite: can't be read"):
        lab.ask(system, "Anything?", "never")
