"""What is made of continuity's records: numbers with reasons for nulls, traces and reports, comparisons, seals.

The catalogue is replayed on the substrate, with the vectors that its scripts declare, and on BM25, which can be told of
13 of the 17 lives: the others are corrected, forgotten, linked or restarted.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memtrials import benchmarks, settings, systems
from memtrials.benchmarks.base import Trial
from memtrials.benchmarks.continuity.scoring import REQUIRED, RESTARTS, SHOWN, explained
from memtrials.exchange.traces import restarts
from memtrials.metrics.rows import CHECKED_KEYS, NEVER_KEYS
from memtrials.metrics.traces import outcomes, traced
from memtrials.records import Item, Memory, Restarted
from support import notebook
from support.cli import call_cli
from support.lives import fixture, trials_of
from support.trials import edited, ended, files, records, stage

Row = dict[str, Any]
SUBSTRATE = "substrate-declared"
CANNOT = {
    "combined-life": ("it can't correct or link", 3),
    "correction-chains": ("it can't correct or forget", 1),
    "cross-store-stress": ("it can't link or restart", 1),
    "entrenched-correction": ("it can't correct or link", 3),
}


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both systems' lives. Not to be written."""
    ledger = tmp_path_factory.mktemp("lives") / "trials.json"
    stage(ledger, "build", "continuity")
    stage(ledger, "replay", SUBSTRATE, "bm25")
    return ledger


@pytest.fixture(scope="module")
def folder(trials: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The substrate's run, exported."""
    out = tmp_path_factory.mktemp("runs")
    ended(export(trials, out))
    return out / "run"


def export(trials: Path, out: Path, *arguments: str, system: str = SUBSTRATE) -> Any:
    where = ("--out", str(out), "--run-id", "run", "--system", system)
    return call_cli("export", "rows", "--trials", str(trials), *where, *arguments)


def rows(folder: Path) -> list[Row]:
    return [json.loads(line) for line in (folder / "traces.jsonl").read_text("utf-8").splitlines()]


def row(folder: Path, query: str) -> Row:
    return next(one for one in rows(folder) if one["question_id"] == query)


def report(folder: Path) -> Row:
    found = json.loads((folder / "report.json").read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def values(trials: Path, *arguments: str) -> list[Row]:
    return [n for n in stage(trials, "metrics", *arguments)["numbers"] if n["unit"] == "value"]


# --- numbers ---


def test_every_value_counts_all_queries_and_says_why_some_have_none(trials: Path):
    found = values(trials)
    assert {n["system_name"] for n in found} == {SUBSTRATE, "bm25"}
    assert [n["metric"] for n in found] == [*REQUIRED, *RESTARTS] * 2
    for number in found:
        assert number["of"] == 25
        assert number["n"] + sum(number["missing"].values()) == 25, number["metric"]
        assert (number["value"] is None) == (number["n"] == 0) == (number["p50"] is None) == (number["p95"] is None)
        assert bool(number["reason"]) == (number["n"] == 0)


def test_what_a_system_cannot_be_told_of_is_null_and_coverage_says_so(trials: Path):
    told = {n["metric"]: n for n in values(trials, "--system", "bm25")}
    reduction = told["context_reduction_rate"]
    assert (reduction["n"], reduction["coverage"]) == (17, 17 / 25)
    assert reduction["missing"] == {
        "it can't correct or link": 6,
        "it can't correct or forget": 1,
        "it can't link or restart": 1,
    }
    for name in (*CHECKED_KEYS, "typed_rationale_coverage", "rationale_category_share_semantic"):
        assert told[name]["value"] is None
        assert "the system gives no trace" in told[name]["missing"]
    for name in NEVER_KEYS:
        assert told[name]["missing"]["nothing is measured here but retrieval"] == 17
    assert told["correction_lifecycle_safe_admission_rate"]["value"] is None
    assert told["sampled_event_pollution_rate"]["n"] > 0


def test_there_are_no_intervals_and_no_tests(trials: Path):
    found = stage(trials, "metrics", "--primary", "sampled_event_pollution_rate")
    assert {n["interval"] for n in found["numbers"]} == {None}
    assert {n["class"] for n in found["numbers"]} == {None}
    assert found["differences"] == []
    assert any("no sample" in note for note in found["notes"])
    compared = stage_compare(str(trials), str(trials))
    assert all(pair["differences"] == [] for pair in compared["pairs"])


def test_values_by_task_and_by_pattern(trials: Path):
    by_task = values(trials, "--by", "task", "--metric", "context_reduction_rate")
    tasks = {r["task"] for r in records(trials, "task")}
    for system in (SUBSTRATE, "bm25"):
        mine = {n["group"]: n for n in by_task if n["system_name"] == system}
        assert set(mine) == tasks
        null = {name: (n["reason"], n["of"]) for name, n in mine.items() if n["value"] is None}
        assert null == (CANNOT if system == "bm25" else {})
    by_type = values(trials, "--by", "type", "--metric", "context_reduction_rate", "--system", SUBSTRATE)
    assert len(by_type) == 17
    assert sum(n["of"] for n in by_type) == 25


def test_a_named_value_comes_alone_and_an_unknown_one_is_refused(trials: Path):
    found = stage(trials, "metrics", "--metric", "hub_context_share")["numbers"]
    assert {n["metric"] for n in found} == {"hub_context_share"}
    assert call_cli("metrics", "--trials", str(trials), "--metric", "hub_context_shares").code == 2


def test_systems_with_limits_of_their_own_stand_in_no_table_of_a_k(trials: Path):
    titles = [
        line for line in call_cli("metrics", "--trials", str(trials)).out.splitlines() if "values of whole" in line
    ]
    (asked,) = {r["fetch"] for r in records(trials) if r["kind"] == "retrieval" and "substrate" in r["system"]}
    assert [title.split(":")[0].split("  ")[1] for title in titles] == [f"asked as {asked}", "k = 10, order = rank"]


def test_the_table_shows_what_matters_and_where_the_rest_is(trials: Path):
    shown = ended(call_cli("metrics", "--trials", str(trials), env={"COLUMNS": "160"})).out
    assert set(SHOWN) < {*REQUIRED, *RESTARTS}
    assert all(name in shown for name in SHOWN)
    assert "hub_context_share" not in shown
    assert f"{len(REQUIRED) + len(RESTARTS) - len(SHOWN)} more values" in shown
    split = ended(call_cli("metrics", "--trials", str(trials), "--by", "task", env={"COLUMNS": "160"})).out
    assert "bm25  cross-store-stress, no value: it can't link or restart" in split


@pytest.mark.parametrize("system", [SUBSTRATE, "bm25"])
def test_every_null_of_every_trial_has_a_reason_of_its_own(trials: Path, system: str):
    for trial in trials_of(trials, system):
        found = explained(trial)
        assert tuple(found) == (*REQUIRED, *RESTARTS)
        told = {name: value for name, value in found.items() if isinstance(value, str)}
        assert all(told.values())
        if trial.task.gold_of(trial.query).abstention:
            assert told["hub_context_share"] == "of an abstention only pollution is measured"


def test_what_vectors_alone_find_is_not_checked(trials: Path):
    trial = next(t for t in trials_of(trials, SUBSTRATE))
    by_vectors = explained(Trial(**{**vars(trial), "fetch": {"mode": "vector_only"}}))
    whole = explained(trial)
    apart = {name for name in REQUIRED if by_vectors[name] != whole[name]}
    assert apart == set(CHECKED_KEYS)
    assert {by_vectors[name] for name in CHECKED_KEYS} == {"what vectors alone find isn't checked"}


def test_items_that_say_nothing_of_themselves_measure_nothing(trials: Path):
    trial = next(t for t in trials_of(trials, SUBSTRATE))
    unknown = explained(Trial(**{**vars(trial), "items": (Item(rank=1, text="Something."),)}))
    known = {name for name, value in unknown.items() if not isinstance(value, str)}
    assert known == {
        "retrieved_context_tokens",
        "full_history_tokens",
        "context_compression_ratio",
        "context_reduction_rate",
    }
    assert unknown["sampled_event_pollution_rate"] == "the system doesn't say what it brought back"


# --- what a search says of itself ---


def test_a_trace_is_what_all_searches_say_together():
    def search(name: str, verified: int, **more: Any) -> Row:
        trace: Row = {
            "section_assignments": [{"object": {"internal_id": name}, "rationale_categories": ["semantic"]}],
            "lifecycle_filter_decisions": [
                {"object": {"internal_id": f"{name}-old"}, "action": "omit", "reason": "superseded"},
                {"object": {"internal_id": f"{name}-gone"}, "action": "omit", "reason": "deleted"},
                {"object": {"internal_id": name}, "action": "admit", "reason": None},
            ],
            "stale_candidate_omissions": [
                {"candidate": {"internal_id": f"{name}-lost"}, "vector_score": 0.5, "reason": "missing_object"},
                {"candidate": {"internal_id": f"{name}-old"}, "vector_score": 0.5, "reason": "superseded"},
            ],
        }
        counted = {"graph_relation_count": 1, "graph_verified_count": verified, "summary": "as it is"}
        return {"pack": {}, "rationale": counted, "trace": trace, **more}

    found = traced(outcomes(json.dumps([search("a", 2), search("b", 3)])))
    assert found is not None
    assert found.categories == {"a": {"semantic"}, "b": {"semantic"}}
    assert (found.superseded, found.suppressed) == ({"a-old", "b-old"}, {"a-gone", "b-gone"})
    assert (found.missing, found.verified) == ({"a-lost", "b-lost"}, 5)
    assert traced(outcomes(json.dumps([search("a", 2, trace=None)]))) is None


@pytest.mark.parametrize("raw", [None, "", "words", "{}", '{"memories": []}', '[{"id": 1}]', "[]"])
def test_what_is_no_report_of_a_search_is_no_trace(raw: str | None):
    assert traced(outcomes(raw)) is None


# --- traces and reports ---


def test_a_row_of_a_corrected_and_forgotten_memory(folder: Path):
    found = row(folder, "ask-drain")
    assert list(found)[-7:] == [
        "fixture_id",
        "namespace",
        "event_id",
        "timestamp",
        "expected",
        "history_text",
        "restart_observations",
    ]
    assert (found["run_id"], found["question_type"], found["fixture_id"]) == (
        "run",
        "correction_chains",
        "correction-chains",
    )
    assert found["gold_episode_ids"] == found["gold_observation_ids"] == found["restart_observations"] == []
    assert found["expected"] == {
        "relevant_external_ids": ["drain-v3"],
        "irrelevant_external_ids": ["drain-v1", "drain-v2"],
    }
    assert [line.split("|")[1] for line in found["history_text"].split("\n")] == [
        "remember",
        "correct",
        "correct",
        "forget",
    ]
    assert found["timestamp"].endswith("Z")
    assert isinstance(found["latency_ms"], int)
    (item,) = found["retrieved"]
    assert (item["kind"], item["external_id"], item["episode_external_id"]) == (
        "derived_memory",
        "drain-v3",
        "drain-v1",
    )
    assert found["context_text"].startswith("[derived_memory:drain-v3 rank=1] ")
    operations = [one["operation_id"].partition(":")[0] for one in found["lifecycle_outcomes"]]
    assert operations == ["correct", "correct", "forget"]
    assert found["link_outcomes"] == []
    assert len(found["write_outcomes"]) == 3  # who is known, the memory, and what was concluded
    assert {"pack", "rationale", "trace"} <= set(found["retrieval_outcomes"][0])
    metrics = found["metrics"]
    assert list(metrics) == sorted(metrics)
    assert (metrics["continuity_gap_days"], metrics["continuity_recall_fraction_gap_short@5"]) == (5.0, 1.0)
    assert (metrics["supersession_replacement_recall"], metrics["sampled_event_pollution_rate"]) == (1.0, 0.0)
    assert metrics["correction_lifecycle_safe_admission_rate"] == 1.0
    assert found["composition"]["derived_memories"] == found["composition"]["total_items"] == 1
    assert len(found["integrity"]) == 10
    assert found["context"]["full_history_tokens"] == metrics["full_history_tokens"]


def test_rows_hold_all_that_was_done_up_to_their_query(folder: Path):
    early, between, late = (row(folder, f"ask-depth-{when}") for when in ("early", "between", "late"))
    for before, after in ((early, between), (between, late)):
        assert after["history_text"].startswith(f"{before['history_text']}\n")
        for name in ("write_outcomes", "link_outcomes", "lifecycle_outcomes"):
            ids = [one["operation_id"] for one in after[name]]
            assert ids == sorted(ids)
            assert {one["operation_id"] for one in before[name]} <= set(ids)
    assert [len(one["lifecycle_outcomes"]) for one in (early, between, late)] == [0, 0, 1]
    assert [len(one["link_outcomes"]) for one in (early, between, late)] == [3, 3, 3]


def test_rows_stand_in_the_order_in_which_queries_were_asked(trials: Path, folder: Path):
    mine = [r for r in records(trials, "retrieval") if r["system"].startswith(SUBSTRATE)]
    assert [(one["fixture_id"], one["question_id"]) for one in rows(folder)] == [(r["task"], r["query"]) for r in mine]


def test_a_restart_is_observed_by_the_query_after_it(trials: Path, folder: Path):
    observed = {one["question_id"]: one["restart_observations"] for one in rows(folder) if one["restart_observations"]}
    ((query, (found,)),) = observed.items()
    assert found["probe_query_id"] == query
    assert found["before_restart"] == found["after_restart"]
    assert found["lifecycle"]["namespace"] == row(folder, query)["namespace"]
    assert found["lifecycle"]["restored_identity_count"] > 0
    assert found["before_restart"]["graph_relation_count"] > 0
    assert found["delta"].pop("stable_returned_objects") is True
    assert set(found["delta"].values()) == {0}
    told = {n["metric"]: (n["value"], n["n"]) for n in values(trials, "--system", SUBSTRATE)}
    assert [told[name] for name in RESTARTS] == [(0.0, 1), (1.0, 1), (0.0, 1)]


def test_a_restart_that_brings_something_back(trials: Path):
    def item(rank: int, name: str) -> Item:
        return Item(rank=rank, text=name, memory=Memory(kind="episode", internal_id=name, external_id=name))

    trial = next(t for t in trials_of(trials, SUBSTRATE) if t.ingest.restarts)
    gold = trial.task.gold_of(trial.query)
    expected = json.dumps({"relevant": ["a", "b"], "irrelevant": []})
    other = msgspec.structs.replace(gold, details={**gold.details, "expected": expected})
    task = msgspec.structs.replace(trial.task, gold=tuple(other if g is gold else g for g in trial.task.gold))
    was = trial.ingest.restarts[0]
    restart = Restarted(was.step, was.query, 4, (item(1, "a"),), (item(1, "b"), item(2, "a")))
    ingest = msgspec.structs.replace(trial.ingest, restarts=(restart,))
    changed = Trial(**{**vars(trial), "task": task, "ingest": ingest})
    assert {name: explained(changed)[name] for name in RESTARTS} == {
        "restart_recall_change": 0.5,
        "restart_stable_share": 0.0,
        "restart_graph_relation_change": "the system gives no trace",
    }
    (found,) = restarts(changed)
    assert found["before_restart"] | {"recall": 0.5, "relevant_returned_count": 1} == found["before_restart"]
    assert found["after_restart"]["returned_object_ids"] == ["a", "b"]
    assert found["delta"] == {
        "returned_object_count": 1,
        "relevant_returned_count": 1,
        "recall": 0.5,
        "stable_returned_objects": False,
        **dict.fromkeys(
            (
                "graph_relation_count",
                "graph_verified_count",
                "fanout_decision_count",
                "selectivity_decision_count",
                "scored_selectivity_count",
                "fallback_selectivity_count",
            )
        ),
    }


def test_a_report_is_complete_for_every_scenario(trials: Path, folder: Path):
    found = report(folder)
    whole = found["aggregate"]
    assert (whole["query_count"], whole["restart_count"]) == (25, 1)
    assert whole["degradation"] == {"any_degradation": False}
    assert list(found["scenarios"]) == sorted({r["task"] for r in records(trials, "task")})
    for part in (whole, *found["scenarios"].values()):
        coverage = part["registry_coverage"]
        assert coverage["missing_required_metrics"] == []
        assert coverage["required_metrics_total"] == coverage["required_metrics_present"] == 54
        assert coverage["required_metrics_numeric"] + coverage["required_metrics_null_only"] == 54
    assert sum(part["query_count"] for part in found["scenarios"].values()) == 25
    shares = [n for n in values(trials, "--system", SUBSTRATE) if n["metric"] == "sampled_event_pollution_rate"]
    assert whole["metrics"]["sampled_event_pollution_rate"]["mean"] == shares[0]["value"]
    assert whole["metrics"]["sampled_event_pollution_rate"]["p95"] == shares[0]["p95"]


def test_a_report_adds_up_what_searches_among_hubs_counted(folder: Path):
    (found,) = report(folder)["tuning_observations"]
    searches = [
        o for one in rows(folder) if one["question_type"] == "recurring_hub_entity" for o in one["retrieval_outcomes"]
    ]
    observed = found["observed"]
    assert observed["root_counter_query_count"] == 1
    assert observed["selected_graph_root_count"] == searches[0]["rationale"]["telemetry"]["root_count"]
    assert observed["selectivity_decision_count"] == len(searches[0]["trace"]["selectivity_decisions"])
    assert (
        observed["scored_selectivity_count"] + observed["fallback_selectivity_count"]
        == (observed["selectivity_decision_count"])
    )
    cut = observed["unique_graph_root_candidate_count"] - observed["selected_graph_root_count"]
    assert cut == observed["graph_root_omission_count"]
    assert found["measurement_regime"] == {"max_vector_candidates": 48, "max_graph_roots": 12}


def test_a_header_says_where_each_scenarios_vectors_are_from(trials: Path, folder: Path, tmp_path: Path):
    header = json.loads((folder / "header.json").read_text("utf-8"))
    release = records(trials, "task")[0]["body"]["release"]
    assert (header["dataset"], header["dataset_kind"]) == ("continuity", "continuity")
    assert header["input_sha256"] == release["files"][0]["sha256"]
    bindings = header["embedding_bindings"]
    assert set(bindings) == {r["task"] for r in records(trials, "task")}
    assert {one["kind"] for one in bindings.values()} == {"controllable", "frozen"}
    frozen = bindings["graded-similarity"]
    assert len(frozen["store_sha256"]) == 64
    store = json.loads((settings.evaluation() / "continuity" / "store.json").read_text("utf-8"))
    told = {name: store[name] for name in ("model", "vector_size", "source", "dimension_policy")}
    assert {name: frozen[name] for name in told} == told
    ended(export(trials, tmp_path, "--allow-partial", system="bm25"))
    other = json.loads((tmp_path / "run" / "header.json").read_text("utf-8"))
    assert {one["kind"] for one in other["embedding_bindings"].values()} == {"bm25"}
    assert report(tmp_path / "run")["tuning_observations"] == []
    assert all(one["retrieval_outcomes"] == one["write_outcomes"] == [] for one in rows(tmp_path / "run"))


def test_a_run_without_all_its_queries_is_refused_and_leaves_nothing(trials: Path, tmp_path: Path):
    refused = ended(export(trials, tmp_path / "out", system="bm25"), 2)
    assert "8 of 25 questions have no trial 1" in refused.err
    assert not (tmp_path / "out").exists()


def test_runs_are_sealed_and_verified_as_folders_and_as_ledgers(trials: Path, folder: Path, tmp_path: Path):
    ended(call_cli("seal", "--run-dir", str(folder), "--out", str(tmp_path)))
    ended(call_cli("verify", str(tmp_path / "run")))
    seal = tmp_path / "seal.json"
    ended(call_cli("seal", "--trials", str(trials), "--out", str(seal)))
    sealed = {n["metric"] for n in json.loads(seal.read_text("utf-8"))["headline"]}
    assert {"supersession_replacement_recall", "sampled_event_pollution_rate"} <= sealed
    ended(call_cli("verify", str(seal), "--trials", str(trials)))


def test_what_else_is_told_of_such_a_ledger(trials: Path):
    told = ended(call_cli("methods", "--trials", str(trials))).out
    assert benchmarks.find("continuity").condition is not None
    assert "no sample of lives" in told
    assert "answers" not in told
    (viewed,) = ended(call_cli("view", "--trials", str(trials), "--task", "correction-chains")).out.splitlines()
    assert [item["memory"]["external_id"] for item in json.loads(viewed)["retrieved"]] == ["drain-v3"]


# --- comparisons ---


def stage_compare(*arguments: str, code: int = 0) -> Row:
    found = json.loads(ended(call_cli("compare", *arguments, "--json"), code).out)
    assert isinstance(found, dict)
    return found


def counts(found: Row) -> Row:
    aspects = ("missing", "identity_changes", "rank_changes", "metric_changes", "degradation_changes", "field_changes")
    return {name: found[name] for name in ("differing", *aspects) if found[name]}


def test_two_runs_of_the_catalogue_do_not_differ(trials: Path, folder: Path, tmp_path: Path):
    again = tmp_path / "trials.json"
    stage(again, "build", "continuity")
    stage(again, "replay", SUBSTRATE)
    found = stage_compare(str(trials), str(again), "--system", SUBSTRATE, "--exit-code")
    assert (found["queries"], counts(found)) == (25, {})
    ended(export(again, tmp_path))
    assert [one | {"latency_ms": 0} for one in rows(tmp_path / "run")] == [
        one | {"latency_ms": 0} for one in rows(folder)
    ]
    ended(export(again, tmp_path / "more"))
    assert files(tmp_path / "more" / "run") == files(tmp_path / "run")


def retrieval(some: list[Row], query: str) -> Row:
    return next(r for r in some if r["kind"] == "retrieval" and r["query"] == query and "substrate" in r["system"])


def changed(trials: Path, tmp_path: Path, edit: Any) -> Row:
    def all_of(some: list[Row]) -> list[Row]:
        edit(some)
        return some

    return stage_compare(str(trials), str(edited(trials, tmp_path / "other.json", all_of)), "--exit-code", code=1)


def test_two_items_that_change_places(trials: Path, tmp_path: Path):
    def swap(some: list[Row]) -> None:
        a, b = retrieval(some, "ask-sluice-key")["body"]["items"][:2]
        a["rank"], b["rank"] = b["rank"], a["rank"]

    assert counts(changed(trials, tmp_path, swap)) == {"differing": 1, "rank_changes": 1}


def test_another_object_at_the_same_rank(trials: Path, tmp_path: Path):
    def other(some: list[Row]) -> None:
        retrieval(some, "ask-hidden-valve")["body"]["items"][0]["memory"]["external_id"] = "someone-elses"

    found = counts(changed(trials, tmp_path, other))
    assert (found["differing"], found["identity_changes"], found["rank_changes"]) == (1, 1, 1)


def test_nothing_is_not_zero(trials: Path, tmp_path: Path):
    def untraced(some: list[Row]) -> None:
        retrieval(some, "ask-sluice-key")["body"]["raw"] = None

    found = changed(trials, tmp_path, untraced)
    assert counts(found) == {"differing": 1, "metric_changes": 1}
    ((change,),) = [pair["changes"] for pair in found["pairs"] if pair["changes"]]
    assert change["metrics"]["suppressed_memory_leakage_rate"] == [0.0, None]


def test_a_report_of_something_done_in_part_is_degradation(trials: Path, tmp_path: Path):
    def failed(some: list[Row]) -> None:
        ingest = next(r for r in some if r["kind"] == "ingest" and r["task"] == "entrenched-correction")
        last = next(one for one in ingest["body"]["operations"] if one["operation"] == "correct")
        told = json.loads(last["reported"]) | {"vector_maintenance_failure": {"reason": "disk"}}
        last["reported"] = json.dumps(told)

    found = changed(trials, tmp_path, failed)
    assert counts(found) == {"differing": 1, "degradation_changes": 1}
    ((change,),) = [pair["changes"] for pair in found["pairs"] if pair["changes"]]
    assert (change["query"], change["degradation"]) == ("ask-depth-late", [[], ["vector upkeep failure"]])
    ended(export(tmp_path / "other.json", tmp_path))
    assert report(tmp_path / "run")["aggregate"]["degradation"] == {"any_degradation": True}


def test_two_systems_side_by_side(trials: Path):
    both = ("--trials", str(trials), "--system", SUBSTRATE, "--system", "bm25")
    found = stage_compare(*both)
    assert (found["queries"], found["missing"], found["identity_changes"]) == (25, 8, 17)
    lines = ended(call_cli("compare", *both)).out.splitlines()
    (told,) = (line for line in lines if line.startswith("  correction-chains/ask-drain: no retrieval in bm25"))
    assert "recall" not in told


def test_a_system_that_is_told_other_names_is_compared_by_the_authors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(systems.BUILT_IN, "notebook", "support.notebook")
    setup, data = tmp_path / "notebook.toml", fixture(tmp_path / "fixture.json")
    setup.write_text(notebook.TOML, encoding="utf-8")
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    for ledger in (first, second):
        stage(ledger, "build", "continuity", "--data", str(data), "--allow-modified")
        stage(ledger, "replay", str(setup))
    heard = [r["body"]["operations"] for ledger in (first, second) for r in records(ledger, "ingest")]
    assert heard[0] != heard[2], "names are drawn anew for each life"
    assert counts(stage_compare(str(first), str(second), "--exit-code")) == {}
    ended(export(first, tmp_path, system="notebook"))
    found = rows(tmp_path / "run")
    events = [event for life in json.loads(data.read_text("utf-8"))["scenarios"] for event in life["events"]]
    own = {event["external_id"] for event in events if "external_id" in event}
    named = {item["external_id"] for one in found for item in one["retrieved"] if item["kind"] == "episode"}
    assert named <= own
    assert named
    assert {one["outcome"].get("known") for one in found[0]["write_outcomes"]} >= {1}
    assert report(tmp_path / "run")["aggregate"]["registry_coverage"]["missing_required_metrics"] == []
