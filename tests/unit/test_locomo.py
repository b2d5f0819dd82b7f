"""LoCoMo: what is admitted, what a system is told, what the gold says, and how readers and judges are asked."""

import json
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks import locomo
from memtrials.benchmarks.base import REFUSAL, LoadOptions
from memtrials.benchmarks.locomo import BENCHMARK, parse_time, repair, short_answer, unlabelled
from memtrials.benchmarks.timeline import Session
from memtrials.errors import UserError
from memtrials.judging.payloads import judge_messages
from memtrials.llm import prompts as prompt_files
from memtrials.llm.roles import reader_config, reader_messages
from memtrials.records import Gold, Query, RetrievalBody, TaskBody
from support.locomo import FOLDER, SAMPLE, Sample, changed, loaded, renamed, sample, written

Change = Callable[[Sample], object]


def told(path: Path) -> list[Session]:
    """The timeline of the first conversation of a file."""
    (name, _, body), *_ = loaded(path).tasks
    return locomo.sessions(path, "locomo@x", name, body)


@pytest.fixture(scope="module")
def task() -> TaskBody:
    """The sample's conversation."""
    ((_, _, body),) = locomo.load(FOLDER, LoadOptions()).tasks
    return body


# --- what is admitted -------------------------------------------------------------------------------------------


def test_the_sample_is_known_in_its_folder_and_by_its_path():
    for path in (FOLDER, SAMPLE):
        found = locomo.load(path, LoadOptions())
        assert found.name == "locomo@sample"
        assert found.release.known
        assert "Apache-2.0" in found.release.attribution
    assert found.release.constants == {
        "conversations": 1,
        "sessions": 5,
        "turns": 33,
        "questions": 15,
        "questions_1_to_4": 12,
        "1-multi-hop": 3,
        "2-temporal": 3,
        "3-open-domain": 2,
        "4-single-hop": 4,
        "5-adversarial": 3,
    }


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path):
    path = tmp_path / "locomo10.json"
    path.write_bytes(b"\xef\xbb\xbf" + SAMPLE.read_bytes().replace(b"\n", b"\r\n"))
    assert locomo.load(tmp_path, LoadOptions()).name == "locomo@sample"


def test_another_file_needs_a_yes_and_has_the_name_of_its_bytes(tmp_path: Path):
    path = changed(tmp_path / "mine.json", lambda s: s.update(sample_id="conv-2"))
    with pytest.raises(UserError, match=r"not a known LoCoMo file .*--allow-modified"):
        locomo.load(path, LoadOptions())
    found = loaded(path)
    assert found.name == f"locomo@modified-{found.release.files[0].sha256[:8]}"
    assert not found.release.known
    assert "CC BY-NC 4.0" in found.release.attribution


BAD: list[tuple[Change, str]] = [
    (lambda s: s.pop("sample_id"), "sample 0: field sample_id is missing"),
    (lambda s: s.update(sample_id="../x"), "sample ../x: field sample_id holds characters"),
    (lambda s: s.update(conversation=[]), "sample conv-1: field conversation is missing or not an object"),
    (lambda s: s.update(qa=[]), "sample conv-1: field qa is missing, empty or not an array"),
    (lambda s: s["conversation"].update(speaker_b="Ines"), "fields speaker_a and speaker_b are one name"),
    (lambda s: s["conversation"].pop("session_2_date_time"), "field session_2_date_time is missing"),
    (lambda s: s["conversation"].update(session_2_date_time="noon"), "field session_2_date_time: 'noon' is not a time"),
    (
        lambda s: s["conversation"].update(session_2_date_time="6:40 pm on 3 March, 2024"),
        "field session_2_date_time is not after the session before it",
    ),
    (lambda s: s["conversation"].update(session_3=[]), "field session_3 is empty or not an array"),
    (lambda s: s["conversation"].update(session_03=[]), "field session_03 is neither session_<number> nor"),
    (lambda s: s["conversation"].update(session_3_notes="x"), "field session_3_notes is neither"),
    (lambda s: s["conversation"]["session_1"][2].pop("text"), "session_1[2]: field text is missing"),
    (lambda s: s["conversation"]["session_1"][2].update(text=" "), "session_1[2]: field text is empty"),
    (lambda s: s["conversation"]["session_1"][2].update(dia_id="D1:4"), 'field dia_id is "D1:4", its place is D1:3'),
    (lambda s: s["conversation"]["session_1"][2].update(speaker="Milo"), 'field speaker is "Milo", neither'),
    (lambda s: s["conversation"]["session_1"][4].update(blip_caption=3), "field blip_caption is a number"),
    (lambda s: s["qa"][0].pop("question"), "qa[0]: field question is missing"),
    (lambda s: s["qa"][0].update(evidence="D1:2"), "qa[0]: field evidence is missing or not an array of texts"),
    (lambda s: s["qa"][0].update(category=6), "qa[0]: field category is 6, not a number from 1 to 5"),
    (lambda s: s["qa"][0].update(category=True), "qa[0]: field category is true"),
    (
        lambda s: s["qa"][0].update(category="temporal"),
        'qa[0]: field category is "temporal"',
    ),  # a name without its number
    (lambda s: s["qa"][2].update(category=[1]), "qa[2]: field category is [1], not a number from 1 to 5"),
    (lambda s: s["qa"][2].update(category={}), "qa[2]: field category is {}, not a number from 1 to 5"),
    (lambda s: s["qa"][2].update(category=1.0), "qa[2]: field category is 1.0, not a number from 1 to 5"),
    (lambda s: s["qa"][0].pop("answer"), "qa[0]: field answer is missing"),
    (lambda s: s["qa"][1].update(answer=False), "qa[1]: field answer is a boolean"),
    (lambda s: s["qa"][1].update(answer=["2024"]), "qa[1]: field answer is an array"),
    (lambda s: s["qa"][12].pop("adversarial_answer"), "qa[12]: field adversarial_answer is missing"),
    (lambda s: s["qa"][0].update(adversarial_answer="no"), "qa[0]: field adversarial_answer stands in category 2"),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_what_is_wrong_is_named_with_its_sample_and_field(change: Change, message: str, tmp_path: Path):
    path = changed(tmp_path / "bad.json", change)
    with pytest.raises(UserError) as refused:
        loaded(path)
    assert message in " ".join([str(refused.value), *refused.value.details])
    assert str(path) in str(refused.value)


def test_every_problem_is_listed_up_to_a_hundred(tmp_path: Path):
    two = written(tmp_path / "two.json", {**sample(), "qa": None}, renamed("conv-1"))
    with pytest.raises(UserError, match="2 problems, nothing was written") as refused:
        loaded(two)
    assert [d.partition(", ")[2] for d in refused.value.details] == [
        "sample conv-1: field qa is missing, empty or not an array",
        "sample conv-1: field sample_id occurs twice",
    ]
    many = written(tmp_path / "many.json", *[{} for _ in range(40)])
    with pytest.raises(UserError, match="120 problems") as refused:
        loaded(many)
    assert len(refused.value.details) == 101
    assert refused.value.details[-1] == "… and 20 more"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (SAMPLE.read_bytes()[:-100], "not valid JSON"),
        (b'[{"sample_id": NaN}]', "NaN is not JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"{}", "not an array of conversations"),
        (b"[]", "not an array of conversations"),
        (b"[3]", "a number where an object is expected"),
    ],
)
def test_what_is_no_such_file_is_said_in_one_line(content: bytes, message: str, tmp_path: Path):
    path = tmp_path / "locomo10.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message):
        loaded(path)


def test_a_missing_file_is_said(tmp_path: Path):
    with pytest.raises(UserError, match=r"locomo10\.json: no such file; point --data at"):
        loaded(tmp_path)


def test_fields_that_nobody_reads_may_be_anything(tmp_path: Path):
    def strange(mine: Sample) -> None:
        mine.update(observation=None, session_summary=3, event_summary=[], notes="x")
        mine["conversation"]["session_1"][0].update(img_url=None, query=5, mood="glad")

    assert told(changed(tmp_path / "strange.json", strange)) == told(changed(tmp_path / "same.json", lambda s: s))


# --- times ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1:56 pm on 8 May, 2023", datetime(2023, 5, 8, 13, 56)),  # noqa: DTZ001
        ("12:06 am on 11 November, 2022", datetime(2022, 11, 11, 0, 6)),  # noqa: DTZ001
        ("12:30 pm on 1 January, 2024", datetime(2024, 1, 1, 12, 30)),  # noqa: DTZ001
        ("11:59 am on 29 February, 2024", datetime(2024, 2, 29, 11, 59)),  # noqa: DTZ001
    ],
)
def test_midnight_is_hour_0_and_noon_hour_12(text: str, expected: datetime):
    assert parse_time(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "today",
        "13:00 pm on 1 May, 2023",
        "0:10 am on 1 May, 2023",
        "1:60 pm on 1 May, 2023",
        "1:05 pm on 31 April, 2023",
        "1:05 pm on 1 Mai, 2023",
        "2023-05-01T13:05",
    ],
)
def test_a_time_that_is_none_fails_and_never_becomes_now(text: str):
    with pytest.raises(ValueError, match=r"."):
        parse_time(text)


# --- what a system is told --------------------------------------------------------------------------------------


def test_a_turn_is_its_speaker_time_and_text(task: TaskBody):
    first, midnight, *_ = locomo.sessions(SAMPLE, "locomo@sample", "conv-1", task)
    assert first.time == "6:40 pm on 3 March, 2024"
    assert {turn.time for turn in first.turns} == {first.time}
    assert [turn.speaker for turn in first.turns] == ["Tobias", "Ines"] * 3 + ["Tobias"]
    assert first.turns[3].content == "The cat slept through all of it.\nI can't say the same of me!"
    assert midnight.time == "12:20 am on 17 March, 2024"


def test_roles_go_by_name_whoever_opens_a_session(task: TaskBody):
    timeline = locomo.sessions(SAMPLE, "locomo@sample", "conv-1", task)
    assert {(t.speaker, t.role) for s in timeline for t in s.turns} == {("Ines", "user"), ("Tobias", "assistant")}
    assert [s.turns[0].role for s in timeline] == ["assistant", "user", "assistant", "user", "assistant"]
    assert [len(s.turns) for s in timeline] == [7, 6, 7, 8, 5]  # the last turn of an odd session is there


def test_a_caption_follows_the_text_once_with_or_without_an_address(task: TaskBody):
    contents = [t.content for s in locomo.sessions(SAMPLE, "x", "conv-1", task) for t in s.turns]
    captioned = [content for content in contents if "[image, unverified caption: " in content]
    captions = [
        t["blip_caption"] for n in range(1, 6) for t in sample()["conversation"][f"session_{n}"] if "blip_caption" in t
    ]
    assert len(captioned) == len(captions) == 4
    for content, caption in zip(captioned, captions, strict=True):
        assert content.endswith(f"\n[image, unverified caption: {caption}]")
        assert content.count(caption) == 1
    assert "I glued it with gold paint" in captioned[1]  # what is said stands before what a machine saw
    assert "a vase with flowers" in captioned[1]


def test_annotation_is_not_told(task: TaskBody):
    shown = repr(locomo.sessions(SAMPLE, "x", "conv-1", task))
    whole = SAMPLE.read_text("utf-8")
    for annotation in (
        "Velosol",
        "river cycling path",
        "pictures.invalid",
        "re-download",
        "catch up on",
        "has news in",
    ):
        assert annotation in whole
        assert annotation not in shown


def test_dates_without_a_session_are_none(task: TaskBody):
    assert len(task.sessions) == 5


def test_sessions_are_in_the_order_of_their_numbers_past_nine_and_past_gaps(tmp_path: Path):
    def longer(mine: Sample) -> None:
        days = mine["conversation"]
        for number, text in ((10, "tenth"), (40, "fortieth"), (9, "ninth")):
            days[f"session_{number}"] = [{"speaker": "Ines", "dia_id": f"D{number}:1", "text": text}]
            days[f"session_{number}_date_time"] = f"9:00 am on {min(number, 28)} December, 2024"
        mine["qa"][0]["evidence"] = ["D40:1", "D9:1", "D8:1"]

    path = changed(tmp_path / "long.json", longer)
    assert [s.turns[0].content for s in told(path)[5:]] == ["ninth", "tenth", "fortieth"]
    ((_, _, body),) = loaded(path).tasks
    assert body.gold[0].evidence == ("7.0", "5.0")


def test_one_name_in_two_conversations_is_two_people(tmp_path: Path):
    path = written(tmp_path / "two.json", sample(), renamed("conv-2"))
    found = loaded(path)
    assert [task for task, _, _ in found.tasks] == ["conv-1", "conv-2"]
    assert {q.cluster for _, _, body in found.tasks for q in body.queries} == {"conv-1", "conv-2"}


def test_a_timeline_is_exported_as_it_is_told(task: TaskBody):
    out = BENCHMARK.export_timeline(SAMPLE, "locomo@sample", "conv-1", task)
    assert out["sample_id"] == "conv-1"
    assert out["conversation"]["session_2"][2] == {
        "speaker": "Ines",
        "dia_id": "D2:3",
        "text": "I glued it with gold paint and keep my keys in it now. Look.\n"
        "[image, unverified caption: a photo of a vase with flowers on a table]",
    }
    assert "session_6_date_time" not in out["conversation"]
    assert len(out["questions"]) == 15


def test_a_file_that_changed_since_it_was_built_is_refused(tmp_path: Path):
    ((_, _, body),) = loaded(changed(tmp_path / "one.json", lambda s: s)).tasks
    other = changed(tmp_path / "other.json", lambda s: s["qa"].pop())
    with pytest.raises(UserError, match="not the file this ledger was built from"):
        locomo.sessions(other, "locomo@x", "conv-1", body)


# --- questions and gold -----------------------------------------------------------------------------------------


def test_a_question_is_keyed_by_its_position(task: TaskBody):
    assert [q.id for q in task.queries] == [q.unit for q in task.queries] == [str(n) for n in range(15)]
    assert task.queries[8].text == task.queries[10].text.strip() == "What is the name of Tobias's dog?"
    assert {q.date for q in task.queries} == {None}  # they have none, and today isn't it
    assert Counter(q.type for q in task.queries) == {
        "4-single-hop": 4,
        "1-multi-hop": 3,
        "2-temporal": 3,
        "3-open-domain": 2,
        "5-adversarial": 3,
    }


def test_tables_are_in_the_papers_order():
    assert BENCHMARK.types == ("4-single-hop", "1-multi-hop", "2-temporal", "3-open-domain", "5-adversarial")


def test_a_gold_answer_that_is_a_number_is_its_text_once(task: TaskBody):
    assert [task.gold[n].answers for n in (0, 1, 3)] == [("2 March 2024",), ("2024",), ("2",)]
    assert [task.gold[n].details.get("number") for n in (0, 1, 3)] == [None, "2024", "2"]


def test_in_the_fifth_category_declining_is_right_and_the_false_answer_never_gold(task: TaskBody):
    for gold in task.gold[12:]:
        assert gold.answers == ("Not mentioned in the conversation",)
        assert gold.abstention
    assert [g.details["adversarial_answer"] for g in task.gold[12:]] == [
        "He glued it with gold paint",
        "Yes",
        "Lena's island",
    ]
    assert [g.details.get("own_answer") for g in task.gold[12:]] == [None, "No", None]
    assert not any(g.abstention or "adversarial_answer" in g.details for g in task.gold[:12])


def test_details_never_take_the_place_of_what_a_judge_is_shown(task: TaskBody):
    assert not {"context", "query", "answer", "gold"} & {name for gold in task.gold for name in gold.details}


TURNS = {f"D{session}:{turn}": "" for session in range(1, 31) for turn in range(1, 26)}


@pytest.mark.parametrize(
    ("element", "ids", "leftover"),
    [
        ("D1:3", ("D1:3",), ()),
        ("D8:6; D9:17", ("D8:6", "D9:17"), ()),
        ("D10:29", (), ("D10:29",)),
        ("D", (), ("D",)),
        ("D:11:22", ("D11:22",), ()),
        ("D9:1 D4:4 D4:6", ("D9:1", "D4:4", "D4:6"), ()),
        ("D22:1 D22:2 D9:10 D9:11", ("D22:1", "D22:2", "D9:10", "D9:11"), ()),
        ("D30:05", ("D30:5",), ()),
        ("(D2:4)", ("D2:4",), ()),
        ("D1:3, D1:99", ("D1:3",), ("D1:99",)),
        ("D1:3 or so", ("D1:3",), ("D1:3 or so",)),
        ("", (), ("",)),
    ],
)
def test_evidence_is_repaired_and_a_missing_turn_never_guessed(
    element: str, ids: tuple[str, ...], leftover: tuple[str, ...]
):
    assert repair(element, TURNS) == (ids, leftover)


def test_evidence_is_kept_as_it_is_written_and_as_it_is_read(task: TaskBody):
    gold = task.gold
    assert gold[2].evidence == ("0.1", "2.3", "4.1")
    assert json.loads(gold[2].details["evidence"]) == [["D1:2; D3:4", None, 0], ["D5:2", "4.1", 4]]
    assert json.loads(gold[2].details["repaired"]) == ["D1:2", "D3:4", "D5:2"]
    assert gold[3].evidence == ("0.3", "1.3")
    assert json.loads(gold[3].details["evidence"]) == [["D1:4", "0.3", 0], ["D2:4", "1.3", 1], ["D2:4", "1.3", 1]]
    assert json.loads(gold[4].details["evidence"]) == [["D:3:6", None, None], ["D3:1", "2.0", 2]]
    assert gold[6].evidence == ()
    assert json.loads(gold[6].details["evidence"]) == []
    assert gold[9].evidence == ("2.5",)
    assert json.loads(gold[9].details["leftover"]) == ["D3:19"]
    assert json.loads(gold[10].details["evidence"]) == [["D", None, None]]
    assert "leftover" not in gold[2].details


def test_the_build_says_what_it_left_out_and_how_it_read():
    notes = locomo.load(FOLDER, LoadOptions()).notes
    assert list(notes) == [
        "conv-1: 2 dates without a session (6 to 7) are left out",
        'conv-1 qa[1] (2-temporal): evidence "D2:04" is read as D2:4',
        'conv-1 qa[2] (1-multi-hop): evidence "D1:2; D3:4" is read as D1:2, D3:4',
        "conv-1 qa[3] (1-multi-hop): evidence is named twice",
        'conv-1 qa[4] (1-multi-hop): evidence "D:3:6" is read as D3:6',
        'conv-1 qa[5] (3-open-domain): evidence "D3:7 D3:3" is read as D3:7, D3:3',
        "conv-1 qa[6] (3-open-domain): no evidence",
        'conv-1 qa[9] (4-single-hop): evidence "D3:19" names no turn that there is',
        'conv-1 qa[10] (4-single-hop): evidence "D" names no turn that there is',
        "conv-1 qa[10] (4-single-hop): no evidence",
        "conv-1 qa[10] (4-single-hop): the same question as qa[8]",
        'conv-1 qa[13] (5-adversarial): its answer of its own, "No", is read by no score',
    ]


# --- metrics ----------------------------------------------------------------------------------------------------


def values(measure: str, task: TaskBody, answers: Callable[[Gold], str]) -> list[float]:
    """A measure's value of an answer to each question that it is about."""
    (found,) = (m for m in BENCHMARK.measures if m.name == measure)
    scored = [found.value(answers(g), g) for q, g in zip(task.queries, task.gold, strict=True) if found.asks(q, g)]
    assert None not in scored
    return [value for value in scored if value is not None]


def test_the_gold_itself_has_the_full_score_but_where_only_it_is_cut(task: TaskBody):
    scores = values("official-f1", task, lambda gold: gold.answers[0])
    assert [n for n, score in enumerate(scores) if score < 1] == [5]  # the open-domain answer with its reason


def test_declining_always_is_right_in_the_fifth_category_alone(task: TaskBody):
    scores = values("official-f1", task, lambda gold: "Not mentioned in the conversation")
    assert max(scores[:12]) < 0.2
    assert scores[12:] == [1.0] * 3
    assert values("refusal-official", task, lambda gold: "Not mentioned in the conversation") == [1.0] * 3
    assert values("refusal-stated", task, lambda gold: "That isn't known.") == [1.0] * 3
    assert values("refusal-official", task, lambda gold: "That isn't known.") == [0.0] * 3


def test_the_false_answer_is_a_refusal_by_no_test(task: TaskBody):
    for measure in ("refusal-official", "refusal-stated", "official-f1"):
        assert values(measure, task, lambda gold: gold.details.get("adversarial_answer", "x"))[-3:] == [0.0] * 3


def test_the_judge_is_asked_about_categories_1_to_4_and_the_parts_say_which(task: TaskBody):
    asked = {m.name: sum(map(m.asks, task.queries, task.gold)) for m in BENCHMARK.metrics}
    assert asked == {"accuracy": 12, "gold-contained": 12}
    assert [(p.name, p.metrics, p.over_types, p.with_measure) for p in BENCHMARK.parts] == [
        ("categories 1-4", ("official-f1",), False, None),
        ("categories 1-4, averaged over them", ("accuracy", "gold-contained", "official-f1"), True, None),
        ("categories 1-5, the fifth by refusal-official", ("accuracy",), False, "refusal-official"),
    ]


def test_probes_are_right_wrong_or_the_trap(task: TaskBody):
    dog, paint, trap = task.gold[8], task.gold[7], task.gold[12]
    assert BENCHMARK.probes is not None
    assert BENCHMARK.probes(dog, paint).answers == {
        "gold": "Biscuit",
        "swapped": "She glued it with gold paint and keeps her keys in it",
        "refusal": REFUSAL,
        "empty": "",
    }
    assert "swapped" not in BENCHMARK.probes(dog, task.gold[10]).answers  # it would be right
    assert "swapped" not in BENCHMARK.probes(dog, None).answers
    assert BENCHMARK.probes(trap, task.gold[13]).answers == {
        "gold": "Not mentioned in the conversation",
        "adversarial": "He glued it with gold paint",
        "empty": "",
    }


# --- readers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("7 May", "7 May"),
        ("  Answer: 7 May ", "7 May"),
        ("The memory says so.\nFinal answer: 7 May", "7 May"),
        ("Step 1: look.\n**Answer:** 7 May, 8 May", "7 May, 8 May"),
        ("Her answer: unclear", "Her answer: unclear"),
        ("word " * 100, " ".join(["word"] * 60)),
        ("Answer:", ""),
    ],
)
def test_a_plain_reply_is_cut_to_its_final_answer(reply: str, answer: str):
    assert short_answer(reply) == answer


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        (" Short answer: Answer: A: 7 May", "7 May"),
        ("A: Answer: 7 May", "Answer: 7 May"),  # each label once, in its order
        ('"7 May"', "7 May"),
        ("ANSWER: '7 May'", "7 May"),
        ('""7 May""', '"7 May"'),
        ('the "7 May"', 'the "7 May"'),
        ('"', '"'),
    ],
)
def test_memorybears_reply_loses_its_labels_and_one_pair_of_quotes(reply: str, answer: str):
    assert unlabelled(reply) == answer


@pytest.mark.parametrize(
    ("question", "category", "name"),
    [
        ("How long was she away?", 5, "adversarial"),
        ("How long was she away?", 2, "duration"),
        ("how many cats?", 1, "count"),
        ("How old is he?", 4, "count"),
        ("How much was it?", 3, "count"),
        ("How often do they meet?", 2, "frequency"),
        ("When did it rain?", 2, "temporal"),
        ("What has she done?", 1, "multi_hop"),
        ("Would he like it?", 3, "open_domain"),
        ("Where was it?", 4, "single_hop"),
    ],
)
def test_memorybears_reader_is_guided_by_the_first_match(question: str, category: int, name: str):
    query = Query(id="0", text=question, unit="0", cluster="c")
    assert locomo.guidance(query, Gold(query="0", details={"category": str(category)})) == f"guidance_{name}"


def asked(profile: str, query: Query, gold: Gold) -> list[dict[str, str]]:
    """What a reader is sent in a profile."""
    how = BENCHMARK.readers[profile]
    source = "default" if profile == "plain" else profile
    prompts = prompt_files.load(BENCHMARK, how.names, source, None)
    config = reader_config(BENCHMARK, "model-a", prompts, profile)
    trial = RetrievalBody(question=query.text, context="[noon] Ines: {guidance} {question}")
    return reader_messages(config.settings, trial, how.guidance(query, gold) if how.guidance else None)


def test_the_plain_reader_is_blind(task: TaskBody):
    sent = [asked("plain", q, g) for q, g in zip(task.queries, task.gold, strict=True)]
    assert len({messages[0]["content"] for messages in sent}) == 1
    assert [m["content"] for m in sent[0]] == [sent[0][0]["content"], task.queries[0].text]
    assert "[noon] Ines: {guidance} {question}" in sent[0][0]["content"]
    assert "separated by commas" in sent[0][0]["content"]


def test_memorybears_reader_is_told_the_refusal_in_the_fifth_category_alone(task: TaskBody):
    told_it = [
        "No information available." in asked("memorybear", q, g)[0]["content"]
        for q, g in zip(task.queries, task.gold, strict=True)
    ]
    assert told_it == [False] * 12 + [True] * 3


def test_a_profile_and_how_its_replies_are_cleaned_are_part_of_who_reads():
    def settings(profile: str) -> dict[str, Any]:
        how = BENCHMARK.readers[profile]
        prompts = prompt_files.load(BENCHMARK, how.names, "default" if profile == "plain" else profile, None)
        return dict(reader_config(BENCHMARK, "model-a", prompts, profile).settings)

    plain, guided = settings("plain"), settings("memorybear")
    assert (plain["clean"], guided["clean"]) == ("short_answer", "unlabelled")
    assert guided["parameters"] == {"temperature": 0, "max_tokens": 64}
    assert len(guided["guidance"]) == 8
    assert "guidance" not in plain


# --- judges -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default", "mem0", "memorybear"])
def test_a_judge_is_sent_question_gold_and_answer_and_nothing_else(name: str, task: TaskBody):
    prompts = prompt_files.load(BENCHMARK, BENCHMARK.judge_prompts, name, None)
    metric, profile = BENCHMARK.metric("accuracy"), BENCHMARK.judges[name]
    (query, gold) = task.queries[7], task.gold[7]
    sent = judge_messages(metric, prompts, profile, context="THE CONTEXT", query=query, answer="gold paint", gold=gold)
    text = "\n".join(message["content"] for message in sent)
    for part in (query.text, gold.answers[0], "gold paint"):
        assert part in text
    for private in ("THE CONTEXT", "D2:3", "single-hop", "{query}", "{gold}", "{answer}"):
        assert private not in text
    assert len(sent) == (1 if name == "mem0" else 2)


def test_named_judges_are_asked_as_they_were_published():
    judges = BENCHMARK.judges
    assert {name: judge.rule for name, judge in judges.items()} == {
        "default": "score",
        "mem0": "strict-label",
        "memorybear": "last-line",
    }
    assert judges["mem0"].parameters == {"temperature": 0, "response_format": {"type": "json_object"}}
    assert judges["memorybear"].parameters == {"temperature": 0, "max_tokens": 64}
    assert BENCHMARK.official_prompts == {}
