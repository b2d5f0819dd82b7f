"""`fetch --budget`: one query of a system, a retrieval for each budget, and everything after it as for any other."""

import json
from collections import Counter
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from memtrials.systems.base import Retrieved
from memtrials.systems.controls import Whole
from memtrials.systems.embedded import Embedded
from memtrials.tokens import count_tokens
from support.trials import files, records, stage

BUDGETS = (40, 80, 160, 1000)
LIST = ",".join(map(str, BUDGETS))
BM25 = ("--system", "bm25")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that systems were asked for, in order."""
    texts: list[str] = []

    def spying(kind: type[Embedded]) -> None:
        original = kind.query

        def query(
            self: Embedded, namespace: str, text: str, date: str | None, settings: Mapping[str, Any]
        ) -> Retrieved:
            texts.append(text)
            return original(self, namespace, text, date, settings)

        monkeypatch.setattr(kind, "query", query)

    spying(Embedded)
    spying(Whole)
    return texts


def by_budget(trials: Path) -> dict[int, dict[tuple[str, str, int], dict[str, Any]]]:
    """Retrievals by budget, then by task, query and repeat."""
    budgets = {r["key"]: r["body"]["settings"].get("budget", 0) for r in records(trials, "config") if r.get("fetch")}
    found: dict[int, dict[tuple[str, str, int], dict[str, Any]]] = {}
    for r in records(trials, "retrieval"):
        found.setdefault(budgets[r["fetch"]], {})[r["task"], r["query"], r["repeat"]] = r
    return found


def test_one_query_gives_a_context_for_each_budget(replayed: Path, asked: list[str]):
    outcome = stage(replayed, "fetch", "bm25", "--budget", LIST)
    assert (outcome["done"], outcome["appended"], len(asked)) == (64, 68, 16)  # 4 configurations
    found = by_budget(replayed)
    assert [len(found[budget]) for budget in BUDGETS] == [16] * 4
    for place, holder in found[1000].items():
        bodies = [found[budget][place]["body"] for budget in BUDGETS]
        assert all(larger["context"].startswith(smaller["context"]) for smaller, larger in pairwise(bodies))
        for budget, body in zip(BUDGETS, bodies, strict=True):
            fit = body["fit"]
            assert count_tokens(body["context"]) == fit["used"] <= budget == fit["asked"]
            assert fit["whole"] + fit["partial"] + fit["dropped"] == len(holder["body"]["items"])
            assert fit["tokens"] == bodies[-1]["fit"]["tokens"]
            assert body.get("items_in") == (None if budget == 1000 else holder["id"])
    assert any(found[40][place]["body"]["fit"]["dropped"] for place in found[40])


def test_a_second_run_has_nothing_to_do_and_a_smaller_budget_needs_no_query(replayed: Path, asked: list[str]):
    stage(replayed, "fetch", "bm25", "--budget", "40,1000")
    before = files(replayed.parent)
    assert stage(replayed, "fetch", "bm25", "--budget", "40", "--budget", "1000")["appended"] == 0
    assert files(replayed.parent) == before
    assert stage(replayed, "fetch", "bm25", "--budget", "40,80,1000")["done"] == 16
    assert len(asked) == 16
    added = by_budget(replayed)
    assert all(added[1000][p]["body"]["context"].startswith(r["body"]["context"]) for p, r in added[80].items())


def test_a_larger_budget_asks_again_only_where_something_was_cut(replayed: Path, asked: list[str]):
    stage(replayed, "fetch", "bm25", "--budget", "80")
    cut = [r for r in records(replayed, "retrieval") if r["body"]["fit"]["partial"] + r["body"]["fit"]["dropped"]]
    assert len(cut) > 0
    stage(replayed, "fetch", "bm25", "--budget", "80,1000")
    assert len(asked) == 16 + len(cut)
    assert len(by_budget(replayed)[1000]) == 16


def test_the_list_is_one_configuration_for_the_guard(replayed: Path, asked: list[str]):
    stage(replayed, "fetch", "bm25", "--k", "3")
    left = stage(replayed, "fetch", "bm25", "--budget", "40,80")
    assert (left["skipped"], left["done"]) == (32, 0)
    assert len(left["notes"]) == 1
    assert stage(replayed, "fetch", "bm25", "--budget", "40,80", "--force")["done"] == 32
    assert stage(replayed, "fetch", "bm25", "--budget", "80,160")["done"] == 16  # one of the list has begun
    assert stage(replayed, "fetch", "bm25", "--budget", "320")["skipped"] == 16


def test_repeats_are_asked_once_each(replayed: Path, asked: list[str]):
    assert stage(replayed, "fetch", "bm25", "--budget", "40,80", "--repeat", "2")["done"] == 64
    assert len(asked) == 32
    found = by_budget(replayed)
    for place, r in found[40].items():
        assert r["body"]["items_in"] == found[80][place]["id"]


def test_one_text_is_cut_the_same_way_and_an_empty_one_has_no_budget(replayed: Path, asked: list[str]):
    stage(replayed, "replay", "full-context")
    stage(replayed, "fetch", "full-context", "none", "--budget", "40,80")
    found = by_budget(replayed)
    assert {budget: len(some) for budget, some in found.items()} == {40: 16, 80: 16, 0: 16}
    for place, r in found[40].items():
        larger = found[80][place]["body"]
        assert larger["context"].startswith(r["body"]["context"])
        assert larger["fit"]["used"] <= 80 < larger["fit"]["tokens"]
    assert len(asked) == 16  # `none` is another class


def test_by_time_they_are_prefixes_as_sets_of_items(replayed: Path, asked: list[str]):
    stage(replayed, "fetch", "bm25", "--budget", LIST, "--order", "time")
    assert len(asked) == 16
    found = by_budget(replayed)
    reordered = 0
    for place, holder in found[1000].items():
        whole = [set(_whole(found[budget][place]["body"])) for budget in BUDGETS]
        assert all(smaller <= larger for smaller, larger in pairwise(whole))
        begins = [begin for begin, _ in holder["body"].get("spans", [])]
        reordered += begins != sorted(begins)
        assert all(count_tokens(found[b][place]["body"]["context"]) <= b for b in BUDGETS)
    assert reordered


def _whole(body: dict[str, Any]) -> list[str]:
    return [body["context"][begin:end] for begin, end in body.get("spans", [])[: body["fit"]["whole"]]]


def test_a_query_that_fails_fails_every_budget_and_is_asked_once(replayed: Path, monkeypatch: pytest.MonkeyPatch):
    from memtrials.errors import WorkFailedError

    asked: list[str] = []

    def failing(self: Embedded, namespace: str, text: str, *rest: object) -> Retrieved:
        asked.append(text)
        raise WorkFailedError("service", "transient", "no answer", attempts=2)

    with monkeypatch.context() as patch:
        patch.setattr(Embedded, "query", failing)
        assert stage(replayed, "fetch", "bm25", "--budget", "40,80", code=1)["failed"] == 32
    assert len(asked) == 16
    assert Counter(r["body"]["attempts"] for r in records(replayed, "failure")) == {2: 16, 0: 16}
    assert stage(replayed, "fetch", "bm25", "--budget", "40,80")["done"] == 32


def test_answers_verdicts_and_the_curve(replayed: Path):
    stage(replayed, "fetch", "bm25", "in-context", "--budget", "40,80,1000")
    assert stage(replayed, "answer")["done"] == 96
    stage(replayed, "judge")
    report = stage(replayed, "metrics")
    curve = [p for p in report["curves"] if p["metric"] == "target-verbatim" and p["system_name"] == "bm25"]
    assert [p["budget"] for p in curve] == [40, 80, 1000]
    assert all(p["interval"] for p in curve)
    used = [p["context_tokens"] for p in curve]
    assert used == sorted(used)
    assert [p["cut"] for p in curve] == [
        sum(bool(r["body"]["fit"]["partial"] + r["body"]["fit"]["dropped"]) for r in some.values())
        for some in (_of_bm25(replayed, b) for b in (40, 80, 1000))
    ]
    assert json.dumps(report)


def _of_bm25(trials: Path, budget: int) -> dict[Any, dict[str, Any]]:
    configs = {r["key"]: r["body"] for r in records(trials, "config")}
    return {
        r["id"]: r
        for r in records(trials, "retrieval")
        if configs[r["system"]]["name"] == "bm25"
        and configs[r["fetch"]]["settings"]["budget"] == budget
        and r["query"] == "query"
    }
