"""Several judges on the same answers: how they are asked, and what `metrics` says of how far they agree."""

import json
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks.base import Prompts
from memtrials.benchmarks.inmind import BENCHMARK
from memtrials.judging import panel
from memtrials.judging.panel import Member
from memtrials.judging.verdicts import VERDICT_FORMAT, parse_score
from memtrials.llm.roles import judge_config
from memtrials.settings import evaluation
from support.cli import call_cli, environment
from support.model_server import KEY, ModelServer, Reply, always, error, late, ok
from support.trials import ended, records, stage

TASKS = (2, 5, 9, 14, 21, 22, 30, 41)
SAY = {
    "judge-a": (1, 1, 1, 1, 0, 0, 0, 0),
    "judge-b": (1, 1, 1, 0, 0, 0, 0, 0),
    "judge-c": (1, 1, 1, 1, 1, 0, 0, 0),
}
"""What each judge says of the eight tasks, in order: a and b differ on one, a and c on another."""


def judged(trials: Path, judges: tuple[str, ...]) -> dict[str, Any]:
    """The agreement on `application` of bm25's answers after these judges have decided."""
    for judge in judges:
        scores = iter(SAY[judge])

        def script(number: int, body: dict[str, Any], scores: Iterator[int] = scores) -> Reply:
            return ok(json.dumps({"score": next(scores), "reason": "as told"}))

        with ModelServer(script) as server:
            one = ("--judge", judge, "--metric", "application", "--system", "bm25", "--workers", "1")
            stage(trials, "judge", *one, env=server.environment())
    said = json.loads(call_cli("metrics", "--json", "--trials", str(trials)).out)
    (found,) = [a for a in said["agreements"] if a["metric"] == "application"]
    assert isinstance(found, dict)
    return found


def test_two_judges(answered: Path) -> None:
    """7 of 8 equal; chance 0.5 · 0.375 + 0.5 · 0.625 = 0.5; kappa (0.875 - 0.5) / 0.5."""
    found = judged(answered, ("judge-a", "judge-b"))
    assert (found["n"], found["raw"], found["kappa"]) == (8, 0.875, 0.75)
    assert (found["low"], found["high"]) == (0.375, 0.5)
    assert [item for item, _ in found["flips"]] == ["14/query"]
    assert (found["majority"], found["ties"]) == (3 / 7, 1)


def test_three_judges(answered: Path) -> None:
    """24 verdicts, 12 of each score; 4 of the 24 pairs that items make disagree, 12 of 23 would by chance."""
    found = judged(answered, ("judge-a", "judge-b", "judge-c"))
    assert (found["raw"], found["kappa"]) == (None, None)
    assert round(found["alpha"], 12) == round(1 - (4 / 24) / (12 / 23), 12)
    assert (found["low"], found["high"]) == (0.375, 0.625)
    assert [item for item, _ in found["flips"]] == ["14/query", "21/query"]
    assert (found["majority"], found["ties"]) == (0.5, 0)


def test_one_judge_twice(answered: Path) -> None:
    """Repeats of one judge are raters of their own, named by their ordinal."""
    judged_once = ("--judge", "judge-a", "--metric", "application", "--system", "bm25")
    replies = iter((1, 0) * 8)
    with ModelServer(lambda number, request: ok(json.dumps({"score": next(replies)}))) as server:
        stage(answered, "judge", *judged_once, "--repeat", "2", "--workers", "1", env=server.environment())
    said = json.loads(call_cli("metrics", "--json", "--trials", str(answered)).out)
    (found,) = [a for a in said["agreements"] if a["metric"] == "application"]
    assert [rater[-2:] for rater in found["raters"]] == ["#1", "#2"]
    assert (found["raw"], len(found["flips"])) == (0.0, 8)


def test_the_table_shows_them(answered: Path) -> None:
    judged(answered, ("judge-a", "judge-b"))
    table = call_cli("metrics", "--trials", str(answered)).out
    assert "where judges decided the same" in table
    assert "0.375–0.500" in table


# --- several judges in one go -----------------------------------------------------------------------------------

PANEL = ("--judge", "judge-a", "--judge", "judge-b", "--judge", "judge-c")
APPLICATION = ("--metric", "application", "--system", "bm25")
OURS = evaluation() / "prompts" / "inmind"
QUERIES = [
    json.loads(line)["query"]
    for line in (evaluation() / "samples/inmind/benchmark/dataset/inmind.jsonl").read_text("utf-8").splitlines()
]


def as_they_say(number: int, body: dict[str, Any]) -> Reply:
    """Three judges behind one endpoint: each says of a task what SAY has for it, whenever it is asked."""
    asked = body["messages"][1]["content"]
    (task,) = [n for n, query in enumerate(QUERIES) if f"query: {query}\n" in asked]
    return ok(json.dumps({"score": SAY[body["model"]][task], "reason": body["model"]}))


def panel_of(folder: Path, text: str) -> tuple[str, str]:
    """The flags for a panel file with this text."""
    path = folder / "panel.toml"
    path.write_text(text, "utf-8")
    return "--panel", str(path)


def test_three_judges_in_one_go(answered: Path) -> None:
    """Each judge has its own verdicts, and the same agreement as when they are asked one after the other."""
    with ModelServer(as_they_say) as server:
        outcome = stage(answered, "judge", *PANEL, *APPLICATION, env=server.environment())
        again = stage(answered, "judge", *PANEL, *APPLICATION, env=server.environment())
        assert Counter(r.body["model"] for r in server.requests) == dict.fromkeys(SAY, 8)
    assert (outcome["pending"], outcome["done"], outcome["appended"]) == (24, 24, 27)  # three configurations
    assert (again["pending"], again["appended"]) == (0, 0)
    said = json.loads(call_cli("metrics", "--json", "--trials", str(answered)).out)
    (found,) = [a for a in said["agreements"] if a["metric"] == "application"]
    assert [rater.rpartition("-")[0] for rater in found["raters"]] == list(SAY)
    assert round(found["alpha"], 12) == round(1 - (4 / 24) / (12 / 23), 12)
    assert (found["low"], found["high"]) == (0.375, 0.625)
    assert [item for item, _ in found["flips"]] == ["14/query", "21/query"]


def test_a_panel_of_models_prompts_and_the_rule(answered: Path, tmp_path: Path) -> None:
    """One model with two sets of prompts is two judges; the offline one decides what it can."""
    shutil.copytree(OURS, tmp_path / "stern")
    stern = tmp_path / "stern" / "judge_application.txt"
    stern.write_text("Be stern.\n" + stern.read_text("utf-8"), "utf-8")
    flags = panel_of(
        tmp_path,
        """
        [[judge]]
        model = "judge-a"
        [[judge]]
        model = "judge-a"
        prompts = "stern"
        [[judge]]
        model = "offline"
        """,
    )
    with ModelServer(always(ok('{"score": 1, "reason": "r"}'))) as server:
        only = ("--system", "bm25", "--metric", "application", "--metric", "target-verbatim")
        outcome = stage(answered, "judge", *flags, *only, env=server.environment())
    assert outcome["done"] == 24
    assert Counter(r.system.startswith("Be stern.") for r in server.requests) == {False: 8, True: 8}
    judges = {v["judge"] for v in records(answered, "verdict")}
    assert sorted(judge.rpartition("-")[0] for judge in judges) == ["judge-a", "judge-a", "offline"]


def test_a_judge_may_have_an_endpoint_of_its_own(answered: Path, tmp_path: Path) -> None:
    flags = panel_of(tmp_path, '[[judge]]\nmodel = "judge-a"\n[[judge]]\nmodel = "judge-b"\nendpoint = "ELSEWHERE"\n')
    with ModelServer(as_they_say) as here, ModelServer(as_they_say) as elsewhere:
        missing = call_cli("judge", *flags, *APPLICATION, "--trials", str(answered), env=here.environment())
        assert (missing.code, "ELSEWHERE_BASE_URL and ELSEWHERE_API_KEY" in missing.err) == (2, True)
        assert not here.requests  # nothing is sent before everything is known
        env = {**here.environment(), "ELSEWHERE_BASE_URL": elsewhere.url, "ELSEWHERE_API_KEY": "another-key"}
        stage(answered, "judge", *flags, *APPLICATION, env=env)
    assert {(r.body["model"], r.headers["authorization"]) for r in here.requests} == {("judge-a", f"Bearer {KEY}")}
    others = {(r.body["model"], r.headers["authorization"]) for r in elsewhere.requests}
    assert others == {("judge-b", "Bearer another-key")}


def test_a_killed_panel_sends_only_the_rest(answered: Path) -> None:
    with ModelServer(lambda number, body: late(0.05, as_they_say(number, body))) as server:
        arguments = ("judge", *PANEL, *APPLICATION, "--trials", str(answered))
        command = [sys.executable, "-m", "memtrials", *arguments, "--workers", "2", "--quiet"]
        process = subprocess.Popen(command, env=environment(server.environment()), stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while len(server.requests) < 9 and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
        process.wait()
        ended(call_cli("status", "--trials", str(answered)))
        durable = answered.read_bytes().count(b'"kind":"verdict"')
        assert 0 < durable < 24
        del server.requests[:]
        outcome = stage(answered, "judge", *PANEL, *APPLICATION, env=server.environment())
        assert outcome["done"] == len(server.requests) == 24 - durable
    work = Counter((v["key"], v["repeat"]) for v in records(answered, "verdict"))
    assert (len(work), max(work.values())) == (24, 1)


def test_the_panel_in_the_documentation(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "judging.md").read_text("utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "stern").mkdir()
    (tmp_path / "panel.toml").write_text(example, "utf-8")
    assert panel.read(tmp_path / "panel.toml") == (
        Member("gpt-5-mini"),
        Member("gpt-5-mini", "official"),
        Member("qwen3-32b", tmp_path / "stern", "VLLM"),
        Member("offline"),
    )


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "names no judges"),
        ("judge = 3", "names no judges"),
        ("[[judge]", "not TOML"),
        ('[[judges]]\nmodel = "m"', "unknown key 'judges'; did you mean judge?"),
        ('[[judge]]\nprompts = "default"', "judge 1: model is missing"),
        ('[[judge]]\nmodel = "m"\n[[judge]]\nmodle = "n"', "judge 2: unknown key 'modle'; did you mean model?"),
        ("[[judge]]\nmodel = 3", "judge 1: model must be a text"),
        ('[[judge]]\nmodel = "m"\nprompts = "sterm"', "unknown set of judge prompts of inmind"),
        ('[[judge]]\nmodel = "m"\nprompts = "official"', "--prompts official needs --upstream DIR"),
        ('[[judge]]\nmodel = "m"\nprompts = "."', "judge_answer_only.txt: this prompt is missing; copy it from "),
        ('[[judge]]\nmodel = "m"\n[[judge]]\nmodel = "m"', "judge m is named twice with the same prompts"),
    ],
)
def test_what_is_wrong_with_a_panel_is_said_in_one_line(answered: Path, text: str, complaint: str) -> None:
    before = answered.read_bytes()
    told = ended(call_cli("judge", *panel_of(answered.parent, text), "--trials", str(answered)), 2)
    assert told.err.count("\n") == 1
    assert complaint in told.err
    assert answered.read_bytes() == before


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--panel", "none.toml"), "none.toml: can't be read"),
        (("--panel", "p.toml", "--judge", "m"), "leave out --judge and --prompts"),
        (("--judge", "m", "--judge", "m"), "named twice"),
        (("--judge", "m", "--judge", "n", "--export-requests", "x.jsonl"), "take one judge"),
        (("--judge", "m", "--upstream", "x"), "--upstream goes with"),
    ],
)
def test_flags_that_contradict_each_other(answered: Path, flags: tuple[str, ...], complaint: str) -> None:
    told = ended(call_cli("judge", *flags, "--trials", str(answered)), 2)
    assert (told.err.count("\n"), complaint in told.err) == (1, True), told.err


# --- the form of a verdict --------------------------------------------------------------------------------------


def test_judges_with_our_prompts_are_asked_for_the_form_of_a_verdict(answered: Path) -> None:
    with ModelServer(as_they_say) as server:
        stage(answered, "judge", "--judge", "judge-a", *APPLICATION, env=server.environment())
    assert all(r.body["response_format"] == VERDICT_FORMAT for r in server.requests)
    schema: Any = VERDICT_FORMAT["json_schema"]
    assert parse_score(json.dumps(dict.fromkeys(schema["schema"]["required"], 1))) == (1.0, "1")


def test_official_prompts_ask_for_nothing_beside_the_published_parameters() -> None:
    texts = {name: name for name in BENCHMARK.official_prompts}
    ours = judge_config(BENCHMARK, "m", Prompts(texts, "default"))
    official = judge_config(BENCHMARK, "m", Prompts(texts, "official", official=True))
    assert official.settings["parameters"] == {"max_completion_tokens": 4096}
    assert ours.settings["parameters"] == {"max_completion_tokens": 4096, "response_format": VERDICT_FORMAT}


def test_an_endpoint_that_rejects_the_form_is_asked_without_it_from_then_on(answered: Path) -> None:
    def script(number: int, body: dict[str, Any]) -> Reply:
        if "response_format" in body:
            return error(400, "invalid_request_error", "response_format json_schema is not supported")
        return as_they_say(number, body)

    with ModelServer(script) as server:
        one = ("--judge", "judge-a", *APPLICATION, "--workers", "1")
        assert stage(answered, "judge", *one, env=server.environment())["done"] == 8
    assert ["response_format" in r.body for r in server.requests] == [True] + [False] * 8
    (config,) = [c for c in records(answered, "config") if c.get("judge", "").startswith("judge-a")]
    assert "response_format" in config["body"]["settings"]["parameters"]  # as asked
    assert all("response_format" not in v["body"]["call"]["sent"] for v in records(answered, "verdict"))
