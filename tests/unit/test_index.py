"""What counts in a ledger: voids, twins, failures and finished work.

Most ledgers here are one chain: task t1, ingest i1 of it, retrieval r1, answer a1, verdict v1.
"""

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrials.errors import UserError
from memtrials.index import LedgerIndex, Pair
from memtrials.ledger import Ledger
from memtrials.records import BatchBody, ConfigBody, FailureClass, Header, Kind, Record, config_record
from support.records import record, write_ledger

KIND_OF: dict[str, Kind] = {
    "t": "task",
    "i": "ingest",
    "r": "retrieval",
    "a": "answer",
    "v": "verdict",
    "f": "failure",
    "s": "step",
    "x": "void",
    "b": "batch",
}


def made(record_id: str, *parents: str, key: str | None = None, content: str | None = None, **header: object) -> Record:
    """A record whose kind is the first letter of its id. key: its own unless given; twins are given the same."""
    return record(
        record_id, KIND_OF[record_id[0]], parents, key=key or f"work of {record_id}", content=content, **header
    )


def void(record_id: str, *what: str) -> Record:
    return record(record_id, "void", what)


CHAIN = [made("t1"), made("i1", "t1"), made("r1", "i1"), made("a1", "r1"), made("v1", "a1")]


def opened(records: Sequence[Record], folder: Path) -> LedgerIndex:
    return LedgerIndex(Ledger.open(write_ledger(folder / "trials.json", records)))


def counting(index: LedgerIndex) -> set[str]:
    """The ids of what counts, voids apart."""
    return {header.id for header in index.ledger.headers if index.counts(header.id) and header.kind != "void"}


def counted(folder: Path, *records: Record) -> set[str]:
    return counting(opened(records, folder))


# What a record is made from


def test_a_chain_counts_from_task_to_verdict(tmp_path: Path):
    index = opened(CHAIN, tmp_path)
    assert counting(index) == {"t1", "i1", "r1", "a1", "v1"}
    assert [header.id for header in index.of("answer")] == ["a1"]
    assert index.done["work of a1", None].id == "a1"
    assert index.parent(index.ledger.header("v1")).id == "a1"
    assert [header.id for header in index.children["r1"]] == ["a1"]
    assert {header.id for header in index.descendants(["i1"])} == {"r1", "a1", "v1"}


def test_an_empty_ledger_has_nothing(tmp_path: Path):
    index = opened([], tmp_path)
    assert (counting(index), index.done, index.in_flight, index.current_reader()) == (set(), {}, frozenset(), {})


@pytest.mark.parametrize(
    ("missing", "left"),
    [("t1", set()), ("i1", {"t1"}), ("r1", {"t1", "i1"}), ("a1", {"t1", "i1", "r1"})],
)
def test_what_was_made_from_a_missing_record_does_not_count(tmp_path: Path, missing: str, left: set[str]):
    assert counted(tmp_path, *(entry for entry in CHAIN if entry.header.id != missing)) == left


def test_retrievals_of_a_script_that_was_killed_do_not_count(tmp_path: Path):
    index = opened([made("t1"), made("r1", "i1"), made("a1", "r1")], tmp_path)
    assert counting(index) == {"t1"}
    assert ("work of r1", None) not in index.done


def test_retrievals_that_stand_before_their_ingest_count(tmp_path: Path):
    assert counted(tmp_path, made("t1"), made("r1", "i1"), made("r2", "i1"), made("i1", "t1")) == {
        "t1",
        "i1",
        "r1",
        "r2",
    }


def test_a_verdict_of_a_metric_that_reads_no_answer_is_made_from_the_retrieval(tmp_path: Path):
    records = [*CHAIN, made("v2", "r1")]
    assert "v2" in counted(tmp_path, *records)
    assert "v2" in counted(tmp_path, *records, void("x1", "a1"))
    assert "v2" not in counted(tmp_path, *records, void("x1", "r1"))


def test_steps_count_while_their_task_does(tmp_path: Path):
    assert counted(tmp_path, made("t1"), made("s1", "t1"), made("s2", "t1")) == {"t1", "s1", "s2"}
    assert counted(tmp_path, made("t1"), made("s1", "t1"), void("x1", "t1")) == set()


# Voids


@pytest.mark.parametrize(
    ("what", "left"),
    [
        (["v1"], {"t1", "i1", "r1", "a1"}),
        (["a1"], {"t1", "i1", "r1"}),
        (["r1"], {"t1", "i1"}),
        (["i1"], {"t1"}),
        (["t1"], set()),
        (["a1", "i1"], {"t1"}),
        (["nothing of ours"], {"t1", "i1", "r1", "a1", "v1"}),
    ],
)
def test_a_void_takes_a_record_and_what_was_made_from_it(tmp_path: Path, what: list[str], left: set[str]):
    assert counted(tmp_path, *CHAIN, void("x1", *what)) == left


def test_what_is_void_is_pending_again_and_may_be_done_again(tmp_path: Path):
    index = opened([*CHAIN, void("x1", "a1")], tmp_path)
    assert ("work of a1", None) not in index.done
    again = opened([*CHAIN, void("x1", "a1"), made("a2", "r1", key="work of a1")], tmp_path)
    assert again.done["work of a1", None].id == "a2"
    assert again.twins == 0


def test_a_void_takes_nothing_that_comes_later(tmp_path: Path):
    assert counted(tmp_path, *CHAIN, void("x1", "a1"), made("a2", "r1")) == {"t1", "i1", "r1", "a2"}


@pytest.mark.parametrize(
    ("voids", "a1_counts", "in_force"),
    [
        ([void("x1", "a1")], False, ["x1"]),
        ([void("x1", "a1"), void("x2", "x1")], True, ["x2"]),
        ([void("x1", "a1"), void("x2", "x1"), void("x3", "x2")], False, ["x1", "x3"]),
        ([void("x1", "a1"), void("x2", "x1"), void("x3", "x2"), void("x4", "x3")], True, ["x2", "x4"]),
        ([void("x1", "a1"), void("x2", "a1"), void("x3", "x1")], False, ["x2", "x3"]),
        ([void("x1", "a1"), void("x2", "a1"), void("x3", "x1", "x2")], True, ["x3"]),
        ([void("x1", "a1"), void("x2", "x1"), void("x3", "a1")], False, ["x2", "x3"]),
    ],
    ids=["void", "undone", "undone again", "three times", "void twice", "both undone", "void anew"],
)
def test_voiding_a_void_undoes_it(tmp_path: Path, voids: list[Record], a1_counts: bool, in_force: list[str]):
    index = opened([*CHAIN, *voids], tmp_path)
    assert index.counts("a1") == index.counts("v1") == a1_counts
    assert [header.id for header in index.of("void")] == in_force
    assert [entry.header.id for entry in voids if index.counts(entry.header.id)] == in_force


# Twins


def twins(content: str) -> list[Record]:
    """Two machines made the same retrieval; each has an answer of its own."""
    return [
        made("t1"),
        made("i1", "t1"),
        made("r1", "i1", key="r", repeat=1, content="x"),
        made("a1", "r1"),
        made("r2", "i1", key="r", repeat=1, content=content),
        made("a2", "r2"),
        made("v2", "a2"),
    ]


def test_a_twin_of_the_same_content_hands_its_children_to_the_first(tmp_path: Path):
    index = opened(twins("x"), tmp_path)
    assert counting(index) == {"t1", "i1", "r1", "a1", "a2", "v2"}
    assert (index.standing("r2"), index.standing("r1")) == ("r1", "r1")
    assert index.parent(index.ledger.header("a2")).id == "r1"
    assert [header.id for header in index.children["r1"]] == ["a1", "a2"]
    assert (index.twins, index.set_aside) == (1, 0)


def test_a_twin_of_other_content_is_set_aside_with_its_children(tmp_path: Path):
    index = opened(twins("y"), tmp_path)
    assert counting(index) == {"t1", "i1", "r1", "a1"}
    assert index.standing("r2") is None
    assert (index.twins, index.set_aside) == (1, 1)


def test_the_first_in_the_file_counts_whatever_its_id(tmp_path: Path):
    index = opened([made("t9", key="t", content="x"), made("t1", key="t", content="x"), made("i1", "t1")], tmp_path)
    assert counting(index) == {"t9", "i1"}


def test_another_ordinal_is_no_twin(tmp_path: Path):
    found = counted(tmp_path, *CHAIN, made("a2", "r1", key="a", repeat=1), made("a3", "r1", key="a", repeat=2))
    assert {"a2", "a3"} <= found


def test_children_that_meet_under_the_first_twin_are_twins_themselves(tmp_path: Path):
    index = opened(
        [
            made("t1", key="t", content="x"),
            made("i1", "t1", key="i", content="x"),
            made("t2", key="t", content="x"),
            made("i2", "t2", key="i", content="x"),
            made("r2", "i2"),
        ],
        tmp_path,
    )
    assert counting(index) == {"t1", "i1", "r2"}
    assert index.parent(index.ledger.header("r2")).id == "i1"
    assert index.twins == 2


def test_a_twin_counts_once_the_first_is_void(tmp_path: Path):
    index = opened([*twins("y"), void("x1", "r1")], tmp_path)
    assert counting(index) == {"t1", "i1", "r2", "a2", "v2"}
    assert index.twins == 0


def test_a_void_undone_after_its_work_was_redone_sets_the_later_aside(tmp_path: Path):
    redone = [made("a1", "r1", key="a", content="x"), void("x1", "a1"), made("a2", "r1", key="a", content="y")]
    records = [*CHAIN[:3], *redone, made("v2", "a2")]
    assert counted(tmp_path, *records) == {"t1", "i1", "r1", "a2", "v2"}
    assert counted(tmp_path, *records, void("x2", "x1")) == {"t1", "i1", "r1", "a1"}


def test_a_void_undone_after_the_same_came_out_again_keeps_both_verdicts(tmp_path: Path):
    redone = [made("a1", "r1", key="a", content="x"), void("x1", "a1"), made("a2", "r1", key="a", content="x")]
    records = [*CHAIN[:3], *redone, made("v1", "a1"), made("v2", "a2"), void("x2", "x1")]
    assert counted(tmp_path, *records) == {"t1", "i1", "r1", "a1", "v1", "v2"}


def test_failures_and_steps_are_never_twins(tmp_path: Path):
    records = [*CHAIN[:3], *(failure(f"f{n}", "r1", "content") for n in (1, 2)), *(made(s, "t1") for s in ("s1", "s2"))]
    index = opened(records, tmp_path)
    assert len(index.failures["a", 1]) == 2
    assert index.twins == 0


def test_a_configuration_recorded_twice_is_no_twin(tmp_path: Path):
    index = opened([config_record("reader", "offline", {}, {}) for _ in range(2)], tmp_path)
    assert (len(index.configs), index.twins) == (1, 0)


# Failures


def failure(record_id: str, parent: str, class_: FailureClass, key: str = "a") -> Record:
    """A failure of answer 1 of that retrieval."""
    return record(record_id, "failure", [parent], key=key, repeat=1, stage="answer", class_=class_)


WORK = ("a", 1)


def test_work_whose_content_failed_in_three_runs_is_given_up(tmp_path: Path):
    failures = [failure(f"f{n}", "r1", "content") for n in (1, 2, 3)]
    assert not opened([*CHAIN[:3], *failures[:2]], tmp_path).given_up(WORK)
    index = opened([*CHAIN[:3], *failures], tmp_path)
    assert index.given_up(WORK)
    assert not index.given_up(("a", 2))
    assert WORK not in index.done


@pytest.mark.parametrize("class_", ["transient", "fatal"])
def test_failures_that_may_pass_never_give_work_up(tmp_path: Path, class_: FailureClass):
    others = [failure(f"f{n}", "r1", class_) for n in range(9)]
    content = [failure(f"f1{n}", "r1", "content") for n in (1, 2)]
    index = opened([*CHAIN[:3], *others, *content], tmp_path)
    assert not index.given_up(WORK)
    assert [header.class_ for header in index.failures[WORK]] == [class_] * 9 + ["content"] * 2


def test_given_up_work_is_pending_again_once_its_failures_are_void(tmp_path: Path):
    failures = [failure(f"f{n}", "r1", "content") for n in (1, 2, 3)]
    index = opened([*CHAIN[:3], *failures, void("x1", "f2")], tmp_path)
    assert not index.given_up(WORK)
    assert [header.id for header in index.failures[WORK]] == ["f1", "f3"]
    assert opened([*CHAIN[:3], *failures, void("x1", "f2"), void("x2", "x1")], tmp_path).given_up(WORK)


def test_failures_of_a_void_parent_do_not_count(tmp_path: Path):
    failures = [failure(f"f{n}", "r1", "content") for n in (1, 2, 3)]
    index = opened([*CHAIN[:3], *failures, void("x1", "r1")], tmp_path)
    assert not index.given_up(WORK)
    assert index.of("failure") == []


def test_asking_whether_work_is_given_up_leaves_no_trace(tmp_path: Path):
    index = opened(CHAIN, tmp_path)
    assert not index.given_up(("unknown", 1))
    assert dict(index.failures) == {}


# Batches


def batch(record_id: str, *parents: str, work: Sequence[tuple[str, int]] = ()) -> Record:
    state = "closed" if parents else "open"
    return record(record_id, "batch", parents, body=BatchBody(state=state, work=tuple(work)))


def test_work_of_an_open_batch_is_in_flight_until_a_batch_closes_it(tmp_path: Path):
    first, second = [("a", 1), ("a", 2)], [("c", 1)]
    sent = [batch("b1", work=first), batch("b2", work=second)]
    assert opened([*CHAIN, *sent], tmp_path).in_flight == {("a", 1), ("a", 2), ("c", 1)}
    assert opened([*CHAIN, *sent, batch("b3", "b1", work=first)], tmp_path).in_flight == {("c", 1)}
    assert opened([*CHAIN, *sent, batch("b3", "b1"), batch("b4", "b2", work=second)], tmp_path).in_flight == set()


def test_a_batch_that_follows_another_and_is_open_holds_its_own_work(tmp_path: Path):
    work = (("a", 1),)
    second = record("b2", "batch", ("b1",), body=BatchBody(state="open", work=work))
    index = opened([*CHAIN, batch("b1", work=work), second], tmp_path)
    assert (index.in_flight, list(index.open_batches)) == ({("a", 1)}, ["b2"])
    assert opened([*CHAIN, batch("b1", work=work), second, batch("b3", "b2")], tmp_path).in_flight == set()


def test_who_has_only_sent_a_batch_has_begun_and_is_not_current(tmp_path: Path):
    sent = record("b1", "batch", benchmark="b", system="s", reader="r9", stage="answer")
    answered = record("a9", "answer", benchmark="b", system="s", reader="r1", key="k", repeat=1)
    index = opened([sent, answered], tmp_path)
    assert index.begun("answer", "reader") == {("b", "s"): ["r1", "r9"]}
    assert index.current_reader() == {("b", "s"): "r1"}
    assert opened([sent, answered, batch("b2", "b1")], tmp_path).begun("answer", "reader") == {("b", "s"): ["r1"]}


def test_work_in_flight_is_not_done(tmp_path: Path):
    index = opened([*CHAIN, batch("b1", work=[("a", 1)])], tmp_path)
    assert ("a", 1) not in index.done


def test_a_void_batch_holds_nothing_and_a_void_end_of_one_opens_it(tmp_path: Path):
    sent = batch("b1", work=[("a", 1)])
    assert opened([sent, void("x1", "b1")], tmp_path).in_flight == frozenset()
    assert opened([sent, batch("b2", "b1"), void("x1", "b2")], tmp_path).in_flight == {("a", 1)}


# Configurations and tasks

SYSTEM = config_record("system", "bm25", {"k1": 1.2}, {})
OTHER_SYSTEM = config_record("system", "bm25", {"k1": 2.0}, {})
READER = config_record("reader", "org/model-4.1", {"temperature": 0}, {})
CONFIGS = [SYSTEM, OTHER_SYSTEM, READER]


def test_a_bare_name_selects_every_configuration_of_that_name(tmp_path: Path):
    index = opened(CONFIGS, tmp_path)
    assert index.resolve("bm25") == [SYSTEM.header.key, OTHER_SYSTEM.header.key]
    assert index.resolve("org-model-4.1") == [READER.header.key]


def test_a_name_is_found_as_it_was_given(tmp_path: Path):
    assert opened(CONFIGS, tmp_path).resolve("org/model-4.1", "reader") == [READER.header.key]


def test_a_name_with_its_hash_selects_one(tmp_path: Path):
    assert opened(CONFIGS, tmp_path).resolve(OTHER_SYSTEM.header.key or "") == [OTHER_SYSTEM.header.key]


def test_part_of_a_name_selects_nothing(tmp_path: Path):
    index = opened(CONFIGS, tmp_path)
    for name in ("bm2", "org", "org/model", ""):
        with pytest.raises(UserError, match="unknown configuration"):
            index.resolve(name)


def test_an_unknown_name_is_answered_with_near_ones(tmp_path: Path):
    index = opened(CONFIGS, tmp_path)
    with pytest.raises(UserError, match=r"unknown system 'bm52'; did you mean bm25\b"):
        index.resolve("bm52", "system")
    with pytest.raises(UserError, match=f"unknown system 'zzz'; known: bm25, {SYSTEM.header.key}"):
        index.resolve("zzz", "system")


def test_a_name_of_another_role_is_unknown(tmp_path: Path):
    index = opened(CONFIGS, tmp_path)
    with pytest.raises(UserError, match="unknown reader 'bm25'"):
        index.resolve("bm25", "reader")


def test_a_configuration_is_read_from_its_record(tmp_path: Path):
    index = opened(CONFIGS, tmp_path)
    assert index.config(READER.header.key or "") == ConfigBody(
        role="reader", name="org/model-4.1", settings={"temperature": 0}
    )
    with pytest.raises(UserError, match="unknown configuration 'bm25-0'"):
        index.config("bm25-0")


def test_tasks_are_found_by_benchmark_and_id(tmp_path: Path):
    index = opened([made("t1", benchmark="b@v", task="17"), made("t2", benchmark="c@v", task="17")], tmp_path)
    assert index.benchmarks == ["b@v", "c@v"]
    assert index.tasks["c@v", "17"].id == "t2"
    assert index.task("b@v", "17").query("q").text == "Where?"
    with pytest.raises(UserError, match=r"task '18' of b@v is not in .*trials.json; run `memtrials build`"):
        index.task("b@v", "18")


# Readers

PLACE = Pair("b@v", "bm25-1")


def answers(*given_by: str) -> list[Record]:
    """Answers in file order, each `reader` or `id reader`."""
    made_by = [entry.split() if " " in entry else [f"a{n}", entry] for n, entry in enumerate(given_by)]
    return [
        *CHAIN[:3],
        *(made(name, "r1", reader=reader, benchmark="b@v", system="bm25-1") for name, reader in made_by),
    ]


def test_the_current_reader_is_the_one_whose_first_answer_is_newest(tmp_path: Path):
    assert opened(answers("old", "new"), tmp_path).current_reader() == {PLACE: "new"}


def test_topping_up_an_old_reader_does_not_make_it_current(tmp_path: Path):
    index = opened(answers("old", "new", "old", "old"), tmp_path)
    assert index.current_reader() == {PLACE: "new"}
    assert index.begun("answer", "reader") == {PLACE: ["old", "new"]}


def test_a_reader_whose_answers_are_void_is_not_current(tmp_path: Path):
    index = opened([*answers("old", "a9 new"), void("x1", "a9")], tmp_path)
    assert index.current_reader() == {PLACE: "old"}


def test_each_system_of_each_benchmark_has_its_own_current_reader(tmp_path: Path):
    elsewhere = made("a8", "r1", reader="old", benchmark="b@v", system="none-1")
    index = opened([*answers("old", "new"), elsewhere], tmp_path)
    assert index.current_reader() == {PLACE: "new", Pair("b@v", "none-1"): "old"}


# Any ledger

LEVELS: tuple[Kind, ...] = ("task", "ingest", "retrieval", "answer", "verdict")


@st.composite
def any_work(draw: st.DrawFn) -> list[Record]:
    """A ledger of work in any order, with twins of the same and of other content and with missing parents."""
    above: list[Record] = []
    every: list[Record] = []
    for level, kind in enumerate(LEVELS):
        here: list[Record] = []
        for n in range(draw(st.integers(1, 4))):
            parent = draw(st.sampled_from([*above, None])) if level else None
            named = [] if not level else ["missing"] if parent is None else [parent.header.id]
            of = parent and f"{parent.header.key}/{parent.header.repeat}/{parent.header.content}"
            here.append(
                record(
                    f"{kind}{n}",
                    kind,
                    named,
                    key=f"{kind} {draw(st.sampled_from('kl'))} of {of}",
                    repeat=draw(st.sampled_from([1, 1, 2])),
                    content=draw(st.sampled_from("xy")),
                )
            )
        every += here
        above = here
    return draw(st.permutations(every))


def by_definition(records: Sequence[Record]) -> set[str]:
    """What counts, word by word as the design has it; no voids."""
    headers = {entry.header.id: entry.header for entry in records}

    @functools.cache
    def has_ground(record_id: str) -> bool:
        return all(stands_for(parent) is not None for parent in headers[record_id].parents)

    @functools.cache
    def stands_for(record_id: str) -> str | None:
        if record_id not in headers or not has_ground(record_id):
            return None
        mine = headers[record_id]
        first = next(other for other in headers.values() if name(other) == name(mine) and has_ground(other.id))
        return first.id if first.content == mine.content else None

    def name(header: Header) -> tuple[Kind, str | None, int | None]:
        return header.kind, header.key, header.repeat

    return {record_id for record_id in headers if stands_for(record_id) == record_id}


def fold(records: Sequence[Record]) -> LedgerIndex:
    with tempfile.TemporaryDirectory() as folder:
        return opened(records, Path(folder))


@given(any_work())
@settings(deadline=None, max_examples=25)
def test_what_counts_is_what_the_design_says(records: list[Record]):
    assert counting(fold(records)) == by_definition(records)


@given(any_work())
@settings(deadline=None, max_examples=25)
def test_counting_again_counts_the_same(records: list[Record]):
    index = fold(records)
    again = LedgerIndex(index.ledger)
    assert counting(again) == counting(index)
    assert (again.done, again.twins, again.set_aside) == (index.done, index.twins, index.set_aside)


@given(any_work(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=25)
def test_only_the_order_within_a_kind_matters(records: list[Record], random):
    by_kind = {kind: [entry for entry in records if entry.header.kind == kind] for kind in LEVELS}
    turns = [entry.header.kind for entry in records]
    random.shuffle(turns)
    assert counting(fold([by_kind[kind].pop(0) for kind in turns])) == counting(fold(records))


@given(any_work(), st.data())
@settings(deadline=None, max_examples=25)
def test_a_void_that_is_undone_leaves_everything_as_it_was(records: list[Record], data: st.DataObject):
    before = counting(fold(records))
    taken = data.draw(st.lists(st.sampled_from([entry.header.id for entry in records]), min_size=1))
    voided = counting(fold([*records, void("x1", *taken)]))
    assert voided.isdisjoint(taken)
    assert counting(fold([*records, void("x1", *taken), void("x2", "x1")])) == before


@given(any_work())
@settings(deadline=None, max_examples=25)
def test_children_lead_to_everything_that_counts(records: list[Record]):
    index = fold(records)
    roots = [header.id for header in index.of("task")]
    assert {header.id for header in index.descendants(roots)} | set(roots) == counting(index)
    for parent, children in index.children.items():
        assert index.counts(parent)
        assert all(index.parent(child).id == parent for child in children)
