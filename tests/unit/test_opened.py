"""The memory systems that are open in one run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from memtrials import systems
from memtrials.llm.limits import ClosedError
from memtrials.settings import Settings
from memtrials.stages.common import Options
from memtrials.stages.opened import Opened
from memtrials.systems.memorybear import PLUGINS

SERVICE = {"system": "memorybear", "version": PLUGINS["memorybear"].version}


class Service:
    """One of a kind that takes its time to open."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen
        seen.append("opened")
        time.sleep(0.05)

    def close(self) -> None:
        self.seen.append("closed")


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened to services."""
    told: list[str] = []
    monkeypatch.setattr(systems, "reopen", lambda state, around: Service(told))
    return told


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(Options(tmp_path / "trials.json", Settings(), workers=8))


def test_a_service_that_many_ask_for_at_one_time_is_opened_once(opened: Opened, seen: list[str]):
    async def many() -> list[Any]:
        turns = opened.turns(PLUGINS["memorybear"])
        found = await asyncio.gather(*(turns.take(opened.system, "memorybear-1", SERVICE) for _ in range(8)))
        await opened.close()
        return found

    found = asyncio.run(many())
    assert len(set(map(id, found))) == 1
    assert seen == ["opened", "closed"]


def test_nothing_is_opened_when_nothing_more_is_to_begin(opened: Opened, seen: list[str]):
    opened.halt()
    with pytest.raises(ClosedError):
        opened.system("memorybear-1", SERVICE)
    assert seen == []
