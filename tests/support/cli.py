"""Running memtrials as a user does, in a process of its own or, faster, in this one."""

import contextlib
import io
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from memtrials.cli import main

CONFIGURES = re.compile(r".*_(API_KEY|MODEL|BASE_URL)|TRIALS_FILE|EMBED_FILE")


class Finished(NamedTuple):
    """How a command ended: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without what would configure memtrials, and `extra` on top."""
    kept = {name: value for name, value in os.environ.items() if not CONFIGURES.fullmatch(name)}
    return {**kept, **(extra or {})}


def run_cli(*arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None) -> Finished:
    """`memtrials …` in a process of its own. env: on top of the inherited one without keys, models and TRIALS_FILE."""
    command = [sys.executable, "-m", "memtrials", *arguments]
    done = subprocess.run(command, cwd=cwd, env=environment(env), capture_output=True, text=True, check=False)
    return Finished(done.returncode, done.stdout, done.stderr)


def call_cli(*arguments: str, env: dict[str, str] | None = None) -> Finished:
    """The same in this process."""
    with _environment_of(environment(env)), _own_logging(), _text() as out, _text() as err:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main(arguments)
            except SystemExit as exit_:
                code = exit_.code
        assert isinstance(code, int)
        return Finished(code, _written(out), _written(err))


def _text() -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


@contextlib.contextmanager
def _environment_of(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _own_logging() -> Iterator[None]:
    """The command sets up logging as it would in a process of its own."""
    root = logging.getLogger()
    before = root.handlers[:]
    root.handlers.clear()
    try:
        yield
    finally:
        root.handlers[:] = before
