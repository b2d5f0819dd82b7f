"""Results in others' forms: MemoryBear's trials, LongMemEval's hypotheses and verdicts, LoCoMo's samples."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support import released
from support.cli import call_cli
from support.released import LOCOMO, QUESTIONS, Row, trial, write
from support.trials import ended, records, stage

CAT, PLANTS, CARS, SWIM = QUESTIONS


def imported(folder: Path, array: list[Row]) -> Path:
    """A ledger that holds a trials array."""
    trials = folder / "ledger.json"
    stage(trials, "import", str(write(folder / "bear_trials.json", array)))
    return trials


def exported(trials: Path, *arguments: str) -> list[Row]:
    """What an export prints, as an array or as lines."""
    out = ended(call_cli("export", *arguments, "--trials", str(trials))).out
    found = json.loads(out) if out.startswith("[") else [json.loads(line) for line in out.splitlines()]
    assert isinstance(found, list)
    return found


def run(trials: Path, benchmark: str, *arguments: str) -> None:
    """All stages with bm25 and the offline reader and judge."""
    ended(call_cli("run", benchmark, "bm25", *arguments, "--quiet", "--trials", str(trials)))


@pytest.fixture(scope="module")
def locomo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger of the LoCoMo sample with bm25's retrievals and the offline reader's answers. Not to be written."""
    trials = tmp_path_factory.mktemp("locomo") / "trials.json"
    run(trials, "locomo", "--data", str(LOCOMO), "--k", "2")
    return trials


# MemoryBear's trials

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
values = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | texts, lambda some: st.lists(some, max_size=2))
labels = st.fixed_dictionaries({"model": texts, "label": st.booleans()}, optional={"extra": values})
responses = st.none() | st.fixed_dictionaries(
    {"code": st.just(0)},
    optional={
        "data": st.fixed_dictionaries(
            {
                "intermediate_outputs": st.lists(
                    st.fixed_dictionaries({"content": texts, "data": st.none()}), max_size=2
                )
            },
            optional={"answer": texts},
        ),
        "time": values,
    },
)


@st.composite
def arrays(draw: st.DrawFn) -> list[Row]:
    """Trials arrays whose optional fields take every form."""
    rows = []
    for number in range(draw(st.integers(1, 5))):
        row = trial(draw(st.sampled_from(QUESTIONS)), number)
        row["end_user_id"] = draw(st.sampled_from(["a", "b"]))
        row["latency_s"] = draw(st.none() | st.floats(0, 100))
        row["read_response"] = draw(responses)
        row["hypothesis"] = draw(st.none() | texts)
        row["reader"] = draw(st.none() | st.fixed_dictionaries({"model": texts}, optional={"extra": values}))
        row["autoeval_label"] = draw(st.none() | labels)
        row |= draw(st.dictionaries(st.sampled_from(["note", "attempt"]), values, max_size=2))
        rows.append(row)
    return rows


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(array=arrays())
def test_a_trials_array_comes_out_as_it_went_in(tmp_path_factory: pytest.TempPathFactory, array: list[Row]):
    models = {row["reader"]["model"] for row in array if row["reader"] and (row["hypothesis"] or "").strip()}
    judges = {row["autoeval_label"]["model"] for row in array if row["autoeval_label"]}
    for row in array:  # one export is about one reader and one judge
        if row["reader"]:
            row["reader"]["model"] = min(models, default="")
        if row["autoeval_label"]:
            row["autoeval_label"]["model"] = min(judges)
    unread = [row for row in array if (row["hypothesis"] or "").strip() and not row["reader"]]
    for row in unread:
        row["reader"] = {"model": min(models, default="")}
    trials = imported(tmp_path_factory.mktemp("trip"), array)
    again = exported(trials, "memorybear-trials")
    assert sorted(again, key=lambda row: row["trial_id"]) == sorted(array, key=lambda row: row["trial_id"])


def test_trials_of_one_question_are_repeats_and_those_of_another_user_another_state(tmp_path: Path):
    array = [trial(CAT, 1, hypothesis="Pixel"), trial(CAT, 2, hypothesis="Dot"), trial(CAT, 3, hypothesis="Pixel")]
    array[2]["end_user_id"] = "another"
    trials = imported(tmp_path, array)
    assert [r["repeat"] for r in records(trials, "ingest")] == [1, 2]
    assert [r["repeat"] for r in records(trials, "retrieval")] == [1, 2, 1]
    assert [r["body"]["context"] for r in records(trials, "retrieval")] == ["Fact 1", "Fact 2", "Fact 3"]


def test_readers_and_judges_keep_the_models_that_the_array_names(tmp_path: Path):
    trials = imported(tmp_path, [trial(CAT, 1, hypothesis="Pixel", label=True)])
    models = {r["body"]["role"]: r["body"]["settings"].get("model") for r in records(trials, "config")}
    assert models == {"system": None, "fetch": None, "reader": "reader-x", "judge": "judge-y-2026"}


def test_the_view_latest_is_the_last_judged_trial_of_each_question(tmp_path: Path):
    """MemoryBear's accuracy: of each question the last trial with a label, in the file's order. The mean is 2 of 3."""
    array = [
        trial(CAT, 1, hypothesis="Dot", label=False),
        trial(PLANTS, 2, hypothesis="3", label=True),
        trial(CAT, 3, hypothesis="Pixel", label=True),
        trial(CAT, 4, hypothesis="Dot"),
        trial(SWIM, 5, hypothesis="never", label=False),
        trial(CARS, 6, hypothesis="not said", label=True),
        trial(CARS, 7, hypothesis="two", label=False),
    ]
    trials = imported(tmp_path, array)

    def accuracy(*arguments: str) -> Any:
        report = stage(trials, "metrics", *arguments)
        return next(n for n in report["numbers"] if n["metric"] == "accuracy" and n["part"] is None), report["view"]

    latest, view = accuracy("--view", "latest")
    assert (latest["value"], latest["n"], view) == (2 / 4, 4, "latest")
    mean, view = accuracy()
    assert (mean["value"], view) == ((0.5 + 1 + 0 + 0.5) / 4, None)
    by_type, _ = accuracy("--view", "latest", "--type", "single-session-user")
    assert by_type["value"] == 1.0
    legacy = exported(trials, "longmemeval-eval-results", "--legacy")
    assert {row["question_id"]: row["autoeval_label"]["label"] for row in legacy} == {
        "u1": True,
        "m1": True,
        "t1": False,
        "m2_abs": False,
    }


def test_trials_that_memtrials_made_itself_take_the_arrays_form(tmp_path: Path):
    trials = tmp_path / "trials.json"
    run(trials, "longmemeval", "--data", str(LOCOMO.parent / "longmemeval"), "--k", "3", "--limit", "2")
    first, second = exported(trials, "memorybear-trials")
    form = trial(CAT, 1)
    assert list(first) == list(form)
    assert first["trial_id"] == f"{first['run_ts']}_{first['question_id']}" != second["trial_id"]
    items = first["read_response"]["data"]["intermediate_outputs"]
    (retrieval,) = (r for r in records(trials, "retrieval") if r["task"] == first["question_id"])
    assert [item["content"] for item in items] == [item["text"] for item in retrieval["body"]["items"]]
    assert first["reader"] == {"model": "offline"}
    (answer,) = (r for r in records(trials, "answer") if r["task"] == first["question_id"])
    assert first["hypothesis"] == answer["body"]["text"]
    (tmp_path / "again").mkdir()
    again = imported(tmp_path / "again", [first, second])
    assert exported(again, "memorybear-trials") == [first, second]


# LongMemEval


def test_hypotheses_are_ids_and_answers(tmp_path: Path):
    array = [trial(CAT, 1, hypothesis="Pixel"), trial(PLANTS, 2, hypothesis="3"), trial(CAT, 3, hypothesis="Dot")]
    trials = imported(tmp_path, array)
    assert exported(trials, "longmemeval-hypotheses") == [
        {"question_id": "u1", "hypothesis": "Pixel"},
        {"question_id": "m1", "hypothesis": "3"},
    ]
    assert exported(trials, "longmemeval-hypotheses", "--trial", "2") == [{"question_id": "u1", "hypothesis": "Dot"}]


def test_verdicts_name_the_judges_model(tmp_path: Path):
    trials = imported(tmp_path, [trial(CAT, 1, hypothesis="Pixel", label=True), trial(PLANTS, 2, hypothesis="3")])
    row = {"question_id": "u1", "hypothesis": "Pixel", "autoeval_label": {"model": "judge-y-2026", "label": True}}
    assert exported(trials, "longmemeval-eval-results") == [row]
    assert exported(trials, "longmemeval-eval-results", "--legacy") == [{**row, "question_type": "single-session-user"}]


def test_results_of_several_systems_or_judges_are_refused_and_listed(tmp_path: Path):
    trials = imported(tmp_path, [trial(CAT, 1, hypothesis="Pixel", label=True)])
    two = trial(CAT, 2, hypothesis="Pixel", label=True)
    two["autoeval_label"]["model"] = "judge-z"
    stage(trials, "import", str(write(tmp_path / "more_trials.json", [trial(CAT, 1, hypothesis="P", label=True), two])))
    refused = ended(call_cli("export", "longmemeval-hypotheses", "--trials", str(trials)), 2).err
    assert "one system, fetch configuration and reader" in refused
    assert refused.count("--system imported-") == 2
    several = ["export", "longmemeval-eval-results", "--legacy", "--system", "imported-more", "--trials", str(trials)]
    assert ended(call_cli(*several), 2).err.count("--judge imported-more-") == 2


# LoCoMo


def test_locomo_results_are_the_datas_rows_with_predictions_and_scores(locomo: Path, tmp_path: Path):
    out = tmp_path / "results.json"
    ended(call_cli("export", "locomo-results", "--model", "mine", "--out", str(out), "--trials", str(locomo)))
    (sample,) = json.loads(out.read_text("utf-8"))
    assert list(sample) == ["sample_id", "qa"]
    answers = {r["query"]: r["body"]["text"] for r in records(locomo, "answer")}
    for position, (row, original) in enumerate(zip(sample["qa"], released.QA, strict=True)):
        assert {name: row[name] for name in original} == original
        assert row["mine_prediction"] == answers[str(position)]
        assert 0.0 <= row["mine_f1"] <= 1.0
        assert all(name.startswith("D") for name in row["mine_prediction_context"])
    statistics = json.loads((tmp_path / "results_stats.json").read_text("utf-8"))["mine"]
    assert statistics["category_counts"] == {"4": 4, "1": 3, "2": 3, "3": 2, "5": 3}
    by_category = statistics["cum_accuracy_by_category"]
    assert sum(by_category.values()) == pytest.approx(sum(row["mine_f1"] for row in sample["qa"]))


def test_locomo_results_need_the_data_they_were_built_from(locomo: Path, tmp_path: Path):
    other = tmp_path / "locomo10.json"
    content = json.loads((LOCOMO / "locomo_sample.json").read_text("utf-8"))
    content[0]["qa"][0]["answer"] = "3 March 2024"
    write(other, content)
    finished = call_cli("export", "locomo-results", "--data", str(other), "--trials", str(locomo))
    assert "not the file this ledger was built from" in ended(finished, 2).err
