"""LoCoMo as released: its counts, its defects and what is made of them, the official score, and all stages offline.

The data is not part of this project. It is looked for in the folder that MEMTRIALS_REAL_DATA names, else in
`shared/data` beside the repository; without it every test here is skipped. Only numbers and places are kept here.
"""

import json
import os
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks import locomo
from memtrials.benchmarks.base import Loaded, LoadOptions
from memtrials.benchmarks.timeline import Session
from memtrials.metrics.locomo_f1 import score
from memtrials.records import Gold, Query, TaskBody
from memtrials.settings import Settings
from memtrials.stages import enriching
from memtrials.stages.build import BuildRequest
from memtrials.stages.enriching import Given
from support.trials import records, stage

DATA = Path(os.environ.get("MEMTRIALS_REAL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
FILE = DATA / "locomo" / "locomo10.json"

pytestmark = pytest.mark.skipif(
    not FILE.is_file(), reason="no LoCoMo there; set MEMTRIALS_REAL_DATA to the folder that holds locomo/"
)

COUNTS = {
    "conv-26": (19, 419, 199, 32, 37, 13, 70, 47, 116, "a"),
    "conv-30": (19, 369, 105, 11, 26, 0, 44, 24, 72, "b"),
    "conv-41": (32, 663, 193, 31, 27, 8, 86, 41, 131, "b"),
    "conv-42": (29, 629, 260, 37, 40, 11, 111, 61, 119, "b"),
    "conv-43": (29, 680, 242, 31, 26, 14, 107, 64, 164, "b"),
    "conv-44": (28, 675, 158, 30, 24, 7, 62, 35, 156, "a"),
    "conv-47": (31, 689, 190, 20, 34, 13, 83, 40, 109, "b"),
    "conv-48": (30, 681, 239, 21, 42, 10, 118, 48, 142, "a"),
    "conv-49": (25, 509, 196, 37, 33, 13, 73, 40, 92, "b"),
    "conv-50": (30, 568, 204, 32, 32, 7, 87, 46, 125, "a"),
}
"""Sessions, turns, questions, those of categories 1 to 5, captions, and which speaker opens the first session."""

Asked = tuple[str, Query, Gold]


@pytest.fixture(scope="module")
def release() -> Loaded:
    return locomo.load(FILE.parent, LoadOptions())


@pytest.fixture(scope="module")
def tasks(release: Loaded) -> dict[str, TaskBody]:
    return {name: body for name, _, body in release.tasks}


@pytest.fixture(scope="module")
def timelines(tasks: dict[str, TaskBody]) -> dict[str, list[Session]]:
    return {name: locomo.sessions(FILE, "locomo@10", name, body) for name, body in tasks.items()}


@pytest.fixture(scope="module")
def questions(tasks: dict[str, TaskBody]) -> list[Asked]:
    return [(n, q, g) for n, body in tasks.items() for q, g in zip(body.queries, body.gold, strict=True)]


@pytest.fixture(scope="module")
def raw() -> dict[str, dict[str, Any]]:
    return {sample["sample_id"]: sample for sample in json.loads(FILE.read_bytes())}


def by_category(values: Counter[int]) -> tuple[int, ...]:
    return tuple(values[n] for n in range(1, 6))


# --- the data ---------------------------------------------------------------------------------------------------


def test_the_released_file_is_known(release: Loaded):
    assert release.name == "locomo@10"
    assert release.release.known
    assert release.release.constants == {
        "conversations": 10,
        "sessions": 272,
        "turns": 5882,
        "questions": 1986,
        "questions_1_to_4": 1540,
        "1-multi-hop": 282,
        "2-temporal": 321,
        "3-open-domain": 96,
        "4-single-hop": 841,
        "5-adversarial": 446,
    }


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_each_conversation(name: str, tasks: dict[str, TaskBody], timelines: dict[str, list[Session]]):
    timeline, body = timelines[name], tasks[name]
    turns = [turn for session in timeline for turn in session.turns]
    categories = Counter(locomo.category_of(gold) for gold in body.gold)
    captions = sum("\n[image, unverified caption: " in turn.content for turn in turns)
    opens = {"user": "a", "assistant": "b"}[turns[0].role]
    counted = (len(timeline), len(turns), len(body.queries), *by_category(categories), captions, opens)
    assert counted == COUNTS[name]
    assert (len(body.sessions), body.turns) == counted[:2]


def test_turns_sessions_and_their_times(timelines: dict[str, list[Session]]):
    sessions = [session for timeline in timelines.values() for session in timeline]
    assert len(sessions) == 272
    assert sum(len(session.turns) % 2 for session in sessions) == 140
    assert {min(len(s.turns) for s in sessions), max(len(s.turns) for s in sessions)} == {10, 47}
    times = [locomo.parse_time(session.time or "") for session in sessions]
    assert (min(times).date().isoformat(), max(times).date().isoformat()) == ("2022-01-21", "2024-01-12")
    assert sum(time.hour == 0 for time in times) == 14
    assert not any(time.hour == 12 for time in times)
    assert {turn.time == session.time for session in sessions for turn in session.turns} == {True}


def test_speakers_alternate_and_one_name_is_one_role(timelines: dict[str, list[Session]]):
    for timeline in timelines.values():
        assert len({(turn.speaker, turn.role) for session in timeline for turn in session.turns}) == 2
        for session in timeline:
            roles = [turn.role for turn in session.turns]
            assert all(one != two for one, two in pairwise(roles))
    shared = Counter(n for timeline in timelines.values() for n in {t.speaker for s in timeline for t in s.turns})
    assert {name: count for name, count in shared.items() if count > 1} == {"John": 3}


def test_captions_without_an_address_are_told_and_search_words_are_not(
    raw: dict[str, dict[str, Any]], timelines: dict[str, list[Session]]
):
    told, without_url, searched = 0, 0, 0
    for name, timeline in timelines.items():
        conversation = raw[name]["conversation"]
        rows = [t for n in locomo.session_numbers(conversation) for t in conversation[f"session_{n}"]]
        for row, turn in zip(rows, (t for s in timeline for t in s.turns), strict=True):
            marked = f"{row['text']}\n[image, unverified caption: {row.get('blip_caption')}]"
            assert turn.content == (marked if "blip_caption" in row else row["text"])
            told += "blip_caption" in row
            without_url += "blip_caption" in row and "img_url" not in row
            searched += "query" in row
            assert not any(url in turn.content for url in row.get("img_url", ()))
    assert (told, without_url, searched) == (1226, 316, 888)
    (row,) = (t for t in raw["conv-26"]["conversation"]["session_1"] if t["dia_id"] == "D1:12")
    assert "sunset" in row["blip_caption"]  # not what is said of it


def test_annotation_blocks_are_there_and_not_told(raw: dict[str, dict[str, Any]], timelines: dict[str, list[Session]]):
    """No summary or observed fact, of 272 and 2,541, stands in any text that a system is told."""
    told = "\n".join(t.content for timeline in timelines.values() for s in timeline for t in s.turns)
    summaries = [text for sample in raw.values() for text in sample["session_summary"].values()]
    facts = [
        fact
        for sample in raw.values()
        for session in sample["observation"].values()
        for some in session.values()
        for fact, _ in some
    ]
    assert (len(summaries), len(facts)) == (272, 2541)
    assert not [text for text in summaries if text in told]
    assert sum(fact in told for fact in facts) == 0


# --- questions and evidence -------------------------------------------------------------------------------------


def test_repeated_questions_have_keys_of_their_own(questions: list[Asked]):
    places = {(name, query.id) for name, query, _ in questions}
    texts = [(name, query.text.strip()) for name, query, _ in questions]
    four = [(name, query.text.strip()) for name, query, gold in questions if not gold.abstention]
    assert (len(places), len(set(texts)), len(four), len(set(four))) == (1986, 1974, 1540, 1529)
    again = Counter(name for (name, _), count in Counter(texts).items() for _ in range(count - 1))
    assert again == {"conv-48": 11, "conv-30": 1}


def test_answers(questions: list[Asked]):
    numbers = [(name, int(query.id)) for name, query, gold in questions if "number" in gold.details]
    assert numbers == [("conv-26", n) for n in (1, 26, 40, 49, 72, 75)]
    own = [(name, int(q.id), gold.details["own_answer"]) for name, q, gold in questions if "own_answer" in gold.details]
    assert own == [("conv-26", 167, "No"), ("conv-26", 178, "No")]
    adversarial = [gold for _, _, gold in questions if gold.abstention]
    assert len(adversarial) == 446
    assert {gold.answers for gold in adversarial} == {("Not mentioned in the conversation",)}
    assert not [gold for _, _, gold in questions if not all(answer.strip() for answer in gold.answers)]


def test_evidence_as_written_and_as_read(questions: list[Asked]):
    written, read, leftover = Counter[int](), Counter[int](), {}
    for name, query, gold in questions:
        category = locomo.category_of(gold)
        written[category] += len(json.loads(gold.details["evidence"]))
        read[category] += len(gold.evidence)
        if "leftover" in gold.details:
            leftover[name, int(query.id)] = json.loads(gold.details["leftover"])
    assert by_category(written) == (884, 375, 200, 896, 460)
    assert by_category(read) == (882, 375, 208, 895, 460)
    assert leftover == {("conv-42", 58): ["D10:19"], ("conv-42", 88): ["D"], ("conv-47", 38): ["D4:36"]}
    without = [(name, int(query.id)) for name, query, gold in questions if not gold.evidence]
    empty = [(name, int(q.id)) for name, q, gold in questions if json.loads(gold.details["evidence"]) == []]
    assert without == empty == [("conv-26", 30), ("conv-26", 46), ("conv-50", 39), ("conv-50", 42)]


def test_the_ten_rows_that_are_not_as_their_form_says_and_how_they_are_read(questions: list[Asked]):
    odd = {}
    for name, query, gold in questions:
        elements = [element for element, turn, _ in json.loads(gold.details["evidence"]) if turn is None]
        if elements:
            odd[name, int(query.id)] = (elements, json.loads(gold.details["repaired"]))
    assert {place: elements for place, (elements, _) in odd.items()} == {
        ("conv-26", 37): ["D8:6; D9:17"],
        ("conv-42", 58): ["D10:19"],
        ("conv-42", 88): ["D"],
        ("conv-43", 18): ["D:11:26"],
        ("conv-47", 38): ["D4:36"],
        ("conv-49", 31): ["D9:1 D4:4 D4:6"],
        ("conv-49", 38): ["D22:1 D22:2 D9:10 D9:11"],
        ("conv-49", 46): ["D21:18 D21:22 D11:15 D11:19"],
        ("conv-50", 69): ["D30:05"],
    }
    for place, ids in {
        ("conv-26", 37): {"D8:6", "D9:17"},
        ("conv-43", 18): {"D11:26"},
        ("conv-49", 31): {"D9:1", "D4:4", "D4:6"},
        ("conv-50", 69): {"D30:5"},
    }.items():
        assert ids <= set(odd[place][1])
    (twice,) = (gold for name, query, gold in questions if (name, query.id) == ("conv-50", "5"))
    assert [element for element, _, _ in json.loads(twice.details["evidence"])] == ["D4:5", "D4:5", "D5:5"]
    assert twice.evidence == ("3.4", "4.4")


def test_evidence_names_the_turns_that_it_means(questions: list[Asked], raw: dict[str, dict[str, Any]]):
    for name, _, gold in questions:
        conversation = raw[name]["conversation"]
        for dia_id, turn in zip(json.loads(gold.details["repaired"]), gold.evidence, strict=True):
            session, position = map(int, turn.split("."))
            number = locomo.session_numbers(conversation)[session]
            assert conversation[f"session_{number}"][position]["dia_id"] == dia_id


def test_where_evidence_lies(questions: list[Asked], timelines: dict[str, list[Session]]):
    written, several, captioned = Counter[int](), Counter[int](), Counter[bool]()
    for name, _, gold in questions:
        places = [tuple(map(int, turn.split("."))) for turn in gold.evidence]
        category = locomo.category_of(gold)
        elements = [element for element, _, _ in json.loads(gold.details["evidence"])]
        written[category] += len({element.partition(":")[0] for element in elements}) > 1
        several[category] += len({session for session, _ in places}) > 1
        captioned[gold.abstention] += any(
            "[image, unverified caption: " in timelines[name][session].turns[turn].content for session, turn in places
        )
    assert by_category(written) == (269, 28, 31, 2, 0)
    assert by_category(several) == (269, 28, 34, 1, 0)  # three elements hold several sessions, one names none
    assert (captioned[False], captioned[True]) == (701, 160)


def test_the_build_names_what_it_read_otherwise(release: Loaded):
    kinds = Counter(
        next(k for k in ("dates", "read as", "names no turn", "twice", "no evidence", "own", "same") if k in note)
        for note in release.notes
    )
    assert kinds == {
        "dates": 1,
        "read as": 6,
        "names no turn": 3,
        "twice": 1,
        "no evidence": 4,
        "own": 2,
        "same": 12,
    }
    assert "conv-26: 16 dates without a session (20 to 35) are left out" in release.notes


# --- the official score -----------------------------------------------------------------------------------------


def mean_scores(questions: list[Asked], answer: Callable[[Gold], str]) -> dict[int, float]:
    found: dict[int, list[float]] = {}
    for _, _, gold in questions:
        category = locomo.category_of(gold)
        found.setdefault(category, []).append(score(answer(gold), gold.answers[0], category))
    return {category: sum(some) / len(some) for category, some in found.items()}


def test_the_gold_answers_score_as_computed_with_the_published_functions(questions: list[Asked]):
    scores = mean_scores(questions, lambda gold: gold.answers[0])
    assert {category: round(value, 4) for category, value in scores.items()} == {1: 1, 2: 1, 3: 0.9274, 4: 1, 5: 1}
    without_commas = mean_scores(questions, lambda gold: gold.answers[0].replace(",", ""))
    assert round(without_commas[1], 4) == 0.7048
    multi_hop = [gold for _, _, gold in questions if locomo.category_of(gold) == 1]
    assert sum("," in gold.answers[0] for gold in multi_hop) == 169
    assert sum(";" in gold.answers[0] for _, _, gold in questions if locomo.category_of(gold) == 3) == 11


def test_declining_always_is_worth_the_fifth_category(questions: list[Asked]):
    phrase = "Not mentioned in the conversation"
    scores = [score(phrase, gold.answers[0], locomo.category_of(gold)) for _, _, gold in questions]
    of_the_fifth = [s for s, (_, _, gold) in zip(scores, questions, strict=True) if gold.abstention]
    assert sum(of_the_fifth) == 446
    assert round(446 / len(scores), 4) == 0.2246


@pytest.mark.parametrize(
    ("name", "position", "prediction", "expected"),
    [
        ("conv-26", 0, "May 7, 2023", 1.0),
        ("conv-26", 0, "8 May 2023", 0.6667),
        ("conv-26", 1, "in 2022", 0.6667),
        ("conv-26", 40, "two", 0.0),
        ("conv-26", 40, "2", 1.0),
        ("conv-26", 15, "pottery, camping", 0.5),
        ("conv-26", 15, "pottery camping painting swimming", 0.4),
        ("conv-26", 37, "sunset, lake sunrise", 1.0),
        ("conv-26", 77, "Likely no", 1.0),
        ("conv-26", 81, "No, she's adopting", 0.5),
        ("conv-42", 51, "25 May 2022", 0.65),
        ("conv-42", 51, "25 May, 2022", 1.0),
        ("conv-30", 0, "19 January 2023", 1.0),
        ("conv-30", 95, "a trophy", 0.0),
        ("conv-30", 95, "Not mentioned in the conversation", 1.0),
        ("conv-26", 167, "No", 0.0),
        ("conv-26", 167, "No information available.", 1.0),
    ],
)
def test_worked_examples(name: str, position: int, prediction: str, expected: float, tasks: dict[str, TaskBody]):
    gold = tasks[name].gold[position]
    assert round(score(prediction, gold.answers[0], locomo.category_of(gold)), 4) == expected


# --- all stages -------------------------------------------------------------------------------------------------


def test_all_stages_offline_to_a_table_and_nothing_the_second_time(tmp_path: Path):
    trials = tmp_path / "trials.json"
    stages = (("build", "locomo", "--data", str(FILE)), ("replay", "bm25"), ("fetch",), ("answer",), ("judge",))
    for command in stages:
        stage(trials, *command)
    kinds = Counter(record["kind"] for record in records(trials))
    assert kinds == {"task": 10, "config": 4, "ingest": 10, "retrieval": 1986, "answer": 1986, "verdict": 1540}
    numbers = {(n["metric"], n["part"]): n for n in stage(trials, "metrics")["numbers"]}
    assert (numbers["gold-contained", None]["n"], numbers["official-f1", None]["n"]) == (1540, 1986)
    assert (numbers["official-f1", "categories 1-4"]["n"], numbers["refusal-official", None]["n"]) == (1540, 446)
    assert numbers["official-f1", None]["clusters"] == 10
    assert 0.10 < numbers["gold-contained", None]["value"] < 0.15
    before = trials.read_bytes()
    for command in stages:
        assert stage(trials, *command)["appended"] == 0
    assert trials.read_bytes() == before


# --- what was concluded from it ---------------------------------------------------------------------------------


def test_summaries_and_generated_observations_of_the_released_file():
    found = locomo.load(FILE.parent, LoadOptions("derived"))
    assert found.name == "locomo@derived"
    counts = ("session_summaries", "generated_observations", "evidence_references")
    assert [found.release.constants[name] for name in counts] == [272, 2541, 2561]
    assert found.release.constants["unresolved_evidence_references"] == 0
    assert found.release.constants["dropped_observation_entries"] == 0
    given = Given(found.name)
    graphs = [given.graph(FILE, name, body) for name, _, body in found.tasks]
    memories = [memory for graph in graphs if graph is not None for memory in graph.derived]
    assert Counter(memory.derived_type for memory in memories) == {"reflection": 272, "claim": 2541}
    assert sum(len(memory.observations) for memory in memories) == 2561


def test_a_snapshot_of_the_released_file_is_right_for_it(tmp_path: Path):
    path, request = tmp_path / "snapshot.jsonl", BuildRequest("locomo", FILE)
    made = enriching.build(request, path, Settings())
    assert made["counts"] == {
        "entities": 20,
        "threads": 272,
        "derived_memories": 5882,
        "links": 11764,
        "snapshots": 10,
        "sessions_left_out": 0,
    }
    assert made["dataset"] == {
        "name": "locomo",
        "sha256": "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4",
    }
    assert enriching.validate(request, path, Settings())["counts"]["tasks"] == 10
