"""`metrics --lexical`, `--context`, `--vocabulary` and `--cost`, from ledgers of the samples to numbers."""

import json
import math
import shutil
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import t as student

from memtrials.errors import not_installed
from memtrials.llm import money
from memtrials.metrics import recipes
from memtrials.settings import evaluation
from memtrials.tokens import count_tokens
from support.cli import call_cli
from support.embedding_server import EmbeddingServer
from support.locomo import FOLDER
from support.longmemeval import sample as instances
from support.model_server import ModelServer, always, ok
from support.released import listed_locomo, write
from support.trials import answer, ended, judge, records, stage

pytestmark = pytest.mark.usefixtures("quick")
SAID = "he lives in Porto"
ROW = {"input": 1000.0, "output": 2000.0}
READ, JUDGED = 100 * 0.001 + 20 * 0.002, 100 * 0.004 + 20 * 0.002
"""Dollars of what the model server says every call took: 100 tokens in, 20 out."""


@pytest.fixture(autouse=True)
def prices(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The rows of `prices.toml`."""
    rows: dict[str, Any] = {"model-a": ROW, "model-j": {**ROW, "input": 4000.0}, "model-e": ROW}
    monkeypatch.setattr(money, "_table", lambda path: rows if path.name == "prices.toml" else {})
    return rows


@pytest.fixture(scope="module")
def read_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ledger of two samples, in which a model says the same of everything."""
    trials = tmp_path_factory.mktemp("read") / "trials.json"
    for name in ("locomo", "longmemeval"):
        stage(trials, "build", name, "--data", str(evaluation() / "samples" / name))
    stage(trials, "replay", "bm25", "none")
    stage(trials, "fetch")
    with ModelServer(always(ok(SAID))) as server:
        answer(server, trials)
    return trials


@pytest.fixture
def read(read_once: Path, tmp_path: Path) -> Path:
    """The same, to be written to."""
    return Path(shutil.copytree(read_once.parent, tmp_path / "read")) / "trials.json"


def numbers(trials: Path, *arguments: str, benchmark: str, system: str = "bm25") -> dict[Any, dict[str, Any]]:
    """The numbers of one system on one benchmark, by metric, or by metric and type where they have one."""
    found = stage(trials, "metrics", "--benchmark", benchmark, *arguments)["numbers"]
    mine = [n for n in found if n["system_name"] == system and not n["part"]]
    named = {n["metric"] if n["group"] is None else (n["metric"], n["group"]): n for n in mine}
    assert len(named) == len(mine)
    return named


def overlap(gold: str) -> float:
    """Token F1 of what was said with a gold answer, for golds whose words are set apart by spaces and final stops."""
    said, wanted = (Counter(w for w in text.lower().split() if w not in ("a", "an", "the")) for text in (SAID, gold))
    shared = (said & wanted).total()
    return 2 * shared / (said.total() + wanted.total())


def plain(text: str) -> str:
    """Without ASCII punctuation."""
    return "".join(c for c in text if c.isalnum() or c.isspace() or ord(c) > 127)


def test_words_are_compared_by_a_recipe_whose_name_the_numbers_bear(read: Path):
    f1 = {item["question_id"]: overlap(plain(str(item["answer"]))) for item in instances()}
    found = numbers(read, "--lexical", "squad", "--lexical", "whitespace", benchmark="longmemeval@sample")
    number = found["squad-f1"]
    assert sum(f1.values()) > 0
    assert number["value"] == pytest.approx(statistics.mean(f1.values()), abs=1e-12)
    assert (number["unit"], number["n"], number["of"], number["class"]) == ("score", 10, 10, "M")
    clusters = Counter({name.removesuffix("_abs"): 0.0 for name in f1})
    for name, value in f1.items():
        clusters[name.removesuffix("_abs")] += value - number["value"]
    half = student.ppf(0.975, 8) * math.sqrt(9 / 8 * sum(off**2 for off in clusters.values())) / 10
    assert number["clusters"] == len(clusters) == 9
    assert number["interval"] == pytest.approx([number["value"] - half, number["value"] + half])
    assert {name.partition("-")[0] for name in found if name.endswith(("-f1", "-bleu4"))} == {"squad", "whitespace"}
    assert "squad-f1" not in numbers(read, benchmark="longmemeval@sample")


def test_each_type_has_its_own_and_one_without_gold_answers_none(read: Path):
    by_type: dict[str, list[float]] = {}
    for item in instances():
        by_type.setdefault(item["question_type"], []).append(overlap(plain(str(item["answer"]))))
    found = numbers(read, "--lexical", "squad", "--by", "type", benchmark="longmemeval@sample")
    assert {place[1]: n["value"] for place, n in found.items() if place[0] == "squad-f1"} == {
        name: pytest.approx(statistics.mean(some)) for name, some in by_type.items()
    }
    found = numbers(read, "--lexical", "squad", "--by", "type", benchmark="locomo@sample")
    assert ("squad-f1", "1-multi-hop") in found
    assert ("squad-f1", "5-adversarial") not in found  # what the release says there is the answer that is wrong


def test_without_gold_answers_or_the_extra_a_number_is_null_and_says_why(
    judged: Path, read: Path, monkeypatch: pytest.MonkeyPatch
):
    number = numbers(judged, "--lexical", "squad", benchmark="inmind@sample")["squad-f1"]
    assert (number["value"], number["n"], number["reason"]) == (None, 0, "there are no gold answers")

    def missing(stemmed: bool) -> Any:
        raise not_installed("rouge-score", "metrics")

    monkeypatch.setattr(recipes, "_rouge_scorer", missing)
    found = numbers(read, "--lexical", "whitespace", benchmark="locomo@sample")
    assert found["whitespace-rouge1_f"]["value"] is None
    assert found["whitespace-rouge1_f"]["reason"].startswith("rouge-score isn't installed: ")
    assert found["whitespace-rouge1_f"]["of"] == found["whitespace-f1"]["n"] == 12
    printed = call_cli("metrics", "--lexical", "whitespace", "--trials", str(read), env={"COLUMNS": "200"}).out
    assert "not measured (whitespace-rouge1_f, whitespace-rouge2_f, whitespace-rougeL_f): rouge-score" in printed


def test_contexts_stand_beside_the_histories_they_are_from(read: Path):
    (conversation,) = json.loads((FOLDER / "locomo_sample.json").read_text("utf-8"))
    sessions = [v for k, v in conversation["conversation"].items() if isinstance(v, list) and k.startswith("session_")]
    lines = [f"{turn['speaker']}: {turn['text']}" for turns in sessions for turn in turns]
    whole = count_tokens("\n".join(lines))
    systems = {r["key"] for r in records(read, "config") if r["body"]["name"] == "bm25"}
    shown = [
        count_tokens(r["body"]["context"])
        for r in records(read, "retrieval")
        if r["system"] in systems and r["benchmark"] == "locomo@sample"
    ]
    assert len(set(shown)) > 2
    found = numbers(read, "--context", benchmark="locomo@sample")
    for name, values in {
        "context-tokens": shown,
        "history-tokens": [whole] * len(shown),
        "context-compression": [whole / tokens for tokens in shown],
        "context-reduction": [1 - tokens / whole for tokens in shown],
    }.items():
        got = [found[f"{name}{which}"]["value"] for which in ("", "-median", "-min", "-max")]
        assert got == pytest.approx([statistics.mean(values), statistics.median(values), min(values), max(values)])
    empty = numbers(read, "--context", benchmark="locomo@sample", system="none")
    assert (empty["context-tokens-max"]["value"], empty["context-reduction"]["value"]) == (0, 1)
    assert empty["context-compression"]["reason"] == "all contexts are empty"


def test_other_vocabularies_stand_in_the_names(read: Path):
    found = numbers(read, "--vocabulary", "cl100k", benchmark="locomo@sample")
    assert found["context-tokens-cl100k"]["value"] > found["context-tokens"]["value"] > 0
    assert "context-tokens-cl100k-median" in found
    assert "history-tokens" not in found


def test_a_history_whose_data_is_gone_is_null(tmp_path: Path):
    data = shutil.copytree(FOLDER, tmp_path / "data")
    trials = tmp_path / "trials.json"
    stage(trials, "build", "locomo", "--data", str(data))
    stage(trials, "replay", "bm25")
    stage(trials, "fetch")
    shutil.rmtree(data)
    found = numbers(trials, "--context", benchmark="locomo@sample")
    for name in ("history-tokens", "context-compression", "context-reduction-min"):
        assert found[name]["value"] is None
        assert str(data) in found[name]["reason"]
    assert found["context-tokens-min"]["value"] > 0


def test_a_right_answer_costs_what_all_cost_over_the_right_ones(read: Path, prices: dict[str, Any]):
    verdicts = iter([1, 0, 0] * 100)

    def deciding(number: int, body: dict[str, Any]) -> Any:
        return ok(json.dumps({"score": next(verdicts), "reason": "as told"}))

    with ModelServer(deciding) as server:
        judge(server, read, "--system", "bm25", "--benchmark", "locomo@sample", "--metric", "accuracy")
    found = numbers(read, "--cost", benchmark="locomo@sample")
    assert found["accuracy"]["value"] == pytest.approx(4 / 12)
    assert found["accuracy-usd"]["value"] == pytest.approx(READ)  # what bm25 does costs nothing
    assert found["accuracy-usd-per-right"]["value"] == pytest.approx(12 * READ / 4)
    assert found["accuracy-judge-usd"]["value"] == pytest.approx(JUDGED)
    assert found["accuracy-usd"]["unit"] == "dollars"
    lost = ("--kind", "answer", "--system", "bm25", "--task", "conv-1/0", "--reason", "for the test")
    copy = Path(shutil.copy(read, read.with_name("copy.json")))
    ended(call_cli("void", *lost, "--trials", str(copy)))
    found = numbers(copy, "--cost", benchmark="locomo@sample")
    assert (found["accuracy"]["n"], found["accuracy"]["of"]) == (11, 12)
    for name in ("accuracy-usd", "accuracy-usd-per-right", "accuracy-judge-usd"):
        assert (found[name]["value"], found[name]["n"], found[name]["of"]) == (None, 0, 12)
        assert found[name]["reason"] == "11 of 12 questions have a verdict; what they cost is told of all"
    shown = call_cli("metrics", "--cost", "--trials", str(copy), env={"COLUMNS": "200"}).out
    mine = "accuracy-usd, accuracy-usd-per-right, accuracy-judge-usd"
    assert f"not measured ({mine}): 11 of 12 questions have a verdict; what they cost is told of all\n" in shown
    del prices["model-a"]
    found = numbers(read, "--cost", benchmark="locomo@sample")
    for name in ("accuracy-usd", "accuracy-usd-per-right"):
        assert (found[name]["value"], found[name]["n"], found[name]["of"]) == (None, 0, 12)
        assert found[name]["reason"] == "no price in prices.toml: model-a"
    assert found["accuracy-judge-usd"]["value"] == pytest.approx(JUDGED)


@pytest.fixture
def embeddings() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server


def test_a_state_is_shared_by_its_queries_and_silence_costs_null(
    tmp_path: Path, embeddings: EmbeddingServer, prices: dict[str, Any]
):
    system, trials = tmp_path / "mine.toml", tmp_path / "trials.json"
    system.write_text('[state]\nsystem = "embedded"\nretriever = "vector"\nembedding = "openai:model-e"\n', "utf-8")
    env = {**embeddings.environment(), "MEMTRIALS_CACHE": str(tmp_path / "cache")}
    stage(trials, "build", "locomo", "--data", str(FOLDER))
    stage(trials, "replay", str(system), env=env)
    turns = len(embeddings.texts)
    stage(trials, "fetch", env=env)
    stage(trials, "answer", env=env)
    stage(trials, "judge", env=env)
    right = sum(r["body"]["score"] for r in records(trials, "verdict"))
    assert right > 0
    found = numbers(trials, "--cost", benchmark="locomo@sample", system="mine")
    each = (turns / 15 + 1) * 10 * 0.001  # the server says 10 tokens a text; 15 questions share the state
    assert found["gold-contained-usd"]["value"] == pytest.approx(each)
    assert found["gold-contained-usd-per-right"]["value"] == pytest.approx(12 * each / right)
    assert found["gold-contained-judge-usd"]["value"] == 0  # a rule decides
    del prices["model-e"]
    found = numbers(trials, "--cost", benchmark="locomo@sample", system="mine")
    assert found["gold-contained-usd-per-right"]["reason"] == "no price in prices.toml: model-e"


def test_a_first_answer_that_failed_costs_nobody_knows_what(tmp_path: Path):
    trials = tmp_path / "trials.json"
    stage(trials, "build", "locomo", "--data", str(FOLDER))
    for command in (("replay", "bm25"), ("fetch",), ("answer", "--repeat", "2"), ("judge",)):
        stage(trials, *command)
    first = next(r["id"] for r in records(trials, "answer") if r["repeat"] == 1)
    ended(call_cli("void", first, "--reason", "for the test", "--trials", str(trials)))
    found = numbers(trials, "--cost", benchmark="locomo@sample")
    assert found["gold-contained"]["n"] == 12, "its second answer counts"
    assert found["gold-contained-usd"]["reason"] == (
        "a mean needs what every question took; unknown: 1 of 12 (no answer)"
    )


def test_latencies_say_how_much_of_them_is_the_harness_own(read: Path):
    notes = stage(read, "metrics", "--benchmark", "locomo@sample")["notes"]
    took = [
        r["body"]["effort"]["seconds"]
        for r in records(read, "retrieval")
        if r["system"] in {c["key"] for c in records(read, "config") if c["body"]["name"] == "none"}
        and r["benchmark"] == "locomo@sample"
    ]
    said = f"{statistics.median(took) * 1000:.2f} ms of a retrieval are the harness' own (median of none, n = 15)"
    assert f"locomo@sample: {said}" in notes


def test_what_an_imported_system_took_is_unknown_and_not_zero(read: Path, tmp_path: Path):
    ended(call_cli("import", str(write(tmp_path / "theirs.json", listed_locomo())), "--trials", str(read)))
    found = numbers(read, "--cost", benchmark="locomo@sample", system="imported-theirs")
    for name in ("accuracy-usd", "accuracy-usd-per-right"):
        assert found[name]["value"] is None
        unknown = "12 of 12 (the reader) and 12 of 12 (the system)"
        assert found[name]["reason"] == f"a mean needs what every question took; unknown: {unknown}"
