"""Several judges of the same answers: models with prompts, named one by one in a TOML file of `[[judge]]` tables."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtrials.errors import UserError, unknown

PromptSource = str | Path
KEYS = ("model", "prompts", "endpoint")


@dataclass(frozen=True)
class Member:
    """One judge: a model (or offline), whose prompts it is sent, and where it is if that isn't the judge's endpoint.

    prompts: a named set (`default` is ours, `official` the publisher's), or a folder. endpoint: the prefix of two
    variables, `X_BASE_URL` and `X_API_KEY`.
    """

    model: str
    prompts: PromptSource = "default"
    endpoint: str | None = None


def read(path: Path) -> tuple[Member, ...]:
    """The judges of a panel file, in order. Raises UserError that names the judge and the key."""
    try:
        table = tomllib.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError(f"{path}: not TOML ({error})") from None
    for key in table:
        if key != "judge":
            raise UserError(f"{path}: {unknown('key', key, ['judge'])}")
    rows = table.get("judge")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{path}: names no judges; write one [[judge]] table for each")
    return tuple(_member(path, number, row) for number, row in enumerate(rows, 1))


def _member(path: Path, number: int, row: dict[str, Any]) -> Member:
    where = f"{path}, judge {number}"
    for key, value in row.items():
        if key not in KEYS:
            raise UserError(f"{where}: {unknown('key', key, KEYS)}")
        if not isinstance(value, str) or not value.strip():
            raise UserError(f"{where}: {key} must be a text that isn't empty")
    if "model" not in row:
        raise UserError(f"{where}: model is missing")
    return Member(row["model"], _source(path.parent, row.get("prompts", "default")), row.get("endpoint"))


def _source(beside: Path, name: str) -> PromptSource:
    folder = beside / name
    return folder if folder.is_dir() else name
