"""Memory systems: found by name, set up by TOML files, opened from what the ledger recorded."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from memtrials.errors import UserError, unknown
from memtrials.records import config_id, file_sha256
from memtrials.settings import Settings, evaluation
from memtrials.systems.base import Plugin, Surroundings, System

BUILT_IN = {
    "embedded": "memtrials.systems.embedded",
    "none": "memtrials.systems.controls",
    "full-context": "memtrials.systems.controls",
    "always-visible": "memtrials.systems.controls",
    "in-context": "memtrials.systems.controls",
    "naive-rag": "memtrials.systems.controls",
    "memorybear": "memtrials.systems.memorybear",
    "substrate": "memtrials.systems.substrate.plugin",
}
GROUP = "memtrials.systems"
PRECOMPUTED = ("enrichment", "snapshot")
"""The keys of `[state]` that name a file of what was precomputed, for systems that can `enrich`: one at most. Where it
lies is no part of a system, what stands in it is: the setting becomes its SHA-256."""


@dataclass(frozen=True)
class SystemSpec:
    """A system as set up: its name, everything that shapes its state, and the defaults of its fetch configuration.
    precomputed: where the file lies whose hash `state` has under one of those names."""

    name: str
    plugin: Plugin
    state: Mapping[str, Any]
    fetch: Mapping[str, Any]
    precomputed: Path | None = None

    @property
    def id(self) -> str:
        """The system's configuration id."""
        return config_id(self.name, self.state)


def plugin(name: str) -> Plugin:
    """The plugin of a name: a module with a constant PLUGINS. Raises UserError, with near matches."""
    if name in BUILT_IN:
        module = import_module(BUILT_IN[name])
    else:
        from importlib.metadata import entry_points

        found = [entry for entry in entry_points(group=GROUP) if entry.name == name]
        if not found:
            raise unknown("kind of system", name, [*BUILT_IN, *(e.name for e in entry_points(group=GROUP))])
        module = found[0].load()
    found_plugin = module.PLUGINS[name]
    assert isinstance(found_plugin, Plugin)
    return found_plugin


def names() -> list[str]:
    """The systems set up in `evaluation/systems/`."""
    return sorted(path.stem for path in (evaluation() / "systems").glob("*.toml"))


def is_file(name: str) -> bool:
    """Whether a system is named by a TOML file of its own rather than by name."""
    return name.endswith(".toml")


def load(name: str, settings: Settings | None = None) -> SystemSpec:
    """The system of a name in `evaluation/systems/`, or of a TOML file. Raises UserError for anything wrong in it.

    settings: where a file that leaves its embedding model to EMBED_MODEL finds it.
    """
    path = Path(name) if is_file(name) else evaluation() / "systems" / f"{name}.toml"
    if not path.is_file():
        if is_file(name):
            raise UserError(f"{path}: no such file; known systems: {', '.join(names())}")
        raise unknown("system", name, names())
    try:
        tables = tomllib.loads(path.read_text("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid TOML ({error})") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    for table, value in tables.items():
        if table not in ("state", "fetch"):
            raise UserError(f"{path}: {unknown('table', table, ('state', 'fetch'))}")
        if not isinstance(value, dict):
            raise UserError(f"{path}: {table} is {value!r}; it must be a table, [{table}]")
    state, fetch = tables.get("state", {}), tables.get("fetch", {})
    if not isinstance(state.get("system"), str):
        raise UserError(f'{path}: table [state] needs a key `system`, for example system = "embedded"')
    try:
        kind = plugin(state["system"])
    except UserError as error:
        raise UserError(f"{path}, table [state]: {error}") from None
    known = {**kind.state, **kind.optional, **(dict.fromkeys(PRECOMPUTED, "") if "enrich" in kind.capabilities else {})}
    _check(path, "state", {k: v for k, v in state.items() if k != "system"}, known, kind)
    _check(path, "fetch", fetch, kind.fetch, kind)
    named = [key for key in PRECOMPUTED if key in state]
    if len(named) > 1:
        raise UserError(f"{path}, table [state]: {' and '.join(named)} exclude each other; leave one out")
    precomputed = path.parent / state[named[0]] if named else None
    if precomputed is not None:
        state = {**state, named[0]: file_sha256(precomputed)}
    resolved = {**kind.state, **state, "version": kind.version}
    try:
        added = kind.resolve(resolved, settings or Settings())
    except UserError as error:
        raise UserError(f"{path}, table [state]: {error}") from None
    spec = SystemSpec(path.stem, kind, {**resolved, **added}, {**kind.fetch, **fetch}, precomputed)
    try:
        kind.suits(spec.state, spec.fetch, None)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    if named and kind.baseline(spec.fetch):
        raise UserError(f"{path}: by its [fetch] it looks in what was said alone, so take out {named[0]}")
    return spec


def _check(path: Path, table: str, given: Mapping[str, Any], known: Mapping[str, Any], kind: Plugin) -> None:
    for key, value in given.items():
        if key not in known:
            raise UserError(f"{path}, table [{table}]: {unknown('key', key, known)}")
        if type(value) is not (wanted := type(known[key])):
            raise UserError(f"{path}, table [{table}]: {key} is {value!r}; its type must be {wanted.__name__}")
        if key in kind.choices and value not in kind.choices[key]:
            raise UserError(f"{path}, table [{table}]: {unknown(key, str(value), map(str, kind.choices[key]))}")
        if key == "k" and value < 1:
            raise UserError(f"{path}, table [{table}]: k is {value}; it counts items, so 1 or more")
        if isinstance(value, dict):  # a table within a table is given whole
            _check(path, f"{table}.{key}", value, known[key], kind)
            if missing := [name for name in known[key] if name not in value]:
                raise UserError(
                    f"{path}, table [{table}.{key}]: it has no {', '.join(missing)}; give all of it or none"
                )


def fetch_settings(
    kind: Plugin, defaults: Mapping[str, Any], settings: Settings | None = None, **asked: Any
) -> dict[str, Any]:
    """The settings of a fetch configuration: what was asked for over the system's defaults, without what it ignores."""
    given = {name: value for name, value in asked.items() if value is not None and name in kind.fetch}
    whole = {**kind.fetch, **{k: v for k, v in defaults.items() if k in kind.fetch}, **given}
    return dict(kind.asked(whole, settings or Settings()))


def fetch_name(settings: Mapping[str, Any]) -> str:
    """What a fetch configuration is called: `b2000` under a budget, else `k10`; the mode or `whole` where the system
    knows no k."""
    if "budget" in settings:
        return f"b{settings['budget']}"
    return f"k{settings['k']}" if "k" in settings else str(settings.get("mode", "whole"))


def reopen(state: Mapping[str, Any], surroundings: Surroundings) -> System:
    """The system of a configuration record, not of today's TOML. Raises UserError when this version can't read it."""
    kind = plugin(state["system"])
    if state.get("version") != kind.version:
        raise UserError(
            f"a state of {state['system']} version {state.get('version')} can't be read by version {kind.version}; "
            "replay it again"
        )
    return kind.open(state, surroundings)
