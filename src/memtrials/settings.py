"""Settings from outside the command line: the environment over `.env` files over defaults.

`.env` is read in the working directory, then in the repository (the checkout this package runs from, if it does).
An empty variable counts as unset. Nothing here is global: the command line makes one `Settings` and passes it on.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal

from memtrials.errors import UserError

ModelRole = Literal["reader", "judge"]
EndpointRole = Literal["reader", "judge", "embed"]
"""Who has an endpoint. The embedding model isn't among the model roles: it is part of a system's TOML, and `LLM_MODEL`
never names it."""
FALLBACKS = ("LLM", "OPENAI")


@dataclass(frozen=True)
class Value:
    """A setting and where it came from."""

    text: str
    source: str


@dataclass(frozen=True)
class Settings:
    """Named settings in order of precedence. layers: (where from, variables), the strongest first."""

    layers: tuple[tuple[str, Mapping[str, str]], ...] = field(default=())

    @classmethod
    def load(cls, environment: Mapping[str, str] | None = None, folder: Path | None = None) -> Settings:
        """The settings of this process. Raises UserError for a malformed `.env`, naming file and line."""
        layers: list[tuple[str, Mapping[str, str]]] = [
            ("environment", os.environ if environment is None else environment)
        ]
        places = dict.fromkeys([(folder or Path.cwd()).resolve(), *([root] if (root := checkout()) else [])])
        for place in places:
            path = place / ".env"
            if path.is_file():
                layers.append((str(path), _read_env(path)))
        return cls(tuple(layers))

    def find(self, *names: str) -> Value | None:
        """The first of these names that is set, each looked up in every layer before the next."""
        for name in names:
            for source, values in self.layers:
                if text := values.get(name, "").strip():
                    return Value(text, f"{name} ({source})")
        return None

    def text(self, *names: str) -> str | None:
        """The value of the first of these names that is set."""
        value = self.find(*names)
        return None if value is None else value.text

    def model(self, role: ModelRole) -> Value | None:
        """The model a role uses unless the command line names one; a key alone never chooses one."""
        return self.find(f"{role.upper()}_MODEL", "LLM_MODEL")

    def base_url(self, role: EndpointRole) -> Value | None:
        """The endpoint of a role, if one is configured."""
        return self.find(*(f"{prefix}_BASE_URL" for prefix in (role.upper(), *FALLBACKS)))

    def api_key(self, role: EndpointRole) -> Value | None:
        """The key of a role."""
        return self.find(*(f"{prefix}_API_KEY" for prefix in (role.upper(), *FALLBACKS)))


def masked(secret: str) -> str:
    """A secret as it may be shown: its length and last two characters."""
    return f"…{secret[-2:]} ({len(secret)} characters)" if len(secret) > 8 else f"({len(secret)} characters)"


def _read_env(path: Path) -> dict[str, str]:
    from dotenv import dotenv_values
    from dotenv.parser import parse_stream

    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except PermissionError:
        raise UserError(f"{path}: may not be read by this user; check its permissions") from None
    for binding in parse_stream(io.StringIO(text)):
        if binding.error or (binding.key is not None and binding.value is None):
            line = binding.original.line + len(binding.original.string) - len(binding.original.string.lstrip("\n"))
            raise UserError(f"{path}, line {line}: not a `NAME=value` line; correct it or put `#` before it")
    values = dotenv_values(stream=io.StringIO(text), interpolate=True)
    return {key: value for key, value in values.items() if value is not None}


@cache
def checkout() -> Path | None:
    """The repository this package runs from, or None when it is installed."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() and (root / "evaluation").is_dir() else None


@cache
def evaluation() -> Path:
    """The folder `evaluation/`: the checkout's, or the copy inside the installed package."""
    root = checkout()
    return root / "evaluation" if root else Path(__file__).resolve().parent / "evaluation"


def cache_folder(settings: Settings) -> Path:
    """Where embeddings are kept: MEMTRIALS_CACHE, else the platform's cache folder."""
    if named := settings.text("MEMTRIALS_CACHE"):
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_cache_dir("memtrials"))


def data_folder(settings: Settings) -> Path:
    """Where public data is kept: MEMTRIALS_DATA, else the platform's folder for user data."""
    if named := settings.text("MEMTRIALS_DATA"):
        return Path(named)
    import platformdirs

    return Path(platformdirs.user_data_dir("memtrials"))


def ledger_path(named: Path | None, settings: Settings, own: str | None = None) -> Path:
    """The ledger a command works on: `--trials`, else TRIALS_FILE, else `results/trials.json` of the checkout or of
    the working directory. own: the name of a command's own ledger there, which TRIALS_FILE doesn't replace. The
    default folder is created by the first write; a named file in a missing folder is an error.

    Raises UserError for a named file whose folder is missing, or that is a folder.
    """
    value = str(named) if named is not None else None if own else settings.text("TRIALS_FILE")
    if value is None:
        return (checkout() or Path.cwd()) / "results" / (own or "trials.json")
    path = Path(value)
    if path.is_dir():
        raise UserError(f"{path} is a folder, not a ledger; name a file, for example {path / 'trials.json'}")
    if not path.parent.is_dir():
        raise UserError(f"{path}: the folder {path.parent} doesn't exist; make it, or name a file elsewhere")
    return path
