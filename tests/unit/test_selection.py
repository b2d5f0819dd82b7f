"""The selection flags: what each keeps, in which order they apply, and what they say of names that aren't there.

Most ledgers here are quizzes: questions of one task each, named by letters, with a type and a cluster.
"""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.records import Gold, Header, Query, Record, Release, TaskBody, TimelineSource, config_record
from memtrials.selection import Cut, Selection, Shard, choose, parse_shard
from support.records import AT, record, write_ledger

QUIZ = "quiz@one"


@dataclass(frozen=True)
class Ask:
    """A question of a task; unit and cluster are the question's own name unless given."""

    task: str
    query: str = "q"
    type: str | None = "easy"
    unit: str | None = None
    cluster: str | None = None
    abstention: bool = False
    benchmark: str = QUIZ
    data: str = "d1"


def task_records(asks: Sequence[Ask]) -> list[Record]:
    """One task record for each task, in order of appearance. A task of one question is its own unit."""
    tasks: dict[tuple[str, str], list[Ask]] = {}
    for ask in asks:
        tasks.setdefault((ask.benchmark, ask.task), []).append(ask)
    return [_task_record(*place, some) for place, some in tasks.items()]


def _task_record(benchmark: str, task: str, asks: Sequence[Ask]) -> Record:
    body = TaskBody(
        release=Release(sha256=asks[0].data, files=(), known=True, attribution=""),
        data="data",
        source=TimelineSource(file="data.jsonl", sha256="00", start=0, end=2),
        sessions=("s",),
        turns=2,
        queries=tuple(
            Query(
                id=a.query,
                text="Where?",
                unit=a.unit or (task if len(asks) == 1 else a.query),
                cluster=a.cluster or f"{task}/{a.query}",
                type=a.type,
            )
            for a in asks
        ),
        gold=tuple(Gold(query=a.query, abstention=a.abstention) for a in asks),
    )
    return record(f"t {benchmark} {task}", "task", body=body, key=f"{benchmark} {task}", benchmark=benchmark, task=task)


def ledger_of(folder: Path, asks: Sequence[Ask], *others: Record) -> LedgerIndex:
    return LedgerIndex(Ledger.open(write_ledger(folder / "trials.json", [*task_records(asks), *others])))


def chosen(index: LedgerIndex, cut: Cut = "unit", **flags: Any) -> list[str]:
    """What is selected, as `TASK/QUERY` in ledger order, with the benchmark before it where there are several."""
    found = choose(index, Selection(**flags), cut)
    several = len(index.benchmarks) > 1
    return [
        f"{benchmark} {task}/{query.id}" if several else f"{task}/{query.id}"
        for benchmark, task in index.tasks
        for query in index.task(benchmark, task).queries
        if (benchmark, task, query.id) in found.queries
    ]


def tasks_chosen(index: LedgerIndex, cut: Cut = "unit", **flags: Any) -> list[str]:
    """The tasks that are selected, in ledger order."""
    found = choose(index, Selection(**flags), cut)
    return [task for benchmark, task in index.tasks if (benchmark, task) in found.tasks]


def fresh(asks: Sequence[Ask]) -> LedgerIndex:
    """An index of a ledger whose file is gone: task bodies were read before."""
    with tempfile.TemporaryDirectory() as folder:
        index = ledger_of(Path(folder), asks)
        for place in index.tasks:
            index.task(*place)
        index.ledger.close()
        return index


def letters(count: int, **same: Any) -> list[Ask]:
    """That many one-question tasks `t0`, `t1`, …"""
    return [Ask(f"t{n}", **same) for n in range(count)]


def sha256(text: str) -> int:
    return int(hashlib.sha256(text.encode()).hexdigest(), 16)


def message(index: LedgerIndex, **flags: Any) -> str:
    with pytest.raises(UserError) as caught:
        choose(index, Selection(**flags), "unit")
    return str(caught.value)


# No flags


def test_without_flags_everything_is_selected(tmp_path: Path):
    index = ledger_of(tmp_path, [Ask("a"), Ask("b", benchmark="other@x")])
    found = choose(index, Selection(), "unit")
    assert found.benchmarks == (QUIZ, "other@x")
    assert found.tasks == {(QUIZ, "a"), ("other@x", "b")}
    assert found.queries == {(QUIZ, "a", "q"), ("other@x", "b", "q")}
    assert (found.systems, found.configs) == (None, None)


def test_an_empty_ledger_has_nothing_to_select(tmp_path: Path):
    found = choose(ledger_of(tmp_path, []), Selection(limit=3, shard=Shard(1, 2), sample=2, split="dev"), "task")
    assert (found.benchmarks, found.tasks, found.queries) == ((), frozenset(), frozenset())


# --benchmark


@pytest.fixture
def three_variants(tmp_path: Path) -> LedgerIndex:
    return ledger_of(tmp_path, [Ask("a"), Ask("b", benchmark="quiz@two"), Ask("c", benchmark="quizzical@one")])


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("quiz", ["quiz@one a/q", "quiz@two b/q"]),
        ("quiz@two", ["quiz@two b/q"]),
        ("quizzical", ["quizzical@one c/q"]),
    ],
)
def test_benchmark_names_all_variants_or_one(three_variants: LedgerIndex, name: str, found: list[str]):
    assert chosen(three_variants, benchmark=name) == found


@pytest.mark.parametrize("name", ["qiuz@one", "quiz@on", "quiz@"])
def test_an_unknown_benchmark_gets_near_matches(three_variants: LedgerIndex, name: str):
    said = message(three_variants, benchmark=name)
    assert said.startswith(f"unknown benchmark in this ledger '{name}'; did you mean ")
    assert "quiz@one" in said


def test_an_unknown_benchmark_that_is_like_none_gets_the_known_ones(three_variants: LedgerIndex):
    said = message(three_variants, benchmark="zzz")
    assert said.endswith("known: quiz@one, quiz@two, quizzical@one")


# --system and --config

BM25 = config_record("system", "bm25", {"chunk": "turn"}, {})
BM25_PAIRS = config_record("system", "bm25", {"chunk": "pair"}, {})
VECTOR = config_record("system", "vector", {"dimensions": 256}, {})
K5 = config_record("fetch", "k5", {"k": 5}, {})
READER = config_record("reader", "gpt-5/mini", {"model": "gpt-5/mini"}, {})
CONFIGS = (BM25, BM25_PAIRS, VECTOR, K5, READER)


def key(config: Record) -> str:
    assert config.header.key is not None
    return config.header.key


def made(**configs: Record) -> Header:
    """The header of a trial under these configurations."""
    ids: dict[str, Any] = {role: key(config) for role, config in configs.items()}
    return Header(id="r", kind="retrieval", parents=(), at=AT, benchmark=QUIZ, task="a", query="q", **ids)


@pytest.fixture
def configured(tmp_path: Path) -> LedgerIndex:
    return ledger_of(tmp_path, [Ask("a")], *CONFIGS)


def test_a_bare_system_name_means_all_of_that_name_and_an_id_one(configured: LedgerIndex):
    by_name = choose(configured, Selection(systems=("bm25",)), "unit")
    assert by_name.systems == {key(BM25), key(BM25_PAIRS)}
    by_id = choose(configured, Selection(systems=(key(BM25_PAIRS),)), "unit")
    assert by_id.systems == {key(BM25_PAIRS)}
    both = choose(configured, Selection(systems=(key(BM25), "vector")), "unit")
    assert both.systems == {key(BM25), key(VECTOR)}


def test_system_keeps_records_of_that_system_and_what_has_none(configured: LedgerIndex):
    found = choose(configured, Selection(systems=("bm25",)), "unit")
    assert found.holds(made(system=BM25))
    assert found.holds(made(system=BM25_PAIRS))
    assert not found.holds(made(system=VECTOR))
    assert found.holds(configured.tasks[QUIZ, "a"])


def test_an_unknown_system_gets_near_matches(configured: LedgerIndex):
    assert message(configured, systems=("bm52",)).startswith("unknown system 'bm52'; did you mean bm25")
    assert "did you mean vector" in message(configured, systems=("victor",))


def test_a_configuration_of_another_role_is_no_system(configured: LedgerIndex):
    assert message(configured, systems=("k5",)).startswith("unknown system 'k5'")


@pytest.mark.parametrize("named", ["k5", key(K5)])
def test_config_keeps_what_was_made_under_it(configured: LedgerIndex, named: str):
    found = choose(configured, Selection(configs=(named,)), "unit")
    assert found.holds(made(system=BM25, fetch=K5))
    assert found.holds(made(system=BM25, fetch=K5, reader=READER))
    assert not found.holds(made(system=BM25))


def test_config_takes_any_role_and_any_of_several(configured: LedgerIndex):
    found = choose(configured, Selection(configs=("vector", "gpt-5/mini")), "unit")
    assert found.configs == {key(VECTOR), key(READER)}
    assert found.holds(made(system=VECTOR))
    assert found.holds(made(system=BM25, reader=READER))
    assert not found.holds(made(system=BM25, fetch=K5))


def test_an_unknown_config_gets_near_matches(configured: LedgerIndex):
    said = message(configured, configs=(key(VECTOR)[:-1] + "x",))
    assert said.startswith("unknown configuration 'vector-")
    assert key(VECTOR) in said


# --task


@pytest.fixture
def conversations(tmp_path: Path) -> LedgerIndex:
    """Two conversations of three questions, each a unit, and a task whose name has a slash."""
    return ledger_of(tmp_path, [Ask(t, q) for t in ("one", "two") for q in ("q1", "q2", "q3")] + [Ask("a/b")])


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (("two",), ["two/q1", "two/q2", "two/q3"]),
        (("two/q2",), ["two/q2"]),
        (("two/q3", "two/q1"), ["two/q1", "two/q3"]),
        (("one/q1", "two/q2"), ["one/q1", "two/q2"]),
        (("one/q1", "one"), ["one/q1", "one/q2", "one/q3"]),
        (("one", "one/q1"), ["one/q1", "one/q2", "one/q3"]),
        (("a/b",), ["a/b/q"]),
        (("a/b/q",), ["a/b/q"]),
    ],
)
def test_task_takes_tasks_and_single_queries(conversations: LedgerIndex, wanted: tuple[str, ...], found: list[str]):
    assert chosen(conversations, tasks=wanted) == found
    assert tasks_chosen(conversations, tasks=wanted) == list(dict.fromkeys(f.rpartition("/")[0] for f in found))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("onne", "unknown task 'onne'; did you mean one?"),
        ("onne/q1", "unknown task 'onne/q1'; did you mean one?"),
        ("two/q9", "unknown query of task two 'q9'; did you mean q3 or q2 or q1?"),
        ("two/", "unknown query of task two ''; known: q1, q2, q3"),
    ],
)
def test_an_unknown_task_or_query_gets_near_matches(conversations: LedgerIndex, wanted: str, said: str):
    assert message(conversations, tasks=(wanted,)) == said


def test_a_task_of_another_benchmark_is_unknown(tmp_path: Path):
    index = ledger_of(tmp_path, [Ask("a"), Ask("b", benchmark="other@x")])
    assert message(index, tasks=("a",), benchmark="other").startswith("unknown task 'a'")


# --type


def test_type_keeps_units_of_these_types(tmp_path: Path):
    index = ledger_of(tmp_path, [Ask("a"), Ask("b", type="hard"), Ask("c", type=None), Ask("d", type="odd")])
    assert chosen(index, types=("hard",)) == ["b/q"]
    assert chosen(index, types=("odd", "easy")) == ["a/q", "d/q"]
    assert message(index, types=("hart",)) == "unknown type 'hart'; did you mean hard?"


def test_one_unknown_type_among_known_ones_is_still_told(tmp_path: Path):
    assert "unknown type 'x'" in message(ledger_of(tmp_path, [Ask("a")]), types=("easy", "x"))


# --limit


def test_limit_takes_the_first_units_of_each_benchmark(tmp_path: Path):
    index = ledger_of(tmp_path, [Ask("b"), Ask("x", benchmark="other@x"), Ask("a"), Ask("y", benchmark="other@x")])
    assert chosen(index, limit=1) == ["quiz@one b/q", "other@x x/q"]
    assert len(chosen(index, limit=9)) == 4


def test_limit_counts_what_is_scored_once():
    """InMind scores a task's two queries together; LoCoMo each question by itself."""
    pairs = fresh([Ask(t, q, unit=t) for t in ("a", "b") for q in ("direct", "indirect")])
    assert chosen(pairs, limit=1) == ["a/direct", "a/indirect"]
    talks = fresh([Ask("talk", q) for q in ("q1", "q2", "q3")] + [Ask("later")])
    assert chosen(talks, limit=2) == ["talk/q1", "talk/q2"]
    assert tasks_chosen(talks, "task", limit=2) == ["talk"]


# --shard


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_a_shard_is_the_sha256_of_the_name_modulo_n(tmp_path: Path, n: int):
    index = ledger_of(tmp_path, letters(20))
    for k in range(1, n + 1):
        mine = [f"t{i}/q" for i in range(20) if sha256(f"quiz@one/t{i}") % n == k - 1]
        assert chosen(index, "task", shard=Shard(k, n)) == mine
        assert chosen(index, "unit", shard=Shard(k, n)) == mine


def test_shards_cut_tasks_where_states_are_made_and_questions_where_they_are_read(tmp_path: Path):
    index = ledger_of(tmp_path, [Ask("talk", f"q{n}") for n in range(8)])
    k = sha256("quiz@one/talk") % 2 + 1
    assert len(chosen(index, "task", shard=Shard(k, 2))) == 8
    assert chosen(index, "task", shard=Shard(3 - k, 2)) == []
    odd = [f"talk/q{n}" for n in range(8) if sha256(f"quiz@one/talk/q{n}") % 2 == 1]
    assert 0 < len(odd) < 8
    assert chosen(index, "unit", shard=Shard(2, 2)) == odd


@given(names=st.sets(st.text(min_size=1, max_size=8), min_size=1, max_size=30), n=st.integers(1, 9))
def test_every_name_is_in_exactly_one_shard(names: set[str], n: int):
    for name in names:
        assert [k for k in range(1, n + 1) if Shard(k, n).holds(name)] == [
            int.from_bytes(hashlib.sha256(name.encode()).digest(), "big") % n + 1
        ]


@pytest.mark.parametrize(("text", "shard"), [("1/1", (1, 1)), ("3/4", (3, 4)), ("04/10", (4, 10))])
def test_a_shard_is_written_k_of_n(text: str, shard: tuple[int, int]):
    assert parse_shard(text) == shard


@pytest.mark.parametrize(
    "text", ["", "1", "/", "1/", "/2", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1.0/2", "²/3"]
)
def test_any_other_shard_is_refused_with_an_example(text: str):
    with pytest.raises(UserError, match=r"write K/N with K from 1 to N, for example 1/4"):
        parse_shard(text)


# --sample


def typed(**counts: int) -> list[Ask]:
    """That many questions of each type, the types taking turns."""
    asks = [Ask(f"{t}{n}", type=t) for n in range(max(counts.values())) for t, count in counts.items() if n < count]
    assert Counter(a.type for a in asks) == Counter(counts)
    return asks


def types_of(names: Sequence[str]) -> dict[str, int]:
    return dict(Counter(name.rstrip("0123456789/q") for name in names))


@pytest.mark.parametrize(
    ("counts", "size", "drawn"),
    [
        ({"a": 6, "b": 3, "c": 1}, 10, {"a": 6, "b": 3, "c": 1}),
        ({"a": 6, "b": 3, "c": 1}, 5, {"a": 3, "b": 1, "c": 1}),  # 3, 1.5, 0.5: c needs one, b has what is left
        ({"a": 6, "b": 3, "c": 1}, 3, {"a": 1, "b": 1, "c": 1}),  # 1.8, 0.9, 0.3
        ({"a": 7, "b": 3}, 5, {"a": 4, "b": 1}),  # 3.5, 1.5: one is left, and the tie goes to the first name
        ({"a": 8, "b": 2}, 4, {"a": 3, "b": 1}),  # 3.2, 0.8: the larger remainder gets it
        ({"a": 10, "b": 1, "c": 1}, 4, {"a": 2, "b": 1, "c": 1}),  # 3.33, 0.33, 0.33: one each comes first
    ],
)
def test_a_sample_is_proportional_with_at_least_one_of_each_type(
    counts: dict[str, int], size: int, drawn: dict[str, int]
):
    assert types_of(chosen(fresh(typed(**counts)), sample=size)) == drawn


def test_abstention_questions_are_a_stratum_of_their_own(tmp_path: Path):
    asks = [Ask(f"a{n}") for n in range(9)] + [Ask("no", abstention=True)]
    assert "no/q" in chosen(ledger_of(tmp_path, asks), sample=2)


def test_a_sample_of_everything_or_more_is_everything(tmp_path: Path):
    index = ledger_of(tmp_path, typed(a=2, b=3))
    assert chosen(index, sample=5) == chosen(index, sample=50) == chosen(index)


def test_a_sample_smaller_than_the_number_of_types_is_refused_with_both_ways_out(tmp_path: Path):
    said = message(ledger_of(tmp_path, typed(a=2, b=2, c=2)), sample=2)
    assert said == (
        "--sample 2 is below the 3 types of quiz@one, of which each needs one; take --sample 3 or more, or --limit 2"
    )


def test_a_sample_is_drawn_by_hash_so_the_order_of_the_ledger_changes_nothing():
    asks = typed(a=9, b=6)
    assert set(chosen(fresh(asks), sample=5)) == set(chosen(fresh(asks[::-1]), sample=5))
    ranked = sorted((a.task for a in asks if a.type == "b"), key=lambda task: sha256(f"7/quiz@one/{task}"))
    assert {n for n in chosen(fresh(asks), sample=5, seed=7) if n.startswith("b")} == {f"{n}/q" for n in ranked[:2]}


def test_the_seed_changes_the_sample():
    index = fresh(typed(a=20))
    samples = [tuple(chosen(index, sample=5, seed=seed)) for seed in range(10)]
    assert len(set(samples)) > 5
    assert chosen(index, sample=5) == chosen(index, sample=5, seed=0)


def test_each_benchmark_is_sampled_by_itself(tmp_path: Path):
    index = ledger_of(tmp_path, letters(6) + letters(6, benchmark="other@x"))
    assert [name.split()[0] for name in chosen(index, sample=2)] == ["quiz@one"] * 2 + ["other@x"] * 2


some_types = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 12), min_size=1)


@given(counts=some_types, extra=st.integers(0, 40), seed=st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_any_sample(counts: dict[str, int], extra: int, seed: int):
    """It has its size, every type, none much over or under its share; it is the same in every stage."""
    index = fresh(typed(**counts))
    total, size = sum(counts.values()), len(counts) + extra
    found = chosen(index, sample=size, seed=seed)
    drawn = types_of(found)
    assert len(found) == min(size, total)
    assert set(drawn) == set(counts)
    for name, count in counts.items():
        assert drawn[name] <= count
        assert drawn[name] < size * count / total + 1 or drawn[name] == 1 or size >= total
        assert all(drawn[name] >= drawn[other] for other in counts if counts[other] < count)
    assert chosen(index, "task", sample=size, seed=seed) == found
    in_order = [name for name in chosen(index) if name in set(found)]
    assert found == in_order
    assert chosen(index, sample=size, seed=seed, limit=2) == in_order[:2]


# --split


def test_dev_and_test_part_the_clusters():
    asks = [Ask(f"t{n}", cluster=f"c{n // 3}") for n in range(300)]
    index = fresh(asks)
    dev, test = chosen(index, split="dev"), chosen(index, split="test")
    assert sorted(dev + test) == sorted(chosen(index))
    clusters = {ask.task: ask.cluster for ask in asks}
    in_dev, in_test = ({clusters[name.removesuffix("/q")] for name in part} for part in (dev, test))
    assert in_dev.isdisjoint(in_test)
    assert 12 <= len(in_dev) <= 28  # one fifth of 100, give or take two standard deviations


def test_a_split_depends_on_the_data_and_the_cluster_alone():
    asks = [Ask(f"t{n}", cluster=f"c{n}") for n in range(60)]
    dev = set(chosen(fresh(asks), split="dev"))
    assert set(chosen(fresh(asks[::-1]), split="dev")) == dev
    assert set(chosen(fresh([replace(a, benchmark="other@x", type="odd") for a in asks]), split="dev")) == dev
    assert set(chosen(fresh([replace(a, data="d2") for a in asks]), split="dev")) != dev
    assert dev == {f"t{n}/q" for n in range(60) if sha256(f"d1/c{n}") % 5 == 0}


# The order in which they apply

MIXED = [Ask(f"t{n}", type="ab"[n % 2], cluster=f"c{n}") for n in range(40)]


@pytest.fixture(scope="module")
def mixed() -> LedgerIndex:
    return fresh(MIXED)


def test_type_comes_before_sample(mixed: LedgerIndex):
    assert types_in(chosen(mixed, types=("a",), sample=5)) == {"a"}
    assert len(chosen(mixed, types=("a",), sample=5)) == 5
    assert chosen(mixed, types=("a",), sample=1), "one type needs one unit, whatever other types there are"


def test_type_comes_before_limit(mixed: LedgerIndex):
    assert chosen(mixed, types=("b",), limit=2) == ["t1/q", "t3/q"]


def test_task_comes_before_type(mixed: LedgerIndex):
    assert message(mixed, tasks=("t0",), types=("b",)) == "unknown type 'b'; known: a"


def test_split_comes_before_sample(mixed: LedgerIndex):
    dev = chosen(mixed, split="dev")
    assert len(dev) > 4
    drawn = chosen(mixed, split="dev", sample=4)
    assert len(drawn) == 4
    assert set(drawn) <= set(dev)


def test_sample_comes_before_limit(mixed: LedgerIndex):
    drawn = chosen(mixed, sample=10)
    assert chosen(mixed, sample=10, limit=3) == drawn[:3]


def test_limit_comes_before_shard(mixed: LedgerIndex):
    parts = [chosen(mixed, limit=6, shard=Shard(k, 3)) for k in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(chosen(mixed, limit=6))


def types_in(names: Sequence[str]) -> set[str | None]:
    types = {f"{ask.task}/q": ask.type for ask in MIXED}
    return {types[name] for name in names}


flags = st.fixed_dictionaries(
    {},
    optional={
        "types": st.sampled_from([("a",), ("b",), ("a", "b")]),
        "split": st.sampled_from(["dev", "test"]),
        "sample": st.integers(2, 50),
        "seed": st.integers(0, 3),
        "limit": st.integers(1, 50),
    },
)


@given(flags=flags, n=st.integers(1, 6), cut=st.sampled_from(["task", "unit"]))
@settings(deadline=None)
def test_shards_of_any_selection_are_disjoint_and_cover_it(mixed: LedgerIndex, flags: dict[str, Any], n: int, cut: Cut):
    whole = chosen(mixed, cut, **flags)
    parts = [chosen(mixed, cut, **flags, shard=Shard(k, n)) for k in range(1, n + 1)]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert chosen(mixed, cut, **flags) == whole, "the same flags again select the same"


# What a number on a part must say of itself


@pytest.mark.parametrize(
    ("flags", "is_part"),
    [
        ({}, False),
        ({"benchmark": "quiz", "systems": ("bm25",), "configs": ("k5",), "seed": 3}, False),
        ({"tasks": ("a",)}, True),
        ({"types": ("a",)}, True),
        ({"split": "test"}, True),
        ({"sample": 3}, True),
        ({"limit": 3}, True),
        ({"shard": Shard(1, 2)}, True),
    ],
)
def test_which_flags_make_a_part(flags: dict[str, Any], is_part: bool):
    assert Selection(**flags).is_part is is_part
