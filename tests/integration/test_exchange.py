"""Released results of others: what an import makes of them, what it refuses, and what can be done with them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support import released
from support.cli import call_cli
from support.released import LOCOMO, QA, QUESTIONS, Row, write
from support.trials import ended, records, stage


@pytest.fixture
def locomo(tmp_path: Path) -> Path:
    """A ledger with the LoCoMo sample's tasks."""
    trials = tmp_path / "trials.json"
    stage(trials, "build", "locomo", "--data", str(LOCOMO))
    return trials


@pytest.fixture
def trials(tmp_path: Path) -> Path:
    """Where a ledger is going to be."""
    return tmp_path / "trials.json"


def take_in(trials: Path, *files: Path | str) -> dict[str, Any]:
    return stage(trials, "import", *map(str, files))


def numbers(trials: Path, *arguments: str) -> dict[tuple[str, str | None, str | None], Row]:
    """Numbers by metric, part and group."""
    found = stage(trials, "metrics", *arguments)["numbers"]
    return {(n["metric"], n["part"], n["group"]): n for n in found}


def refused(trials: Path, *arguments: str | Path) -> str:
    """The one line with which a command ends."""
    finished = ended(call_cli(*map(str, arguments), "--trials", str(trials)), 2)
    (line,) = finished.err.splitlines()
    assert line.startswith("memtrials: ")
    return line.removeprefix("memtrials: ")


# LoCoMo


def test_judged_answers_become_states_retrievals_answers_and_verdicts(locomo: Path, tmp_path: Path):
    file = write(tmp_path / "ours_locomo_judged.json", released.listed_locomo())
    done = take_in(locomo, file)
    kinds = [record["kind"] for record in records(locomo)]
    assert {kind: kinds.count(kind) for kind in ("ingest", "retrieval", "answer", "verdict")} == {
        "ingest": 1,
        "retrieval": 15,
        "answer": 15,
        "verdict": 12,
    }
    assert done["appended"] == 4 + 1 + 15 + 15 + 12
    (ingest,) = records(locomo, "ingest")
    assert (ingest["task"], ingest["body"]["namespace"]) == ("conv-1", None)
    configs = [r["body"] for r in records(locomo, "config")]
    assert [c["role"] for c in configs] == ["system", "fetch", "reader", "judge"]
    assert {c["name"] for c in configs} == {"imported-ours"}
    assert {frozenset(c["settings"]) for c in configs} == {frozenset({"system", "name", "file_sha256", "role"})}


def test_unknown_context_is_null_and_measured_values_stay_text(locomo: Path, tmp_path: Path):
    take_in(locomo, write(tmp_path / "ours.json", released.listed_locomo()))
    retrieval, answer = records(locomo, "retrieval")[2], records(locomo, "answer")[2]
    assert retrieval["body"]["context"] is None
    assert "content" not in retrieval
    assert json.loads(retrieval["body"]["raw"]) == {"context_tokens": 13, "latency_ms": 103.0}
    assert json.loads(answer["body"]["raw"]) == {"scored_f1": 1.0, "lexical": {"f1": 1.0}}
    tokens = numbers(locomo)["context-tokens", None, None]
    assert (tokens["value"], tokens["n"], tokens["of"], tokens["reason"]) == (None, 0, 15, "the contexts are unknown")


def test_the_fifth_category_is_decided_by_the_rule_and_not_by_the_files_label(locomo: Path, tmp_path: Path):
    rows = released.listed_locomo()
    rows[12]["hypothesis"] = "He glued it"  # labelled right, although it doesn't decline
    take_in(locomo, write(tmp_path / "ours.json", rows))
    assert {r["query"] for r in records(locomo, "verdict")} == {str(n) for n, q in enumerate(QA) if q["category"] != 5}
    found = numbers(locomo)
    assert found["accuracy", None, None]["value"] == 1.0
    assert found["refusal-official", None, None]["value"] == pytest.approx(2 / 3)
    whole = found["accuracy", "categories 1-5, the fifth by refusal-official", None]
    assert (whole["value"], whole["n"]) == (pytest.approx(14 / 15), 15)
    (departure,) = [d for d in stage(locomo, "metrics")["departures"] if d["measure"] == "refusal-official"]
    assert (departure["stored"], departure["differing"]) == (1.0, {"conv-1/12": [1.0, 0.0]})


def test_a_stale_value_in_the_file_is_shown_beside_the_recomputed_one(locomo: Path, tmp_path: Path):
    rows = released.listed_locomo()
    rows[8]["metrics"]["scored_f1"] = 0.45
    take_in(locomo, write(tmp_path / "ours.json", rows))
    (departure,) = [d for d in stage(locomo, "metrics")["departures"] if d["measure"] == "official-f1"]
    assert departure["differing"] == {"conv-1/8": [0.45, 1.0]}
    assert departure["n"] == 15
    assert departure["stored"] == pytest.approx(14.45 / 15)
    table = ended(call_cli("metrics", "--trials", str(locomo))).out
    assert "1 differ: conv-1/8 0.45 → 1" in table


def test_a_difference_of_rounding_is_none(locomo: Path, tmp_path: Path):
    rows = released.listed_locomo()
    rows[2]["hypothesis"] = "singing"  # one of four parts
    rows[2]["metrics"]["scored_f1"] = 0.2504
    take_in(locomo, write(tmp_path / "ours.json", rows))
    (departure,) = [d for d in stage(locomo, "metrics")["departures"] if d["measure"] == "official-f1"]
    assert departure["differing"] == {}


def test_records_under_users_join_by_conversation_and_position(locomo: Path, tmp_path: Path):
    """The texts of 8 and 10 are the same but for a blank, and only the position tells which is judged wrong."""
    content = released.locomo_by_user()
    content["exp_user_0"][10]["llm_judgments"]["judgment_1"] = False
    take_in(locomo, write(tmp_path / "theirs.json", content))
    wrong = [r["query"] for r in records(locomo, "verdict") if r["body"]["score"] == 0.0]
    assert wrong == ["10"]
    assert numbers(locomo)["accuracy", None, None]["value"] == pytest.approx(11 / 12)


def test_several_judge_runs_are_repeats(locomo: Path, tmp_path: Path):
    content = released.locomo_by_user()
    content["exp_user_0"][0]["llm_judgments"]["judgment_2"] = False
    take_in(locomo, write(tmp_path / "theirs.json", content))
    first = [(r["repeat"], r["body"]["score"]) for r in records(locomo, "verdict") if r["query"] == "0"]
    assert first == [(1, 1.0), (2, 0.0)]


def test_memories_are_the_contexts_that_readers_and_judges_see(locomo: Path, tmp_path: Path):
    judged = write(tmp_path / "other_locomo_judged.json", released.listed_locomo(categories=range(1, 5)))
    memories = write(tmp_path / "other_memories.json.gz", released.listed_locomo_memories(), compressed=True)
    take_in(locomo, judged, memories)
    contexts = {r["query"]: r["body"]["context"] for r in records(locomo, "retrieval")}
    assert contexts["8"] == "What is the name of Tobias's dog: Biscuit."
    assert numbers(locomo)["context-tokens", None, None]["n"] == 12
    assert stage(locomo, "answer")["skipped"] == 12  # another reader has begun: a switch must be asked for
    assert stage(locomo, "answer", "--force")["done"] == 12
    assert stage(locomo, "judge")["done"] == 12
    offline = numbers(locomo, "--reader", "offline")
    assert offline["gold-contained", None, None]["value"] == 1.0
    assert offline["gold-contained", None, None]["class"] == "R"


def test_memories_alone_are_retrievals_to_be_answered(locomo: Path, tmp_path: Path):
    take_in(locomo, write(tmp_path / "other_memories.json", released.listed_locomo_memories()))
    assert records(locomo, "answer") == []
    assert stage(locomo, "answer")["done"] == 12


def test_a_services_items_become_the_context_as_its_reader_sees_them(trials: Path, tmp_path: Path):
    items = [{"content": "Pixel sleeps.", "data": {"description": "a cat；2023"}}, {"content": " "}]
    kept = ("question_id", "question", "question_type", "question_date", "golden_answer")
    rows = [{name: row[name] for name in kept} for row in released.listed_longmemeval()]
    rows[0]["retrieved_memories"] = {"intermediate_outputs": items}
    rows[1]["retrieved_memories"] = {"intermediate_outputs": []}
    take_in(trials, write(tmp_path / "bear_memories.json", rows[:2]))
    first, second = (r["body"] for r in records(trials, "retrieval"))
    assert (first["context"], second["context"]) == ("Pixel sleeps.\nDETAILS:\na cat\n2023", "")
    assert json.loads(first["raw"]) == {"retrieved_memories": {"intermediate_outputs": items}}
    assert stage(trials, "answer")["done"] == 2


def test_unknown_contexts_cannot_be_answered_but_their_answers_can_be_judged(locomo: Path, tmp_path: Path):
    take_in(locomo, write(tmp_path / "ours.json", released.listed_locomo()))
    answered = stage(locomo, "answer", "--force")
    assert answered["pending"] == 0
    assert any("15 trials came without the context" in note for note in answered["notes"])
    assert stage(locomo, "judge")["done"] == 12


def test_an_empty_answer_is_the_readers_failure(locomo: Path, tmp_path: Path):
    rows = released.listed_locomo()
    rows[0] |= {"hypothesis": " ", "llm_judge": {"correct": False}}
    file = write(tmp_path / "ours.json", rows)
    assert take_in(locomo, file)["notes"][-1] == "imported-ours: 1 have no answer, which is the reader's failure"
    accuracy = numbers(locomo)["accuracy", None, None]
    assert (accuracy["n"], accuracy["status"], accuracy["missing"]) == (11, "lower bound", {"reader": 1})
    assert take_in(locomo, file)["appended"] == 0


def test_again_the_same_file_is_nothing_to_do_compressed_or_not(locomo: Path, tmp_path: Path):
    rows = released.listed_locomo()
    take_in(locomo, write(tmp_path / "ours.json", rows))
    before = locomo.read_bytes()
    assert take_in(locomo, write(tmp_path / "ours.json.gz", rows, compressed=True))["appended"] == 0
    assert locomo.read_bytes() == before


def test_an_import_that_was_cut_short_goes_on(locomo: Path, tmp_path: Path):
    file = write(tmp_path / "ours.json", released.listed_locomo())
    whole = take_in(locomo, file)["appended"]
    lines = locomo.read_bytes().splitlines(keepends=True)
    locomo.write_bytes(b"".join([*lines[:20]]).rstrip(b",\n") + b"\n]\n")
    before = len(records(locomo))
    assert before + take_in(locomo, file)["appended"] == whole + 1
    assert numbers(locomo)["accuracy", None, None]["value"] == 1.0


def test_a_void_import_can_be_taken_in_again(locomo: Path, tmp_path: Path):
    file = write(tmp_path / "ours.json", released.listed_locomo())
    take_in(locomo, file)
    stage(locomo, "void", "--system", "imported-ours", "--reason", "wrong file")
    assert take_in(locomo, file)["appended"] > 0
    assert numbers(locomo)["accuracy", None, None]["n"] == 12


def test_locomo_needs_its_data(trials: Path, tmp_path: Path):
    said = refused(trials, "import", write(tmp_path / "ours.json", released.listed_locomo()))
    assert "run `memtrials build locomo" in said
    assert not trials.exists()


# LongMemEval


def test_questions_become_tasks_where_the_data_is_not(trials: Path, tmp_path: Path):
    take_in(trials, write(tmp_path / "ours_lme_judged.json", released.listed_longmemeval()))
    tasks = records(trials, "task")
    assert [(t["benchmark"], t["task"]) for t in tasks] == [("longmemeval@questions", q["id"]) for q in QUESTIONS]
    body = tasks[1]["body"]
    assert (body["gold"][0]["answers"], body["session_digests"]) == (["3"], [])
    accuracy = numbers(trials)
    assert accuracy["accuracy", None, None]["value"] == 0.75
    assert accuracy["accuracy", None, None]["class"] == "M"
    assert accuracy["accuracy", "abstention", None]["n"] == 1


def test_files_of_the_same_questions_share_tasks_and_keep_their_own_dates(trials: Path, tmp_path: Path):
    ours = write(tmp_path / "ours.json", released.listed_longmemeval())
    theirs = write(tmp_path / "theirs.json", released.longmemeval_by_user())
    memories = write(tmp_path / "memories.json", released.longmemeval_memories_by_user())
    take_in(trials, ours, theirs, memories)
    assert len(records(trials, "task")) == 4
    of_plants = [r for r in records(trials, "retrieval") if r["task"] == "m1"]
    assert [r["body"]["date"] for r in of_plants] == [released.DATE, "2023/06/01 (Thu) 09:00"]
    assert [r["body"]["context"] for r in of_plants] == [None, "Remembered: 3"]
    assert numbers(trials, "--system", "imported-theirs")["accuracy", None, None]["value"] == 0.75
    wrong = {r["task"] for r in records(trials, "verdict") if r["body"]["score"] == 0.0}
    assert wrong == {"m1", "u1"}


def test_the_release_is_the_questions_in_any_order(tmp_path: Path):
    hashes = []
    for number, rows in enumerate((released.listed_longmemeval(), released.listed_longmemeval()[::-1])):
        trials = tmp_path / f"{number}.json"
        take_in(trials, write(tmp_path / f"ours-{number}.json", rows))
        hashes.append({t["body"]["release"]["sha256"] for t in records(trials, "task")})
    assert hashes[0] == hashes[1]
    assert len(hashes[0]) == 1


def test_a_file_without_ids_needs_the_questions_first(trials: Path, tmp_path: Path):
    said = refused(trials, "import", write(tmp_path / "theirs.json", released.longmemeval_by_user()))
    assert "don't name LongMemEval's questions by id" in said


def test_a_part_of_the_questions_joins_those_that_are_there(trials: Path, tmp_path: Path):
    take_in(trials, write(tmp_path / "ours.json", released.listed_longmemeval()))
    take_in(trials, write(tmp_path / "few.json", released.listed_longmemeval()[:2]))
    few = numbers(trials, "--system", "imported-few")["accuracy", None, None]
    assert (few["n"], few["of"], few["status"]) == (2, 4, "partial")


def test_other_questions_are_refused_where_some_are_held(trials: Path, tmp_path: Path):
    take_in(trials, write(tmp_path / "few.json", released.listed_longmemeval()[:2]))
    said = refused(trials, "import", write(tmp_path / "ours.json", released.listed_longmemeval()))
    assert "2 of its questions aren't among those of longmemeval@questions" in said


def test_questions_without_histories_cannot_be_replayed(trials: Path, tmp_path: Path):
    take_in(trials, write(tmp_path / "ours.json", released.listed_longmemeval()))
    assert "questions without their histories" in refused(trials, "replay", "bm25")


def test_results_go_to_the_data_where_it_was_built(trials: Path, tmp_path: Path):
    samples = LOCOMO.parent / "longmemeval"
    stage(trials, "build", "longmemeval", "--data", str(samples))
    instances = json.loads((samples / "longmemeval_sample.json").read_text("utf-8"))
    template = released.listed_longmemeval()[0]
    rows = [
        {**template, **{name: one[name] for name in ("question_id", "question", "question_type")}}
        | {"golden_answer": one["answer"], "question_date": "2020/01/01 (Wed) 00:00"}
        for one in instances
    ]
    done = take_in(trials, write(tmp_path / "ours.json", rows))
    assert {r["benchmark"] for r in records(trials, "answer")} == {"longmemeval@sample"}
    assert f"imported-ours: {len(rows)} were asked on another date than longmemeval@sample has" in done["notes"]


# What is refused


def _change(name: str, value: Any) -> Callable[[list[Row]], None]:
    def change(rows: list[Row]) -> None:
        rows[3][name] = value

    return change


def _drop(name: str) -> Callable[[list[Row]], None]:
    def change(rows: list[Row]) -> None:
        del rows[3][name]

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_drop("hypothesis"), "record 4 (conv-1_q004): hypothesis is missing"),
        (_change("hypothesis", 7), "record 4 (conv-1_q004): hypothesis is 7, a text is expected"),
        (_change("llm_judge", {"correct": "yes"}), '(conv-1_q004): llm_judge: correct is "yes", true or false'),
        (_change("metrics", [1]), "record 4 (conv-1_q004): metrics is [1], an object is expected"),
        (_change("category", 6), "record 4: category is 6, a number from 1 to 5"),
        (_change("category", 2), "conv-1_q004: its type is '2', locomo@sample has '1'"),
        (_change("golden_answer", None), "golden_answer is null, a text or number is expected"),
        (_change("golden_answer", "9"), "conv-1_q004: its gold answer is '9', locomo@sample has '2'"),
        (
            _change("question", "How many?"),
            "conv-1_q004: its question is 'How many?', locomo@sample has 'How many pets",
        ),
        (_change("question_id", "conv-1-4"), 'question_id is "conv-1-4", conv_id and ordinal'),
        (_change("question_id", "conv-1_q099"), "conv-1_q099: conv-1 has 15 questions that it may be, not 99"),
        (_change("question_id", "conv-1_q001"), "record 4 (conv-1_q001): the same question as record 1"),
        (lambda rows: rows.insert(1, 5), "record 2: not an object"),
        (lambda rows: rows.clear(), "no known form of results"),
    ],
)
def test_what_is_wrong_is_told_with_record_and_field(
    locomo: Path, tmp_path: Path, change: Callable[[list[Row]], None], says: str
):
    rows = released.listed_locomo()
    change(rows)
    before = locomo.read_bytes()
    file = write(tmp_path / "ours.json", rows)
    said = refused(locomo, "import", file)
    assert said.startswith(str(file))
    assert says in said
    assert locomo.read_bytes() == before


def test_another_conversation_is_unknown(locomo: Path, tmp_path: Path):
    content = {"exp_user_4": released.locomo_by_user()["exp_user_0"]}
    assert "has no conversation 4" in refused(locomo, "import", write(tmp_path / "theirs.json", content))


def test_aggregates_are_no_results(locomo: Path, tmp_path: Path):
    file = write(tmp_path / "ours_metrics.json", {"system": "ours", "overall": {}, "by_question": {}})
    assert "aggregates, not results" in refused(locomo, "import", file)


def test_files_that_cannot_be_read_are_told_as_such(locomo: Path, tmp_path: Path):
    cut = tmp_path / "cut.json.gz"
    cut.write_bytes(write(tmp_path / "whole.json.gz", released.listed_locomo(), compressed=True).read_bytes()[:-40])
    assert "cut off or damaged" in refused(locomo, "import", cut)
    (tmp_path / "half.json").write_text('[{"question_id"', "utf-8")
    assert "not valid JSON" in refused(locomo, "import", tmp_path / "half.json")
    assert "can't be read" in refused(locomo, "import", tmp_path / "none.json")


def test_memories_of_other_questions_are_refused(locomo: Path, tmp_path: Path):
    judged = write(tmp_path / "ours.json", released.listed_locomo(categories=range(1, 3)))
    memories = write(tmp_path / "memories.json", released.listed_locomo_memories())
    assert "belong to none of" in refused(locomo, "import", judged, memories)
