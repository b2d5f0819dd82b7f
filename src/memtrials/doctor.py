"""doctor: what is configured, where each value came from, and what is missing. Secrets are masked."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from memtrials import __version__, systems
from memtrials.errors import UserError, WorkFailedError
from memtrials.llm import local
from memtrials.llm.money import BudgetError
from memtrials.llm.roles import LOCAL, OFFLINE, chosen_model
from memtrials.settings import (
    EndpointRole,
    ModelRole,
    Settings,
    cache_folder,
    checkout,
    data_folder,
    evaluation,
    masked,
)
from memtrials.systems.base import Surroundings

Line = tuple[str, str, str]
"""What, its value, where it came from."""


def examine(settings: Settings, ledger: Path, named: bool) -> tuple[list[Line], list[str]]:
    """The lines to show, and what is missing or wrong."""
    missing: list[str] = []
    root = checkout()
    trials = settings.find("TRIALS_FILE")
    source = "--trials" if named else trials.source if trials else "default"
    cache, data = settings.find("MEMTRIALS_CACHE"), settings.find("MEMTRIALS_DATA")
    lines: list[Line] = [
        ("memtrials", __version__, str(root) if root else "installed"),
        ("python", sys.version.split()[0], sys.executable),
        ("ledger", f"{ledger} ({'exists' if ledger.exists() else 'not made yet'})", source),
        ("cache", str(cache_folder(settings)), cache.source if cache else "default"),
        ("data", str(data_folder(settings)), data.source if data else "default"),
        ("evaluation", str(evaluation()), "checkout" if root else "package"),
        ("token vocabulary", _vocabulary(), "o200k_base"),
    ]
    lines += [(".env", str(source), "read") for source, _ in settings.layers[1:]] or [(".env", "none", "")]
    for role in ("reader", "judge"):
        lines += _role(role, settings, missing)
    lines += _embeddings(settings, missing)
    for folder in (ledger.parent, cache_folder(settings)):
        existing = next(p for p in (folder, *folder.resolve().parents) if p.exists())
        if not os.access(existing, os.W_OK):
            missing.append(f"{folder} can't be written")
    return lines, missing


def preflight(name: str, settings: Settings) -> tuple[list[Line], list[str]]:
    """One question end to end at a system's service: what came of it, and what ended it. Raises UserError for a system
    that has no service."""
    spec = systems.load(name, settings)
    ask = spec.plugin.preflight
    if ask is None:
        raise UserError(f"{name} needs no service; `memtrials doctor` says what is configured")
    lines: list[Line] = []
    try:
        fetch = systems.fetch_settings(spec.plugin, spec.fetch, settings)
        cache = cache_folder(settings)
        lines.extend(ask(spec.state, fetch, Surroundings(cache, cache, settings)))
    except (UserError, WorkFailedError, BudgetError) as error:
        return lines, [str(error)]
    return lines, []


def _role(role: ModelRole, settings: Settings, missing: list[str]) -> list[Line]:
    model = chosen_model(role, None, settings)
    named = settings.model(role)
    lines = [(f"{role} model", model, named.source if named else "default"), *_endpoint(role, settings)]
    if model == LOCAL:
        try:
            local.identity(local.model_file(None))
        except UserError as error:
            missing.append(str(error))
    elif model != OFFLINE and settings.api_key(role) is None:
        missing.append(f"{role} {model} needs a key: {role.upper()}_API_KEY, LLM_API_KEY or OPENAI_API_KEY")
    return lines


def _embeddings(settings: Settings, missing: list[str]) -> list[Line]:
    """Systems name their own embedding model, but for those that say `endpoint`."""
    named = settings.find("EMBED_MODEL")
    if named and settings.api_key("embed") is None:
        missing.append(f"embed {named.text} needs a key: EMBED_API_KEY, LLM_API_KEY or OPENAI_API_KEY")
    model = named.text if named else "as each system's TOML says"
    return [("embed model", model, named.source if named else "default"), *_endpoint("embed", settings)]


def _endpoint(role: EndpointRole, settings: Settings) -> list[Line]:
    url, key = settings.base_url(role), settings.api_key(role)
    return [
        (f"{role} base URL", url.text if url else "the provider's own", url.source if url else "default"),
        (f"{role} key", masked(key.text) if key else "not set", key.source if key else ""),
    ]


def _vocabulary() -> str:
    from memtrials.tokens import vocabulary_source

    return vocabulary_source()
