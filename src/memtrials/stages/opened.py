"""The memory systems of one run: the one embedded system that is open, services side by side, and their turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from memtrials import systems
from memtrials.llm.money import Purse
from memtrials.settings import cache_folder
from memtrials.stages.common import Options
from memtrials.stages.turns import Turns
from memtrials.systems.base import Plugin, Service, Surroundings, System
from memtrials.systems.store import stores_folder


class Opened:
    """Systems, opened when they are first needed, by configuration id.

    purse: what they may send and spend, settled before the first is opened. leaving: called with an embedded system
    and its id before it is closed, which is when another one is opened and when the run ends.
    """

    def __init__(self, options: Options, leaving: Callable[[str, System], None] = lambda name, system: None) -> None:
        self.purse = Purse()
        self._options = options
        self._leaving = leaving
        self._one_by_one = Turns()
        self._at_once = Turns(options.workers or 1)
        self._embedded: tuple[str, System] | None = None
        self._services: dict[str, System] = {}
        self._opening = Lock()

    def turns(self, plugin: Plugin) -> Turns:
        """By which turns a kind of system is called."""
        return self._at_once if plugin.at_once else self._one_by_one

    def system(self, name: str, state: Mapping[str, Any]) -> System:
        """The open system of a configuration id and its settings, one for all who call at one time. Raises UserError
        when it can't be opened, and ClosedError when nothing more is to begin."""
        with self._opening:
            self._at_once.check_open()
            return self._system(name, state)

    def _system(self, name: str, state: Mapping[str, Any]) -> System:
        if name in self._services:
            return self._services[name]
        if self._embedded is not None and self._embedded[0] == name:
            return self._embedded[1]
        if systems.plugin(state["system"]).at_once:
            self._services[name] = systems.reopen(state, self._surroundings(name))
            return self._services[name]
        self._leave()
        self._embedded = (name, systems.reopen(state, self._surroundings(name)))
        return self._embedded[1]

    def _surroundings(self, name: str) -> Surroundings:
        folder, settings = stores_folder(self._options.trials) / name, self._options.settings
        return Surroundings(folder, cache_folder(settings), settings, self.purse, self._one_by_one.stopped)

    def _leave(self) -> None:
        if self._embedded is not None:
            self._leaving(*self._embedded)
            self._embedded[1].close()
            self._embedded = None

    def halt(self) -> None:
        """Begin nothing more; what is on its way arrives."""
        self._one_by_one.close()
        self._at_once.close()
        with self._opening:
            services = list(self._services.values())
        for system in services:
            if isinstance(system, Service):
                system.stop()

    async def close(self) -> None:
        """Close what is open, once what is on its way has arrived."""
        self.halt()
        await self._one_by_one.end()
        await self._at_once.end()
        self._leave()
        for system in self._services.values():
            system.close()
        self._services.clear()
