"""The command reference, made from the commands' own help: `python tests/support/commands.py` rewrites it."""

from __future__ import annotations

from pathlib import Path

import click

from memtrials.cli import cli

REFERENCE = Path(__file__).parents[2] / "docs" / "commands.md"
HEAD = """# Commands

Every command with its flags, as `memtrials COMMAND --help` prints them. Each stage is also a script:
`uv run src/build.py …` is `memtrials build …`.
"""


def reference() -> str:
    """The whole text of `docs/commands.md`."""
    return HEAD + "".join(_section(cli, "memtrials", []))


def _section(command: click.Command, name: str, path: list[str]) -> list[str]:
    names = cli.context_settings["help_option_names"]  # a command that has run once keeps them, so always the same
    context = click.Context(command, info_name=" ".join([*path, name]), terminal_width=110, help_option_names=names)
    parts = [f"\n## {' '.join([*path, name])}\n\n```\n{command.get_help(context)}\n```\n"]
    if isinstance(command, click.Group):
        for child in sorted(command.commands):
            parts += _section(command.commands[child], child, [*path, name])
    return parts


if __name__ == "__main__":
    REFERENCE.write_text(reference(), "utf-8")
