"""InMind's submission format: an export tells the truth, an import can be judged, and whatever is wrong is told."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from memtrials.benchmarks import inmind
from memtrials.benchmarks.base import Prompts
from memtrials.llm import prompts as prompt_files
from support.cli import Finished, call_cli
from support.model_server import ModelServer, always, ok
from support.releases import SAMPLE, Row, read_rows, write_rows

EXAMPLE = SAMPLE / "evaluation" / "examples" / "submission.example.jsonl"
"""A complete result file of an invented system, ExampleMemory."""

TASKS = [2, 5, 9, 14, 21, 22, 30, 41]
IMPORTED = "imported-ExampleMemory"

EVALUATION = {
    "type": "object",
    "required": ["context", "answer"],
    "properties": {"context": {"type": "string"}, "answer": {"type": "string"}},
}
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["task_id", "system", "config", "naive", "query"],
    "properties": {
        "task_id": {"type": "integer"},
        "system": {"type": "string", "minLength": 1},
        "config": {"type": "object"},
        "naive": EVALUATION,
        "query": EVALUATION,
    },
}
"""One line of a submission, as the leaderboard describes it."""


def done(finished: Finished, code: int = 0) -> Finished:
    assert finished.code == code, finished.err
    assert "Traceback" not in finished.err
    return finished


def refused(finished: Finished, *says: str) -> list[str]:
    """Ended with 2 and one line that says all of this; the lines before it."""
    done(finished, 2)
    *details, last = finished.err.splitlines()
    assert last.startswith("memtrials: ")
    assert not any(line.startswith("memtrials: ") for line in details)
    for text in says:
        assert text in last
    return details


def export(trials: Path, *arguments: str) -> list[Row]:
    """The exported rows, from standard output."""
    finished = done(call_cli("export", "inmind-submission", "--trials", str(trials), *arguments))
    return [json.loads(line) for line in finished.out.splitlines()]


def take_in(trials: Path, file: Path) -> int:
    """Import a file; how many records were appended."""
    finished = done(call_cli("import", "inmind-submission", str(file), "--trials", str(trials), "--json"))
    appended: int = json.loads(finished.out)["appended"]
    return appended


def stage(trials: Path, *arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(done(call_cli(*arguments, "--trials", str(trials), "--json")).out)
    return found


def numbers(trials: Path, system: str) -> dict[str, Row]:
    """The numbers of a system by metric."""
    return {n["metric"]: n for n in stage(trials, "metrics", "--system", system)["numbers"]}


def records(trials: Path, kind: str) -> list[Row]:
    return [record for record in json.loads(trials.read_bytes()) if record["kind"] == kind]


# Export


def test_an_export_is_a_valid_submission(judged: Path, tmp_path: Path):
    out = tmp_path / "submission.jsonl"
    arguments = ["--system", "bm25", "--trials", str(judged)]
    done(call_cli("export", "inmind-submission", "--out", str(out), *arguments))
    rows = read_rows(out)
    for row in rows:
        jsonschema.validate(row, SCHEMA)
    assert [row["task_id"] for row in rows] == TASKS
    assert {row["system"] for row in rows} == {"bm25"}
    assert (
        "valid, 8 of 8 tasks" in done(call_cli("validate", "inmind-submission", str(out), "--trials", str(judged))).out
    )
    assert rows == export(judged, "--system", "bm25")


def test_an_export_holds_what_reader_and_judge_saw(judged: Path):
    rows = {row["task_id"]: row for row in export(judged, "--system", "bm25")}
    seen = [json.loads(line) for line in call_cli("view", "--system", "bm25", "--trials", str(judged)).out.splitlines()]
    assert len(seen) == 16
    for trial in seen:
        side = rows[int(trial["task"])]["naive" if trial["query"] == "naive_query" else "query"]
        assert side == {"context": trial["context"], "answer": trial["hypothesis"]}


def test_a_configuration_tells_the_truth(judged: Path):
    """A rule answered: class R, and the model is called what it is."""
    (config,) = {json.dumps(row["config"], sort_keys=True) for row in export(judged, "--system", "bm25")}
    told = json.loads(config)
    assert (told["class"], told["answer_model"], told["answer_parameters"]) == ("R", "offline", {})
    assert (told["system"]["retriever"], told["fetch"]["k"]) == ("bm25", 10)
    assert [name.rpartition("-")[0] for name in told["configurations"]] == ["bm25", "k10", "offline"]


def test_the_published_reader_on_other_data_is_not_the_published_protocol(
    fetched: Path, monkeypatch: pytest.MonkeyPatch
):
    """Model, parameters and prompts as published, but the sample isn't the released data: class M."""

    ours = prompt_files.load(inmind.BENCHMARK, ["answer_system"], "default", None)
    monkeypatch.setattr(prompt_files, "load", lambda *_: Prompts(ours.texts, "official", official=True))
    answer = ["answer", "--reader", "gpt-5-mini", "--prompts", "official", "--trials", str(fetched)]
    with ModelServer(always(ok("Fine."))) as server:
        done(call_cli(*answer, env=server.environment("READER")))
    told = export(fetched, "--system", "bm25")[0]["config"]
    assert (told["class"], told["answer_model"], told["prompts"]) == ("M", "gpt-5-mini", "official")
    assert told["answer_parameters"] == {"max_completion_tokens": 16384}


def test_more_than_one_system_is_refused_and_listed(judged: Path):
    finished = call_cli("export", "inmind-submission", "--trials", str(judged))
    details = refused(finished, "one system, fetch configuration and reader; select one")
    assert [line.split()[:2] for line in details] == [
        ["--system", fetch["system"]] for fetch in {r["system"]: r for r in records(judged, "answer")}.values()
    ]
    assert len(details) == 3


def test_what_is_listed_selects_one(judged: Path):
    trials = ("--trials", str(judged))
    done(call_cli("fetch", "bm25", "--k", "2", "--force", *trials))
    done(call_cli("answer", *trials))
    details = refused(call_cli("export", "inmind-submission", "--system", "bm25", *trials), "select one")
    assert len(details) == 2
    found = [export(judged, *line.split()) for line in details]
    assert [rows[0]["config"]["fetch"]["k"] for rows in found] == [10, 2]
    assert [len(rows) for rows in found] == [8, 8]


def test_nothing_answered_is_refused(fetched: Path):
    refused(
        call_cli("export", "inmind-submission", "--trials", str(fetched)), "no answers of inmind@sample are selected"
    )


def test_another_trial_on_demand(fetched: Path):
    trials = ("--trials", str(fetched))
    done(call_cli("fetch", "bm25", "--repeat", "2", *trials))
    done(call_cli("answer", "--system", "bm25", *trials))
    assert len(records(fetched, "answer")) == 32
    first, second = (export(fetched, "--system", "bm25", "--trial", n) for n in "12")
    assert first == second  # the same state, asked twice
    refused(call_cli("export", "inmind-submission", "--system", "bm25", "--trial", "3", *trials), "no answers of")


def test_a_part_is_exported_only_when_asked_for(fetched: Path, tmp_path: Path):
    trials = ("--trials", str(fetched))
    done(call_cli("answer", "--system", "bm25", "--limit", "5", *trials))
    done(call_cli("answer", "--system", "bm25", "--task", "22/query", *trials))
    arguments = ["export", "inmind-submission", "--system", "bm25", "--out", str(tmp_path / "part.jsonl"), *trials]
    refused(call_cli(*arguments), "3 of 8 tasks have no complete trial; finish them or --allow-partial")
    assert not (tmp_path / "part.jsonl").exists()
    done(call_cli(*arguments, "--allow-partial"))
    assert [row["task_id"] for row in read_rows(tmp_path / "part.jsonl")] == TASKS[:5]
    validate = ["validate", "inmind-submission", str(tmp_path / "part.jsonl"), *trials]
    refused(call_cli(*validate), "3 tasks are missing (22, 30, 41); --allow-partial accepts that")
    assert "valid, 5 of 8 tasks" in done(call_cli(*validate, "--allow-partial")).out


def test_a_file_that_cannot_be_written(judged: Path, tmp_path: Path):
    out = str(tmp_path / "missing" / "out.jsonl")
    arguments = ["export", "inmind-submission", "--system", "bm25", "--out", out, "--trials", str(judged)]
    refused(call_cli(*arguments), "can't be written (No such file or directory)")


# Voided after the verdict was known


@pytest.mark.parametrize("kind", ["ingest", "retrieval", "verdict", "task"])
def test_results_voided_after_their_verdict_are_not_exported_silently(judged: Path, kind: str):
    trials = ("--trials", str(judged))
    select = ["--benchmark", "inmind"] if kind == "task" else ["--system", "bm25"]
    done(call_cli("void", "--kind", kind, *select, "--reason", "too bad to be true", *trials))
    for again in (["build", "inmind", "--data", str(SAMPLE)], ["replay", "bm25"], ["fetch", "bm25"], ["answer"]):
        done(call_cli(*again, *trials))
    finished = call_cli("export", "inmind-submission", "--system", "bm25", *trials)
    refused(finished, "were voided after their verdict was known", "'too bad to be true'", "--allow-voided exports")
    assert len(export(judged, "--system", "bm25", "--allow-voided")) == 8
    if kind != "task":
        assert len(export(judged, "--system", "none")) == 8


def test_results_voided_before_any_verdict_are_no_matter(answered: Path):
    trials = ("--trials", str(answered))
    done(call_cli("void", "--kind", "answer", "--system", "bm25", "--reason", "wrong key", *trials))
    done(call_cli("answer", *trials))
    assert len(export(answered, "--system", "bm25")) == 8


def test_a_void_that_was_undone_is_no_matter(judged: Path):
    trials = ("--trials", str(judged))
    done(call_cli("void", "--kind", "retrieval", "--system", "bm25", "--reason", "by mistake", *trials))
    refused(call_cli("export", "inmind-submission", "--system", "bm25", *trials), "no answers of inmind@sample")
    (void,) = records(judged, "void")
    done(call_cli("void", void["id"], "--reason", "undo", *trials))
    assert len(export(judged, "--system", "bm25")) == 8


# Import


def test_an_import_appends_everything_once(built: Path):
    """Three configurations; of each of eight tasks one ingest, two retrievals and two answers."""
    assert take_in(built, EXAMPLE) == 3 + 8 * 5
    before = built.read_bytes()
    assert take_in(built, EXAMPLE) == 0
    assert built.read_bytes() == before
    kinds = {kind: len(records(built, kind)) for kind in ("task", "config", "ingest", "retrieval", "answer", "verdict")}
    assert kinds == {"task": 8, "config": 3, "ingest": 8, "retrieval": 16, "answer": 16, "verdict": 0}
    assert {record["body"]["name"] for record in records(built, "config")} == {IMPORTED}


def test_an_import_knows_its_file_and_claims_nothing(built: Path):
    take_in(built, EXAMPLE)
    for config in records(built, "config"):
        body = config["body"]
        assert set(body["settings"]) == {"system", "name", "file_sha256", "role"}
        assert body["provenance"]["capabilities"] == []
        assert json.loads(body["provenance"]["claimed"]) == read_rows(EXAMPLE)[0]["config"]
    for ingest in records(built, "ingest"):
        assert (ingest["body"]["namespace"], ingest["body"]["capabilities"]) == (None, [])


def test_an_import_can_be_exported_again(built: Path):
    take_in(built, EXAMPLE)
    rows = export(built, "--system", IMPORTED)
    original = read_rows(EXAMPLE)
    assert [(r["task_id"], r["naive"], r["query"]) for r in rows] == [
        (r["task_id"], r["naive"], r["query"]) for r in original
    ]
    assert rows[0]["config"]["answer_model"] == "unknown"


def test_other_results_of_the_same_name_are_another_system(built: Path, tmp_path: Path):
    take_in(built, EXAMPLE)
    rows = read_rows(EXAMPLE)
    rows[0]["query"]["answer"] = "Something else."
    write_rows(tmp_path / "other.jsonl", rows)
    assert take_in(built, tmp_path / "other.jsonl") == 43
    assert len({record["system"] for record in records(built, "answer")}) == 2


def test_part_of_the_tasks_can_be_imported(built: Path, tmp_path: Path):
    write_rows(tmp_path / "part.jsonl", read_rows(EXAMPLE)[:3])
    assert take_in(built, tmp_path / "part.jsonl") == 3 + 3 * 5
    assert json.loads(call_cli("status", "--trials", str(built), "--json").out)["rows"][0]["fetched"] == 6


def test_several_systems_in_one_file_are_refused(built: Path, tmp_path: Path):
    rows = read_rows(EXAMPLE)
    rows[1]["system"] = "Another"
    write_rows(tmp_path / "two.jsonl", rows)
    before = built.read_bytes()
    finished = call_cli("import", "inmind-submission", str(tmp_path / "two.jsonl"), "--trials", str(built))
    refused(finished, "results of 2 systems (Another, ExampleMemory); one file holds one system")
    assert built.read_bytes() == before


@pytest.mark.parametrize(
    "config", ["NaN", "1e999", "123456789012345678901234567890", '"\\ud800"', "[" * 300 + "]" * 300]
)
def test_whatever_a_configuration_claims_is_kept_as_text(built: Path, tmp_path: Path, config: str):
    row = json.dumps(read_rows(EXAMPLE)[0] | {"config": {"x": "here"}})
    (tmp_path / "one.jsonl").write_text(row.replace('"here"', config))
    assert take_in(built, tmp_path / "one.jsonl") == 8
    assert isinstance(records(built, "config")[0]["body"]["provenance"]["claimed"], str)


def test_imported_results_have_no_state_to_ask(built: Path):
    take_in(built, EXAMPLE)
    before = built.read_bytes()
    finished = done(call_cli("fetch", IMPORTED, "--trials", str(built)))
    assert "imported results have no state to ask" in finished.err
    assert built.read_bytes() == before


# Judging what was imported


def test_rules_do_not_judge_a_store_that_promises_nothing(built: Path):
    take_in(built, EXAMPLE)
    assert stage(built, "judge")["pending"] == 0
    found = numbers(built, IMPORTED)
    for metric in ("direct-verbatim", "target-verbatim"):
        assert (found[metric]["value"], found[metric]["reason"]) == (None, "the system doesn't return turns unchanged")
    for metric in ("naive", "target-recall", "application", "answer-only", "direct-recall"):
        assert (found[metric]["value"], found[metric]["reason"]) == (None, "needs a model judge")
    for metric in ("direct-hit@k", "target-hit@k"):
        assert (found[metric]["value"], found[metric]["reason"]) == (None, "the system gives no evidence ids")
    assert found["retrieval-seconds-p50"]["reason"] == "not timed"


def test_replies_obtained_elsewhere_judge_an_import(built: Path, tmp_path: Path):
    """Requests go out, replies come back; the first of eight tasks is a 0 in every metric."""
    take_in(built, EXAMPLE)
    requests, replies = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    judge = ("judge", "--judge", "gpt-5-mini")
    done(call_cli(*judge, "--export-requests", str(requests), "--trials", str(built)))
    rows = read_rows(requests)
    assert len(rows) == 8 * 5
    assert {row["metric"] for row in rows} == {"naive", "target-recall", "application", "answer-only", "direct-recall"}
    assert rows[0]["response_contract"] == {"score": "0 or 1", "reason": "brief explanation"}
    assert [message["role"] for message in rows[0]["messages"]] == ["system", "user"]
    answers = [
        {"custom_id": row["custom_id"], "reply": json.dumps({"score": int(row["task_id"] != 2), "reason": "seen"})}
        for row in rows
    ]
    write_rows(replies, answers[:25])
    assert stage(built, *judge, "--import-replies", str(replies))["done"] == 25
    write_rows(replies, answers)
    assert stage(built, *judge, "--import-replies", str(replies))["done"] == 15
    assert stage(built, *judge, "--import-replies", str(replies))["appended"] == 0
    found = numbers(built, IMPORTED)
    for metric in ("naive", "target-recall", "application", "answer-only", "direct-recall"):
        assert (found[metric]["value"], found[metric]["n"], found[metric]["class"]) == (7 / 8, 8, "M")


VERDICTS = {
    2: {"naive": 1, "direct-recall": 1, "target-recall": 1, "application": 1, "answer-only": 1},  # success
    5: {"naive": 1, "direct-recall": 1, "target-recall": 1, "application": 0, "answer-only": 0},  # surfaced, not used
    9: {
        "naive": 0,
        "direct-recall": 1,
        "target-recall": 0,
        "application": 0,
        "answer-only": 1,
    },  # blind spot, and a slip
    14: {"naive": 1, "direct-recall": 1, "target-recall": 0, "application": 0, "answer-only": 0},  # blind spot
    21: {"naive": 0, "direct-recall": 0, "target-recall": 0, "application": 0, "answer-only": 0},  # not stored
    22: {"naive": 1, "direct-recall": 0, "target-recall": 0, "application": 1, "answer-only": 1},  # inconsistent
    30: {"naive": 1, "direct-recall": 1, "target-recall": 1, "application": 1, "answer-only": 1},  # success
    41: {"naive": 1, "direct-recall": 1, "target-recall": 1, "application": None, "answer-only": 1},  # undetermined
}
"""A judge's scores; None: a reply that can't be read."""


def test_verdicts_become_numbers_and_the_places_where_tasks_end(built: Path, tmp_path: Path):
    """The unreadable reply is a failure of the service: application has bounds, 3/8 and 4/8, and no headline."""
    take_in(built, EXAMPLE)
    requests, replies = tmp_path / "requests.jsonl", tmp_path / "replies.jsonl"
    judge = ("judge", "--judge", "gpt-5-mini", "--trials", str(built))
    done(call_cli(*judge, "--export-requests", str(requests)))
    scores = [(row["custom_id"], VERDICTS[row["task_id"]][row["metric"]]) for row in read_rows(requests)]
    said = ["I can't tell." if score is None else json.dumps({"score": score, "reason": "seen"}) for _, score in scores]
    write_rows(replies, [{"custom_id": name, "reply": text} for (name, _), text in zip(scores, said, strict=True)])
    finished = done(call_cli(*judge, "--import-replies", str(replies)), 1)
    assert "1 failed: unreadable verdict" in finished.err
    found = numbers(built, IMPORTED)
    assert {m: found[m]["value"] for m in VERDICTS[2]} == {
        "naive": 6 / 8,
        "direct-recall": 6 / 8,
        "target-recall": 4 / 8,
        "application": None,
        "answer-only": 5 / 8,
    }
    application = found["application"]
    assert (application["status"], application["n"], application["of"]) == ("partial", 7, 8)
    assert (application["low"], application["high"], application["score"]) == (3 / 8, 4 / 8, pytest.approx(3 / 7))
    assert application["missing"] == {"service": 1}
    (ends,) = stage(built, "metrics", "--system", IMPORTED)["attributions"]
    assert ends["counts"] == {
        "success": 2,
        "surfaced, not used": 1,
        "blind spot": 2,
        "not stored or not retrievable": 1,
        "judges inconsistent": 1,
        "undetermined": 1,
    }
    assert (ends["n"], ends["slips"], ends["gap"], ends["gap_n"]) == (8, 1, 6 / 8 - 4 / 8, 8)


# Validation


def spoilt(tmp_path: Path, change: Callable[[list[Row]], object]) -> Path:
    rows = read_rows(EXAMPLE)
    change(rows)
    write_rows(tmp_path / "spoilt.jsonl", rows)
    return tmp_path / "spoilt.jsonl"


def test_the_example_is_valid(built: Path):
    assert (
        "valid, 8 of 8 tasks"
        in done(call_cli("validate", "inmind-submission", str(EXAMPLE), "--trials", str(built))).out
    )


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda rows: rows[2].update(task_id=3), "line 3: task_id 3 is not a task of this benchmark"),
        (lambda rows: rows[2].update(task_id=True), "line 3: task_id is true, an integer is expected"),
        (lambda rows: rows[2].update(task_id="9"), 'line 3: task_id is "9", an integer is expected'),
        (lambda rows: rows[2].update(task_id=9.0), "line 3: task_id is 9.0, an integer is expected"),
        (lambda rows: rows[2].pop("task_id"), "line 3: task_id is null, an integer is expected"),
        (lambda rows: rows[2].update(task_id=5), "line 3: task_id 5 occurs twice (first in line 2)"),
        (lambda rows: rows[2].update(system=" "), "line 3: system is missing or empty"),
        (lambda rows: rows[2].pop("config"), "line 3: config is missing or not an object"),
        (lambda rows: rows[2].update(naive="text"), "line 3: naive is missing or not an object"),
        (lambda rows: rows[2]["query"].pop("answer"), "line 3: query.answer is missing or not a text"),
        (lambda rows: rows[2]["query"].update(context=None), "line 3: query.context is missing or not a text"),
    ],
)
def test_a_wrong_row(built: Path, tmp_path: Path, change: Callable[[list[Row]], object], says: str):
    path = spoilt(tmp_path, change)
    before = built.read_bytes()
    for command in (["validate", "inmind-submission"], ["import", "inmind-submission"]):
        finished = done(call_cli(*command, str(path), "--trials", str(built)), 2)
        assert f"{path}, {says}" in finished.err
    assert built.read_bytes() == before


def test_every_problem_is_reported_with_its_line(built: Path, tmp_path: Path):
    def change(rows: list[Row]) -> None:
        rows[0].update(task_id="2", system="")
        rows[4]["naive"] = {}
        rows[7].pop("query")

    path = spoilt(tmp_path, change)
    with path.open("a") as file:
        file.write("{\n\n[]\n")
    details = refused(
        call_cli("validate", "inmind-submission", str(path), "--trials", str(built)), f"{path}: 8 problems"
    )
    assert [line.removeprefix(f"{path}").lstrip(", ").partition(" (")[0] for line in details] == [
        'line 1: task_id is "2", an integer is expected',
        "line 1: system is missing or empty",
        "line 5: naive.context is missing or not a text",
        "line 5: naive.answer is missing or not a text",
        "line 8: query is missing or not an object",
        "line 9: not valid JSON",
        "line 11: not an object",
        ": 1 tasks are missing",
    ]


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"", "8 tasks are missing"), (b"\xff\xfe", "not UTF-8 text"), (b"[" * 100_000, "line 1: not valid JSON")],
    ids=["empty", "binary", "nested"],
)
def test_a_file_that_is_no_submission(built: Path, tmp_path: Path, content: bytes, says: str):
    path = tmp_path / "file.jsonl"
    path.write_bytes(content)
    finished = done(call_cli("validate", "inmind-submission", str(path), "--trials", str(built)), 2)
    assert says in finished.err
    assert done(call_cli("import", "inmind-submission", str(path), "--trials", str(built)), 2).err


def test_a_missing_file_and_a_folder(built: Path, tmp_path: Path):
    for place in (tmp_path / "missing.jsonl", tmp_path):
        refused(
            call_cli("validate", "inmind-submission", str(place), "--trials", str(built)), f"{place}: can't be read ("
        )


def test_a_byte_order_mark_and_windows_line_ends_are_fine(built: Path, tmp_path: Path):
    path = tmp_path / "windows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + EXAMPLE.read_bytes().replace(b"\n", b"\r\n"))
    assert "valid, 8 of 8" in done(call_cli("validate", "inmind-submission", str(path), "--trials", str(built))).out


def test_which_benchmark_is_asked_where_there_are_two(built: Path):
    trials = ("--trials", str(built))
    done(call_cli("build", "inmind@stripped", "--data", str(SAMPLE), *trials))
    both = "holds inmind@sample, inmind@sample-stripped; name one with --benchmark"
    refused(call_cli("validate", "inmind-submission", str(EXAMPLE), *trials), both)
    done(call_cli("import", "inmind-submission", str(EXAMPLE), "--benchmark", "inmind@sample", *trials))
    assert {record["benchmark"] for record in records(built, "answer")} == {"inmind@sample"}
