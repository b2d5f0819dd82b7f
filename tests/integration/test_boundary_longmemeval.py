"""LongMemEval's private fields (ids that tell, answers, flags, types) cross no boundary before the judge.

The spies are those of the InMind proof; here they stand beside the LongMemEval sample.
"""

import re
from collections import Counter

import pytest

from memtrials.benchmarks.longmemeval import TYPES
from support.boundary import Crossed, run_guided, without_names
from support.canary import longmemeval_copy
from support.trials import files, records

SYSTEMS = ("bm25", "hybrid", "none", "full-context", "always-visible", "in-context", "naive-rag", "substrate")
TELLING = (b"longmemeval", b"has_answer", b"answer_", b"_abs", b"haystack", *(type_.encode() for type_ in TYPES))


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Crossed:
    folder = tmp_path_factory.mktemp("canary")
    return run_guided("longmemeval", longmemeval_copy(folder / "data", "here"), SYSTEMS, folder / "run")


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Crossed:
    folder = tmp_path_factory.mktemp("twin")
    return run_guided("longmemeval", longmemeval_copy(folder / "data", "there"), SYSTEMS, folder / "run")


def test_the_canaries_would_be_seen(here: Crossed) -> None:
    """A judge sees the gold answer of its own question, and nothing else that is private."""
    assert Counter(place for request in here.to_judge for place in here.copy.leaks(request.raw)) == {
        f"answer {number}": 1 for number in range(10)
    }
    assert len(here.copy.leaks(here.trials.read_bytes())) > 10 * 3
    assert here.copy.queries_in(here.trials.read_bytes()) == set(here.copy.queries.values())


def test_no_call_of_a_system_holds_anything_private(here: Crossed) -> None:
    assert {call.system for call in here.calls} == set(SYSTEMS)
    for call in here.calls:
        assert not here.copy.leaks(call.args), call
        if call.method != "open":
            assert not [word for word in TELLING if word in repr(call.args).encode()], call
        queries = here.copy.queries_in(call.args)
        assert queries == ({call.args[1]} if call.method.startswith("query") else set())


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
    assert len(set(names)) == len(names) == 2 * 10 * len(SYSTEMS)


def test_no_reader_is_told_anything_private(here: Crossed) -> None:
    assert len(here.asked) == len(here.requests) == 10 * len(SYSTEMS)
    for asked in here.asked:
        assert not here.copy.leaks(asked)
        assert here.copy.queries_in(asked) == {asked.question}
    for request in here.requests:
        everything = request.path.encode() + repr(sorted(request.headers.items())).encode() + request.raw
        assert not here.copy.leaks(everything)
        assert len(here.copy.queries_in(everything)) == 1
        assert not [word for word in TELLING if word in everything.lower()]


def test_a_guided_reader_is_told_the_type_and_no_more(here: Crossed) -> None:
    assert len(here.guided) == 10
    for request in here.guided:
        assert not here.copy.leaks(request.raw)
        assert len(here.copy.queries_in(request.raw)) == 1


def test_twins_give_the_same_calls_contexts_and_prompts(here: Crossed, there: Crossed) -> None:
    assert not set(here.copy.private) & set(there.copy.private)
    assert here.copy.queries == there.copy.queries
    tasks = [[task.id.endswith("_abs") for task in copy.copy.tasks] for copy in (here, there)]
    assert tasks[0] != tasks[1]
    assert without_names(here.calls) == without_names(there.calls)
    assert here.embedded == there.embedded
    assert here.asked == there.asked
    assert [(r.path, r.raw) for r in here.requests] == [(r.path, r.raw) for r in there.requests]
    assert [r.raw for r in here.guided] != [r.raw for r in there.guided]
