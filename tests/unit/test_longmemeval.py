"""LongMemEval: what a file must be, what becomes of it, and which rubric decides a question."""

import json
import random
import string
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks import longmemeval
from memtrials.benchmarks.base import Loaded, LoadOptions, Prompts
from memtrials.benchmarks.longmemeval import BENCHMARK, KNOWN, QUESTION, TYPES, identities, moment
from memtrials.benchmarks.timeline import Turn
from memtrials.errors import UserError
from memtrials.judging.payloads import judge_messages
from memtrials.judging.verdicts import UnreadableError, read_verdict
from memtrials.llm import prompts as prompt_files
from memtrials.llm.roles import reader_config, reader_messages
from memtrials.records import Gold, Query, RetrievalBody, TaskBody
from support.longmemeval import COUNTS, SAMPLE, Instance, as_published, instance, sample, upstream, without, written

OWN = LoadOptions(allow_modified=True)


def load(path: Path) -> Loaded:
    return BENCHMARK.load(path, OWN)


def loaded(tmp_path: Path, *instances: Any) -> Loaded:
    return load(written(tmp_path / "data.json", instances))


def task(found: Loaded, number: int = 0) -> TaskBody:
    return found.tasks[number][2]


def gold(found: Loaded, number: int = 0) -> Gold:
    return task(found, number).gold_of(QUESTION)


def timeline(found: Loaded, number: int = 0) -> list[Any]:
    name, _, body = found.tasks[number]
    return BENCHMARK.sessions(Path(body.data), found.name, name, body)


def refusal(path: Path, options: LoadOptions = OWN) -> str:
    """Everything that is said when a file is refused."""
    with pytest.raises(UserError) as error:
        BENCHMARK.load(path, options)
    return "\n".join((str(error.value), *error.value.details))


# --- the sample -------------------------------------------------------------------------------------------------


def test_the_sample_covers_types_and_oddities():
    found = BENCHMARK.load(SAMPLE, LoadOptions())
    assert found.name == "longmemeval@sample"
    assert found.release.known
    assert found.release.constants == {
        "questions": 10,
        "abstention": 2,
        "sessions": 41,
        "turns": 122,
        "blank_turns": 3,
    }
    assert set(Counter(type_ for _, type_, _ in found.tasks)) == set(TYPES)
    rows = sample()
    assert sum(isinstance(row["answer"], int) for row in rows) == 2
    assert sum(len(set(row["haystack_session_ids"])) < len(row["haystack_session_ids"]) for row in rows) == 2
    turns = [turns for row in rows for turns in row["haystack_sessions"]]
    assert any(session[0]["role"] == "assistant" for session in turns)
    assert any(len(session) % 2 for session in turns)
    assert any(turn["role"] == "assistant" and turn.get("has_answer") for session in turns for turn in session)


def test_a_folder_or_the_file_itself():
    whole = BENCHMARK.load(SAMPLE, LoadOptions())
    folder = BENCHMARK.load(SAMPLE.parent, LoadOptions())
    assert (folder.name, folder.tasks) == (whole.name, whole.tasks)
    name, _, body = folder.tasks[3]
    assert BENCHMARK.sessions(SAMPLE.parent, folder.name, name, body) == timeline(whole, 3)


# --- dates ------------------------------------------------------------------------------------------------------


def test_a_date_without_zone():
    assert moment("2023/05/30 (Tue) 23:40") == datetime(2023, 5, 30, 23, 40)  # noqa: DTZ001


@pytest.mark.parametrize(
    "text",
    [
        "2023/05/30 (Wed) 23:40",
        "2023/05/30 (tue) 23:40",
        "2023/05/30 23:40",
        "2023-05-30 (Tue) 23:40",
        "2023/5/30 (Tue) 23:40",
        "2023/02/30 (Thu) 23:40",
        "2023/05/30 (Tue) 24:00",
        "2023/05/30 (Tue) 23:40 ",
        "2023/05/30 (Tue) 23:40\n",
        "٢٠٢٣/05/30 (Tue) 23:40",
        "",
    ],
)
def test_what_is_no_date(text: str):
    with pytest.raises(ValueError, match=r".+"):
        moment(text)


def test_dates_sort_as_texts():
    source = random.Random(5)
    days = [datetime.fromtimestamp(source.randrange(10**9, 2 * 10**9)) for _ in range(2000)]  # noqa: DTZ006
    texts = [f"{day:%Y/%m/%d} ({longmemeval._DAYS[day.weekday()]}) {day:%H:%M}" for day in days]
    assert sorted(texts) == sorted(texts, key=moment)


# --- what a file must be ----------------------------------------------------------------------------------------


def turns(*changes: dict[str, Any]) -> list[Any]:
    """The sessions of an instance, whose evidence session has these turns."""
    return [instance()["haystack_sessions"][0], list(changes)]


SOUND = {"role": "user", "content": "It is in the attic.", "has_answer": True}

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"question_id": ""}, 'question_id is "", not a text'),
    ({"question_id": 7}, "question_id is 7, not a text"),
    ({"question": "  "}, 'question is "  ", not a text'),
    ({"question_type": "abstention"}, 'question_type "abstention" is none of single-session-user, '),
    ({"question_type": None}, "question_type null is none of"),
    ({"question_type": ["multi-session"]}, 'question_type ["multi-session"] is none of'),
    ({"answer": True}, "answer is true, neither a text nor an integer"),
    ({"answer": 2.5}, "answer is 2.5, neither a text nor an integer"),
    ({"answer": None}, "answer is null, neither a text nor an integer"),
    ({"answer": ""}, 'answer is "", neither a text nor an integer'),
    ({"question_date": ""}, 'question_date is "", not a date'),
    ({"question_date": None}, "question_date is null, not a date"),
    ({"question_date": "2023/05/30 (Mon) 23:40"}, "isn't a date as the data writes it (a Tue, not a Mon)"),
    ({"question_date": "2023-05-30"}, "(not written as 2023/05/30 (Tue) 23:40)"),
    ({"haystack_dates": ["2023/05/20 (Sat) 02:21"]}, "haystack_dates has 1 entries but haystack_sessions has 2"),
    ({"haystack_dates": ["2023/05/20 (Sat) 02:21", ""]}, 'haystack_dates[1] is "", not a date'),
    (
        {"haystack_session_ids": ["ultrachat_1", "answer_0a", "x"]},
        "haystack_session_ids has 3 entries but haystack_sessions has 2",
    ),
    ({"haystack_session_ids": [" ", "answer_0a"]}, 'haystack_session_ids[0] is " ", not a text'),
    ({"haystack_sessions": None}, "haystack_sessions is null, not an array"),
    ({"haystack_dates": "2023/05/20 (Sat) 02:21"}, 'haystack_dates is "2023/05/20 (Sat) 02:21", not an array'),
    ({"answer_session_ids": "answer_0a"}, 'answer_session_ids is "answer_0a", not an array'),
    (
        {"answer_session_ids": [], "haystack_sessions": turns(without(SOUND, "has_answer"))},
        "answer_session_ids is empty",
    ),
    ({"answer_session_ids": ["answer_0a", "answer_0b"]}, 'answer_session_ids names "answer_0b", which is not among'),
    ({"haystack_sessions": turns()}, "haystack_sessions[1] is [], not an array of turns"),
    ({"haystack_sessions": turns(SOUND | {"role": "system"})}, 'haystack_sessions[1][0].role is "system", neither'),
    ({"haystack_sessions": turns(without(SOUND, "role"))}, "haystack_sessions[1][0].role is null, neither"),
    ({"haystack_sessions": turns(SOUND | {"content": None})}, "haystack_sessions[1][0].content is null, not a text"),
    ({"haystack_sessions": turns(SOUND | {"has_answer": 1})}, "has_answer is 1, neither true nor false"),
    ({"haystack_sessions": turns(SOUND, without(SOUND, "has_answer"))}, "[1][1].has_answer is missing in a session of"),
    ({"haystack_sessions": [[SOUND], [SOUND]]}, "haystack_sessions[0][0].has_answer stands in a session that isn't"),
    ({"haystack_sessions": [["Hello"], [SOUND]]}, 'haystack_sessions[0][0] is "Hello", not a turn'),
]


@pytest.mark.parametrize(("fields", "says"), WRONG, ids=[says[:44] for _, says in WRONG])
def test_a_wrong_field_is_named_with_its_item(tmp_path: Path, fields: dict[str, Any], says: str):
    path = written(tmp_path / "data.json", [instance("q0"), instance(**fields)])
    said = refusal(path)
    assert said.startswith(f"{path}, item 2 (question_id ")
    assert says in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("field", longmemeval.FIELDS)
def test_a_missing_field_is_named(tmp_path: Path, field: str):
    path = written(tmp_path / "data.json", [without(instance(), field)])
    assert f"field {field} is missing" in refusal(path)


def test_an_id_that_occurs_twice(tmp_path: Path):
    path = written(tmp_path / "data.json", [instance("a"), instance("b"), instance("a")])
    assert refusal(path) == f'{path}, item 3 (question_id "a"): question_id occurs twice (first in item 1)'


def test_every_problem_is_told_up_to_a_point(tmp_path: Path):
    path = written(tmp_path / "data.json", [instance(f"q{n}", answer=None, question="") for n in range(30)])
    said = refusal(path).splitlines()
    assert said[0] == f"{path}: 60 problems, nothing was written"
    assert len(said) == 1 + 40 + 1
    assert said[-1] == f"{path}: and 20 more"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "item 1: byte 0: empty; is the file cut off? Download it again"),
        (b"[]", "item 1: missing: the array is empty; download the file again"),
        (b'{"data": []}', "item 1: byte 0: not a JSON array"),
        (b"[3]", "item 1: byte 1: no object stands where one is expected"),
        (b"\x89PNG", "item 1: byte 0: not UTF-8 text"),
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, content: bytes, says: str):
    path = tmp_path / "data.json"
    path.write_bytes(content)
    assert refusal(path).startswith(f"{path}, {says}")


def test_a_file_that_is_cut_off(tmp_path: Path):
    path = written(tmp_path / "data.json", [instance("a"), instance("b")])
    path.write_bytes(path.read_bytes()[:-30])
    assert "item 2: byte " in refusal(path)


@pytest.mark.parametrize("many", [0, 2])
def test_a_folder_must_hold_one_published_file(tmp_path: Path, many: int):
    for name in list(longmemeval.FILES.values())[:many]:
        written(tmp_path / name, [instance()])
    says = {0: "holds none of longmemeval_s_cleaned.json, ", 2: "holds 2 of the published files; "}[many]
    assert says in refusal(tmp_path)
    assert "no such file or folder" in refusal(tmp_path / "nothing")


def test_a_variant_chooses_the_file_of_a_folder(tmp_path: Path):
    written(tmp_path / longmemeval.FILES["s"], [instance("from-s")])
    written(tmp_path / longmemeval.FILES["oracle"], [instance("from-oracle")])
    assert "longmemeval_oracle.json: by its SHA-256" in refusal(tmp_path, LoadOptions("oracle", allow_modified=True))


# --- which release it is ----------------------------------------------------------------------------------------


def test_the_published_files_are_known_by_their_hashes():
    assert {variant: sha[:8] for sha, variant in KNOWN.items() if variant != "sample"} == {
        "s": "d6f21ea9",
        "m": "9d79e552",
        "oracle": "821a2034",
    }
    assert BENCHMARK.published == ("s", "m", "oracle")


def test_the_hash_says_which_variant_a_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = written(tmp_path / "renamed.json", [instance()])
    digest = load(path).release.files[0].sha256
    monkeypatch.setitem(KNOWN, digest, "oracle")
    found = BENCHMARK.load(path, LoadOptions())
    assert (found.name, found.release.known, found.release.files[0].path) == (
        "longmemeval@oracle",
        True,
        "renamed.json",
    )
    assert "MIT License, Copyright (c) 2024 Di Wu" in found.release.attribution
    assert BENCHMARK.load(path, LoadOptions("oracle")).name == "longmemeval@oracle"
    assert refusal(path, LoadOptions("s")) == f"{path}: by its SHA-256 this is longmemeval@oracle, not @s"


def test_other_data_needs_a_word_and_has_a_name_of_its_own(tmp_path: Path):
    path = written(tmp_path / longmemeval.FILES["s"], [instance()])
    assert "not a known LongMemEval file (SHA-256 " in refusal(path, LoadOptions())
    assert "add --allow-modified to build it as longmemeval@modified-" in refusal(path, LoadOptions())
    first, second = load(path), loaded(tmp_path, instance("q2"))
    assert first.name.startswith("longmemeval@modified-")
    assert first.name != second.name
    assert not first.release.known
    assert f"by its SHA-256 this is {first.name}, not @s" in refusal(path, LoadOptions("s", allow_modified=True))


# --- tasks ------------------------------------------------------------------------------------------------------


def test_a_task_is_a_question_with_its_date(tmp_path: Path):
    found = loaded(tmp_path, instance("e47becba"), instance("e47becba_abs", question_date="2023/05/23 (Tue) 19:11"))
    assert [(name, type_) for name, type_, _ in found.tasks] == [
        ("e47becba", "single-session-user"),
        ("e47becba_abs", "single-session-user"),
    ]
    assert task(found).queries == (
        Query(
            id=QUESTION,
            text="Where is my kite?",
            unit="e47becba",
            cluster="e47becba",
            date="2023/05/30 (Tue) 23:40",
            type="single-session-user",
        ),
    )
    (query,) = task(found, 1).queries
    assert (query.unit, query.cluster, query.date) == ("e47becba_abs", "e47becba", "2023/05/23 (Tue) 19:11")


@pytest.mark.parametrize(("name", "unanswerable"), [("q", False), ("q_abs", True), ("gpt4_70e84552_abs", True)])
def test_abstention_is_in_the_id_and_keeps_its_evidence(tmp_path: Path, name: str, unanswerable: bool):
    found = loaded(tmp_path, instance(name, question_type="temporal-reasoning"))
    assert gold(found).abstention == unanswerable
    assert gold(found).evidence == ("1.0",)
    assert found.tasks[0][1] == "temporal-reasoning"


def test_an_answer_that_is_an_integer(tmp_path: Path):
    found = loaded(tmp_path, instance("a", answer=3), instance("b", answer=0), instance("c", answer="3"))
    assert [gold(found, n).answers for n in range(3)] == [("3",), ("0",), ("3",)]
    assert [gold(found, n).details.get("number") for n in range(3)] == ["3", "0", None]


def test_two_values_in_one_gold_stay_one(tmp_path: Path):
    text = "14 days. 15 days (with the last day) is right, too."
    assert gold(loaded(tmp_path, instance(answer=text))).answers == (text,)


def test_gold_says_what_measures_of_retrieval_need(tmp_path: Path):
    sessions = [
        [
            {"role": "user", "content": "a", "has_answer": False},
            {"role": "assistant", "content": "b", "has_answer": True},
        ],
        [{"role": "assistant", "content": "c"}],
        [{"role": "user", "content": "a", "has_answer": True}, {"role": "user", "content": "b", "has_answer": True}],
    ]
    dates = ["2023/05/20 (Sat) 02:21"] * 3
    ids = ["answer_x_1", "filler", "answer_x_1"]
    row = instance(
        haystack_sessions=sessions, haystack_dates=dates, haystack_session_ids=ids, answer_session_ids=["answer_x_1"]
    )
    found = gold(loaded(tmp_path, row))
    assert found.evidence == ("0.1", "2.0", "2.1")
    assert json.loads(found.details["timeline"]) == [["answer_x_1", "uA"], ["filler", "a"], ["answer_x_1", "UU"]]
    assert json.loads(found.details["evidence_sessions"]) == [0, 2]


def test_the_order_of_fields_does_not_matter(tmp_path: Path):
    first = loaded(tmp_path, instance())
    turned = dict(reversed(instance().items()))
    second = loaded(tmp_path, turned)
    assert task(first).gold == task(second).gold
    assert task(first).sessions == task(second).sessions


# --- timelines --------------------------------------------------------------------------------------------------


def test_systems_are_shown_roles_texts_and_dates_alone(tmp_path: Path):
    found = loaded(tmp_path, instance())
    first, second = timeline(found)
    assert (first.time, second.time) == ("2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 09:00")
    assert second.turns == (
        Turn("user", "My kite is in the attic.", "2023/05/21 (Sun) 09:00"),
        Turn("assistant", "Noted.", "2023/05/21 (Sun) 09:00"),
    )
    assert "answer" not in repr(timeline(found))


def test_digests_are_those_of_the_timeline(tmp_path: Path):
    found = loaded(tmp_path, *sample())
    for number in range(10):
        assert task(found, number).sessions == tuple(session.digest() for session in timeline(found, number))
        assert task(found, number).turns == sum(len(session.turns) for session in timeline(found, number))


def test_odd_sessions_stay_as_they_are(tmp_path: Path):
    """Nothing is paired, merged or left out: assistants begin, roles repeat, turns are blank."""
    talk = [("assistant", "Back again."), ("assistant", ""), ("user", " "), ("user", "assistant: no"), ("user", "x")]
    sessions = [[{"role": role, "content": text} for role, text in talk], instance()["haystack_sessions"][1]]
    found = loaded(tmp_path, instance(haystack_sessions=sessions))
    assert [(turn.role, turn.content) for turn in timeline(found)[0].turns] == talk
    assert task(found).turns == 7
    assert "2 turns are blank; they are kept" in found.notes


def test_a_repeated_session_keeps_both_places_and_dates(tmp_path: Path):
    filler, evidence = instance()["haystack_sessions"]
    row = instance(
        haystack_sessions=[filler, evidence, filler],
        haystack_dates=["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 09:00", "2023/05/25 (Thu) 13:13"],
        haystack_session_ids=["f", "answer_0a", "f"],
    )
    found = loaded(tmp_path, row)
    assert [session.time for session in timeline(found)] == row["haystack_dates"]
    assert found.release.constants["sessions"] == 3
    assert "1 sessions repeat another's id in their history; each is kept in its place" in found.notes
    name, _, body = found.tasks[0]
    shown = BENCHMARK.export_timeline(Path(body.data), found.name, name, body)
    assert [session["session_id"] for session in shown["sessions"]] == ["f", "answer_0a", "f#2"]
    assert "has_answer" not in json.dumps(shown)


@pytest.mark.parametrize(
    ("ids", "names"),
    [
        ("a b", "a b"),
        ("a a a", "a a#2 a#3"),
        ("a a#2 a", "a a#2 a#3"),
        ("a a a#2", "a a#3 a#2"),
        ("a#2 a#2 a a", "a#2 a#2#2 a a#3"),
        ("s s s s#2 single", "s s#3 s#4 s#2 single"),
        ("a b a a", "a b a#2 a#3"),
    ],
)
def test_names_for_repeated_sessions(ids: str, names: str):
    assert identities(ids.split()) == names.split()


def test_history_is_never_cut_by_the_clock(tmp_path: Path):
    """A question at 08:08 with a session at 08:29 that day, one on a later day, and one before."""
    filler, evidence = instance()["haystack_sessions"]
    row = instance(
        question_date="2023/05/30 (Tue) 08:08",
        haystack_sessions=[filler, evidence, filler],
        haystack_session_ids=["f", "answer_0a", "g"],
        haystack_dates=["2023/05/29 (Mon) 10:00", "2023/05/30 (Tue) 08:29", "2023/05/31 (Wed) 00:01"],
    )
    found = loaded(tmp_path, row)
    assert len(timeline(found)) == 3
    assert (
        "no history is cut at its question's date: 2 of 3 sessions are later by the clock, 1 by the day" in found.notes
    )


def test_a_timeline_is_read_from_its_own_bytes(tmp_path: Path):
    path = written(tmp_path / "data.json", sample(), indent=3, ensure_ascii=True)
    found = load(path)
    for number, row in enumerate(sample()):
        source = task(found, number).source
        assert json.loads(path.read_bytes()[source.start : source.end]) == row
    whole = path.read_bytes()
    kept = task(found, 4).source
    path.write_bytes(b"x" * kept.start + whole[kept.start : kept.end])  # the rest is never read
    assert len(timeline(found, 4)) == 4


@pytest.mark.parametrize("spoil", ["another", "shorter", "other data"])
def test_another_file_in_its_place_is_noticed(tmp_path: Path, spoil: str):
    path = written(tmp_path / "data.json", [instance("a"), instance("b")])
    found = load(path)
    spoilt: dict[str, Callable[[], object]] = {
        "another": lambda: written(path, [instance("b"), instance("a")]),
        "shorter": lambda: path.write_bytes(path.read_bytes()[:100]),
        "other data": lambda: path.write_bytes(b"[" + b" " * 4000 + b"]"),
    }
    spoilt[spoil]()
    with pytest.raises(UserError, match="not the file this ledger was built from"):
        timeline(found)
    path.unlink()
    with pytest.raises(UserError, match="missing; say with --data"):
        timeline(found)


def test_lone_surrogates_become_replacement_characters(tmp_path: Path):
    sessions = [[{"role": "user", "content": "half \ud83d"}], instance()["haystack_sessions"][1]]
    found = loaded(tmp_path, instance(haystack_sessions=sessions, answer="\udf89 x"))
    assert timeline(found)[0].turns[0].content == "half \ufffd"
    assert gold(found).answers == ("\ufffd x",)


# --- metrics ----------------------------------------------------------------------------------------------------


def query(type_: str) -> Query:
    return Query(id=QUESTION, text="Which?", unit="q", cluster="q", type=type_, date="2023/05/30 (Tue) 23:40")


def gold_of(answer: str = "red", *, abstention: bool = False) -> Gold:
    return Gold(query=QUESTION, answers=(answer,), abstention=abstention)


RUBRICS = {
    "single-session-user": "judge_general",
    "single-session-assistant": "judge_general",
    "multi-session": "judge_general",
    "temporal-reasoning": "judge_temporal",
    "knowledge-update": "judge_update",
    "single-session-preference": "judge_preference",
}


@pytest.mark.parametrize("type_", TYPES)
def test_the_rubric_is_the_types_unless_the_question_is_unanswerable(type_: str):
    accuracy = BENCHMARK.metric("accuracy")
    assert accuracy.prompt(query(type_), gold_of()) == RUBRICS[type_]
    assert accuracy.prompt(query(type_), gold_of(abstention=True)) == "judge_abstention"


def test_an_unknown_type_has_no_rubric():
    with pytest.raises(KeyError):
        BENCHMARK.metric("accuracy").prompt(query("abstention"), gold_of())


@pytest.mark.parametrize("prompts", ["default", "official"])
def test_a_judge_sees_question_gold_and_answer_alone(tmp_path: Path, prompts: str):
    """No date, no type, no context."""
    folder = upstream(tmp_path)
    texts = (
        longmemeval.official_texts(folder, BENCHMARK.judge_prompts)
        if prompts == "official"
        else prompt_files.load(BENCHMARK, BENCHMARK.judge_prompts, "default", None).texts
    )
    accuracy = BENCHMARK.metric("accuracy")
    messages = judge_messages(
        accuracy,
        Prompts(texts, prompts, official=prompts == "official"),
        BENCHMARK.judges[prompts],
        context="CONTEXT",
        query=query("temporal-reasoning"),
        answer="twelve {gold}",
        gold=gold_of("12"),
    )
    sent = "\n".join(message["content"] for message in messages)
    if prompts == "official":
        assert messages == [{"role": "user", "content": "Temporal. Q: Which?\nA: 12\nR: twelve {gold}\nYes or no?"}]
    else:
        assert messages[1]["content"] == "query: Which?\ngold: 12\nanswer: <data>\ntwelve {gold}\n</data>"
        assert "off by one" in messages[0]["content"]
    assert not [word for word in ("CONTEXT", "2023", "temporal-reasoning") if word in sent]


@pytest.mark.parametrize(
    ("reply", "official", "strict"),
    [
        ("Yes.", 1.0, 1.0),
        ("YES!!", 1.0, 1.0),
        ("**Yes**", 1.0, 1.0),
        ("No", 0.0, 0.0),
        ("correct", 0.0, None),
        ("", 0.0, None),
        ("No. The response says yesterday, not today.", 1.0, 0.0),
    ],
)
def test_the_official_rule_and_the_strict_one(reply: str, official: float, strict: float | None):
    rule = BENCHMARK.judges["official"].rule
    assert read_verdict(reply, rule)[0] == official
    if strict is None:
        with pytest.raises(UnreadableError):
            read_verdict(reply, "strict")
    else:
        assert read_verdict(reply, "strict")[0] == strict


def test_official_parameters_are_the_published_ones():
    assert BENCHMARK.judges["official"].parameters == {"temperature": 0, "n": 1, "max_tokens": 10}
    assert BENCHMARK.judges["official"].model == "gpt-4o-2024-08-06"


def test_containment_is_of_answers_that_can_be_contained():
    metric = BENCHMARK.metric("gold-contained")
    assert metric.rule is not None
    asked = {type_ for type_ in TYPES if metric.asks(query(type_), gold_of())}
    assert asked == set(TYPES) - {"single-session-preference"}
    assert not any(metric.asks(query(type_), gold_of(abstention=True)) for type_ in TYPES)
    assert metric.rule("", "You have 3 of them.", gold_of("3"))[0] == 1.0
    assert metric.rule("3", "You have 30 of them.", gold_of("3"))[0] == 0.0


def test_parts_of_the_published_counts(tmp_path: Path):
    """500 questions, 30 of them unanswerable; 440 have a gold that an answer can contain; 471 clusters at most."""
    found = loaded(tmp_path, *as_published())
    questions = [(body.queries[0], body.gold[0]) for _, _, body in found.tasks]
    parts = {part.name: sum(part.asks(*question) for question in questions) for part in BENCHMARK.parts}
    assert parts == {"types averaged": 500, "abstention": 30, "answerable": 470}
    assert sum(BENCHMARK.metric("gold-contained").asks(*question) for question in questions) == 440
    assert Counter(type_ for _, type_, _ in found.tasks) == {type_: sum(some) for type_, some in COUNTS.items()}
    assert BENCHMARK.published_tasks == found.release.constants["questions"] == 500


# --- probes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "other", "kinds"),
    [
        (gold_of("red"), gold_of("blue"), ["gold", "swapped", "refusal", "empty"]),
        (gold_of("red"), None, ["gold", "refusal", "empty"]),
        (gold_of("2"), gold_of("2"), ["gold", "refusal", "empty"]),  # another's gold would be right
        (gold_of("red"), gold_of("why", abstention=True), ["gold", "swapped", "refusal", "empty"]),
        (gold_of("why", abstention=True), gold_of("blue"), ["gold", "swapped", "empty"]),
        (gold_of("why", abstention=True), gold_of("so", abstention=True), ["gold", "empty"]),
    ],
)
def test_constructed_answers(own: Gold, other: Gold | None, kinds: list[str]):
    answers = longmemeval.probes(own, other).answers
    assert list(answers) == kinds
    assert answers["gold"] == (longmemeval.NOT_KNOWN if own.abstention else own.answers[0])


# --- official templates -----------------------------------------------------------------------------------------


def test_templates_are_found_without_running_the_script(tmp_path: Path):
    texts = longmemeval.official_texts(upstream(tmp_path), BENCHMARK.judge_prompts)
    assert texts == {
        "judge_abstention": "Abstention. Q: {query}\nWhy: {gold}\nR: {answer}\nYes or no?",
        "judge_general": "General. Q: {query}\nA: {gold}\nR: {answer}\nYes or no?",
        "judge_preference": "Preference. Q: {query}\nRubric: {gold}\nR: {answer}\nYes or no?",
        "judge_temporal": "Temporal. Q: {query}\nA: {gold}\nR: {answer}\nYes or no?",
        "judge_update": "Update. Q: {query}\nA: {gold}\nR: {answer}\nYes or no?",
    }


def test_other_texts_than_the_published_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match="judge_abstention isn't the published prompt"):
        prompt_files.load(BENCHMARK, BENCHMARK.judge_prompts, "official", upstream(tmp_path))


@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("def x(:", "not a Python script"),
        ("x = 1", "the template for judge_abstention isn't in it"),
        (
            "def get_anscheck_prompt(task):\n    if not task:\n        pass\n    else:\n        t = 'Q {} A {}'",
            "isn't in it",
        ),
    ],
)
def test_a_script_without_templates(tmp_path: Path, script: str, says: str):
    with pytest.raises(UserError, match=says):
        longmemeval.official_texts(upstream(tmp_path, script), BENCHMARK.judge_prompts)
    with pytest.raises(UserError, match="this prompt is missing; check --upstream"):
        longmemeval.official_texts(tmp_path / "elsewhere", BENCHMARK.judge_prompts)


# --- readers ----------------------------------------------------------------------------------------------------


def sent(profile: str, type_: str, *, abstention: bool = False) -> list[dict[str, str]]:
    asked = BENCHMARK.readers[profile]
    source = "default" if profile == "plain" else profile
    prompts = prompt_files.load(BENCHMARK, asked.names, source, None)
    config = reader_config(BENCHMARK, "model-a", prompts, profile)
    trial = RetrievalBody(question="Which {date}?", date="2023/05/30 (Tue) 23:40", context="[memory] {question}")
    guidance = asked.guidance(query(type_), gold_of("THE GOLD", abstention=abstention)) if asked.guidance else None
    return reader_messages(config.settings, trial, guidance)


def test_the_plain_reader_is_blind_and_knows_the_date():
    for type_ in TYPES:
        assert sent("plain", type_) == sent("plain", TYPES[0], abstention=True)
    system, user = sent("plain", TYPES[0])
    assert user["content"] == "(Asked on 2023/05/30 (Tue) 23:40.)\nWhich {date}?"
    assert "[memory] {question}" in system["content"]


def test_the_memorybear_reader_is_guided_by_type():
    texts = {type_: sent("memorybear", type_) for type_ in TYPES}
    texts["abstention"] = sent("memorybear", "temporal-reasoning", abstention=True)
    assert len({message["content"] for (message,) in texts.values()}) == 7
    for type_, (message,) in texts.items():
        assert message["role"] == "user"
        assert f"Kind of question: {type_}. " in message["content"]
        assert "\nQuestion: Which {date}?\n" in message["content"]
        assert "\n[memory] {question}\n" in message["content"]
        assert "THE GOLD" not in message["content"]
        assert ("2023/05/30 (Tue) 23:40" in message["content"]) == (type_ == "temporal-reasoning")


def test_the_memorybear_readers_parameters():
    profile = BENCHMARK.readers["memorybear"]
    assert profile.parameters == {"temperature": 0, "n": 1, "max_tokens": 512}


def test_every_prompt_has_its_places():
    """No other braces than those that are filled, or a verdict's form."""
    judges = prompt_files.load(BENCHMARK, BENCHMARK.judge_prompts, "default", None).texts
    assert all('{"score": 0 or 1, "reason": "one short sentence"}' in text for text in judges.values())
    asked = BENCHMARK.readers["memorybear"]
    texts = prompt_files.load(BENCHMARK, asked.names, "memorybear", None).texts
    places = {name for text in texts.values() for _, name, _, _ in string.Formatter().parse(text) if name}
    assert places == {"context", "question", "date", "guidance"}


def test_rows_are_instances_of_our_own() -> None:
    rows: list[Instance] = sample()
    assert len({row["question_id"] for row in rows}) == 10
