"""States that others ingested, as their manifests tell."""

import json
from pathlib import Path
from typing import Any

import pytest

from memtrials.errors import UserError
from memtrials.records import Store
from memtrials.systems.memorybear.manifests import read_manifests

A, B, C = (f"00000000-0000-4000-8000-00000000000{n}" for n in "abc")
TASKS = ("q1", "q2", "q3")


def case(name: str, user: str, status: str = "ok", **more: Any) -> dict[str, Any]:
    return {"case_id": name, "end_user_id": user, "status": status, **more}


def manifest(folder: Path, name: str, timestamp: Any, *cases: dict[str, Any]) -> Path:
    path = folder / name
    path.write_text(json.dumps({"timestamp": timestamp, "cases": list(cases), "tool": "x"}), "utf-8")
    return path


def users(path: Path, tasks: tuple[str, ...] = TASKS) -> dict[str, list[str]]:
    return {task: [s.id for s in state.stores] for task, state in read_manifests(path, tasks).states.items()}


def test_the_latest_time_wins_whatever_the_files_are_called(tmp_path: Path):
    manifest(tmp_path, "a.json", "2026-06-03T09:00:00+02:00", case("q1", A))
    manifest(tmp_path, "b.json", "2026-06-03T08:00:00Z", case("q1", B), case("q2", B))
    manifest(tmp_path, "c.json", "20260601_120000", case("q1", C), case("q3", C))
    assert users(tmp_path) == {"q1": [B], "q2": [B], "q3": [C]}
    notes = read_manifests(tmp_path, TASKS).notes
    assert "q1: a.json supersedes c.json" in notes
    assert "q1: b.json supersedes a.json" in notes


def test_a_file_without_a_time_is_the_oldest(tmp_path: Path):
    manifest(tmp_path, "a.json", "2020-01-01T00:00:00Z", case("q1", A))
    manifest(tmp_path, "b.json", "", case("q1", B))
    assert users(tmp_path) == {"q1": [A]}


def test_what_is_not_ok_is_left_out_and_a_failed_repeat_is_told(tmp_path: Path):
    manifest(tmp_path, "a.json", "2026-06-01T00:00:00Z", case("q1", A), case("q2", A, "OK"))
    manifest(tmp_path, "b.json", "2026-06-02T00:00:00Z", case("q1", B, "failed"))
    assert users(tmp_path) == {"q1": [A]}
    assert list(read_manifests(tmp_path, TASKS).notes) == [
        "a.json: q2 has status 'OK' and is left out",
        "b.json: q1 has status 'failed' and is left out",
        "q1: the later b.json failed, so a.json still holds",
    ]


def test_files_of_one_time_that_disagree_are_an_error(tmp_path: Path):
    manifest(tmp_path, "a.json", "2026-06-01T02:00:00+02:00", case("q1", A))
    manifest(tmp_path, "b.json", "2026-06-01T00:00:00Z", case("q1", B))
    with pytest.raises(UserError, match=r"a\.json and b\.json have the same time and map q1"):
        read_manifests(tmp_path, TASKS)
    manifest(tmp_path, "b.json", "2026-06-01T00:00:00Z", case("q1", A))
    assert users(tmp_path) == {"q1": [A]}


def test_a_speakers_case_is_one_store_of_the_nth_conversation(tmp_path: Path):
    path = manifest(
        tmp_path,
        "m.json",
        "",
        case("conv_2_user_melanie", B),
        case("conv_2_user_Caroline", A),
        case("conv_9_user_x", C),
    )
    found = read_manifests(path, ("conv-26", "conv-30"))
    assert {task: state.stores for task, state in found.states.items()} == {
        "conv-30": (Store(B, "melanie"), Store(A, "caroline"))
    }
    assert found.notes == ("1 cases aren't among the benchmark's tasks and are left out: conv_9_user_x",)


@pytest.mark.parametrize(
    ("more", "leaked"),
    [({}, True), ({"other_id": "run7-Q1"}, True), ({"other_id": "9f8e"}, False), ({"other_name": "q1"}, True)],
)
def test_a_state_is_leaked_unless_its_names_are_known_not_to_tell(tmp_path: Path, more: dict[str, Any], leaked: bool):
    path = manifest(tmp_path, "m.json", "", case("q1", A, **more))
    assert read_manifests(path, TASKS).states["q1"].leaked == leaked


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[]", "needs a list `cases`"),
        ("{", "not JSON"),
        (json.dumps({"cases": []}), "no case with status ok"),
        (json.dumps({"cases": [{"status": "ok"}]}), "no text `case_id`"),
        (json.dumps({"cases": [case("q1", "7")]}), "is no UUID"),
        (json.dumps({"timestamp": "June", "cases": [case("q1", A)]}), "timestamp 'June' can't be read"),
        (json.dumps({"timestamp": 5, "cases": [case("q1", A)]}), "timestamp 5 can't be read"),
    ],
)
def test_what_is_no_manifest_is_an_error_that_names_the_file(tmp_path: Path, text: str, told: str):
    path = tmp_path / "m.json"
    path.write_text(text, "utf-8")
    with pytest.raises(UserError, match=told) as error:
        read_manifests(path, TASKS)
    assert "m.json" in str(error.value)


def test_a_missing_path_is_an_error(tmp_path: Path):
    with pytest.raises(UserError, match="can't be read"):
        read_manifests(tmp_path / "none.json", TASKS)
    with pytest.raises(UserError, match="no case with status ok"):
        read_manifests(tmp_path, TASKS)
