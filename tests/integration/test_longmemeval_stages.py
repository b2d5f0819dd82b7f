"""LongMemEval from data to table through the command line: on the sample, and on 500 small instances as published."""

import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks import longmemeval
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.records import text_sha256
from memtrials.selection import Selection, choose
from support.cli import call_cli
from support.longmemeval import COUNTS, SAMPLE, as_published, instance, sample, upstream, written
from support.model_server import USAGE, ModelServer, always, ok
from support.trials import records, stage

DATA = ("longmemeval", "--data", str(SAMPLE.parent))


@pytest.fixture(scope="module")
def answered_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of the sample with the offline reader's answers."""
    trials = tmp_path_factory.mktemp("sample") / "trials.json"
    for command in (("build", *DATA), ("replay", "bm25", "full-context"), ("fetch",), ("answer",)):
        stage(trials, *command)
    return trials


@pytest.fixture
def answered(answered_once: Path, tmp_path: Path) -> Path:
    """The same, to be written to."""
    shutil.copytree(answered_once.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "trials.json"


def numbers(trials: Path, *arguments: str, **wanted: Any) -> list[dict[str, Any]]:
    """The numbers of `metrics` that have these values."""
    found = stage(trials, "metrics", *arguments)["numbers"]
    return [n for n in found if all(n[name] == value for name, value in wanted.items())]


# --- the sample -------------------------------------------------------------------------------------------------


def test_all_stages_offline_and_a_second_run_that_finds_nothing_to_do(answered: Path):
    stage(answered, "judge")
    kinds = Counter(record["kind"] for record in records(answered))
    assert kinds == {"task": 10, "config": 6, "ingest": 20, "retrieval": 20, "answer": 20, "verdict": 14}
    before = answered.read_bytes()
    for command in (("build", *DATA), ("replay", "bm25", "full-context"), ("fetch",), ("answer",), ("judge",)):
        assert stage(answered, *command)["appended"] == 0
    assert answered.read_bytes() == before
    (bm25,) = (n for n in numbers(answered, metric="gold-contained", part=None) if n["system_name"] == "bm25")
    assert (bm25["n"], bm25["of"], bm25["class"], bm25["status"]) == (7, 7, "R", "complete")
    assert 0 < bm25["value"] < 1
    (averaged,) = (n for n in numbers(answered, part="types averaged") if n["system_name"] == "bm25" and n["n"])
    assert averaged["types"] == 5  # preference has no gold that an answer can contain
    null = numbers(answered, metric="accuracy")
    assert {(n["value"], n["reason"], n["of"]) for n in null} == {(None, "needs a model judge", 10)}


def test_the_table_is_printed(answered: Path):
    stage(answered, "judge")
    printed = call_cli("metrics", "--trials", str(answered), env={"COLUMNS": "200"})
    for text in ("longmemeval@sample", "gold-contained", "types averaged", "5 types", "needs a model judge"):
        assert text in printed.out


def test_readers_and_memories_know_dates(answered: Path):
    dates = {row["question_id"]: row["question_date"] for row in sample()}
    for retrieval in records(answered, "retrieval"):
        assert retrieval["body"]["date"] == dates[retrieval["task"]]
        assert retrieval["body"]["context"].startswith("[2023/")
    with ModelServer(always(ok("Noted."))) as server:
        stage(answered, "answer", "--reader", "model-a", "--force", "--limit", "3", env=server.environment())
    asked = [request.user for request in server.requests]
    assert len(asked) == 6
    expected = Counter(f"(Asked on {date}.)" for date in list(dates.values())[:3] for system in range(2))
    assert Counter(text.partition("\n")[0] for text in asked) == expected


def test_the_date_goes_into_the_query_when_asked_for(answered: Path, monkeypatch: pytest.MonkeyPatch):
    from memtrials.systems import controls, embedded

    told: list[str] = []
    plain = embedded.Embedded.query

    def spied(self: Any, namespace: str, text: str, *more: Any) -> Any:
        told.append(text)
        return plain(self, namespace, text, *more)

    monkeypatch.setattr(embedded.Embedded, "query", spied)
    assert issubclass(controls.Whole, embedded.Embedded)
    outcome = stage(answered, "fetch", "--date-in-query", "--force")
    assert outcome["done"] == 10  # full-context doesn't read the query
    assert len(told) == 10
    assert told[0] == "(Asked on 2023/04/18 (Tue) 19:20.) What is the name of the ferry that I work on?"
    configs = [c["body"]["settings"] for c in records(answered, "config") if c["body"]["role"] == "fetch"]
    assert [settings.get("date_in_query") for settings in configs] == [None, None, True]
    last = records(answered, "retrieval")[-1]
    assert "Asked on" not in last["body"]["question"]


# --- readers' profiles ------------------------------------------------------------------------------------------


def test_the_memorybear_profile_is_part_of_the_readers_name(answered: Path):
    with ModelServer(always(ok("Oystercatcher"))) as server:
        env = server.environment()
        only = ("--system", "bm25")
        stage(answered, "answer", "--reader", "model-a", "--profile", "memorybear", "--force", *only, env=env)
        stage(answered, "judge", *only)
    types = {row["question"]: row["question_type"] for row in sample()}
    for request in server.requests:
        (message,) = request.body["messages"]
        (question,) = (text for text in types if f"\nQuestion: {text}\n" in message["content"])
        unanswerable = "train" in question or "suit" in question
        assert f"Kind of question: {'abstention' if unanswerable else types[question]}. " in message["content"]
        assert (request.body["temperature"], request.body["n"], request.body["max_tokens"]) == (0, 1, 512)
    assert len(server.requests) == 10
    (shown,) = numbers(answered, *only, metric="gold-contained", part=None)
    assert shown["reader_name"] == "model-a, memorybear"
    assert "memorybear" in call_cli("metrics", "--trials", str(answered), *only, env={"COLUMNS": "200"}).out


# --- judges -----------------------------------------------------------------------------------------------------


def by_question(number: int, body: dict[str, Any]) -> Any:
    """A judge that accepts answers with the gold's words in them, and no others."""
    text = body["messages"][-1]["content"]
    lines = dict(line.partition(": ")[::2] for line in text.splitlines() if ": " in line)
    return ok(
        json.dumps({"score": int(lines["gold"].lower() in text.partition("<data>")[2].lower()), "reason": "as said"})
    )


def test_a_model_judge_decides_every_question_by_its_rubric(answered: Path):
    with ModelServer(by_question) as server:
        stage(answered, "judge", "--judge", "model-j", "--system", "bm25", env=server.environment())
    asked = Counter(request.system.partition("- gold: ")[2].partition("\n")[0] for request in server.requests)
    assert sorted(asked.values()) == [1, 1, 2, 2, 4]
    (whole,) = numbers(answered, "--system", "bm25", metric="accuracy", part=None)
    assert (whole["n"], whole["of"], whole["class"], whole["clusters"]) == (10, 10, "R", 9)  # the reader was a rule
    parts = {n["part"]: (n["n"], n["types"]) for n in numbers(answered, "--system", "bm25", metric="accuracy")}
    assert parts == {None: (10, None), "types averaged": (10, 6), "abstention": (2, None), "answerable": (8, None)}


@pytest.fixture
def official(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A clone whose templates count as the published ones."""
    folder = upstream(tmp_path / "clone")
    texts = longmemeval.official_texts(folder, longmemeval.BENCHMARK.judge_prompts)
    for name, text in texts.items():
        monkeypatch.setitem(longmemeval.OFFICIAL, name, text_sha256(text))
    return folder


def official_judge(
    trials: Path, folder: Path, script: Callable[[int, dict[str, Any]], Any], *more: str, code: int = 0
) -> Any:
    with ModelServer(script) as server:
        arguments = ("--judge", "gpt-4o-2024-08-06", "--prompts", "official", "--upstream", str(folder))
        only = ("--system", "bm25", "--workers", "1", *more)
        outcome = stage(trials, "judge", *arguments, *only, env=server.environment(), code=code)
    return outcome, server.requests


def test_official_prompts_with_official_parameters_and_rule(answered: Path, official: Path):
    replies = ["Yes.", "No", "No. The response says yesterday, not today.", "correct", "no"]
    _, requests = official_judge(answered, official, lambda number, body: ok(replies[number % 5]))
    assert len(requests) == 10
    for request in requests:
        assert request.body["max_tokens"] == 10
        assert (request.body["temperature"], request.body["n"]) == (0, 1)
        assert "response_format" not in request.body
        (message,) = request.body["messages"]
        assert message["role"] == "user"
    kinds = Counter(request.body["messages"][0]["content"].partition(".")[0] for request in requests)
    assert kinds == {"General": 4, "Temporal": 1, "Update": 2, "Preference": 1, "Abstention": 2}
    (whole,) = numbers(answered, "--system", "bm25", metric="accuracy", part=None)
    assert (whole["value"], whole["loose"], whole["raised"]) == (0.4, 4, 0)
    printed = call_cli("metrics", "--trials", str(answered), "--system", "bm25", env={"COLUMNS": "200"}).out
    assert "4 read otherwise by a strict rule" in printed


def spent_on_reasoning(number: int, body: dict[str, Any]) -> Any:
    """A reasoning model: below 100 tokens it has said nothing yet."""
    if body["max_tokens"] < 100:
        usage = {**USAGE, "completion_tokens": 10, "completion_tokens_details": {"reasoning_tokens": 10}}
        return ok(None, "length", usage=usage)
    return ok("yes")


def test_a_reasoning_judge_is_given_more_room_and_marked(answered: Path, official: Path):
    _, requests = official_judge(answered, official, spent_on_reasoning)
    assert [request.body["max_tokens"] for request in requests] == [10] + [4096] * 10
    verdicts = records(answered, "verdict")
    assert {json.loads(v["body"]["call"]["sent"])["max_tokens"] for v in verdicts} == {4096}
    assert sum(v["body"]["call"].get("wasted_completion_tokens", 0) for v in verdicts) == 10
    (config,) = (c for c in records(answered, "config") if c["body"]["role"] == "judge")
    assert config["body"]["settings"]["parameters"]["max_tokens"] == 10
    (whole,) = numbers(answered, "--system", "bm25", metric="accuracy", part=None)
    assert (whole["value"], whole["raised"]) == (1.0, 10)
    printed = call_cli("metrics", "--trials", str(answered), "--system", "bm25", env={"COLUMNS": "200"}).out
    assert "10 with a larger limit than published" in printed


def test_an_empty_reply_is_a_failure_and_no_verdict(answered: Path, official: Path):
    """Cut off without any reasoning, or empty: nobody said no."""
    script = always(ok(None, "length"))
    outcome, requests = official_judge(answered, official, script, "--limit", "1", code=1)
    assert (outcome["done"], outcome["failed"]) == (0, 1)
    assert {request.body["max_tokens"] for request in requests} == {10}
    assert not records(answered, "verdict")
    (whole,) = numbers(answered, "--system", "bm25", metric="accuracy", part=None)
    assert (whole["value"], whole["low"], whole["high"]) == (None, 0.0, 1.0)
    assert whole["missing"] == {"service": 1, "none": 9}


def test_probes_know_abstention(answered: Path):
    with ModelServer(always(ok('{"score": 1}'))) as server:
        stage(answered, "judge", "--judge", "model-j", "--probe", env=server.environment())
    rates = {rate["kind"]: (rate["n"], rate["of"]) for rate in stage(answered, "metrics")["probes"]}
    assert rates == {"gold": (10, 10), "swapped": (6, 6), "refusal": (8, 8), "empty": (10, 10)}


# --- 500 questions ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many questions of each type as in the published files, answered, with three judges' verdicts.

    `idk` accepts what abstention questions get and nothing else; `counts` is right as often in each type as a published
    row says; `gaps` is `idk` without the first ten.
    """
    folder = tmp_path_factory.mktemp("published")
    trials = folder / "trials.json"
    data = written(folder / "data.json", as_published())
    stage(trials, "build", "longmemeval", "--data", str(data), "--allow-modified")
    for command in (("replay", "none"), ("fetch",), ("answer",)):
        stage(trials, *command)
    right = dict(zip(COUNTS, (70, 48, 30, 125, 125, 77), strict=True))
    given: dict[str, int] = defaultdict(int)

    def by_type(row: dict[str, Any]) -> int:
        type_ = next(t for t in COUNTS if row["task_id"].startswith(f"{t[:3]}{t[-4:]}"))
        given[type_] += 1
        return int(given[type_] <= right[type_])

    def unanswerable(row: dict[str, Any]) -> int:
        return int(row["task_id"].endswith("_abs"))

    for judge, score, skip in (("counts", by_type, 0), ("idk", unanswerable, 0), ("gaps", unanswerable, 10)):
        asked = folder / f"{judge}.jsonl"
        stage(trials, "judge", "--judge", judge, "--export-requests", str(asked))
        rows = [json.loads(line) for line in asked.read_text("utf-8").splitlines()][skip:]
        assert len(rows) == 500 - skip
        replies = [{"custom_id": row["custom_id"], "reply": json.dumps({"score": score(row)})} for row in rows]
        asked.write_text("".join(json.dumps(reply) + "\n" for reply in replies), "utf-8")
        stage(trials, "judge", "--judge", judge, "--import-replies", str(asked))
    return trials


def of_judge(trials: Path, judge: str, *arguments: str) -> dict[str | None, dict[str, Any]]:
    return {n["part"]: n for n in numbers(trials, *arguments, metric="accuracy", judge_name=judge)}


def test_overall_and_task_averaged_accuracy_differ(published: Path):
    """Type accuracies 0.93985, 0.93985, 0.98718, 1, 1, 0.85714 on 133, 133, 78, 30, 70, 56 questions."""
    found = of_judge(published, "counts")
    assert found[None]["value"] == pytest.approx(0.9500, abs=5e-5)
    assert found["types averaged"]["value"] == pytest.approx(0.9540, abs=5e-5)
    assert found["types averaged"]["types"] == 6
    assert (found["answerable"]["of"], found["abstention"]["of"]) == (470, 30)
    by_type = numbers(published, "--by", "type", metric="accuracy", judge_name="counts")
    assert {n["group"]: (n["n"], n["of"]) for n in by_type} == {t: (sum(c), sum(c)) for t, c in COUNTS.items()}


def test_always_declining(published: Path):
    found = of_judge(published, "idk")
    assert found[None]["value"] == 30 / 500
    assert found["types averaged"]["value"] == pytest.approx((6 / 70 + 12 / 133 + 6 / 133 + 6 / 78) / 6)
    assert found["types averaged"]["value"] == pytest.approx(0.0497, abs=5e-5)
    assert (found["abstention"]["value"], found["answerable"]["value"]) == (1.0, 0.0)


def test_missing_verdicts_lower_coverage_and_not_the_denominator(published: Path):
    found = of_judge(published, "gaps")[None]
    assert (found["n"], found["of"], found["value"], found["status"]) == (490, 500, None, "partial")
    assert (found["low"], found["high"]) == pytest.approx((30 / 500, 40 / 500))


def test_judges_never_share_a_number(published: Path):
    found = numbers(published, metric="accuracy", part=None)
    assert sorted((n["judge_name"], n["n"]) for n in found) == [("counts", 500), ("gaps", 490), ("idk", 500)]
    assert len({n["judge"] for n in found}) == 3


def test_a_type_without_questions_is_left_out_of_the_average(published: Path):
    """The official average over six types is NaN then."""
    some = ("--type", "temporal-reasoning", "--type", "knowledge-update")
    found = of_judge(published, "idk", *some)
    assert found["types averaged"]["value"] == pytest.approx((6 / 133 + 6 / 78) / 2)
    assert (found["types averaged"]["types"], found["types averaged"]["subset"]) == (2, True)
    assert "NaN" not in call_cli("metrics", "--trials", str(published), *some, "--json").out


@pytest.mark.parametrize("seed", range(4))
def test_a_small_sample_has_every_type_and_abstention(published: Path, seed: int):
    with Ledger.open(published) as ledger:
        index = LedgerIndex(ledger)
        chosen = choose(index, Selection(sample=50, seed=seed), "unit")
        drawn = [index.task(name, task) for name, task in chosen.tasks]
    strata = Counter((body.queries[0].type, body.gold[0].abstention) for body in drawn)
    assert sum(strata.values()) == 50
    assert len(strata) == 10
    assert strata["multi-session", True] == 1
    assert strata["multi-session", False] == 12


# --- data that isn't right --------------------------------------------------------------------------------------


def test_nothing_is_written_for_bad_data(tmp_path: Path):
    data = written(tmp_path / "data.json", [instance(), instance("q2", question_date="")])
    trials = tmp_path / "results" / "trials.json"
    trials.parent.mkdir()
    arguments = ("build", "longmemeval", "--data", str(data), "--trials", str(trials), "--allow-modified")
    finished = call_cli(*arguments)
    assert finished.code == 2
    assert finished.err == f'memtrials: {data}, item 2 (question_id "q2"): question_date is "", not a date\n'
    assert list(trials.parent.iterdir()) == []


def test_replay_notices_other_data(answered: Path, tmp_path: Path):
    rows = sample()
    turn = rows[0]["haystack_sessions"][1][0]
    turn["content"] = turn["content"][:-1] + "!"
    data = written(tmp_path / "other.json", rows, indent=1, ensure_ascii=False)
    finished = call_cli("replay", "none", "--data", str(data), "--trials", str(answered))
    assert finished.code == 2
    assert "isn't what longmemeval@sample was built from" in finished.err


def test_another_release_is_another_benchmark(answered: Path, tmp_path: Path):
    data = written(tmp_path / "other.json", sample()[:3])
    outcome = stage(answered, "build", "longmemeval", "--data", str(data), "--allow-modified")
    assert outcome["done"] == 3
    names = {record["benchmark"] for record in records(answered, "task")}
    assert len(names) == 2
    assert any(name.startswith("longmemeval@modified-") for name in names)
