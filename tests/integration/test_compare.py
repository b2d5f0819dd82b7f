"""compare: what differs between two ledgers, systems or readers, and what may not be compared at all.

`judged` holds 8 tasks of 2 queries and the systems bm25, none and in-context, with offline answers and verdicts.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from memtrials import records as record_types
from memtrials.stages.comparing import VOLATILE
from support import released
from support.cli import call_cli
from support.released import LOCOMO, write
from support.trials import edited, ended, records, stage

Row = dict[str, Any]


def compared(*arguments: str | Path, code: int = 0) -> Row:
    found = json.loads(ended(call_cli("compare", *map(str, arguments), "--json"), code).out)
    assert isinstance(found, dict)
    return found


def refused(*arguments: str | Path) -> str:
    """Everything that a refusal says."""
    return ended(call_cli("compare", *map(str, arguments)), 2).err


def first(some: list[Row], kind: str, **wanted: str) -> Row:
    return next(r for r in some if r["kind"] == kind and all(str(r.get(n)).startswith(v) for n, v in wanted.items()))


def counts(found: Row) -> dict[str, int]:
    names = ("queries", "differing", "missing", "identity_changes", "rank_changes", "metric_changes")
    return {name: found[name] for name in (*names, "degradation_changes", "field_changes") if found[name]}


# --- two ledgers ---


def test_a_ledger_does_not_differ_from_itself(judged: Path):
    found = compared(judged, judged, "--exit-code")
    assert not found["differs"]
    assert counts(found) == {"queries": 48}
    assert len(found["pairs"]) == 3
    assert {d["difference"] for pair in found["pairs"] for d in pair["differences"]} == {0.0}
    assert {d["said"] for pair in found["pairs"] for d in pair["differences"]} == {"not significant"}
    assert ended(call_cli("compare", str(judged), str(judged))).out.endswith("no difference\n")


def test_one_flipped_verdict_is_exactly_that_flip(judged: Path, tmp_path: Path):
    def flip(some: list[Row]) -> list[Row]:
        verdict = first(some, "verdict", system="bm25", metric="direct-verbatim", task="14")
        verdict["body"]["score"] = 1.0 - verdict["body"]["score"]
        return some

    other = edited(judged, tmp_path / "other.json", flip)
    found = compared(judged, other, "--exit-code", code=1)
    assert counts(found) == {"queries": 48, "differing": 1, "metric_changes": 1, "field_changes": 1}
    (pair,) = [pair for pair in found["pairs"] if pair["changes"]]
    (change,) = pair["changes"]
    assert (change["task"], change["fields"]) == ("14", ["direct-verbatim.score"])
    flips = {d["metric"]: d["flips"] for pair in found["pairs"] for d in pair["differences"] if d["flips"]}
    ((flipped,),) = flips.values()
    before, after = change["metrics"]["direct-verbatim"]
    assert flipped == {"question": f"14/{change['query']}", "first": before, "second": after}
    assert {before, after} == {0.0, 1.0}
    assert f"14/{change['query']} ({before:g} → {after:g})" in ended(call_cli("compare", str(judged), str(other))).out


def test_ids_and_times_are_no_difference_and_all_else_is(judged: Path, tmp_path: Path):
    def later(some: list[Row]) -> list[Row]:
        for record in some:
            record["at"] = "2030-01-01T00:00:00.000Z"
            if effort := record["body"].get("effort"):
                effort["seconds"] += 1.0
        return some

    def reworded(some: list[Row]) -> list[Row]:
        first(some, "answer", system="none", task="9")["body"]["text"] = "Nothing at all"
        return some

    assert not compared(judged, edited(judged, tmp_path / "later.json", later))["differs"]
    found = compared(judged, edited(judged, tmp_path / "reworded.json", reworded))
    assert counts(found) == {"queries": 48, "differing": 1, "field_changes": 1}
    assert [c["fields"] for pair in found["pairs"] for c in pair["changes"]] == [["answer.text"]]


def test_every_volatile_field_is_a_field(judged: Path):
    structs = [t for t in vars(record_types).values() if isinstance(t, type) and issubclass(t, msgspec.Struct)]
    known = {f.encode_name for struct in structs for f in msgspec.structs.fields(struct)}
    assert known >= VOLATILE
    assert not VOLATILE & {"score", "text", "context", "items", "answer", "model_returned", "sent", "system_version"}


def test_another_rank_and_another_item(judged: Path, tmp_path: Path):
    def swapped(some: list[Row]) -> list[Row]:
        items = first(some, "retrieval", system="bm25", task="2")["body"]["items"]
        items[0]["rank"], items[1]["rank"] = items[1]["rank"], items[0]["rank"]
        return some

    def exchanged(some: list[Row]) -> list[Row]:
        first(some, "retrieval", system="bm25", task="2")["body"]["items"][0]["text"] += "!"
        return some

    found = compared(judged, edited(judged, tmp_path / "swapped.json", swapped))
    assert (found["differing"], found["rank_changes"], found["identity_changes"]) == (1, 1, 0)
    found = compared(judged, edited(judged, tmp_path / "exchanged.json", exchanged))
    assert (found["differing"], found["rank_changes"], found["identity_changes"]) == (1, 1, 1)


def test_what_one_side_lacks_is_left_out_and_bounded(judged: Path, tmp_path: Path):
    other = tmp_path / "other.json"
    shutil.copy(judged, other)
    stage(other, "void", "--kind", "retrieval", "--system", "bm25", "--task", "5", "--reason", "elsewhere")
    found = compared(judged, other)
    assert (found["differing"], found["missing"]) == (2, 2)
    pair = next(pair for pair in found["pairs"] if pair["changes"])
    assert f"no retrieval in {other}" in pair["changes"][0]["missing"]
    direct = next(d for d in pair["differences"] if d["metric"] == "direct-verbatim")
    assert (direct["n"], direct["left_out"], direct["bounds"][1] - direct["bounds"][0]) == (7, 1, 0.125)


def test_a_system_that_only_one_side_has_is_named(judged: Path, tmp_path: Path):
    other = tmp_path / "other.json"
    shutil.copy(judged, other)
    stage(other, "void", "--kind", "retrieval", "--system", "none", "--reason", "elsewhere")
    found = compared(judged, other, "--exit-code", code=1)
    assert any(line.startswith(f"only {judged}: retrieval of inmind@sample / none-") for line in found["alone"])


def test_an_empty_side_is_an_error(judged: Path, built: Path, tmp_path: Path):
    empty = tmp_path / "built.json"
    shutil.copy(judged, empty)
    stage(empty, "void", "--kind", "retrieval", "--reason", "all of it")
    assert "no results are selected" in refused(judged, empty)
    assert "no such ledger" in refused(judged, tmp_path / "nowhere.json")


def test_another_judge_or_other_data_is_refused_with_what_differs(judged: Path, tmp_path: Path):
    def rejudged(some: list[Row]) -> list[Row]:
        text = json.dumps(some)
        judge = first(some, "config", judge="offline")
        other = {**judge["body"]["settings"], "rules": 2}
        renamed = record_types.config_id("offline", other)
        again: list[Row] = json.loads(text.replace(judge["key"], renamed))
        first(again, "config", judge="offline")["body"]["settings"] = other
        return again

    def rebuilt(some: list[Row]) -> list[Row]:
        for record in some:
            if record["kind"] == "task":
                record["body"]["release"]["sha256"] = "f" * 64
        return some

    one = ("--system", "bm25")
    other = edited(judged, tmp_path / "rejudged.json", rejudged)
    told = refused(judged, other, *one)
    assert "can't stand in one difference; they differ in judge: offline-" in told
    assert "differ in rules. --allow-unlike" in told
    allowed = compared(judged, other, *one, "--allow-unlike")
    assert next(d["unlike"] for d in allowed["pairs"][0]["differences"] if d["first"]["judge"])[0].startswith("judge: ")
    told = refused(judged, edited(judged, tmp_path / "rebuilt.json", rebuilt), *one)
    assert "differ in data: " in told
    assert f"and {'f' * 12}" in told


# --- one ledger ---


def test_two_systems_of_one_ledger(judged: Path):
    found = compared("--system", "in-context", "--system", "bm25", "--trials", judged)
    (pair,) = found["pairs"]
    assert (found["first"], found["second"]) == ("in-context", "bm25")
    target = next(d for d in pair["differences"] if d["metric"] == "target-verbatim")
    assert (target["difference"], target["higher"], target["lower"], target["n"]) == (0.875, 7, 0, 8)
    assert target["said"] == "the first is higher"
    assert [flip["second"] for flip in target["flips"]] == [0.0] * 7
    assert found["identity_changes"] == 16


def test_two_readers_are_compared_but_not_with_unlike_prompts(judged: Path, tmp_path: Path):
    def reader(**settings: str) -> Callable[[list[Row]], list[Row]]:
        def edit(some: list[Row]) -> list[Row]:
            old = first(some, "config", reader="offline")["key"]
            new = record_types.config_id(settings["model"], settings)
            again: list[Row] = json.loads(json.dumps(some).replace(old, new))
            body = first(again, "config", reader=new)["body"]
            body["settings"], body["name"] = settings, settings["model"]
            return again

        return edit

    a = edited(judged, tmp_path / "a.json", reader(model="a", prompt="Be brief."))
    b = edited(judged, tmp_path / "b.json", reader(model="b", prompt="Be brief."))
    c = edited(judged, tmp_path / "c.json", reader(model="c", prompt="Be kind."))
    assert not compared(a, b, "--system", "bm25")["differs"]
    told = refused(a, c, "--system", "bm25")
    assert "answer of" in told
    assert "differ in reader: a-" in told
    assert "differ in prompt. --allow-unlike" in told


def test_results_that_were_asked_otherwise_are_refused_and_can_be_the_question(judged: Path):
    stage(judged, "fetch", "--system", "bm25", "--k", "1", "--force")
    found = compared("--fetch", "k10", "--fetch", "k1", "--system", "bm25", "--trials", judged)
    assert (found["identity_changes"], found["alone"][0][:4]) == (16, "only")  # k1 has no answers yet
    stage(judged, "void", "--kind", "retrieval", "--system", "in-context", "--reason", "to be asked otherwise")
    stage(judged, "void", "--config", k10(judged), "--system", "bm25", "--reason", "only k1 is left")
    stage(judged, "replay", "hybrid")
    stage(judged, "fetch", "--system", "hybrid")
    told = refused("--system", "bm25", "--system", "hybrid", "--trials", judged)
    assert "retrieval of bm25 and hybrid can't stand in one difference" in told
    assert "fetch: k1-" in told
    assert "differ in k. --allow-unlike" in told


def k10(trials: Path) -> str:
    return str(first(records(trials), "config", fetch="k10")["key"])


def test_two_of_one_side_are_too_many(judged: Path):
    assert "two sides" in refused("--system", "a", "--system", "b", "--system", "c", "--trials", judged)
    assert "two ledgers" in refused(judged)
    assert "what to compare in one" in refused("--system", "bm25", "--trials", judged)


# --- differences in metrics ---


def imported(tmp_path: Path) -> Path:
    """A ledger with two imported systems: theirs is wrong once."""
    trials = tmp_path / "trials.json"
    stage(trials, "build", "locomo", "--data", str(LOCOMO))
    wrong = released.locomo_by_user()
    wrong["exp_user_0"][3]["llm_judgments"]["judgment_1"] = False
    ours = write(tmp_path / "ours.json", released.listed_locomo(categories=range(1, 5)))
    stage(trials, "import", str(ours), str(write(tmp_path / "theirs.json", wrong)))
    return trials


def test_metrics_compares_what_is_alike_with_controls_apart(judged: Path):
    found = stage(judged, "metrics")["differences"]
    primary = [d for d in found if not d["exploratory"]]
    assert {d["metric"] for d in primary} == {"direct-verbatim"}
    assert all(d["control"] and d["adjusted"] is None for d in primary)  # none and in-context are controls
    stage(judged, "replay", "hybrid")
    for name in ("fetch", "answer", "judge"):
        stage(judged, name)
    again = [d for d in stage(judged, "metrics")["differences"] if not d["control"]]
    (tested,) = [d for d in again if not d["exploratory"]]
    assert (tested["family"], tested["adjusted"]) == (1, tested["p"])
    assert [d["adjusted"] for d in again if d["exploratory"]] == [None] * (len(again) - 1)


def test_a_reference_is_what_others_are_less(judged: Path):
    found = stage(judged, "metrics", "--reference", "bm25", "--primary", "target-verbatim", "--margin", "0.1")
    (other,) = [d for d in found["differences"] if d["first"]["system"].startswith("in-context")]
    assert other["second"]["system"].startswith("bm25")
    assert (other["metric"], other["difference"]) == ("target-verbatim", 0.875)
    assert other["equivalence"]["margin"] == 0.1
    assert "not shown to be within 0.1 of one another" in other["said"]
    assert "bm25" in ended(call_cli("metrics", "--reference", "bmm25", "--trials", str(judged)), 2).err
    assert "above 0" in ended(call_cli("metrics", "--margin", "0", "--trials", str(judged)), 2).err


def test_unlike_results_are_compared_only_when_told_and_say_so(tmp_path: Path):
    trials = imported(tmp_path)
    found = stage(trials, "metrics")
    assert [d for d in found["differences"] if d["metric"] == "accuracy"] == []
    assert any("isn't compared, because fetch and reader and judge differ or are unknown" in n for n in found["notes"])
    told = [d for d in stage(trials, "metrics", "--allow-unlike")["differences"] if d["metric"] == "accuracy"]
    ((one,),) = [told]
    assert (one["higher"], one["lower"], one["n"], one["clusters"]) == (1, 0, 12, 1)
    assert one["said"] == "not significant: too few clusters to be\nunlike fetch, reader, judge"


def test_repeats_stand_beside_the_numbers(judged: Path):
    assert stage(judged, "metrics")["repeats"] == []
    stage(judged, "fetch", "--repeat", "3")
    for name in ("answer", "judge"):
        stage(judged, name)
    direct = [r for r in stage(judged, "metrics")["repeats"] if r["metric"] == "direct-verbatim"]
    bm25 = next(r for r in direct if r["system"].startswith("bm25"))
    assert (bm25["spread"]["sd"], bm25["spread"]["runs"], bm25["spread"]["n"]) == (0.0, 3, 8)
    assert bm25["spread"]["variances"] == {"ingest": None, "retrieval": 0.0, "reader": None, "judge": None}
    assert [(p["k"], p["at_k"], p["hat_k"], p["n"]) for p in bm25["passes"]] == [(2, 0.75, 0.75, 8), (3, 0.75, 0.75, 8)]
    assert "what repeats tell" in ended(call_cli("metrics", "--trials", str(judged))).out
