"""The union of two ledgers: whose order counts, what is refused, and two machines that shared the work."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtrials.errors import UserError
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.merge import in_order, merge
from memtrials.records import Header, Record, Release, TaskBody
from support.cli import call_cli
from support.records import AT, SAMPLE_BODIES, answer, record, write_ledger
from support.trials import ended, records, stage


def headers(ids: str | Sequence[str]) -> list[Header]:
    return [Header(id=name, kind="answer", parents=(), at=AT) for name in ids]


def ordered(one: str | Sequence[str], other: str | Sequence[str]) -> list[str]:
    return [header.id for header in in_order(headers(one), headers(other))]


def is_subsequence(part: Sequence[str], whole: Sequence[str]) -> bool:
    rest = iter(whole)
    return all(item in rest for item in part)


def merged(folder: Path, one: Sequence[Record], other: Sequence[Record]) -> LedgerIndex:
    paths = [write_ledger(folder / name, some) for name, some in (("a.json", one), ("b.json", other))]
    return merge(*paths, folder / "c.json")


def refusal(folder: Path, one: Sequence[Record], other: Sequence[Record]) -> str:
    with pytest.raises(UserError) as caught:
        merged(folder, one, other)
    assert not (folder / "c.json").exists()
    return str(caught.value)


# Order


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [
        ("", "", ""),
        ("abc", "", "abc"),
        ("abc", "abc", "abc"),
        ("ac", "bd", "abcd"),  # nothing decides: the smaller id
        ("ca", "db", "cadb"),  # each file's own order, though b is smaller than d
        ("bd", "ca", "bcad"),
        ("az", "bz", "abz"),  # what is shared comes after what stands before it in either file
        ("za", "zb", "zab"),
        ("axb", "cxd", "acxbd"),
        ("xa", "bx", "bxa"),
        ("xyz", "y", "xyz"),
        ("abxy", "xy", "abxy"),
    ],
)
def test_each_files_own_order_is_kept_and_the_smaller_id_goes_first_where_neither_decides(
    one: str, other: str, order: str
):
    assert "".join(ordered(one, other)) == order
    assert "".join(ordered(other, one)) == order


def test_where_the_files_contradict_each_other_the_first_ones_order_counts():
    assert ordered("ab", "ba") == ["a", "b"]
    assert ordered("ba", "ab") == ["b", "a"]
    assert ordered("axb", "bya") == ["a", "x", "b", "y"]


@st.composite
def two_histories(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    """Two files that agree: parts of one history."""
    history = draw(st.permutations([f"{n:02}" for n in range(draw(st.integers(0, 14)))]))
    in_one = draw(st.lists(st.booleans(), min_size=len(history), max_size=len(history)))
    in_other = draw(st.lists(st.booleans(), min_size=len(history), max_size=len(history)))
    return (
        [name for name, here in zip(history, in_one, strict=True) if here],
        [name for name, here in zip(history, in_other, strict=True) if here],
    )


def smallest_order(one: Sequence[str], other: Sequence[str]) -> list[str]:
    """The order by its definition: again and again the smallest id that nothing left stands before in either file."""
    left = {*one, *other}
    order = []
    while left:
        waiting = [[name for name in file if name in left] for file in (one, other)]
        order.append(min(name for name in left if all(name not in file[1:] for file in waiting)))
        left.remove(order[-1])
    return order


@given(two_histories())
def test_files_that_agree_are_both_kept_in_order(files: tuple[list[str], list[str]]):
    order = ordered(*files)
    assert is_subsequence(files[0], order)
    assert is_subsequence(files[1], order)
    assert order == smallest_order(*files) == ordered(*reversed(files))


@given(st.permutations(list("abcdefgh")), st.permutations(list("defghijk")))
def test_any_two_files_give_each_record_once_and_keep_the_first_ones_order_of_what_they_share(
    one: list[str], other: list[str]
):
    order = ordered(one, other)
    assert sorted(order) == sorted({*one, *other})
    assert [name for name in order if name in "defgh"] == [name for name in one if name in "defgh"]


# Files


def test_the_union_has_each_record_once_with_its_bytes(tmp_path: Path):
    shared = [answer("a1"), answer("a3", 'Zürich\nsays "hello"')]
    index = merged(tmp_path, [*shared, answer("a5")], [*shared, answer("a4")])
    assert [header.id for header in index.ledger.headers] == ["a1", "a3", "a4", "a5"]
    lines = (tmp_path / "c.json").read_bytes().split(b"\n")
    before = (tmp_path / "a.json").read_bytes().split(b"\n")
    assert (lines[0], lines[-2:]) == (b"[", [b"]", b""])
    assert [line.rstrip(b",") for line in lines[1:3]] == [line.rstrip(b",") for line in before[1:3]]
    assert len(json.loads((tmp_path / "c.json").read_bytes())) == 4


def test_merging_leaves_both_files_and_the_folder_as_they_were(tmp_path: Path):
    merged(tmp_path, [answer("a")], [answer("b")])
    assert records(tmp_path / "a.json")[0]["id"] == "a"
    assert records(tmp_path / "b.json")[0]["id"] == "b"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.json", "b.json", "c.json"]


@pytest.mark.parametrize(("one", "other"), [("", ""), ("a", ""), ("", "b"), ("ab", "ab")])
def test_empty_and_equal_files(tmp_path: Path, one: str, other: str):
    merged(tmp_path, [answer(name) for name in one], [answer(name) for name in other])
    text = (tmp_path / "c.json").read_text()
    assert [entry["id"] for entry in json.loads(text)] == sorted({*one, *other})
    with Ledger.open(tmp_path / "c.json") as ledger:
        ledger.append(answer("z"))
    assert json.loads((tmp_path / "c.json").read_text())[-1]["id"] == "z"


def test_a_ledger_merged_with_itself_is_itself(tmp_path: Path):
    path = write_ledger(tmp_path / "a.json", [answer("b"), answer("a")])
    merge(path, path, tmp_path / "c.json")
    assert (tmp_path / "c.json").read_bytes() == path.read_bytes()


def test_a_torn_tail_is_left_out(tmp_path: Path):
    path = write_ledger(tmp_path / "a.json", [answer("a"), answer("b")])
    path.write_bytes(path.read_bytes()[:-30])
    merge(path, write_ledger(tmp_path / "b.json", [answer("c")]), tmp_path / "c.json")
    assert [entry["id"] for entry in records(tmp_path / "c.json")] == ["a", "c"]


# Twins


def test_twins_are_counted_and_the_first_counts(tmp_path: Path):
    """Two machines built one task; one of them then fed it to a system."""

    def task(record_id: str, content: str) -> Record:
        return record(record_id, "task", key="work", content=content, benchmark="b@x", task="1")

    index = merged(tmp_path, [task("t2", "same")], [task("t1", "same"), record("i1", "ingest", ["t1"], key="i")])
    assert (index.twins, index.set_aside) == (1, 0)
    assert index.done["work", None].id == "t1"
    other = tmp_path / "unlike"
    other.mkdir()
    index = merged(other, [task("t2", "same")], [task("t1", "not"), record("i1", "ingest", ["t2"], key="i")])
    assert (index.twins, index.set_aside) == (1, 1)
    assert index.of("ingest") == []


# What is refused


def test_one_id_with_different_bytes_is_refused(tmp_path: Path):
    said = refusal(tmp_path, [answer("a", "Oslo")], [answer("b"), answer("a", "Bergen")])
    assert said == f"record a differs between {tmp_path / 'a.json'} and {tmp_path / 'b.json'}; one was edited"


def released(record_id: str, data: str, benchmark: str = "inmind@released") -> Record:
    task = SAMPLE_BODIES["task"]
    assert isinstance(task, TaskBody)
    release = Release(sha256=data * 32, files=(), known=True, attribution="")
    body = TaskBody(**{field: getattr(task, field) for field in task.__struct_fields__} | {"release": release})
    return record(record_id, "task", body=body, key=record_id, benchmark=benchmark, task=record_id)


def test_different_releases_under_one_benchmark_name_are_refused(tmp_path: Path):
    said = refusal(tmp_path, [released("1", "a1")], [released("2", "b2")])
    assert said == (
        f"inmind@released is data a1a1a1a1a1a1… in {tmp_path / 'a.json'} and b2b2b2b2b2b2… in {tmp_path / 'b.json'}; "
        "not merged"
    )


def test_different_releases_under_different_names_are_merged(tmp_path: Path):
    index = merged(tmp_path, [released("1", "a1")], [released("2", "b2", "inmind@stripped")])
    assert index.benchmarks == ["inmind@released", "inmind@stripped"]


def test_an_existing_file_is_not_overwritten(tmp_path: Path):
    (tmp_path / "c.json").write_text("mine")
    with pytest.raises(UserError, match=r"c\.json exists; name a new file with --out"):
        merged(tmp_path, [answer("a")], [answer("b")])
    assert (tmp_path / "c.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a.json", "missing.json", "--out", "c.json"), "missing.json: no such ledger"),
        (("a.json", "a.json", "--out", "nowhere/c.json"), "nowhere/c.json: the folder nowhere doesn't exist"),
        (("a.json", "a.json"), "Missing option '--out'"),
    ],
)
def test_mistakes_end_with_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], said: str
):
    write_ledger(tmp_path / "a.json", [answer("a")])
    monkeypatch.chdir(tmp_path)
    finished = call_cli("merge", *arguments)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith(f"memtrials: {said}")
    assert finished.err.count("\n") == 1


# Two machines

PLAN: tuple[tuple[str, ...], ...] = (("replay", "bm25", "in-context"), ("fetch",), ("answer",), ("judge",))


@pytest.fixture(scope="module")
def machines(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two machines that each built the sample and took half of every stage."""
    paths = []
    for k in (1, 2):
        trials = tmp_path_factory.mktemp(f"machine{k}") / "trials.json"
        stage(trials, "build", "inmind", "--data", str(sample))
        for name, *arguments in PLAN:
            assert stage(trials, name, *arguments, "--shard", f"{k}/2")["pending"] > 0
        paths.append(trials)
    return paths


@pytest.fixture
def together(machines: list[Path], tmp_path: Path) -> Path:
    """Their ledgers merged, their states copied together."""
    out = tmp_path / "both.json"
    said = ended(call_cli("merge", *map(str, machines), "--out", str(out))).out
    assert said.startswith(f"{out}: ")
    for trials in machines:
        shutil.copytree(trials.with_suffix(".stores"), out.with_suffix(".stores"), dirs_exist_ok=True)
    return out


def test_two_machines_together_have_done_everything(machines: list[Path], together: Path):
    index = LedgerIndex(Ledger.open(together))
    assert (len(index.tasks), index.twins, index.set_aside) == (8, 8, 0)
    done_by_machine = [LedgerIndex(Ledger.open(trials)) for trials in machines]
    for kind, count in (("ingest", 16), ("retrieval", 32), ("answer", 32), ("verdict", 32)):
        assert len(index.of(kind)) == count  # type: ignore[arg-type]
        halves = [len(half.of(kind)) for half in done_by_machine]  # type: ignore[arg-type]
        assert min(halves) > 0
        assert sum(halves) == count


def test_after_merging_no_stage_has_anything_to_do(together: Path, sample: Path):
    for name, *arguments in (("build", "inmind", "--data", str(sample)), *PLAN):
        outcome = stage(together, name, *arguments)
        assert (outcome["pending"], outcome["appended"]) == (0, 0)
    outcome = stage(together, "fetch", "--repeat", "2")
    assert (outcome["done"], outcome["failed"]) == (32, 0), "every state is found"


def test_merging_says_how_many_twins_and_status_repeats_it(machines: list[Path], tmp_path: Path):
    out = tmp_path / "both.json"
    count = sum(len(records(trials)) for trials in machines)
    said = ended(call_cli("merge", *map(str, machines), "--out", str(out))).out
    assert said == f"{out}: {count} records, 8 twins (0 set aside)\n"
    totals = json.loads(call_cli("status", "--trials", str(out), "--json").out)["totals"]
    assert (totals["records"], totals["twins"], totals["set aside"]) == (count, 8, 0)


def test_numbers_of_both_machines_are_those_of_one(together: Path, judged: Path):
    """Everything here is deterministic, so who did which half changes no number."""

    def numbers(trials: Path) -> dict[tuple[str, ...], object]:
        found = json.loads(call_cli("metrics", "--json", "--system", "bm25", "--trials", str(trials)).out)["numbers"]
        return {(n["system"], n["fetch"], n["metric"]): n["value"] for n in found if n["unit"] != "seconds"}

    assert numbers(together) == numbers(judged)


def test_work_that_both_machines_did_is_a_twin(judged: Path, sample: Path, tmp_path: Path):
    """Both built, replayed and asked the same: one of each counts, and its children are what counts of them."""
    again = tmp_path / "again" / "trials.json"
    again.parent.mkdir()
    stage(again, "build", "inmind", "--data", str(sample))
    for name, *arguments in PLAN:
        stage(again, name, *arguments, *(["--task", "9"] if name != "judge" else []))
    index = merge(judged, again, tmp_path / "both.json")
    assert index.twins == 8 + 2 + 4 + 4 + 4
    assert index.set_aside == 0
    assert len(index.of("verdict")) == 48
