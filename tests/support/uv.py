"""Running `uv` as a user does: outside this environment, from a folder that isn't the repository."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cli import Finished, environment

OFFLINE = ("error sending request", "Failed to fetch", "dns error", "Could not connect")
ROOT = Path(__file__).parents[2]


def uv(*arguments: str | Path, cwd: Path) -> Finished:
    """`uv …` in that folder; the test is skipped where there is no uv or no package registry."""
    return run("uv", *arguments, cwd=cwd) if shutil.which("uv") else pytest.skip("uv isn't installed")


@contextlib.contextmanager
def uv_started(*arguments: str | Path, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    """`uv …` in a session of its own, which is killed in the end."""
    if not shutil.which("uv"):
        pytest.skip("uv isn't installed")
    child = subprocess.Popen(
        ["uv", *map(str, arguments)],
        cwd=cwd,
        env=_outside(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield child
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()


def run(program: str | Path, *arguments: str | Path, cwd: Path) -> Finished:
    """A program in that folder, in none of this process's Python environments."""
    command = [str(program), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=_outside(), capture_output=True, text=True, check=False)
    if done.returncode and any(sign in done.stderr for sign in OFFLINE):
        pytest.skip("no package registry can be reached")
    return Finished(done.returncode, done.stdout, done.stderr)


def _outside() -> dict[str, str]:
    ours = ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "PYTHONPATH")
    return {name: value for name, value in environment().items() if name not in ours}
