"""The command line itself: help, start-up, mistakes. What commands do is tested where the stages are."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import memtrials
from memtrials import cli as cli_module
from memtrials.cli import cli
from memtrials.errors import UserError
from support.cli import call_cli, environment, run_cli

STAGES = ("build", "replay", "fetch", "answer", "judge", "metrics")
HEAVY = ("numpy", "scipy", "openai", "rich", "wordllama", "msgspec", "orjson", "tiktoken", "bpe_openai", "dotenv")


def commands(group: click.Group = cli, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command with the words that call it."""
    for name, command in group.commands.items():
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


COMMANDS = dict(commands())
LEAVES = {path: command for path, command in COMMANDS.items() if not isinstance(command, click.Group)}


# Help


def test_the_six_stages_are_commands():
    assert [name for name in STAGES if (name,) not in COMMANDS] == []


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_every_command_has_help_that_begins_with_a_sentence(path: tuple[str, ...]):
    first = (COMMANDS[path].help or "").split("\n\n")[0]
    assert re.match(r"[A-Z].*[.:]$", first, re.DOTALL), first
    for flag in ("--help", "-h"):
        finished = call_cli(*path, flag)
        assert (finished.code, finished.err) == (0, "")
        assert finished.out.startswith(f"Usage: memtrials {' '.join(path)} ")


@pytest.mark.parametrize("path", LEAVES, ids=" ".join)
def test_every_option_says_what_it_is_for(path: tuple[str, ...]):
    options = [p for p in LEAVES[path].params if isinstance(p, click.Option)]
    mute = [o.name for o in options if not o.help and not isinstance(o.type, click.Choice)]
    assert mute == []


@pytest.mark.parametrize("stage", STAGES[1:])
def test_stages_share_the_selection_flags(stage: str):
    flags = {flag for parameter in COMMANDS[stage,].params for flag in parameter.opts}
    selection = ["benchmark", "system", "config", "task", "type", "split", "sample", "seed", "limit", "shard"]
    assert {f"--{name}" for name in (*selection, "trials", "json")} <= flags
    assert stage == "metrics" or {"--dry-run", "--workers", "--quiet"} <= flags


def test_help_lists_every_command():
    out = call_cli("--help").out
    assert [
        path[0] for path in COMMANDS if len(path) == 1 and not re.search(rf"^  {path[0]} ", out, re.MULTILINE)
    ] == []


def test_documents_list_every_command():
    reference = Path(memtrials.__file__).parents[2] / "docs" / "commands.md"
    if not reference.is_file():
        pytest.skip("no docs/commands.md")
    text = reference.read_text("utf-8")
    assert [path for path in COMMANDS if f"\n## memtrials {' '.join(path)}\n" not in text] == []


def test_version():
    assert call_cli("--version") == (0, f"{memtrials.__version__}\n", "")


# Start-up

IMPORTED = """
import contextlib, sys
from memtrials.cli import main
with contextlib.suppress(SystemExit):
    main(sys.argv[1:])
print("imported:", *sorted({name.partition(".")[0] for name in sys.modules}))
"""


@pytest.mark.parametrize(
    "arguments", [("--help",), ("replay", "--help"), ("--version",), ("stores", "--help"), ("oops",)]
)
def test_nothing_heavy_is_imported_before_a_command_runs(arguments: tuple[str, ...]):
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments], env=environment(), capture_output=True, text=True, check=True
    )
    imported = done.stdout.rpartition("imported:")[2].split()
    assert "click" in imported
    assert [name for name in HEAVY if name in imported] == []


@pytest.mark.parametrize("arguments", [("status",), ("merge", "a", "b", "--out", "c"), ("void", "--kind", "answer")])
def test_a_command_that_fails_early_loads_no_model_library(arguments: tuple[str, ...], tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *arguments],
        env=environment({"TRIALS_FILE": "missing.json"}),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    imported = done.stdout.rpartition("imported:")[2].split()
    assert [name for name in ("openai", "wordllama", "scipy", "numpy") if name in imported] == []


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("anwser",), "No such command 'anwser'. Did you mean 'answer'?"),
        (("anwser", "--help"), "No such command 'anwser'. Did you mean 'answer'?"),
        (("stores", "lst"), "No such command 'lst'. Did you mean 'list'?"),
        (("replay",), "Missing argument 'SYSTEMS...'."),
        (("build",), "Missing argument 'BENCHMARK'."),
        (("fetch", "--limt", "3"), "No such option '--limt'. (Did you mean one of: '--limit', "),
        (("fetch", "--limit", "0"), "Invalid value for '--limit': 0 is not in the range x>=1."),
        (("fetch", "--limit", "three"), "Invalid value for '--limit': 'three' is not a valid integer range."),
        (("fetch", "--split", "train"), "Invalid value for '--split': 'train' is not one of 'dev', 'test'."),
        (("status", "extra"), "Got unexpected extra argument (extra)"),
        (("fetch", "--shard", "3/2"), "--shard 3/2: write K/N with K from 1 to N, for example 1/4"),
    ],
)
def test_usage_mistakes_are_one_line(arguments: tuple[str, ...], said: str):
    finished = call_cli(*arguments)
    assert (finished.code, finished.out) == (2, "")
    assert finished.err.startswith(f"memtrials: {said}")
    assert finished.err.count("\n") == 1


def test_a_mistake_points_at_the_help_of_its_command():
    assert call_cli("fetch", "--k", "0").err.endswith("(see `memtrials fetch --help`)\n")
    assert call_cli("stores", "clean", "--al").err.endswith("(see `memtrials stores clean --help`)\n")


@pytest.mark.parametrize("path", [(), *(p for p in COMMANDS if p not in LEAVES)], ids=" ".join)
def test_a_group_alone_shows_its_help(path: tuple[str, ...]):
    finished = call_cli(*path)
    assert finished == (2, "", call_cli(*path, "--help").out)
    assert "\nCommands:\n" in finished.err


def test_python_m_memtrials_is_memtrials(tmp_path: Path):
    finished = run_cli("status", "--trials", "missing.json", cwd=tmp_path)
    assert finished == (2, "", "memtrials: missing.json: no such ledger; `memtrials build` makes it\n")


def test_details_stand_before_the_line_that_sums_up(monkeypatch: pytest.MonkeyPatch):
    def fail() -> int:
        raise UserError("2 problems", ("a.json, line 1: this", "a.json, line 2: that"))

    monkeypatch.setattr(COMMANDS["doctor",], "callback", lambda **_: fail())
    finished = call_cli("doctor")
    assert finished == (2, "", "a.json, line 1: this\na.json, line 2: that\nmemtrials: 2 problems\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt, click.Abort])
def test_an_interrupted_command_ends_with_130(monkeypatch: pytest.MonkeyPatch, error: type[BaseException]):
    def interrupted(**_: object) -> int:
        raise error

    monkeypatch.setattr(COMMANDS["doctor",], "callback", interrupted)
    finished = call_cli("doctor")
    assert (finished.code, finished.out) == (130, "")
    assert finished.err.strip() == "memtrials: interrupted; what was reported done is durable"


@pytest.mark.parametrize("arguments", [("view",), ("status", "--json")], ids=["much", "little"])
def test_to_read_no_further_is_no_failure(judged: Path, arguments: tuple[str, ...]):
    """`memtrials view | head`: the pipe is closed before, or while, the output is written."""
    command = [sys.executable, "-m", "memtrials", *arguments, "--trials", str(judged)]
    child = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait() == 0


# Text


def test_output_is_utf8_whatever_the_locale_is(judged: Path):
    plain = run_cli("status", "--trials", str(judged))
    in_c = run_cli("status", "--trials", str(judged), env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"})
    assert plain.code == 0
    assert plain == in_c
    assert "│" in plain.out


def test_main_reads_the_arguments_of_the_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(sys, "argv", ["memtrials", "--version"])
    with pytest.raises(SystemExit) as ended:
        cli_module.main()
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{memtrials.__version__}\n"
