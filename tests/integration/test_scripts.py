"""The scripts in `src/`: each runs by itself from anywhere, on the versions that the project pins."""

import json
import os
import re
import signal
import subprocess
import time
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.trials import records
from support.uv import ROOT, uv, uv_started

STAGES = ("build", "replay", "fetch", "answer", "judge", "metrics")
BLOCK = re.compile(r"(?m)^# /// script$\n((?:^#(?: .*)?$\n)+?)^# ///$")


def block(script: Path) -> dict[str, Any]:
    """The inline metadata of a script (PEP 723)."""
    (found,) = BLOCK.findall(script.read_text("utf-8"))
    return tomllib.loads("".join(line.removeprefix("#").removeprefix(" ") for line in found.splitlines(keepends=True)))


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def script(name: str) -> Path:
    return ROOT / "src" / f"{name}.py"


# What they say they need


def test_there_is_a_script_for_every_stage_and_for_nothing_else():
    assert sorted(path.stem for path in (ROOT / "src").glob("*.py")) == sorted(STAGES)


@pytest.mark.parametrize("name", STAGES)
def test_a_script_needs_what_the_project_needs(name: str, project: dict[str, Any]):
    """The core, in the versions pinned there, and perhaps something of an extra; the same Python, the same date."""
    own = block(script(name))
    extras = [r for some in project["project"].get("optional-dependencies", {}).values() for r in some]
    core = project["project"]["dependencies"]
    assert own["requires-python"] == project["project"]["requires-python"]
    assert own["tool"]["uv"] == {"exclude-newer": project["tool"]["uv"]["exclude-newer"]}
    assert [r for r in own["dependencies"] if r in core] == core
    assert [r for r in own["dependencies"] if r not in core and r not in extras] == []


def test_every_direct_dependency_is_pinned_exactly(project: dict[str, Any]):
    groups = [project["project"]["dependencies"], project["build-system"]["requires"]]
    groups += [*project["project"].get("optional-dependencies", {}).values(), *project["dependency-groups"].values()]
    requirements = [requirement for group in groups for requirement in group]
    assert [r for r in requirements if not re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,-]+\])?==[0-9][0-9a-z.]*", r)] == []


def test_a_script_does_nothing_but_call_its_command():
    for name in STAGES:
        text = script(name).read_text("utf-8")
        code = text[text.index('"""') :]
        assert f'main(["{name}", *sys.argv[1:]])' in code
        assert re.findall(r"^(?!import sys$|if __name__|    |\"\"\"|$).+", code, re.MULTILINE) == []


# Running them


@pytest.mark.parametrize("name", STAGES)
def test_a_script_shows_its_commands_help(name: str, tmp_path: Path):
    finished = uv("run", "--quiet", script(name), "--help", cwd=tmp_path)
    assert finished.code == 0, finished.err
    assert finished.out.startswith(f"Usage: memtrials {name} [OPTIONS]")
    assert list(tmp_path.iterdir()) == []


def test_the_scripts_do_the_whole_work_from_another_folder(tmp_path: Path, sample: Path):
    before = sorted(path.name for path in (ROOT / "src").iterdir())
    (tmp_path / "elsewhere").mkdir()
    trials = tmp_path / "trials.json"
    arguments: dict[str, tuple[str, ...]] = {
        "build": ("inmind", "--data", str(sample)),
        "replay": ("bm25", "vector", "--limit", "2"),
        "metrics": ("--limit", "2"),
    }
    for name in STAGES:
        finished = uv(
            "run",
            "--quiet",
            script(name),
            *arguments.get(name, ()),
            "--trials",
            trials,
            "--json",
            cwd=tmp_path / "elsewhere",
        )
        assert finished.code == 0, finished.err
    kinds = Counter(record["kind"] for record in records(trials))
    assert kinds == {"task": 8, "config": 5, "ingest": 4, "retrieval": 8, "answer": 8, "verdict": 8}
    values = {
        n["system_name"]: n["value"] for n in json.loads(finished.out)["numbers"] if n["metric"] == "direct-verbatim"
    }
    assert set(values) == {"bm25", "vector"}
    assert None not in values.values()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert sorted(path.name for path in (ROOT / "src").iterdir() if path.name != "__pycache__") == [
        name for name in before if name != "__pycache__"
    ]


def test_an_interrupted_script_ends_as_its_command_does(built: Path, tmp_path: Path):
    """uv and the script get the signal, and uv hands on its own: to the script it comes twice."""
    size = built.stat().st_size
    command = ("run", "--quiet", script("replay"), "bm25", "--repeat", "40", "--trials", built, "--json")
    with uv_started(*command, cwd=tmp_path) as child:
        while built.stat().st_size < size + 4000:
            assert child.poll() is None, child.communicate()
            time.sleep(0.002)
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate(timeout=30)
    assert child.returncode == 130
    assert "Traceback" not in err
    outcome = json.loads(out)
    assert outcome["done"] == len(records(built, "ingest")) < outcome["pending"]


def test_a_mistake_ends_with_one_line_and_2(tmp_path: Path):
    finished = uv("run", "--quiet", script("fetch"), "--trials", "missing.json", cwd=tmp_path)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err == "memtrials: missing.json: no such ledger; `memtrials build` makes it\n"


# Where packages come from is the user's business

REGISTRIES = [
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("pypi", "python", "org"),
        ("npmjs", "org"),
        ("npmjs", "com"),
        ("crates", "io"),
        ("anaconda", "org"),
        ("proxy", "golang", "org"),
    )
]


def test_no_file_names_the_host_of_a_package_registry():
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    assert len(paths) > 50
    texts = {path: path.read_bytes().decode("utf-8", "replace") for path in paths if path.is_file()}
    assert [(path, host) for path, text in texts.items() for host in REGISTRIES if host in text] == []
