"""Whatever a user gets wrong ends with exit code 2 and one clear line, and leaves everything as it was."""

import json
import re
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memtrials.systems.store import Stores
from support.cli import Finished, call_cli, run_cli
from support.releases import (
    BACKGROUND,
    MANIFEST,
    SAMPLE,
    SUMS,
    TASKS,
    Row,
    change_background,
    change_manifest,
    change_tasks,
    sample_copy,
    sign,
)


def state_of(folder: Path) -> dict[str, bytes | None]:
    """Every file and folder below `folder`, without what only says who is working."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if ".json.lock" not in str(path)
    }


def refused(finished: Finished, *says: str) -> None:
    """It ended with 2 and one line that says all of this."""
    assert finished.code == 2, finished.out + finished.err
    assert "Traceback" not in finished.out + finished.err
    lines = [line for line in finished.err.splitlines() if line.startswith("memtrials: ")]
    assert len(lines) == 1, finished.err
    for text in says:
        assert text in finished.err
    assert finished.out == ""


def refused_alone(finished: Finished, *says: str) -> None:
    """The same, and nothing else was said."""
    refused(finished, *says)
    assert len(finished.err.splitlines()) == 1, finished.err


@dataclass
class Desk:
    """A release to spoil and a folder for results."""

    release: Path
    results: Path

    def build(self, *more: str, code: int = 0) -> Finished:
        """Build the release; whatever is refused leaves the results as they were."""
        before = state_of(self.results)
        trials = str(self.results / "trials.json")
        finished = call_cli("build", "inmind", "--data", str(self.release), "--trials", trials, *more)
        assert finished.code == code, finished.err
        if code:
            assert state_of(self.results) == before
        return finished

    def refuses(self, *says: str) -> None:
        """Build is refused, with and without --allow-modified, before anything is there."""
        for more in ([], ["--allow-modified"], ["--dry-run", "--allow-modified"]):
            refused(self.build(*more, code=2), *says)
        assert list(self.results.iterdir()) == []

    def path(self, name: str) -> Path:
        return self.release / name


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    (tmp_path / "results").mkdir()
    return Desk(sample_copy(tmp_path / "release"), tmp_path / "results")


# Files that can't be read


FILES = pytest.mark.parametrize("name", [TASKS, BACKGROUND, MANIFEST])


@FILES
def test_a_missing_file(desk: Desk, name: str):
    desk.path(name).unlink()
    desk.refuses(f"{name}: missing; point --data at a complete InMind release")


@FILES
@pytest.mark.parametrize("content", [b"", b"\n \r\n", b"\xef\xbb\xbf"], ids=["empty", "blank", "only a BOM"])
def test_an_empty_file(desk: Desk, name: str, content: bytes):
    desk.path(name).write_bytes(content)
    desk.refuses(f"{name}: empty; download the release again")


@FILES
def test_a_folder_in_a_files_place(desk: Desk, name: str):
    desk.path(name).unlink()
    desk.path(name).mkdir()
    desk.refuses(f"{name}: can't be read (Is a directory)")


@FILES
@pytest.mark.parametrize(
    "content",
    [b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", bytes(range(256)), b"\x1f\x8b\x08\0" * 40],
    ids=["PNG", "bytes", "gzip"],
)
def test_a_binary_file(desk: Desk, name: str, content: bytes):
    desk.path(name).write_bytes(content)
    desk.refuses(f"{name}, line ", ": not UTF-8 text (binary, or another encoding); download the release again")


@FILES
def test_a_file_of_nulls(desk: Desk, name: str):
    """What a crash can leave; it is valid UTF-8."""
    desk.path(name).write_bytes(b"\0" * 4096)
    desk.refuses(name, "not valid JSON")


@FILES
def test_a_file_cut_off(desk: Desk, name: str):
    content = desk.path(name).read_bytes()
    desk.path(name).write_bytes(content[: len(content) - 40])
    desk.refuses(name, "not valid JSON", "is the file cut off?")


@FILES
def test_a_file_cut_off_inside_a_character(desk: Desk, name: str):
    content = desk.path(name).read_bytes()
    desk.path(name).write_bytes(content + "…".encode()[:2])
    desk.refuses(name, "not UTF-8 text")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-le", "utf-32"])
@pytest.mark.parametrize("name", [TASKS, BACKGROUND])
def test_another_encoding(desk: Desk, name: str, encoding: str):
    text = desk.path(name).read_text("utf-8").replace("—", "-")
    desk.path(name).write_bytes(("é" + text).encode(encoding, "replace"))
    desk.refuses(name)


@pytest.mark.parametrize("name", [TASKS, BACKGROUND, MANIFEST, SUMS])
def test_a_byte_order_mark_and_windows_line_ends_are_fine(desk: Desk, name: str):
    desk.path(name).write_bytes(b"\xef\xbb\xbf" + desk.path(name).read_bytes().replace(b"\n", b"\r\n"))
    assert json.loads(desk.build("--json").out)["benchmark"] == "inmind@sample"


@pytest.mark.parametrize("place", ["missing", f"release/{TASKS}"])
def test_a_data_folder_that_is_none(tmp_path: Path, desk: Desk, place: str):
    desk.release = tmp_path / place
    refused_alone(desk.build(code=2), f"{desk.release}: no such folder; point --data at an InMind release")


# Content that isn't what it should be


def change(number: int, **fields: Any) -> Callable[[list[Row]], object]:
    return lambda rows: rows[number].update(fields)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (change(1, task_id=2), "line 2: task_id 2 occurs twice (first in line 1)"),
        (change(1, task_id=True), "line 2: task_id true is a boolean, not an integer"),
        (change(1, task_id="5"), 'line 2: task_id "5" is a string, not an integer'),
        (lambda rows: rows[1].pop("user_message"), "line 2: field user_message is missing"),
        (change(1, naive_query=7), "line 2: field naive_query is a number"),
        (change(1, explanation=None), "line 2: field explanation is null"),
        (change(1, assistant_message=""), "line 2: field assistant_message is empty"),
    ],
)
def test_a_wrong_task(desk: Desk, spoil: Callable[[list[Row]], object], says: str):
    change_tasks(desk.release, spoil)
    desk.refuses(f"{TASKS}, {says}")
    refused_alone(desk.build("--allow-modified", code=2))


@pytest.mark.parametrize("line", ["[1, 2]", "3", '"text"', "null", '{"task_id": NaN}', "{'task_id': 1}", "{"])
def test_a_line_that_is_no_object(desk: Desk, line: str):
    with desk.path(TASKS).open("a", encoding="utf-8") as file:
        file.write(line + "\n")
    sign(desk.release)
    desk.refuses(f"{TASKS}, line 9: ")


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_json_does_not_know(desk: Desk, number: float):
    change_tasks(desk.release, change(2, provenance={"source_task_id": number}))
    desk.refuses(f"{TASKS}, line 3: not valid JSON (", " is not JSON)")


def test_nesting_without_end(desk: Desk):
    desk.path(TASKS).write_text('{"a":' * 200_000, "utf-8")
    desk.refuses(f"{TASKS}, line 1: not valid JSON")


def test_turns_of_a_session_that_are_not_together(desk: Desk):
    def move_the_first_turn_to_the_end(rows: list[Row]) -> None:
        rows.append(rows.pop(0))

    change_background(desk.release, move_the_first_turn_to_the_end)
    desk.refuses(f"{BACKGROUND}, line 61: session ", " goes on after another began; its turns must be together")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sessions": 11}, "sessions is 11, the background has 12"),
        ({"turns": "61"}, "turns is '61', the background has 61"),
        ({"injection_session_index": None}, "injection_session_index is None, the background has 4"),
        ({"injection_user_turn_locator": 99}, "fewer user turns than the manifest's locator 99"),
        ({"sha256": "0" * 64}, f"sha256 is '{'0' * 64}', the background's is "),
    ],
)
def test_a_manifest_that_disagrees(desk: Desk, fields: dict[str, Any], says: str):
    change_manifest(desk.release, **fields)
    desk.refuses(says)


def test_sums_that_disagree(desk: Desk):
    desk.path(SUMS).write_text(f"{'0' * 64}  inmind.jsonl\n", "utf-8")
    desk.refuses(f"{SUMS}, line 1: inmind.jsonl has another hash")


def test_every_problem_is_told_and_one_line_sums_up(desk: Desk):
    change_tasks(desk.release, lambda rows: [rows[n].update(task_id=str(n)) for n in range(8)])
    finished = desk.build("--allow-modified", code=2)
    refused(finished, f"{desk.release}: 8 problems, nothing was written")
    *details, last = finished.err.splitlines()
    assert last.startswith("memtrials: ")
    assert [re.search(r"line (\d)", detail)[1] for detail in details] == list("12345678")  # type: ignore[index]


def test_data_that_is_not_a_known_release(desk: Desk):
    change_tasks(desk.release, change(0, query="Something else?"))
    refused_alone(desk.build(code=2), "not a known InMind release", "--allow-modified", "inmind@modified-")
    assert list(desk.results.iterdir()) == []


def test_bad_data_leaves_a_ledger_as_it_is(desk: Desk):
    desk.build()
    before = state_of(desk.results)
    assert "trials.json" in before
    change_tasks(desk.release, change(0, query=3))
    refused(desk.build("--allow-modified", code=2), "field query is a number")
    assert state_of(desk.results) == before


def test_timelines_with_lone_surrogates_are_written(desk: Desk):
    change_tasks(desk.release, change(0, user_message="half of \ud83d", query="the rest \udf89?"))
    desk.build("--allow-modified", "--export-timelines", str(desk.results / "timelines"))
    timeline = json.loads((desk.results / "timelines" / "inmind-task-2.json").read_text("utf-8"))
    assert timeline["sessions"][4]["turns"][-2]["content"] == "half of \ufffd"
    assert timeline["queries"]["query"] == "the rest \ufffd?"


def test_timelines_that_cannot_be_written(desk: Desk, tmp_path: Path):
    (tmp_path / "file").write_text("here already")
    trials = str(desk.results / "trials.json")
    finished = call_cli(
        "build", "inmind", "--data", str(SAMPLE), "--trials", trials, "--export-timelines", str(tmp_path / "file")
    )
    refused(finished, f"{tmp_path / 'file'}: timelines can't be written (File exists)")


# Names that aren't there


NAMES = [
    (["build", "inmnd", "--data", str(SAMPLE)], "unknown benchmark 'inmnd'; did you mean inmind?"),
    (["build", "inmind@striped", "--data", str(SAMPLE)], "'striped'; did you mean stripped"),
    (["build", "inmind", "--data", str(SAMPLE), "--variant", "striped"], "'striped'; did you mean stripped"),
    (["build", "inmind@stripped", "--data", str(SAMPLE), "--variant", "released"], "two variants: "),
    (["replay", "bm52"], "unknown system 'bm52'; did you mean bm25?"),
    (["replay", "bm25", "naive_rag"], "unknown system 'naive_rag'; did you mean naive-rag"),
    (["replay", "mine.toml"], "mine.toml: no such file; known systems: always-visible, bm25, "),
    (["replay", "bm25", "--benchmark", "inmind@sampl"], "'inmind@sampl'; did you mean inmind@sample?"),
    (["replay", "bm25", "--task", "99"], "unknown task '99'; "),
    (["fetch", "--task", "2/quary"], "unknown query of task 2 'quary'; did you mean query"),
    (["fetch", "vector"], "unknown system 'vector'"),
    (["fetch", "--type", "helth_and_wellness"], "'helth_and_wellness'; did you mean health_and_wellness"),
    (["answer", "--system", "bm26"], "unknown system 'bm26'; did you mean bm25"),
    (["answer", "--config", "k11"], "unknown configuration 'k11'; did you mean k10"),
    (["judge", "--metric", "target-verbatm"], "unknown metric 'target-verbatm'; did you mean target-verbatim"),
    (["judge", "--metric", "application"], "metric application needs a model judge: name one with --judge"),
    (["judge", "--reader", "ofline"], "unknown reader 'ofline'; did you mean offline"),
    (["metrics", "--metric", "naiv"], "unknown metric 'naiv'; did you mean naive"),
    (["metrics", "--judge", "oflline"], "unknown judge 'oflline'; did you mean offline"),
    (["metrics", "--benchmark", "locomo"], "unknown benchmark in this ledger 'locomo'"),
    (["view", "--reader", "nobody"], "unknown reader 'nobody'"),
    (["void", "01XYZ", "--reason", "x"], "unknown record '01XYZ'"),
    (["void", "--reason", "x"], "void needs record ids, --kind, --config or a selection"),
    (["export", "inmind-submission", "--system", "bm26"], "unknown system 'bm26'; did you mean bm25"),
]


@pytest.mark.parametrize(("arguments", "says"), NAMES, ids=[" ".join(a[:1] + a[-1:]) for a, _ in NAMES])
def test_an_unknown_name(judged: Path, arguments: Sequence[str], says: str):
    before = state_of(judged.parent)
    refused_alone(call_cli(*arguments, "--trials", str(judged)), says)
    assert state_of(judged.parent) == before


# Numbers that aren't any


NUMBERS = [
    ["replay", "bm25", "--repeat", "0"],
    ["replay", "bm25", "--shard", "3/2"],
    ["replay", "bm25", "--shard", "0/2"],
    ["replay", "bm25", "--shard", "abc"],
    ["replay", "bm25", "--shard", "1/"],
    ["replay", "bm25", "--shard", "-1/2"],
    ["replay", "bm25", "--limit", "-1"],
    ["fetch", "--k", "-3"],
    ["fetch", "--k", "0"],
    ["fetch", "--k", "ten"],
    ["fetch", "--order", "random"],
    ["fetch", "--repeat", "-1"],
    ["fetch", "--sample", "0"],
    ["fetch", "--sample", "3"],
    ["answer", "--workers", "0"],
    ["answer", "--split", "train"],
    ["answer", "--max-cost", "-1"],
    ["answer", "--max-cost", "nan"],
    ["answer", "--max-cost", "inf"],
    ["replay", "--timeout", "nan"],
    ["replay", "--timeout", "inf"],
    ["metrics", "--margin", "inf"],
    ["audit", "score", "items.jsonl", "--rates", "nan", "0.9"],
    ["judge", "--repeat", "1.5"],
    ["metrics", "--format", "xml"],
    ["metrics", "--by", "mood"],
    ["export", "inmind-submission", "--trial", "0"],
    ["replay"],
    ["fetch", "--nothing-like-it"],
    ["evaluate"],
]


@pytest.mark.parametrize("arguments", NUMBERS, ids=" ".join)
def test_a_value_out_of_range(judged: Path, arguments: Sequence[str]):
    before = state_of(judged.parent)
    trials = [] if arguments == ["evaluate"] else ["--trials", str(judged)]
    named = next((a for a in arguments if a.startswith("--")), arguments[-1])
    refused_alone(call_cli(*arguments, *trials), "" if arguments == ["replay"] else named)
    assert state_of(judged.parent) == before


# Locks


def test_a_file_where_the_locks_should_be(built: Path):
    folder = built.with_name("trials.json.locks")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.touch()
    finished = call_cli("replay", "bm25", "--trials", str(built), "--quiet")
    refused_alone(finished, f"{folder}: this lock can't be written (", "make room or fix it, then run again")


# A system's TOML file


TOML = [
    (
        '[state]\nsystem = "embedded"\nretreiver = "bm25"\n',
        "table [state]: unknown key 'retreiver'; did you mean retriever",
    ),
    ('[state]\nsystem = "embedded"\n[fetch]\ntop = 3\n', "table [fetch]: unknown key 'top'; "),
    ('[state]\nsystem = "embedded"\n[fecth]\nk = 3\n', "unknown table 'fecth'; did you mean fetch"),
    ('k = 3\n[state]\nsystem = "embedded"\n', "unknown table 'k'; "),
    ('[state]\nsystem = "embeded"\n', "table [state]: unknown kind of system 'embeded'; did you mean embedded"),
    ("[state]\nsystem = 3\n", "table [state] needs a key `system`"),
    ("[fetch]\nk = 3\n", "table [state] needs a key `system`"),
    ("", "table [state] needs a key `system`"),
    ('state = "embedded"\n', "state is 'embedded'; it must be a table, [state]"),
    ('fetch = 3\n[state]\nsystem = "none"\n', "fetch is 3; it must be a table, [fetch]"),
    ('[state]\nsystem = "embedded"\nretriever = "bm26"\n', "unknown retriever 'bm26'; did you mean bm25"),
    ('[state]\nsystem = "embedded"\nchunk = "session"\n', "unknown chunk 'session'; "),
    ('[state]\nsystem = "embedded"\nembedding = 256\n', "embedding is 256; its type must be str"),
    ('[state]\nsystem = "embedded"\n[fetch]\nk = 0\n', "k is 0; it counts items, so 1 or more"),
    ('[state]\nsystem = "embedded"\n[fetch]\nk = true\n', "k is True; its type must be int"),
    ('[state]\nsystem = "embedded"\n[fetch]\nk = "3"\n', "k is '3'; its type must be int"),
    ('[state]\nsystem = "none"\n[fetch]\nk = 3\n', "table [fetch]: unknown key 'k'; "),
    ('[state]\nsystem = "embedded"\nversion = "9"\n', "unknown key 'version'"),
    ("[state\n", "not valid TOML ("),
    ('[state]\nsystem = "embedded"\nsystem = "none"\n', "not valid TOML ("),
    (b"\xff\xfe[\0s\0", "not valid TOML ("),
]


@pytest.mark.parametrize(("text", "says"), TOML, ids=range(len(TOML)))
def test_a_wrong_toml_file(built: Path, text: str | bytes, says: str):
    path = built.parent / "mine.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    before = state_of(built.parent)
    refused_alone(call_cli("replay", str(path), "--trials", str(built)), str(path), says)
    assert state_of(built.parent) == before


def test_a_toml_file_with_a_byte_order_mark_is_fine(built: Path):
    path = built.parent / "mine.toml"
    path.write_bytes(b"\xef\xbb\xbf[state]\r\nsystem = 'none'\r\n")
    assert call_cli("replay", str(path), "--trials", str(built)).code == 0


def test_a_toml_file_whose_state_was_never_replayed(built: Path):
    path = built.parent / "mine.toml"
    path.write_text('[state]\nsystem = "embedded"\nretriever = "bm25"\nchunk = "pair"\n')
    refused_alone(call_cli("fetch", str(path), "--trials", str(built)), "doesn't hold; replay it first")


def test_a_folder_named_like_a_toml_file(built: Path):
    (built.parent / "mine.toml").mkdir()
    refused_alone(
        call_cli("replay", str(built.parent / "mine.toml"), "--trials", str(built)), "mine.toml: no such file"
    )


# Where the ledger is


STAGES = pytest.mark.parametrize(
    "stage",
    [["build", "inmind", "--data", str(SAMPLE)], ["replay", "bm25"], ["fetch"], ["answer"], ["judge"], ["metrics"]],
    ids=lambda stage: stage[0],
)


@STAGES
def test_a_named_ledger_in_a_missing_folder(tmp_path: Path, stage: Sequence[str]):
    path = tmp_path / "missing" / "trials.json"
    refused_alone(call_cli(*stage, "--trials", str(path)), f"{path}: the folder {path.parent} doesn't exist; make it")
    refused_alone(call_cli(*stage, env={"TRIALS_FILE": str(path)}), f"the folder {path.parent} doesn't exist")
    assert list(tmp_path.iterdir()) == []


@STAGES
def test_a_named_ledger_that_is_a_folder(tmp_path: Path, stage: Sequence[str]):
    refused_alone(call_cli(*stage, "--trials", str(tmp_path)), f"{tmp_path} is a folder, not a ledger; name a file")
    assert list(tmp_path.iterdir()) == []


@STAGES
def test_a_ledger_that_is_none(tmp_path: Path, stage: Sequence[str]):
    path = tmp_path / "notes.json"
    path.write_text('{"not": "a ledger"}\n')
    before = state_of(tmp_path)
    refused_alone(call_cli(*stage, "--trials", str(path)), str(path))
    assert state_of(tmp_path) == before


@pytest.mark.parametrize(
    "stage", [["replay", "bm25"], ["fetch"], ["answer"], ["judge"], ["metrics"], ["status"], ["view"]]
)
def test_a_ledger_that_was_never_built(tmp_path: Path, stage: Sequence[str]):
    path = tmp_path / "trials.json"
    refused_alone(call_cli(*stage, "--trials", str(path)), f"{path}: no such ledger; `memtrials build` makes it")
    assert list(tmp_path.iterdir()) == []


# Keys and settings


@pytest.mark.parametrize(
    ("arguments", "env", "says"),
    [
        (["answer", "--reader", "gpt-5-mini"], {}, "no key for reader gpt-5-mini: set READER_API_KEY, LLM_API_KEY or"),
        (["answer"], {"LLM_MODEL": "gpt-5-mini"}, "no key for reader gpt-5-mini"),
        (["answer"], {"READER_MODEL": "m", "JUDGE_API_KEY": "k"}, "no key for reader m"),
        (["answer"], {"READER_MODEL": "m", "OPENAI_API_KEY": "  "}, "no key for reader m"),
        (["judge", "--judge", "gpt-5-mini"], {}, "no key for judge gpt-5-mini: set JUDGE_API_KEY, LLM_API_KEY or"),
        (["judge"], {"JUDGE_MODEL": "m", "READER_API_KEY": "k"}, "no key for judge m"),
    ],
)
def test_a_model_without_a_key(fetched: Path, arguments: Sequence[str], env: dict[str, str], says: str):
    before = state_of(fetched.parent)
    refused_alone(call_cli(*arguments, "--trials", str(fetched), "--quiet", env=env), says)
    assert state_of(fetched.parent) == before


def test_official_prompts_without_a_folder_or_from_a_wrong_one(fetched: Path, tmp_path: Path):
    official = ["answer", "--reader", "m", "--prompts", "official", "--trials", str(fetched)]
    env = {"LLM_API_KEY": "k"}
    refused_alone(call_cli(*official, env=env), "--prompts official needs --upstream DIR")
    refused_alone(
        call_cli(*official, "--upstream", str(tmp_path), env=env), "answer_system.txt: this prompt is missing"
    )
    refused_alone(call_cli("answer", "--upstream", str(tmp_path), "--trials", str(fetched)), "--upstream goes with")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("LLM_MODEL\n", 1),
        ("# fine\nLLM_MODEL=m\n\nnot a setting\n", 4),
        ("LLM_MODEL='never closed\n", 1),
        ("=m\n", 1),
    ],
)
def test_a_malformed_env_file(tmp_path: Path, text: str, line: int):
    (tmp_path / ".env").write_text(text)
    finished = run_cli("status", "--trials", "trials.json", cwd=tmp_path)
    refused_alone(finished, f"{tmp_path / '.env'}, line {line}: not a `NAME=value` line")


def test_an_env_file_in_another_encoding(tmp_path: Path):
    (tmp_path / ".env").write_bytes("LLM_API_KEY=schlüssel".encode("utf-16"))
    finished = run_cli("status", "--trials", "trials.json", cwd=tmp_path)
    refused_alone(finished, ".env: not UTF-8 text; save it as UTF-8")
    assert "schl" not in finished.err


def test_a_malformed_env_file_does_not_show_what_stands_in_it(tmp_path: Path):
    (tmp_path / ".env").write_text("LLM_API_KEY sk-secret\n")
    assert "sk-secret" not in run_cli("status", "--trials", "trials.json", cwd=tmp_path).err


# Data that isn't what the ledger was built from


def test_other_bytes_under_a_name_the_ledger_holds(built: Path):
    """As if an earlier release had been called inmind@sample too."""
    record = json.loads(built.read_bytes())[0]
    held = record["body"]["release"]["sha256"]
    built.write_bytes(built.read_bytes().replace(held.encode(), b"0" * 64))
    before = state_of(built.parent)
    finished = call_cli("build", "inmind", "--data", str(SAMPLE), "--trials", str(built))
    refused_alone(finished, f"holds inmind@sample with data {'0' * 12}…, this data is {held[:12]}…; use another ledger")
    assert state_of(built.parent) == before


@pytest.mark.parametrize("modified", [True, False], ids=["other tasks", "other background"])
def test_replay_from_another_release(built: Path, tmp_path_factory: pytest.TempPathFactory, modified: bool):
    other = sample_copy(tmp_path_factory.mktemp("other") / "release")
    if modified:
        change_tasks(other, change(0, query="Something else?"))
    else:
        change_background(other, lambda rows: rows[0].update(content="Hi.\n" + rows[0]["content"]))
    before = state_of(built.parent)
    finished = call_cli("replay", "bm25", "--data", str(other), "--trials", str(built))
    refused_alone(finished, f"{other}: not the release this ledger was built from; give its folder with --data")
    assert state_of(built.parent) == before


def test_timelines_that_come_out_otherwise_than_built(built: Path):
    """As if another version had built them: the data is the same, a session isn't."""
    digest = json.loads(built.read_bytes())[3]["body"]["session_digests"][7]
    built.write_bytes(built.read_bytes().replace(digest.encode(), b"0" * 64))
    before = state_of(built.parent)
    finished = call_cli("replay", "bm25", "--trials", str(built))
    refused_alone(
        finished, f"{SAMPLE}: session 7 of task 2 isn't what inmind@sample was built from; give the same data"
    )
    assert state_of(built.parent) == before


def test_replay_from_a_release_that_was_spoilt_since(tmp_path: Path, desk: Desk):
    desk.build()
    before = state_of(desk.results)
    desk.path(TASKS).write_bytes(b"")
    trials = str(desk.results / "trials.json")
    refused_alone(call_cli("replay", "bm25", "--trials", trials), f"{TASKS}: empty")
    desk.path(TASKS).unlink()
    refused_alone(call_cli("replay", "bm25", "--trials", trials), f"{TASKS}: missing")
    desk.release.rename(tmp_path / "moved")
    refused_alone(call_cli("replay", "bm25", "--trials", trials), f"{desk.release}: no such folder")
    assert state_of(desk.results) == before


def test_replay_from_a_release_that_moved(tmp_path: Path, desk: Desk):
    desk.build()
    desk.release.rename(tmp_path / "moved")
    trials = str(desk.results / "trials.json")
    assert call_cli("replay", "bm25", "--data", str(tmp_path / "moved"), "--trials", trials).code == 0


# States that aren't here


def test_fetch_without_the_states(replayed: Path):
    """Two of eight are gone: nothing is asked, and both ways out are named."""
    stores = sorted(replayed.with_suffix(".stores").glob("bm25-*/*.sqlite"))
    for path in stores[:2]:
        path.unlink()
    before = state_of(replayed.parent)
    finished = call_cli("fetch", "bm25", "--trials", str(replayed))
    system = stores[0].parent.name
    refused_alone(
        finished,
        f"2 states of {system} aren't in {replayed.with_suffix('.stores')}",
        "fetch on the machine that replayed them",
        f"`memtrials void --kind ingest --system {system} --reason …` and replay again",
    )
    assert state_of(replayed.parent) == before


def test_both_ways_out_of_missing_states(replayed: Path):
    stores = sorted(replayed.with_suffix(".stores").glob("bm25-*/*.sqlite"))
    away = {path: path.read_bytes() for path in stores}
    for path in stores:
        path.unlink()
    trials = ("--trials", str(replayed))
    assert call_cli("fetch", "bm25", *trials).code == 2
    for path, content in list(away.items())[:4]:
        path.write_bytes(content)
    assert call_cli("fetch", "bm25", *trials).code == 2
    assert call_cli("void", "--kind", "ingest", "--system", "bm25", "--reason", "disk lost", *trials).code == 0
    assert call_cli("replay", "bm25", *trials).code == 0
    assert call_cli("fetch", "bm25", *trials).code == 0


def test_a_damaged_state_is_a_failure_that_names_its_file(replayed: Path):
    path = min(replayed.with_suffix(".stores").glob("bm25-*/*.sqlite"))
    path.write_bytes(b"not a database" * 1000)
    finished = call_cli("fetch", "bm25", "--trials", str(replayed))
    assert finished.code == 2
    assert "Traceback" not in finished.err
    assert f"{path}: can't be read (file is not a database)" in finished.err


def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a state finds room for six pages."""
    connect = Stores._connect

    def bounded(self: Stores, namespace: str) -> sqlite3.Connection:
        connection = connect(self, namespace)
        connection.execute("PRAGMA max_page_count = 6")
        return connection

    monkeypatch.setattr(Stores, "_connect", bounded)


def test_a_full_disk_ends_replay_and_leaves_no_half_built_state(built: Path, monkeypatch: pytest.MonkeyPatch):
    small_disk(monkeypatch)
    finished = call_cli("replay", "bm25", "--trials", str(built), "--quiet")
    refused_alone(finished, ".part: this state can't be written (database or disk is full); make room")
    assert list(built.parent.glob("trials.stores/*/*")) == []
    assert not any(record["kind"] in ("ingest", "failure") for record in json.loads(built.read_bytes()))
    monkeypatch.undo()
    assert call_cli("replay", "bm25", "--trials", str(built)).code == 0


def test_a_file_where_the_states_should_be(built: Path):
    built.with_suffix(".stores").write_text("here already")
    finished = call_cli("replay", "bm25", "--trials", str(built), "--quiet")
    refused_alone(finished, ".part: this state can't be written (Not a directory)")
