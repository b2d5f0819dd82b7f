"""Released per-question verdicts of other systems, read where they are; only numbers are kept in the tests.

The files are not part of this project. They are looked for in the folder that MEMTRIALS_REAL_DATA names, else in
`shared/data` beside the repository; without them a test that asks for one is skipped.
"""

import gzip
import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

DATA = Path(os.environ.get("MEMTRIALS_REAL_DATA") or Path(__file__).resolve().parents[3] / "shared" / "data")
CONVERSATIONS = [f"conv-{number}" for number in (26, 30, 41, 42, 43, 44, 47, 48, 49, 50)]
"""The ten conversations in the order of the data file, which is how `locomo_exp_user_<i>` counts them."""

Place = tuple[str, int]
"""A LoCoMo question: its conversation, and its position among that conversation's questions of categories 1 to 4."""


def released(name: str) -> Any:
    """A released result file as parsed JSON; skips the test when it is not there."""
    path = DATA / "memorybear" / name
    if not path.is_file():
        pytest.skip(f"no released results at {path}; set MEMTRIALS_REAL_DATA to the folder that holds memorybear/")
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


@cache
def memorybear_locomo() -> Mapping[Place, float]:
    """Categories 1 to 4, the 1,540 questions that the other systems were asked too."""
    records = released("locomo/memorybear/memorybear_locomo_judged.json.gz")
    return _placed([(r["conv_id"], r["llm_judge"]["correct"]) for r in records if r["category"] != 5])


@cache
def mem0_locomo() -> Mapping[Place, float]:
    records = released("locomo/mem0/mem0_locomo_judged.json.gz")
    return _placed([(r["conv_id"], r["llm_judge"]["correct"]) for r in records])


@cache
def memos_locomo() -> Mapping[Place, float]:
    return _placed([(conversation, r["llm_judgments"]["judgment_1"]) for conversation, r in _memos_records()])


@cache
def categories_locomo() -> Mapping[Place, int]:
    return _placed([(conversation, r["category"]) for conversation, r in _memos_records()], int)


@cache
def memorybear_longmemeval() -> Mapping[str, float]:
    """By question id."""
    records = released("lme/memorybear/memorybear_lme_judged.json")
    return {r["question_id"]: float(r["llm_judge"]["correct"]) for r in records}


@cache
def memos_longmemeval() -> Mapping[str, float]:
    """By question id. The records have none; the question texts are unique and the same in both files."""
    ids = {r["question"]: r["question_id"] for r in released("lme/memorybear/memorybear_lme_judged.json")}
    records = released("lme/memos/memos_lme_judged.json").values()
    assert len(ids) == len(records) == 500
    return {ids[r["question"]]: float(r["llm_judgments"]["judgment_1"]) for r in records}


def cluster(question: Place | str) -> str:
    """LoCoMo's conversation; LongMemEval's question with its `_abs` twin."""
    return question.removesuffix("_abs") if isinstance(question, str) else question[0]


def _memos_records() -> list[tuple[str, dict[str, Any]]]:
    by_user = released("locomo/memos/memos_locomo_judged.json.gz")
    return [
        (conversation, record)
        for number, conversation in enumerate(CONVERSATIONS)
        for record in by_user[f"locomo_exp_user_{number}"]
    ]


def _placed(rows: list[tuple[str, Any]], kind: Any = float) -> dict[Place, Any]:
    seen = dict.fromkeys(CONVERSATIONS, 0)
    placed = {}
    for conversation, value in rows:
        placed[conversation, seen[conversation]] = kind(value)
        seen[conversation] += 1
    return placed
