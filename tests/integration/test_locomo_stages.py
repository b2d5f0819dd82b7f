"""LoCoMo from data to table through the command line, on the sample: questions as units, judges by name, counts."""

import json
import re
import shutil
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.selection import Selection, parse_shard
from memtrials.selection import choose as chosen_by
from support.cli import call_cli
from support.locomo import FOLDER, renamed, written
from support.model_server import ModelServer, Reply, always, ok
from support.trials import records, stage

DATA = ("locomo", "--data", str(FOLDER))
STAGES = (("build", *DATA), ("replay", "bm25", "full-context"), ("fetch",), ("answer",), ("judge",))
FIFTH = ("12", "13", "14")


@pytest.fixture(scope="module")
def judged_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of the sample with all stages done offline."""
    trials = tmp_path_factory.mktemp("sample") / "trials.json"
    for command in STAGES:
        stage(trials, *command)
    return trials


@pytest.fixture
def judged(judged_once: Path, tmp_path: Path) -> Path:
    """The same, to be written to."""
    shutil.copytree(judged_once.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / "trials.json"


def numbers(trials: Path, *arguments: str, **wanted: Any) -> list[dict[str, Any]]:
    """The numbers of `metrics` that have these values."""
    found = stage(trials, "metrics", *arguments)["numbers"]
    return [n for n in found if all(n[name] == value for name, value in wanted.items())]


def number(trials: Path, *arguments: str, **wanted: Any) -> dict[str, Any]:
    """The one number that has these values."""
    (found,) = numbers(trials, *arguments, **wanted)
    return found


def test_all_stages_offline_and_a_second_run_that_finds_nothing_to_do(judged: Path):
    kinds = Counter(record["kind"] for record in records(judged))
    assert kinds == {"task": 1, "config": 6, "ingest": 2, "retrieval": 30, "answer": 30, "verdict": 24}
    before = judged.read_bytes()
    for command in STAGES:
        assert stage(judged, *command)["appended"] == 0
    assert judged.read_bytes() == before


def test_a_score_over_five_categories_is_never_one_over_four(judged: Path):
    bm25 = {(n["metric"], n["part"]): n for n in numbers(judged, system_name="bm25")}
    assert {name: (n["n"], n["of"]) for name, n in bm25.items() if name[0] in ("official-f1", "gold-contained")} == {
        ("gold-contained", None): (12, 12),
        ("gold-contained", "categories 1-4, averaged over them"): (12, 12),
        ("official-f1", None): (15, 15),
        ("official-f1", "categories 1-4"): (12, 12),
        ("official-f1", "categories 1-4, averaged over them"): (12, 12),
    }
    assert bm25["refusal-official", None]["of"] == bm25["refusal-stated", None]["of"] == 3
    assert (bm25["accuracy", None]["of"], bm25["accuracy", None]["reason"]) == (12, "needs a model judge")
    whole, four = bm25["official-f1", None]["value"], bm25["official-f1", "categories 1-4"]["value"]
    fifth = bm25["refusal-official", None]["value"]
    assert whole == pytest.approx((12 * four + 3 * fifth) / 15)


def test_the_average_over_categories_weighs_each_alike(judged: Path):
    by_type = {
        n["group"]: n["value"] for n in numbers(judged, "--by", "type", system_name="bm25", metric="official-f1")
    }
    assert list(by_type) == ["4-single-hop", "1-multi-hop", "2-temporal", "3-open-domain", "5-adversarial"]
    averaged = number(judged, system_name="bm25", metric="official-f1", part="categories 1-4, averaged over them")
    assert averaged["value"] == pytest.approx(sum(list(by_type.values())[:4]) / 4)
    assert averaged["types"] == 4


def test_every_number_in_the_table_shows_its_n(judged: Path):
    printed = call_cli("metrics", "--trials", str(judged), env={"COLUMNS": "250"}).out
    assert "locomo@sample" in printed
    for text in ("n = 15", "n = 12", "n = 3", "refusal official", "refusal stated", "categories 1-4"):
        assert text in printed
    by_type = call_cli("metrics", "--by", "type", "--trials", str(judged), env={"COLUMNS": "250"}).out
    rows = re.findall(r"bm25  (\d-[a-z-]+)", by_type)
    assert rows[:4] == ["4-single-hop", "1-multi-hop", "2-temporal", "3-open-domain"]
    assert set(rows[4:]) == {"5-adversarial", *rows[:4]}


# --- a question is the unit -------------------------------------------------------------------------------------


def test_sample_limit_shards_and_types_cut_questions(judged: Path):
    with Ledger.open(judged) as ledger:
        index = LedgerIndex(ledger)

        def chosen(cut: Any = "unit", **flags: Any) -> set[str]:
            return {query for _, _, query in chosen_by(index, Selection(**flags), cut).queries}

        everything = {str(n) for n in range(15)}
        assert chosen() == everything
        assert len(chosen(limit=4)) == 4
        sampled = chosen(sample=7, seed=1)
        types = {q.id: q.type for q in index.task("locomo@sample", "conv-1").queries}
        assert len(sampled) == 7
        assert len({types[query] for query in sampled}) == 5
        assert chosen(types=("5-adversarial",)) == set(FIFTH)
        assert chosen(tasks=("conv-1/3",)) == {"3"}
        shards = [chosen(shard=parse_shard(f"{k}/3")) for k in (1, 2, 3)]
        assert all(shards)
        assert sum(map(len, shards)) == 15
        assert set.union(*shards) == everything
        whole = [chosen("task", shard=parse_shard(f"{k}/3")) for k in (1, 2, 3)]  # a conversation is replayed whole
        assert sorted(map(len, whole)) == [0, 0, 15]


def test_replay_takes_the_conversations_that_hold_a_chosen_question(tmp_path: Path):
    trials = tmp_path / "trials.json"
    two = written(tmp_path / "two.json", renamed("conv-1"), renamed("conv-2"))
    stage(trials, "build", "locomo", "--data", str(two), "--allow-modified")
    stage(trials, "replay", "bm25", "--task", "conv-2/3")
    stage(trials, "fetch", "--task", "conv-2/3")
    assert [r["task"] for r in records(trials, "ingest")] == ["conv-2"]
    assert [(r["task"], r["query"]) for r in records(trials, "retrieval")] == [("conv-2", "3")]


def test_every_question_is_answered_from_its_own_conversation(judged: Path):
    contexts: dict[str, set[str]] = defaultdict(set)
    for retrieval in records(judged, "retrieval"):
        if retrieval["system"].startswith("full-context"):
            contexts[retrieval["body"]["context"]].add(retrieval["query"])
    assert [len(queries) for queries in contexts.values()] == [15]


# --- readers ----------------------------------------------------------------------------------------------------


def test_a_reply_is_recorded_as_the_answer_that_is_left_of_it(judged: Path):
    reply = "The dog's name is said twice.\nFinal answer: Biscuit"
    with ModelServer(always(ok(reply))) as server:
        stage(judged, "answer", "--reader", "model-a", "--force", env=server.environment())
    told = [a["body"] for a in records(judged, "answer") if a["reader"].startswith("model-a")]
    assert len(told) == 30
    assert {body["text"] for body in told} == {"Biscuit"}
    assert all("said twice" in body["raw"] for body in told)  # what was really said is kept
    kept = number(
        judged, "--reader", "model-a", "--by", "type", system_name="bm25", metric="official-f1", group="4-single-hop"
    )
    assert kept["value"] == pytest.approx(2 / 4)


def test_a_reply_of_nothing_but_a_label_is_a_failure_and_no_answer(judged: Path):
    with ModelServer(always(ok("Answer:"))) as server:
        done = stage(
            judged, "answer", "--reader", "model-a", "--force", "--task", "conv-1/3", code=1, env=server.environment()
        )
    assert (done["done"], done["failed"]) == (0, 2)
    assert {f["body"]["cause"] for f in records(judged, "failure")} == {"reader"}


def test_a_guided_reader_is_another_reader_and_shown_as_one(judged: Path):
    def by_category(number: int, body: dict[str, Any]) -> Reply:
        told = "No information available." in body["messages"][0]["content"]
        return ok('Short answer: "No information available."' if told else "Biscuit")

    with ModelServer(by_category) as server:
        stage(judged, "answer", "--reader", "model-a", "--profile", "memorybear", "--force", env=server.environment())
        assert {request.body["max_tokens"] for request in server.requests} == {64}
        assert {request.body["temperature"] for request in server.requests} == {0}
    refused = number(judged, "--reader", "model-a", system_name="bm25", metric="refusal-official")
    assert (refused["value"], refused["n"]) == (1.0, 3)
    assert refused["reader_name"] == "model-a, memorybear"
    printed = call_cli("metrics", "--trials", str(judged), env={"COLUMNS": "300"}).out
    assert "model-a, memorybear" in printed
    assert "memorybear in the fifth" in printed


# --- judges -----------------------------------------------------------------------------------------------------


def verdict_of(style: str, *, right: bool) -> str:
    """A verdict in the form that a set of prompts asks for."""
    word = "CORRECT" if right else "WRONG"
    return {
        "default": json.dumps({"score": int(right), "reason": "so"}),
        "mem0": json.dumps({"reason": "so", "label": word}),
        "memorybear": f"They meet in the point, or they don't.\n{word}",
    }[style]


@pytest.mark.parametrize("style", ["default", "mem0", "memorybear"])
def test_judges_by_name_decide_categories_1_to_4_alone(style: str, judged: Path):
    def judge(number: int, body: dict[str, Any]) -> Reply:
        return ok(verdict_of(style, right="Biscuit" in body["messages"][-1]["content"]))

    only = ("--system", "bm25")
    with ModelServer(judge) as server:
        done = stage(judged, "judge", "--judge", "model-j", "--prompts", style, *only, env=server.environment())
        asked = [request.body for request in server.requests]
    assert (done["done"], len(asked)) == (12, 12)
    assert {v["query"] for v in records(judged, "verdict") if v["metric"] == "accuracy"}.isdisjoint(FIFTH)
    scored = number(judged, *only, metric="accuracy", part=None)
    assert (scored["n"], scored["of"], scored["class"]) == (12, 12, "R")  # the offline reader's answers
    assert scored["judge_name"] == ("model-j" if style == "default" else f"model-j, {style}")
    five = number(judged, *only, metric="accuracy", part="categories 1-5, the fifth by refusal-official")
    assert (five["n"], five["of"]) == (15, 15)
    refused = number(judged, *only, metric="refusal-official")
    assert five["value"] == pytest.approx((12 * scored["value"] + 3 * refused["value"]) / 15)


@pytest.mark.parametrize(
    ("style", "reply", "score"),
    [
        ("mem0", '{"label": "INCORRECT"}', 0.0),
        ("mem0", "```json\n{“label”: “WRONG”}\n```", None),
        ("mem0", '{"label": "CORRECT"} or {"label": "WRONG"}', None),
        ("mem0", "", None),
        ("memorybear", "It is correct in part.\nINCORRECT", 0.0),
        ("memorybear", "That is not wrong.\nCorrect", 1.0),
        ("default", '{"verdict": "correct"}', None),
    ],
)
def test_a_verdict_that_cannot_be_read_is_a_failure_and_no_score(
    style: str, reply: str, score: float | None, judged: Path
):
    only = ("--task", "conv-1/8", "--system", "bm25")
    with ModelServer(always(ok(reply))) as server:
        code = 1 if score is None else 0
        stage(judged, "judge", "--judge", "model-j", "--prompts", style, *only, code=code, env=server.environment())
    scores = [v["body"]["score"] for v in records(judged, "verdict") if v["metric"] == "accuracy"]
    assert scores == ([] if score is None else [score])


def test_unlike_judges_share_no_number(judged: Path):
    replies = {"mem0": verdict_of("mem0", right=True), "default": verdict_of("default", right=False)}
    only = ("--system", "bm25")
    for style, reply in replies.items():
        with ModelServer(always(ok(reply))) as server:
            stage(judged, "judge", "--judge", "model-j", "--prompts", style, *only, env=server.environment())
    found = {n["judge_name"]: n["value"] for n in numbers(judged, *only, metric="accuracy", part=None)}
    assert found == {"model-j, mem0": 1.0, "model-j": 0.0}
    printed = call_cli("metrics", "--trials", str(judged), env={"COLUMNS": "300"}).out
    assert "model-j, mem0" in printed


def test_probes_hold_the_trap_of_the_fifth_category(judged: Path):
    """This judge takes whatever is short for right, so it falls for the false answers."""

    def judge(number: int, body: dict[str, Any]) -> Reply:
        answer = body["messages"][1]["content"].partition("answer: <data>\n")[2]
        return ok(json.dumps({"score": int(1 < len(answer.split()) < 8), "reason": "short"}))

    with ModelServer(judge) as server:
        stage(judged, "judge", "--probe", "--judge", "model-j", env=server.environment())
    rates = {rate["kind"]: (rate["n"], rate["of"]) for rate in stage(judged, "metrics")["probes"]}
    assert rates == {"gold": (15, 15), "refusal": (12, 12), "empty": (15, 15), "adversarial": (3, 3)}
    (trap,) = (r for r in stage(judged, "metrics")["probes"] if r["kind"] == "adversarial")
    assert trap["accepted"] == 1.0
