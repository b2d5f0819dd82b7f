"""The program: its exit codes, its one-line errors, and the group that all commands belong to."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from memtrials import __version__
from memtrials.errors import UserError


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run a command line and exit: 0 done, 1 work failed, 2 the user must fix something, 130 interrupted."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    logging.basicConfig(format="memtrials: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        code = cli.main(list(sys.argv[1:] if arguments is None else arguments), "memtrials", standalone_mode=False)
    except UserError as error:
        code = _complain(error)
    except click.exceptions.NoArgsIsHelpError as error:
        print(error.format_message(), file=sys.stderr)
        code = 2
    except click.ClickException as error:
        hint = f" (see `{error.ctx.command_path} --help`)" if isinstance(error, click.UsageError) and error.ctx else ""
        code = _complain(UserError(error.format_message() + hint))
    except (KeyboardInterrupt, click.Abort):
        print("memtrials: interrupted; what was reported done is durable", file=sys.stderr)
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _complain(error: UserError) -> int:
    for detail in error.details:
        print(detail, file=sys.stderr)
    print(f"memtrials: {error}", file=sys.stderr)
    return 2


class _Program(click.Group):
    """To stop reading (`view | head`) is no failure: click would end with 1, which here means that work failed."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            code = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or the last flush would complain
            return 0
        return code


@click.group(cls=_Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="%(version)s")
def cli() -> None:
    """Evaluate the long-term memory of LLM agents.

    Six stages share one append-only ledger: build, replay, fetch, answer, judge, metrics. Run a stage again and it
    goes on where it stopped; nothing is done twice.
    """
