"""Which results may stand in one difference."""

from pathlib import Path
from typing import Any

import pytest

from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.metrics.numbers import Cell
from memtrials.records import ConfigBody
from memtrials.stages.contrasts import Side, unlike
from support.records import record, write_ledger

Settings = dict[str, Any]


def side(folder: Path, name: str, system: Settings, fetch: Settings) -> Side:
    """A cell in a ledger of its own, of one task."""
    records = [
        record(f"c-{role}", "config", key=f"{role}-{name}", body=ConfigBody(role=role, name=role, settings=some), **ids)
        for role, some in (("system", system), ("fetch", fetch))
        for ids in ({role: f"{role}-{name}"},)
    ]
    path = write_ledger(folder / f"{name}.json", [*records, record("t", "task", benchmark="b@1", task="1")])
    return Side(LedgerIndex(Ledger.open(path)), Cell("b@1", f"system-{name}", f"fetch-{name}"))


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ({"k": 5}, {"k": 10}, "fetch: fetch-a and fetch-b differ in k"),
        ({"k": 5, "order": "rank"}, {"k": 5, "order": "time"}, "fetch: fetch-a and fetch-b differ in order"),
        ({"k": 5, "rendering": "one"}, {"k": 5, "rendering": "other"}, None),
        ({"k": 5}, {"rendering": "whole"}, None),
        ({"k": 5, "budget": 500}, {"k": 9, "budget": 500}, None),
        ({"k": 5, "budget": 500}, {"k": 5, "budget": 900}, "fetch: fetch-a and fetch-b differ in budget"),
        ({"k": 5, "budget": 500}, {"k": 5}, "fetch: fetch-a and fetch-b differ in budget"),
        ({"file_sha256": "0"}, {"file_sha256": "1"}, "fetch: fetch-a and fetch-b differ in file_sha256"),
    ],
)
def test_systems_must_have_been_asked_alike(tmp_path: Path, one: Settings, other: Settings, told: str | None):
    a, b = side(tmp_path, "a", {"name": "x"}, one), side(tmp_path, "b", {"name": "y"}, other)
    assert unlike(a, b) == (() if told is None else (told,))
    assert unlike(a, b, ("system", "fetch")) == ()
    assert "system: system-a and system-b differ in name" in unlike(a, b, ("fetch",))
