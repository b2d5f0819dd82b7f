"""Reading an InMind release: what is derived from it, what it is called, and what is refused with file and line."""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks import inmind
from memtrials.benchmarks.base import Loaded, LoadOptions
from memtrials.benchmarks.timeline import Session
from memtrials.errors import UserError
from memtrials.records import TaskBody
from support.releases import (
    BACKGROUND,
    MANIFEST,
    SAMPLE,
    SUMS,
    TASKS,
    Row,
    change_background,
    change_manifest,
    change_tasks,
    read_rows,
    sample_copy,
    sign,
)

MODIFIED = LoadOptions(allow_modified=True)
TIMESTAMP = re.compile(r"\n---TIMESTAMP: (.*)$")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A copy of the sample to change."""
    return sample_copy(tmp_path / "release")


def timeline(loaded: Loaded, data: Path, number: int = 0) -> list[Session]:
    """The sessions of a task, as replay reads them."""
    task, _, body = loaded.tasks[number]
    return inmind.sessions(data, loaded.name, task, body)


def bodies(loaded: Loaded) -> list[TaskBody]:
    return [body for _, _, body in loaded.tasks]


# Tasks


def test_the_sample_has_its_tasks_in_order():
    loaded = inmind.load(SAMPLE, LoadOptions())
    rows = read_rows(SAMPLE / TASKS)
    assert loaded.name == "inmind@sample"
    assert [task for task, _, _ in loaded.tasks] == [str(row["task_id"]) for row in rows]
    assert [type_ for _, type_, _ in loaded.tasks] == [row["domain"] for row in rows]


def test_a_task_holds_what_later_stages_need():
    loaded = inmind.load(SAMPLE, LoadOptions())
    for row, body in zip(read_rows(SAMPLE / TASKS), bodies(loaded), strict=True):
        unit = str(row["task_id"])
        assert [(q.id, q.text, q.unit, q.type, q.date, q.after) for q in body.queries] == [
            (name, row[name], unit, row["domain"], None, None) for name in ("naive_query", "query")
        ]
        for query in ("naive_query", "query"):
            gold = body.gold_of(query)
            assert gold.details == {name: row[name] for name in ("user_message", "explanation")}
            assert (gold.answers, gold.abstention) == ((), False)
        line = (SAMPLE / body.source.file).read_bytes()[body.source.start : body.source.end]
        assert json.loads(line) == row
        assert body.source.sha256 == hashlib.sha256((SAMPLE / TASKS).read_bytes()).hexdigest()


def test_equal_user_messages_are_one_cluster_of_different_tasks():
    loaded = inmind.load(SAMPLE, LoadOptions())
    clusters = {task: {query.cluster for query in body.queries} for task, _, body in loaded.tasks}
    assert all(len(of_task) == 1 for of_task in clusters.values())
    assert clusters["22"] == clusters["30"]
    assert len(set.union(*clusters.values())) == 7


def test_private_fields_shape_no_timeline_or_query(release: Path):
    def rename(rows: list[Row]) -> None:
        for row in rows:
            row |= {"explanation": "x", "entity_1": "x", "entity_2": "x", "relation": "x", "domain": "x"}
            row["provenance"] = {"source_dataset": "x"}

    ours = inmind.load(change_tasks(release, rename), MODIFIED)
    theirs = inmind.load(SAMPLE, LoadOptions())
    assert [b.sessions for b in bodies(ours)] == [b.sessions for b in bodies(theirs)]
    assert [[q.text for q in b.queries] for b in bodies(ours)] == [[q.text for q in b.queries] for b in bodies(theirs)]
    assert timeline(ours, release) == timeline(theirs, SAMPLE)


# The injection


def users(sessions: list[list[Row]]) -> list[int]:
    """The user turns of each session."""
    return [sum(row["role"] == "user" for row in rows) for rows in sessions]


def blocks() -> list[list[Row]]:
    """The sample's background by session."""
    found: dict[str, list[Row]] = {}
    for row in read_rows(SAMPLE / BACKGROUND):
        found.setdefault(row["id"].rpartition("-turn-")[0], []).append(row)
    return list(found.values())


def expected_index(locator: int) -> int:
    """The first session whose cumulative user turns reach the locator."""
    return next(n for n in range(12) if sum(users(blocks())[: n + 1]) >= locator)


def moved(release: Path, locator: int) -> Path:
    """The release with another locator and the manifest's constants that follow from it."""
    index, count = expected_index(locator), users(blocks())
    return change_manifest(
        release,
        injection_user_turn_locator=locator,
        injection_session_index=index,
        injection_session_number=index + 1,
        phase_a_sessions=index,
        prefix_user_turns=sum(count[:index]),
        background_user_turns_before_target=sum(count[: index + 1]),
        post_injection_sessions=11 - index,
    )


@pytest.mark.parametrize("locator", [1, 10, 11, 13, 14, 15, 30])
def test_the_injection_session_is_found_by_the_locator(release: Path, locator: int):
    loaded = inmind.load(moved(release, locator), LoadOptions())
    index = expected_index(locator)
    assert loaded.release.constants["injection_session_index"] == index
    sessions = timeline(loaded, release)
    background = blocks()
    grown = [n for n, session in enumerate(sessions) if len(session.turns) > len(background[n])]
    assert grown == [index]
    last = len(sessions[index].turns) - 1
    assert bodies(loaded)[0].gold_of("query").evidence == (f"{index}.{last - 1}", f"{index}.{last}")


def test_the_sample_injects_into_its_fifth_session():
    assert [expected_index(locator) for locator in (10, 11, 13, 14, 15)] == [3, 4, 4, 4, 5]
    assert inmind.load(SAMPLE, LoadOptions()).release.constants == {
        "turns": 61,
        "sessions": 12,
        "user_turns": 30,
        "assistant_turns": 31,
        "injection_session_index": 4,
        "injection_session_number": 5,
        "phase_a_sessions": 4,
        "prefix_user_turns": 10,
        "injection_user_turn_locator": 13,
        "background_user_turns_before_target": 14,
        "post_injection_sessions": 7,
    }


def test_a_locator_beyond_the_background_is_refused(release: Path):
    with pytest.raises(UserError, match="fewer user turns than the manifest's locator 31"):
        inmind.load(change_manifest(release, injection_user_turn_locator=31), LoadOptions())


def test_the_target_pair_ends_the_injection_session_with_its_time():
    loaded = inmind.load(SAMPLE, LoadOptions())
    background = blocks()
    for number, row in enumerate(read_rows(SAMPLE / TASKS)):
        sessions = timeline(loaded, SAMPLE, number)
        target = sessions[4].turns[-2:]
        assert [(t.role, t.content) for t in target] == [
            ("user", row["user_message"]),
            ("assistant", row["assistant_message"]),
        ]
        assert (
            {t.time for t in target}
            == {sessions[4].time}
            == {next(iter(background[4][0]["timestamp_mapping"].values()))}
        )
        shown = [[(t.role, t.content) for t in s.turns] for s in sessions]
        assert [s[:-2] if n == 4 else s for n, s in enumerate(shown)] == [
            [(turn["role"], turn["content"]) for turn in rows] for rows in background
        ]


def test_turns_tell_a_system_nothing_but_role_content_and_time():
    turn = timeline(inmind.load(SAMPLE, LoadOptions()), SAMPLE)[4].turns[-1]
    assert {name for name in turn.__struct_fields__ if getattr(turn, name) is not None} == {"role", "content", "time"}


# Digests


def test_digests_are_those_of_the_timeline():
    loaded = inmind.load(SAMPLE, LoadOptions())
    for number, body in enumerate(bodies(loaded)):
        sessions = timeline(loaded, SAMPLE, number)
        assert body.sessions == tuple(session.digest() for session in sessions)
        assert body.turns == sum(len(session.turns) for session in sessions) == 63


def test_tasks_differ_in_the_injection_session_alone():
    digests = [body.sessions for body in bodies(inmind.load(SAMPLE, LoadOptions()))]
    assert [len(set(of_session)) for of_session in zip(*digests, strict=True)] == [1] * 4 + [7] + [
        1
    ] * 7  # two tasks state the same fact


@pytest.mark.parametrize("field", ["content", "role", "time"])
def test_a_digest_depends_on_all_that_is_shown(field: str):
    session = timeline(inmind.load(SAMPLE, LoadOptions()), SAMPLE)[0]
    first = session.turns[0]
    changed = {"content": first.content, "role": first.role, "time": first.time, field: "other"}
    other = Session((type(first)(**changed), *session.turns[1:]), session.time)
    assert other.digest() != session.digest()
    assert Session(session.turns, "other").digest() != session.digest()


# Variants and names


def test_stripped_leaves_out_the_timestamp_lines():
    plain, bare = (inmind.load(SAMPLE, LoadOptions(variant=v)) for v in (None, "stripped"))
    assert bare.name == "inmind@sample-stripped"
    assert bare.release == plain.release
    for with_line, without in zip(timeline(plain, SAMPLE), timeline(bare, SAMPLE), strict=True):
        for shown, stripped in zip(with_line.turns, without.turns, strict=True):
            assert "---TIMESTAMP" not in stripped.content
            assert stripped.content == TIMESTAMP.sub("", shown.content)
            assert (stripped.time, stripped.role) == (shown.time, shown.role)
    assert [q.text for q in bodies(bare)[0].queries] == [q.text for q in bodies(plain)[0].queries]
    assert not set(bodies(bare)[0].sessions) & (set(bodies(plain)[0].sessions) - {bodies(plain)[0].sessions[4]})


@pytest.mark.parametrize(
    ("known", "variant", "name"),
    [
        ("released", None, "inmind@released"),
        ("released", "released", "inmind@released"),
        ("released", "stripped", "inmind@stripped"),
        ("sample", None, "inmind@sample"),
        ("sample", "stripped", "inmind@sample-stripped"),
    ],
)
def test_names_of_known_releases(monkeypatch: pytest.MonkeyPatch, known: str, variant: str | None, name: str):
    (sample,) = (hashes for hashes, of in inmind.KNOWN.items() if of == "sample")
    monkeypatch.setattr(inmind, "KNOWN", {sample: known})
    loaded = inmind.load(SAMPLE, LoadOptions(variant=variant))
    assert (loaded.name, loaded.release.known) == (name, True)


def test_known_releases_are_the_published_one_and_the_sample():
    published = [(tasks[:8], tasks[-6:], background[:8], background[-7:]) for tasks, background in inmind.KNOWN]
    assert ("4e27c560", "6675a4", "aef51e8a", "d626da1") in published
    assert sorted(inmind.KNOWN.values()) == ["released", "sample"]


def test_modified_data_needs_a_yes_and_gets_a_name_of_its_own(release: Path):
    change_tasks(release, lambda rows: rows[0].update(query="Something else?"))
    with pytest.raises(UserError, match=r"not a known InMind release.*--allow-modified.*inmind@modified-") as refused:
        inmind.load(release, LoadOptions())
    loaded = inmind.load(release, MODIFIED)
    assert re.fullmatch(r"inmind@modified-[0-9a-f]{8}", loaded.name)
    assert loaded.name in str(refused.value)
    assert loaded.name.endswith(loaded.release.sha256[:8])
    assert not loaded.release.known
    stripped = inmind.load(release, LoadOptions("stripped", allow_modified=True))
    assert stripped.name == f"{loaded.name}-stripped"


def test_other_data_has_another_name(release: Path):
    first = inmind.load(change_tasks(release, lambda rows: rows[0].update(query="Something else?")), MODIFIED)
    second = inmind.load(change_tasks(release, lambda rows: rows[0].update(query="Something more?")), MODIFIED)
    assert first.name != second.name


def test_a_known_release_keeps_its_name_with_allow_modified():
    assert inmind.load(SAMPLE, MODIFIED) == inmind.load(SAMPLE, LoadOptions())


def bom(data: bytes) -> bytes:
    return b"\xef\xbb\xbf" + data


def crlf(data: bytes) -> bytes:
    return data.replace(b"\n", b"\r\n")


@pytest.mark.parametrize("rewrite", [bom, crlf, lambda data: bom(crlf(data))], ids=["BOM", "CRLF", "both"])
def test_another_line_end_or_a_byte_order_mark_changes_nothing(release: Path, rewrite: Callable[[bytes], bytes]):
    for name in (TASKS, BACKGROUND, MANIFEST, SUMS):
        (release / name).write_bytes(rewrite((release / name).read_bytes()))
    loaded = inmind.load(release, LoadOptions())
    plain = inmind.load(SAMPLE, LoadOptions())
    assert (loaded.name, loaded.release) == (plain.name, plain.release)
    assert timeline(loaded, release, 3) == timeline(plain, SAMPLE, 3)


def test_sums_over_the_bytes_as_they_are_agree_too(release: Path):
    (release / TASKS).write_bytes(crlf((release / TASKS).read_bytes()))
    sign_tasks_only = hashlib.sha256((release / TASKS).read_bytes()).hexdigest()
    (release / SUMS).write_text(f"{sign_tasks_only} *inmind.jsonl\n")
    assert inmind.load(release, LoadOptions()).name == "inmind@sample"


def test_the_older_file_name_is_the_same_release(release: Path):
    (release / TASKS).rename(release / "benchmark/dataset/inmind_en.jsonl")
    (release / SUMS).unlink()
    loaded = inmind.load(release, LoadOptions())
    assert loaded.release == inmind.load(SAMPLE, LoadOptions()).release
    assert timeline(loaded, release) == timeline(inmind.load(SAMPLE, LoadOptions()), SAMPLE)


def test_blank_lines_count_as_lines_and_are_no_rows(release: Path):
    path = release / TASKS
    path.write_bytes(b"\n" + path.read_bytes() + b"  \n\n")
    loaded = inmind.load(sign(release), MODIFIED)
    assert len(loaded.tasks) == 8
    body = bodies(loaded)[0]
    assert json.loads(path.read_bytes()[body.source.start : body.source.end])["task_id"] == 2


# Notes


def test_a_failed_annotation_is_reported_and_kept(release: Path):
    loaded = inmind.load(
        change_tasks(release, lambda rows: rows[2]["provenance"].update(annotation_status="fail")), MODIFIED
    )
    assert len(loaded.tasks) == 8
    assert loaded.notes == ("task 9: its annotation_status is fail; it is kept, as in the release",)


def test_a_fact_that_stands_in_the_background_is_reported(release: Path):
    words = read_rows(SAMPLE / BACKGROUND)[0]["content"][:40]
    loaded = inmind.load(change_tasks(release, lambda rows: rows[0].update(user_message=words)), MODIFIED)
    assert len(loaded.notes) == 1
    assert loaded.notes[0].startswith("task 2: its user_message stands in the background too")


def test_the_sample_needs_no_note_and_names_its_licence():
    loaded = inmind.load(SAMPLE, LoadOptions())
    assert loaded.notes == ()
    assert "Apache-2.0" in loaded.release.attribution


# Replaying other data than was built


def test_the_timeline_of_another_release_is_refused(release: Path):
    task, _, body = inmind.load(SAMPLE, LoadOptions()).tasks[0]
    change_tasks(release, lambda rows: rows[0].update(query="Something else?"))
    with pytest.raises(UserError, match="not the release this ledger was built from"):
        inmind.sessions(release, "inmind@sample", task, body)


def test_lone_surrogates_are_replaced_before_anything_is_made_of_them(release: Path):
    loaded = inmind.load(
        change_tasks(release, lambda rows: rows[0].update(user_message="a \ud800 b", query="c \udfff?")), MODIFIED
    )
    body = bodies(loaded)[0]
    assert timeline(loaded, release)[4].turns[-2].content == "a \ufffd b"
    assert body.query("query").text == "c \ufffd?"
    assert body.gold_of("query").details["user_message"] == "a \ufffd b"
    assert body.sessions[4] == timeline(loaded, release)[4].digest()


# The exchange format


def test_a_timeline_in_exchange_form():
    loaded = inmind.load(SAMPLE, LoadOptions())
    rows, tasks = read_rows(SAMPLE / BACKGROUND), read_rows(SAMPLE / TASKS)
    task, _, body = loaded.tasks[1]
    exported = inmind.export_timeline(SAMPLE, loaded.name, task, body)
    assert set(exported) == {"task_id", "protocol", "sessions", "queries"}
    assert exported["task_id"] == 5
    assert exported["queries"] == {name: tasks[1][name] for name in ("naive_query", "query")}
    policy = exported["protocol"].pop("query_state_policy")
    assert isinstance(policy, str)
    assert policy
    assert exported["protocol"] == {
        "name": "inmind-middle-injection-v1",
        "background_sessions": 12,
        "background_turns": 61,
        "injection_session_index": 4,
        "injection_session_number": 5,
        "phase_a_sessions": 4,
        "prefix_user_turns": 10,
        "injection_user_turn_locator": 13,
        "background_user_turns_before_target": 14,
        "post_injection_sessions": 7,
        "target_position": "end_of_injection_session",
    }
    turns = [turn for session in exported["sessions"] for turn in session["turns"]]
    assert [t for t in turns if t["source"] == "lme_s_background"] == [
        {**r, "source": "lme_s_background"} for r in rows
    ]
    assert exported["sessions"][4]["turns"][-2:] == [
        {"id": "inmind-task-5-turn-0", "role": "user", "content": tasks[1]["user_message"], "source": "inmind_target"},
        {
            "id": "inmind-task-5-turn-1",
            "role": "assistant",
            "content": tasks[1]["assistant_message"],
            "source": "inmind_target",
        },
    ]
    ids = [row["id"].rpartition("-turn-")[0] for row in rows]
    assert [session["session_id"] for session in exported["sessions"]] == list(dict.fromkeys(ids))


# What is refused, and where it says so


def problems(release: Path) -> list[str]:
    """Every problem that is reported, without the folder's name."""
    with pytest.raises(UserError) as refused:
        inmind.load(release, MODIFIED)
    assert "\n" not in str(refused.value)
    return [line.replace(f"{release}/", "") for line in refused.value.details or [str(refused.value)]]


def task_change(number: int, **fields: Any) -> Callable[[list[Row]], None]:
    return lambda rows: rows[number].update(fields)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (task_change(2, task_id=2), "line 3: task_id 2 occurs twice (first in line 1)"),
        (task_change(2, task_id=True), "line 3: task_id true is a boolean, not an integer"),
        (task_change(2, task_id="9"), 'line 3: task_id "9" is a string, not an integer'),
        (task_change(2, task_id=9.0), "line 3: task_id 9.0 is a number, not an integer"),
        (task_change(2, task_id=None), "line 3: task_id null is null, not an integer"),
        (lambda rows: rows[2].pop("task_id"), "line 3: field task_id is missing"),
        (lambda rows: rows[7].pop("query"), "line 8: field query is missing"),
        (task_change(7, query=["?"]), "line 8: field query is an array"),
        (task_change(7, query=None), "line 8: field query is null"),
        (task_change(7, query=" \n"), "line 8: field query is empty"),
        (task_change(0, entity_1=3), "line 1: field entity_1 is a number"),
        (task_change(0, provenance="mine"), "line 1: field provenance is a string"),
    ],
)
def test_a_wrong_task_is_reported_with_its_line(release: Path, change: Callable[[list[Row]], None], expected: str):
    assert problems(change_tasks(release, change)) == [f"{TASKS}, {expected}"]


@pytest.mark.parametrize("empty", [None, ""])
def test_what_may_be_null_may_be_empty(release: Path, empty: str | None):
    change = task_change(0, entity_1=empty, entity_2=empty, relation=empty)
    assert len(inmind.load(change_tasks(release, change), MODIFIED).tasks) == 8


def test_negative_and_large_task_ids_are_integers(release: Path):
    loaded = inmind.load(
        change_tasks(release, lambda rows: [rows[0].update(task_id=-1), rows[1].update(task_id=10**12)]), MODIFIED
    )
    assert [task for task, _, _ in loaded.tasks][:2] == ["-1", "1000000000000"]


def swap(rows: list[Row]) -> None:
    """Exchange the last turn of the first session with the first of the second."""
    first = next(n for n, row in enumerate(rows) if not row["id"].startswith(rows[0]["id"].rpartition("-turn-")[0]))
    rows[first - 1], rows[first] = rows[first], rows[first - 1]


def background_change(number: int, **fields: Any) -> Callable[[list[Row]], None]:
    return lambda rows: rows[number].update(fields)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (background_change(1, role="system"), 'line 2: field role is "system", neither user nor assistant'),
        (background_change(1, content=" "), "line 2: field content is missing or not a text"),
        (background_change(1, content=7), "line 2: field content is missing or not a text"),
        (background_change(1, id="turn-1"), 'line 2: id "turn-1" is not <session id>-turn-<number>'),
        (background_change(1, id=None), "line 2: id null is not <session id>-turn-<number>"),
        (
            background_change(1, timestamp_mapping={}),
            "line 2: field timestamp_mapping is missing or doesn't name exactly",
        ),
        (
            background_change(1, timestamp_mapping={"a": 1}),
            "line 2: field timestamp_mapping is missing or doesn't name",
        ),
        (background_change(1, content="No time."), "line 2: content doesn't end with the ---TIMESTAMP: line of its"),
        (lambda rows: rows.pop(1), "turn 2 of session"),
    ],
)
def test_a_wrong_turn_is_reported_with_its_line(release: Path, change: Callable[[list[Row]], object], expected: str):
    found = problems(change_background(release, change))
    assert any(line.startswith(f"{BACKGROUND}, line 2: ") and expected in line for line in found)


def test_a_session_whose_turns_are_not_together_is_reported(release: Path):
    found = problems(change_background(release, swap))
    line = next(n for n, row in enumerate(read_rows(release / BACKGROUND), 1) if n > 1 and "-turn-0" in row["id"])
    again = [text for text in found if "goes on after another began" in text]
    assert again
    assert again[0].startswith(f"{BACKGROUND}, line {line + 1}: session ")


@pytest.mark.parametrize("name", [name for name in inmind.CONSTANTS if name != "injection_user_turn_locator"])
def test_every_constant_of_the_manifest_is_checked(release: Path, name: str):
    right = json.loads((release / MANIFEST).read_text())[name]
    found = problems(change_manifest(release, **{name: right + 1}))
    assert found == [f"{MANIFEST}: {name} is {right + 1}, the background has {right}"]


def test_a_locator_that_points_elsewhere_disagrees_with_what_follows_from_it(release: Path):
    found = problems(change_manifest(release, injection_user_turn_locator=15))
    assert f"{MANIFEST}: injection_session_index is 4, the background has 5" in found
    assert len(found) == 6


@pytest.mark.parametrize("locator", [None, "13", True, 13.0])
def test_a_manifest_without_a_locator_is_refused(release: Path, locator: Any):
    found = problems(change_manifest(release, injection_user_turn_locator=locator))
    assert found == [f"{MANIFEST}: injection_user_turn_locator is missing or not an integer"]


def test_hashes_that_disagree_are_reported(release: Path):
    (release / SUMS).write_text(f"{'0' * 64}  inmind.jsonl\n{'1' * 64}  other.txt\n")
    change_manifest(release, sha256="0" * 64)
    found = problems(release)
    assert len(found) == 2
    assert found[0].startswith(f"{MANIFEST}: sha256 is '{'0' * 64}'")
    assert found[1].startswith(f"{SUMS}, line 1: inmind.jsonl has another hash")


def test_all_problems_are_reported_at_once(release: Path):
    change_tasks(release, lambda rows: [rows[0].update(task_id="2"), rows[4].pop("query")])
    change_background(release, background_change(3, role="system"))
    change_manifest(release, turns=60)
    with pytest.raises(UserError, match=r": 4 problems, nothing was written$") as refused:
        inmind.load(release, MODIFIED)
    assert [line.removeprefix(f"{release}/").partition(": ")[0] for line in refused.value.details] == [
        f"{TASKS}, line 1",
        f"{TASKS}, line 5",
        f"{BACKGROUND}, line 4",
        MANIFEST,
    ]


def test_a_folder_that_is_not_there_or_no_folder_is_refused(tmp_path: Path):
    for place in (tmp_path / "missing", SAMPLE / TASKS):
        with pytest.raises(UserError, match="no such folder; point --data at an InMind release"):
            inmind.load(place, LoadOptions())
