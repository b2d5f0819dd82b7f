"""What the documentation says is what the program does."""

import re
from pathlib import Path

import pytest

from memtrials.benchmarks.continuity.rules import read
from memtrials.benchmarks.continuity.scoring import ROWS
from memtrials.benchmarks.continuity.scripts import catalogue
from memtrials.systems import names
from support.cli import call_cli
from support.commands import REFERENCE, reference
from support.trials import records

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_command_reference_is_the_commands_own_help() -> None:
    assert REFERENCE.read_text("utf-8") == reference(), "rewrite it: python tests/support/commands.py"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)\)", document.read_text("utf-8"))
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_every_system_is_described() -> None:
    text = (ROOT / "docs" / "systems.md").read_text("utf-8")
    assert [name for name in names() if f"`{name}`" not in text] == []


def test_every_variable_of_the_example_is_read_by_the_program() -> None:
    variables = re.findall(r"^([A-Z_]+)=", (ROOT / ".env.example").read_text("utf-8"), re.MULTILINE)
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src" / "memtrials").rglob("*.py"))
    unread = [v for v in variables if v not in source and not re.fullmatch(r"(LLM|OPENAI|READER|JUDGE|EMBED)_\w+", v)]
    assert unread == []


def test_the_example_of_own_data_runs_from_end_to_end(tmp_path: Path) -> None:
    example = re.search(r"```json\n(.*?)```", (ROOT / "docs" / "benchmarks.md").read_text("utf-8"), re.DOTALL)
    assert example is not None
    data = tmp_path / "mine.json"
    data.write_text(example[1], "utf-8")
    trials = str(tmp_path / "trials.json")
    run = call_cli("run", "longmemeval", "--data", str(data), "--allow-modified", "bm25", "none", "--trials", trials)
    assert run.code == 0, run.err
    contained = {r["system"].partition("-")[0]: r["body"]["score"] for r in records(Path(trials), "verdict")}
    assert contained == {"bm25": 1.0, "none": 0.0}


def example(document: str, language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", (ROOT / "docs" / document).read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_example_of_a_life_of_ones_own_is_told_and_asked(tmp_path: Path) -> None:
    data, trials = tmp_path / "mine.json", tmp_path / "trials.json"
    data.write_text(example("continuity.md", "json"), "utf-8")
    run = call_cli(
        "run", "continuity", "substrate", "--data", str(data), "--allow-modified", "--trials", str(trials), "--json"
    )
    assert run.code == 0, run.err
    (retrieval,) = records(trials, "retrieval")
    assert [item["memory"]["external_id"] for item in retrieval["body"]["items"]] == ["new-code"]


def test_the_example_of_a_script_makes_a_scenario(tmp_path: Path) -> None:
    scripts, made = tmp_path / "scripts.toml", tmp_path / "fixture.json"
    scripts.write_text(example("continuity.md", "toml"), "utf-8")
    made.write_bytes(catalogue(scripts))
    (scenario,) = read(made).scenarios
    assert (scenario.fixture_id, len(scenario.events)) == ("long-gap-recall", 2)


def test_the_values_that_are_explained_are_those_that_there_are() -> None:
    text = (ROOT / "docs" / "continuity.md").read_text("utf-8")
    named = re.findall(r"`([a-z_]+_(?:rate|share|recall|change|coverage))`", text)
    assert set(named) <= set(ROWS.names)
    prefixes = re.findall(r"`([a-z_]+)(?:…|@k)", text)
    assert [name for name in ROWS.shown if name not in named and not name.startswith(tuple(prefixes))] == []


def test_sections_that_code_refers_to_exist() -> None:
    text = (ROOT / "docs" / "measuring.md").read_text("utf-8")
    sections = set(re.findall(r"^## (\d+)\.", text, re.MULTILINE))
    source = "".join(path.read_text("utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert set(re.findall(r"MEASURING §(\d+)", source)) <= sections
