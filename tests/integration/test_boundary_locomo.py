"""LoCoMo's private fields (answers, evidence, categories, search words, annotation) cross no boundary before the judge.

The spies are those of the InMind proof; here they stand beside the LoCoMo sample. Both speakers' names do cross.
"""

import re
from collections import Counter

import pytest

from memtrials.benchmarks.locomo import CATEGORIES
from memtrials.benchmarks.timeline import Session
from support.boundary import Crossed, run_guided, without_names
from support.canary import locomo_copy
from support.trials import files, records

SYSTEMS = ("bm25", "hybrid", "none", "full-context", "always-visible", "in-context", "naive-rag", "substrate")
QUESTIONS = 15
TELLING = (b"locomo", b"dia_id", b"D1:", b"session_", b"img_url", b"1_observation", b"adversarial", b"conv-1")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Crossed:
    folder = tmp_path_factory.mktemp("canary")
    return run_guided("locomo", locomo_copy(folder / "data", "here"), SYSTEMS, folder / "run")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Crossed:
    folder = tmp_path_factory.mktemp("twin")
    return run_guided("locomo", locomo_copy(folder / "data", "there"), SYSTEMS, folder / "run")


def judged(crossed: Crossed) -> list[int]:
    """The positions of the questions that a judge is asked about: all but those of the fifth category."""
    (task,) = crossed.records("task")
    return [n for n, query in enumerate(task["body"]["queries"]) if not query["type"].startswith("5")]


def test_the_canaries_would_be_seen(here: Crossed) -> None:
    """A judge sees the gold answer of its own question, and nothing else that is private."""
    assert 0 < len(judged(here)) < QUESTIONS
    assert Counter(place for request in here.to_judge for place in here.copy.leaks(request.raw)) == {
        f"answer {number}": 1 for number in judged(here)
    }
    assert len(here.copy.leaks(here.trials.read_bytes())) > QUESTIONS
    assert here.copy.queries_in(here.trials.read_bytes()) == set(here.copy.queries.values())


def test_no_call_of_a_system_holds_anything_private(here: Crossed) -> None:
    assert {call.system for call in here.calls} == set(SYSTEMS)
    for call in here.calls:
        assert not here.copy.leaks(call.args), call
        if call.method != "open":
            told = repr(call.args).encode()
            assert not [word for word in TELLING if word in told], call
        queries = here.copy.queries_in(call.args)
        assert queries == ({call.args[1]} if call.method.startswith("query") else set())


def test_both_speakers_names_reach_every_system_and_reader(here: Crossed) -> None:
    sessions = [call.args[1] for call in here.calls if call.method == "add"]
    assert len(sessions) == 5 * len(SYSTEMS)
    for session in sessions:
        assert isinstance(session, Session)
        assert {(turn.speaker, turn.role) for turn in session.turns} == {("Ines", "user"), ("Tobias", "assistant")}
    shown = [r["body"]["context"] for r in here.records("retrieval") if r["system"].startswith("full-context")]
    assert len(shown) == QUESTIONS
    for context in shown:
        assert context.startswith("[6:40 pm on 3 March, 2024] Tobias: Ines! Long time.")
        assert "\n[6:40 pm on 3 March, 2024] Ines: Exhausting" in context


def test_no_store_cache_or_name_holds_anything_private(here: Crossed) -> None:
    for path, content in {**files(here.trials.with_suffix(".stores")), **files(here.cache)}.items():
        assert not here.copy.leaks(path.encode() + content), path
        assert not here.copy.queries_in(path.encode() + content), path
        assert not [word for word in TELLING if word in path.encode() + content], path
    for path in files(here.trials.parent):
        assert not here.copy.leaks(path)
    for role, text in here.embedded:
        assert not here.copy.leaks(text)
        assert here.copy.queries_in(text) == ({text} if role == "query" else set())


def test_what_comes_back_has_neutral_ids(here: Crossed) -> None:
    for retrieval in here.records("retrieval"):
        assert not here.copy.leaks(retrieval["body"])
        for item in retrieval["body"].get("items") or ():
            assert all(re.fullmatch(r"\d\.\d", turn) for turn in item["turn_ids"])
    names = [r["body"][name] for r in records(here.trials, "ingest") for name in ("namespace", "user")]
    assert len(set(names)) == len(names) == 2 * len(SYSTEMS)


def test_no_reader_is_told_anything_private(here: Crossed) -> None:
    assert len(here.asked) == len(here.requests) == QUESTIONS * len(SYSTEMS)
    for asked in here.asked:
        assert asked.date is None
        assert not here.copy.leaks(asked)
        assert here.copy.queries_in(asked) == {asked.question}
    for request in here.requests:
        everything = request.path.encode() + repr(sorted(request.headers.items())).encode() + request.raw
        assert not here.copy.leaks(everything)
        assert len(here.copy.queries_in(everything)) == 1
        assert not [word for word in (*TELLING, *map(str.encode, CATEGORIES.values())) if word in everything.lower()]


def test_a_guided_reader_is_told_the_category_and_no_more(here: Crossed) -> None:
    assert len(here.guided) == QUESTIONS
    for request in here.guided:
        assert not here.copy.leaks(request.raw)
        assert len(here.copy.queries_in(request.raw)) == 1


def test_twins_give_the_same_calls_contexts_and_prompts(here: Crossed, there: Crossed) -> None:
    assert not set(here.copy.private) & set(there.copy.private)
    assert here.copy.queries == there.copy.queries
    assert judged(here) != judged(there)
    assert without_names(here.calls) == without_names(there.calls)
    assert here.embedded == there.embedded
    assert here.asked == there.asked
    assert [(r.path, r.raw) for r in here.requests] == [(r.path, r.raw) for r in there.requests]
    assert [r.raw for r in here.guided] != [r.raw for r in there.guided]
