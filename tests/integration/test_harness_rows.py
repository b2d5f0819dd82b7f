"""Runs in a retrieval harness' shapes: rows, header, report, and the official forms made of rows."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from memtrials.errors import UserError
from memtrials.exchange.harness import locomo_row, retrieval_log
from memtrials.settings import evaluation
from support import longmemeval
from support.cli import Finished, call_cli
from support.released import LOCOMO, listed_locomo, listed_locomo_memories, write
from support.trials import ended, files, records, stage

LONGMEMEVAL = evaluation() / "samples" / "longmemeval"
FILES = {"results.jsonl", "header.json", "report.json"}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with LongMemEval's and LoCoMo's samples on two systems. Not to be written."""
    ledger = tmp_path_factory.mktemp("rows") / "trials.json"
    for benchmark, data in (("longmemeval", LONGMEMEVAL), ("locomo", LOCOMO)):
        for command in (("build", benchmark, "--data", str(data)), ("replay", "bm25", "full-context"), ("fetch",)):
            ended(call_cli(*command, "--quiet", "--trials", str(ledger)))
    ended(call_cli("answer", "--benchmark", "locomo", "--quiet", "--trials", str(ledger)))
    return ledger


def export(trials: Path, out: Path, *arguments: str) -> Finished:
    return call_cli("export", "rows", "--trials", str(trials), "--out", str(out), *arguments)


def rows_of(trials: Path, out: Path, *arguments: str) -> list[dict[str, Any]]:
    """The rows of a run that is named `run`."""
    ended(export(trials, out, "--run-id", "run", *arguments))
    return [json.loads(line) for line in (out / "run" / "results.jsonl").read_text("utf-8").splitlines()]


def read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def test_the_runs_name_is_the_ledgers_and_its_hash(trials: Path, tmp_path: Path):
    ended(export(trials, tmp_path, "--benchmark", "locomo", "--system", "bm25"))
    name = f"trials-{hashlib.sha256(trials.read_bytes()).hexdigest()[:8]}"
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert {path.name for path in (tmp_path / name).iterdir()} == FILES
    assert read(tmp_path / name / "header.json")["run_id"] == name


def test_a_ledger_gives_the_same_bytes_again_wherever_it_lies(trials: Path, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere" / "trials.json"
    elsewhere.parent.mkdir()
    shutil.copy(trials, elsewhere)
    for benchmark in ("longmemeval", "locomo"):
        for out, ledger in (("a", trials), ("b", elsewhere)):
            ended(export(ledger, tmp_path / out, "--benchmark", benchmark, "--system", "bm25", "--run-id", benchmark))
    assert files(tmp_path / "a") == files(tmp_path / "b")
    assert len(files(tmp_path / "a")) == 2 * (1 + len(FILES))


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: path.symlink_to("nowhere")])
def test_what_is_there_stays_as_it_is(trials: Path, tmp_path: Path, make: Any):
    make(tmp_path / "run")
    refused = export(trials, tmp_path, "--benchmark", "locomo", "--system", "bm25", "--run-id", "run")
    assert refused.code == 2
    assert "is there already" in refused.err
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert not (tmp_path / "run").is_dir() or list((tmp_path / "run").iterdir()) == []


def test_a_run_that_fails_leaves_nothing(trials: Path, tmp_path: Path):
    gone = tmp_path / "gone.json"
    arguments = ("--benchmark", "longmemeval", "--system", "bm25", "--data", str(gone))
    refused = export(trials, tmp_path / "out", *arguments)
    assert refused.code == 2
    assert "--data" in refused.err
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "c:d"])
def test_a_name_is_one_part_of_a_path(trials: Path, tmp_path: Path, name: str):
    refused = export(trials, tmp_path, "--benchmark", "locomo", "--system", "bm25", "--run-id", name)
    assert refused.code == 2
    assert "can't name a run" in refused.err


def test_several_benchmarks_or_systems_are_refused(trials: Path, tmp_path: Path, judged: Path):
    assert "--benchmark" in export(trials, tmp_path).err
    refused = export(trials, tmp_path, "--benchmark", "locomo")
    assert refused.code == 2
    assert refused.err.count("--system") == 2
    assert "knows no inmind" in export(judged, tmp_path, "--system", "bm25").err


def test_questions_without_a_trial_are_refused_unless_told(trials: Path, tmp_path: Path):
    chosen = ("--benchmark", "locomo", "--system", "bm25")
    part = tmp_path / "trials.json"
    ended(call_cli("build", "locomo", "--data", str(LOCOMO), "--trials", str(part)))
    for command in ("replay", "bm25"), ("fetch", "--task", "conv-1/3"):
        ended(call_cli(*command, "--quiet", "--trials", str(part)))
    assert "14 of 15 questions have no trial 1" in export(part, tmp_path, *chosen).err
    (row,) = rows_of(part, tmp_path, *chosen, "--allow-partial")
    assert row["question_id"] == "conv-1:qa:4"


def test_rows_of_longmemeval(trials: Path, tmp_path: Path):
    rows = rows_of(trials, tmp_path, "--benchmark", "longmemeval", "--system", "bm25")
    data = {item["question_id"]: item for item in longmemeval.sample()}
    assert [row["question_id"] for row in rows] == list(data)
    for row in rows:
        item = data[row["question_id"]]
        assert set(row["gold_episode_ids"]) == set(item["answer_session_ids"])
        said = [f"{t['role']}: {t['content']}" for session in item["haystack_sessions"] for t in session]
        assert row["context"]["full_history_chars"] == len("\n".join(said))
        names = [one["external_id"] for one in row["retrieved"]]
        assert len(set(names)) == len(names) == row["metrics"]["num_retrieved_items"]
        for one in row["retrieved"]:
            assert one["kind"] == "observation"
            assert one["external_id"].startswith(f"{one['episode_external_id']}:turn:")
            session = one["episode_external_id"].partition("#")[0]
            turns = item["haystack_sessions"][item["haystack_session_ids"].index(session)]
            assert turns[int(one["external_id"].rpartition(":")[2]) - 1]["content"] == one["text"]
    first = rows[0]
    assert first["gold_observation_ids"] == ["answer_6f20c1d8:turn:1"]
    assert {"5c1de0b4:turn:1", "5c1de0b4#2:turn:1"} <= {one["external_id"] for one in first["retrieved"]}
    assert first["retrieved"][0]["external_id"] == first["gold_observation_ids"][0]
    assert first["metrics"]["turn_mrr@5"] == first["metrics"]["session_recall_all@1"] == 1.0


def test_rows_of_locomo(trials: Path, tmp_path: Path):
    rows = rows_of(trials, tmp_path, "--benchmark", "locomo", "--system", "bm25")
    (sample,) = json.loads((LOCOMO / "locomo_sample.json").read_text("utf-8"))
    turns = {t["dia_id"]: t["text"] for key, v in sample["conversation"].items() if isinstance(v, list) for t in v}
    assert [row["question_id"] for row in rows] == [f"conv-1:qa:{n}" for n in range(1, 16)]
    for row, asked in zip(rows, sample["qa"], strict=True):
        assert row["question_type"] == str(asked["category"])
        assert row["gold_observation_ids"] == asked["evidence"]
        numbers = {name.partition(":")[0][1:] for name in asked["evidence"] if name in turns}
        assert row["gold_episode_ids"] == sorted(f"session_{number}" for number in numbers)
        for one in row["retrieved"]:
            assert one["text"].startswith(turns[one["external_id"]])
            assert one["episode_external_id"] == f"session_{one['external_id'].partition(':')[0][1:]}"
    first = rows[0]
    assert first["retrieved"][0]["external_id"] == "D1:2"
    expected = {"dialog_recall_any@5": 1.0, "dialog_mrr@5": 1.0, "session_mrr@1": 1.0}
    assert {key: first["metrics"][key] for key in expected} == expected


def test_the_report_folds_the_rows(trials: Path, tmp_path: Path):
    rows = rows_of(trials, tmp_path, "--benchmark", "locomo", "--system", "bm25")
    report = read(tmp_path / "run" / "report.json")
    assert report["num_questions"] == 15
    assert report["registry_coverage"]["required_metrics_total"] == 62
    assert report["registry_coverage"]["missing_required_metrics"] == []
    values = sorted(v for row in rows if (v := row["metrics"]["dialog_ndcg@5"]) is not None)
    assert len(values) < 15  # a question without evidence has none
    support = report["metric_support"]["dialog_ndcg@5"]
    assert (support["rows_present"], support["numeric_rows"]) == (15, len(values))
    assert report["metrics"]["dialog_ndcg@5"]["mean"] == pytest.approx(sum(values) / len(values))
    assert report["metrics"]["dialog_ndcg@5"]["p50"] == values[int((len(values) - 1) / 2 + 0.5)]
    latencies = sorted(row["latency_ms"] for row in rows)
    assert report["latency"]["latency_ms"]["p95"] == latencies[13]  # 0.95 · 14 = 13.3
    assert report["metrics"]["qa_f1"] == {"mean": None, "median": None, "p50": None, "p95": None}
    assert all(list(row["metrics"]) == sorted(row["metrics"]) for row in rows)


def test_the_reports_means_are_those_of_metrics(trials: Path, tmp_path: Path):
    rows_of(trials, tmp_path, "--benchmark", "locomo", "--system", "bm25")
    means = {key: found["mean"] for key, found in read(tmp_path / "run" / "report.json")["metrics"].items()}
    arguments = ("metrics", "--benchmark", "locomo", "--system", "bm25", "--json", "--trials", str(trials))
    numbers = {n["metric"]: n["value"] for n in json.loads(ended(call_cli(*arguments)).out)["numbers"]}
    shared = {key: numbers[name] for key in means if "@" in key and (name := key.replace("_", "-")) in numbers}
    assert len(shared) >= 30
    assert {key: means[key] for key in shared} == pytest.approx(shared)
    assert means["retrieved_context_tokens"] == pytest.approx(numbers["context-tokens"])


def test_a_system_without_evidence_ids_has_nulls_and_not_zeros(trials: Path, tmp_path: Path):
    rows = rows_of(trials, tmp_path, "--benchmark", "locomo", "--system", "full-context")
    report = read(tmp_path / "run" / "report.json")
    assert {row["metrics"]["dialog_recall_any@5"] for row in rows} == {None}
    assert {row["composition"]["total_items"] for row in rows} == {None}
    assert all(row["context"]["retrieved_context_tokens"] > 0 for row in rows)
    assert report["metric_support"]["session_mrr@10"]["unsupported"] is True
    assert report["registry_coverage"]["missing_required_metrics"] == []


def test_the_header_says_what_was_run(trials: Path, tmp_path: Path):
    rows_of(trials, tmp_path, "--benchmark", "longmemeval", "--system", "bm25")
    header = read(tmp_path / "run" / "header.json")
    assert header["dataset_kind"] == "long_mem_eval_s"
    assert header["input_sha256"] == hashlib.sha256(next(LONGMEMEVAL.glob("*.json")).read_bytes()).hexdigest()
    assert header["embedding_bindings"] == {header["dataset"]: {"kind": "bm25"}}
    assert header["adapter"] == {"adapter": "bm25", "mode": "lexical"}
    assert header["config_sha256"] == hashlib.sha256(header["config"].encode()).hexdigest()
    config = json.loads(header["config"])
    (retrieval, *_) = [r for r in records(trials, "retrieval") if r["system"].startswith("bm25")]
    assert (config["system"]["id"], config["fetch"]["id"]) == (retrieval["system"], retrieval["fetch"])
    assert config["fetch"]["settings"]["k"] == 10
    mine = [r for r in records(trials, "retrieval") if r["benchmark"].startswith("longmemeval")]
    newest = max(r["at"] for r in mine if r["system"] == retrieval["system"])
    assert header["generated_at"] == f"{newest.partition('.')[0]}Z"
    assert header["harness_commit"].startswith("unknown")


def test_imported_results_lack_what_a_row_needs(tmp_path: Path):
    trials = tmp_path / "trials.json"
    ended(call_cli("build", "locomo", "--data", str(LOCOMO), "--trials", str(trials)))
    judged, memories = (
        write(tmp_path / f"mem_{n}.json", c()) for n, c in enumerate((listed_locomo, listed_locomo_memories))
    )
    stage(trials, "import", str(judged))
    assert "nobody knows its context" in export(trials, tmp_path, "--benchmark", "locomo").err
    other = tmp_path / "other.json"
    ended(call_cli("build", "locomo", "--data", str(LOCOMO), "--trials", str(other)))
    stage(other, "import", str(judged), str(memories))
    assert "nobody timed it" in export(other, tmp_path, "--benchmark", "locomo").err


def test_longmemevals_retrieval_log_is_its_rows_items(trials: Path, tmp_path: Path):
    rows = rows_of(trials, tmp_path, "--benchmark", "longmemeval", "--system", "bm25")
    arguments = ("export", "longmemeval-retrieval", "--system", "bm25", "--trials", str(trials))
    log = [json.loads(line) for line in ended(call_cli(*arguments)).out.splitlines()]
    assert log == [retrieval_log(row) for row in rows]
    assert list(log[0]) == ["question_id", "question", "question_type", "retrieval_results"]
    item = log[0]["retrieval_results"]["ranked_items"][0]
    assert list(item) == ["rank", "kind", "external_id", "episode_external_id", "score", "text"]


def test_locomos_retrieval_has_answers_where_there_are_some(trials: Path, tmp_path: Path):
    arguments = ("export", "locomo-retrieval", "--trials", str(trials), "--system")
    found = [json.loads(line) for line in ended(call_cli(*arguments, "bm25")).out.splitlines()]
    said = {r["query"]: r["body"]["text"] for r in records(trials, "answer") if r["system"].startswith("bm25")}
    assert [one["hypothesis"] for one in found] == [said[str(n)] for n in range(15)]
    first = found[0]
    assert (first["sample_id"], first["qa_index"], first["category"], first["answer"]) == ("conv-1", 1, "2", None)
    assert first["retrieved_dialog_ids"][0] == "D1:2"
    assert first["retrieved_session_ids"][0] == "session_1"
    assert len(set(first["retrieved_session_ids"])) == len(first["retrieved_session_ids"])
    assert first["prediction"] == first["hypothesis"]
    assert first["context"] == first["context_text"]


def test_a_question_that_nobody_answered_has_a_null():
    row = {"question_id": "a:qa:b:qa:3", "question_type": "1", "question": "?", "context_text": "", "retrieved": []}
    assert locomo_row(row, None)["hypothesis"] is None
    assert (locomo_row(row, None)["sample_id"], locomo_row(row, None)["qa_index"]) == ("a:qa:b", 3)


@pytest.mark.parametrize("name", ["a", ":qa:1", "a:qa:", "a:qa:x", "a:qa:-1"])
def test_locomo_needs_ids_of_its_form(name: str):
    with pytest.raises(UserError, match="SAMPLE:qa:NUMBER"):
        locomo_row(
            {"question_id": name, "question_type": "1", "question": "?", "context_text": "", "retrieved": []}, None
        )
