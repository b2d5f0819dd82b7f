"""What `methods` says of a run, and that it says nothing that isn't recorded."""

import re
from pathlib import Path

import pytest

from memtrials import __version__, benchmarks
from support.cli import call_cli
from support.model_server import ModelServer, always, ok
from support.released import LOCOMO, listed_locomo, write
from support.trials import answer, ended, records, stage


def methods(trials: Path, *arguments: str) -> str:
    return ended(call_cli("methods", "--trials", str(trials), *arguments)).out


def line(text: str, beginning: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(beginning))


def test_data_systems_readers_and_judges_are_named_with_their_ids_and_numbers(judged: Path):
    told = methods(judged)
    (release, *_) = (record["body"]["release"] for record in records(judged, "task"))
    data = line(told, "inmind@sample: 16 questions in 8 tasks, built from a known release")
    assert all(file["sha256"] in data for file in release["files"])
    for config in records(judged, "config"):
        assert config["key"] in told
    assert "16 retrievals of 16 questions, each once on 8 states" in line(told, "bm25")
    assert ", a control, " in line(told, "none")
    assert "rules without a model" in line(told, "Answers on")
    assert "48 answers of 16 questions, each once" in line(told, "Answers on")
    assert "Wilson's" in told
    assert f"Computed by memtrials {__version__}." in told
    assert methods(judged) == told


def test_a_selection_and_what_was_voided_are_told(judged: Path):
    stage(judged, "void", "--kind", "answer", "--system", "none", "--reason", "a test")
    told = methods(judged, "--system", "bm25", "--limit", "2")
    assert line(told, "inmind@sample: 4 questions in 2 of 8 tasks")
    assert "4 retrievals of 4 questions" in line(told, "bm25")
    assert not any(said.startswith("none") for said in told.splitlines())
    body = records(judged, "void")[0]["body"]
    assert f"voided 1 time, {body['right']} right and {body['wrong']} wrong" in told


@pytest.mark.usefixtures("quick")
def test_models_prompts_and_parameters_are_those_on_record(fetched: Path):
    with ModelServer(always(ok("Oslo"))) as server:
        answer(server, fetched, "--system", "bm25")
        stage(fetched, "answer", "--reader", "model-a", "--system", "bm25", "--repeat", "2", env=server.environment())
    (config,) = [r["body"] for r in records(fetched, "config") if r["body"]["role"] == "reader"]
    told = line(methods(fetched, "--system", "bm25"), "Answers on inmind@sample are by model-a")
    assert "reader profile plain, prompts default (SHA-256 " in told
    assert "32 answers of 16 questions, 2 times each" in told
    for name in config["settings"]["parameters"]:
        assert f"{name} = " in told
    returned = {r["body"]["call"]["model_returned"] for r in records(fetched, "answer")} - {"model-a"}
    assert all(name in told for name in returned)


def test_what_nobody_knows_of_imported_results_is_unknown(tmp_path: Path):
    trials = tmp_path / "trials.json"
    ended(call_cli("build", "locomo", "--data", str(LOCOMO), "--trials", str(trials)))
    stage(trials, "import", str(write(tmp_path / "mem0_judged.json", listed_locomo())))
    told = methods(trials)
    assert "results that others made, imported" in line(told, "imported-mem0")
    assert "version unknown" in line(told, "imported-mem0")
    answers = line(told, "Answers on")
    assert "an unknown model" in answers
    assert "reader profile unknown, prompts unknown, parameters unknown" in answers


@pytest.mark.parametrize("name", ["inmind", "longmemeval", "locomo"])
def test_references_are_what_the_citations_say(name: str):
    benchmark = benchmarks.find(name)
    assert benchmark.citation.endswith(f"arXiv:{benchmark.reference['eprint']}")
    assert all(re.fullmatch(r"[a-z]+", field) for field in benchmark.reference)
    assert not any(value.count("{") - value.count("}") for value in benchmark.reference.values())


def test_bibtex_has_an_entry_for_each_benchmark_and_the_program(judged: Path):
    told = methods(judged)
    entries = re.findall(r"^@(\w+)\{(\w+),\n((?:  \w+ = \{.*\},\n)+)\}$", told, re.MULTILINE)
    assert [(kind, key) for kind, key, _ in entries] == [("misc", "inmind"), ("misc", "memtrials")]
    assert "eprint = {2607.24368}" in entries[0][2]
    assert __version__ in entries[1][2]
