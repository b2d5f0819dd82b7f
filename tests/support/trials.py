"""What a test asks of a ledger: run a stage on it, look at its records, compare its files."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.cli import Finished, call_cli, environment
from support.model_server import ModelServer


def ended(finished: Finished, code: int = 0) -> Finished:
    """The same, or a failed assertion that shows what was said."""
    assert finished.code == code, f"exit code {finished.code}\n{finished.out}\n{finished.err}"
    return finished


def stage(trials: Path, *arguments: str, code: int = 0, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Run a command on a ledger with `--json` and return what it printed."""
    finished = ended(call_cli(*arguments, "--trials", str(trials), "--json", env=env), code)
    outcome = json.loads(finished.out)
    assert isinstance(outcome, dict)
    return outcome


def all_at_once(trials: Path, *commands: tuple[str, ...], env: dict[str, str] | None = None) -> None:
    """Run commands in processes of their own, all at the same time."""
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "memtrials", *command, "--trials", str(trials), "--quiet"],
            env=environment(env),
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    assert [(child.communicate()[1], child.returncode) for child in children] == [("", 0)] * len(commands)


def answer(server: ModelServer, trials: Path, *arguments: str, code: int = 0, **env: str) -> dict[str, Any]:
    """`answer --reader model-a`, with the server behind it."""
    chosen = ("--reader", "model-a")
    return stage(trials, "answer", *chosen, *arguments, code=code, env={**server.environment(), **env})


def judge(server: ModelServer, trials: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    """`judge --judge model-j`, with the server behind it."""
    return stage(trials, "judge", "--judge", "model-j", *arguments, code=code, env=server.environment())


def records(trials: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The records of a ledger as any JSON reader sees them, of one kind or all."""
    return [r for r in json.loads(trials.read_bytes()) if kind is None or r["kind"] == kind]


Edit = Callable[[list[dict[str, Any]]], list[dict[str, Any]]]


def edited(trials: Path, copy: Path, edit: Edit) -> Path:
    """A copy of a ledger with other records."""
    lines = [json.dumps(record, separators=(",", ":"), ensure_ascii=False) for record in edit(records(trials))]
    copy.write_text("[\n" + ",\n".join(lines) + "\n]\n", "utf-8")
    return copy


def files(folder: Path) -> dict[str, bytes]:
    """Everything below a folder: files with their bytes, folders (their names end in `/`) without."""
    return {
        f"{path.relative_to(folder)}{'/' if path.is_dir() else ''}": b"" if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
    }
