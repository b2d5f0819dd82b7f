"""Lexical values and token counts that others released, recomputed from their answers and contexts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from memtrials.metrics import locomo_f1
from memtrials.metrics.recipes import lexical
from memtrials.tokens import count_tokens
from support.extras import needs_metrics
from support.published import released

MEM0 = "locomo/mem0/mem0_locomo_judged.json.gz"
MEMORYBEAR = "locomo/memorybear/memorybear_locomo_judged.json.gz"


def rows(name: str) -> list[dict[str, Any]]:
    """The records of a file: a list, or by user one or a list."""
    content = released(name)
    listed: Iterable[Any] = content if isinstance(content, list) else content.values()
    return [row for one in listed for row in (one if isinstance(one, list) else [one])]


@needs_metrics
@pytest.mark.parametrize(
    ("name", "recipe", "n"),
    [
        ("lme/memorybear/memorybear_lme_judged.json", "spaced-squad", 500),
        ("lme/memos/memos_lme_judged.json", "word-sets", 500),
        ("locomo/memos/memos_locomo_judged.json.gz", "word-sets", 1540),
        (MEMORYBEAR, "whitespace", 1986),
        (MEM0, "whitespace", 1540),
    ],
)
def test_all_nine_fields_of_every_answer(name: str, recipe: str, n: int):
    records = rows(name)
    assert len(records) == n
    for record in records:
        answer = record["hypothesis"] if "hypothesis" in record else record["answer"]
        found = lexical(recipe, answer, str(record["golden_answer"]))
        of_file = (record["metrics"] if "metrics" in record else record["nlp_metrics"])["lexical"]
        expected = {f"{recipe}-{field}": value for field, value in of_file.items()}
        assert len(expected) == 9
        assert {measure: found[measure] for measure in expected} == pytest.approx(expected, rel=0, abs=1e-9), record


def test_memorybears_score_on_locomo_is_the_official_one_rounded():
    """One value doesn't belong to its answer: it is that of the answer without one of its three items."""
    records = rows(MEMORYBEAR)
    scores = {
        r["question_id"]: (
            locomo_f1.score(r["hypothesis"], str(r["golden_answer"]), r["category"]),
            r["metrics"]["scored_f1"],
        )
        for r in records
    }
    assert len(scores) == 1986
    other = {key: pair for key, pair in scores.items() if round(pair[0], 3) != pytest.approx(pair[1], rel=0, abs=1e-9)}
    assert other == {"conv-43_q031": (pytest.approx(0.7), 0.45)}
    assert sum(score for score, _ in scores.values()) / 1986 == pytest.approx(0.6749922875045468, rel=1e-9)


def test_mem0s_score_on_locomo_is_squads_f1():
    records = rows(MEM0)
    assert len(records) == 1540
    for record in records:
        found = lexical("squad", record["hypothesis"], str(record["golden_answer"]))
        assert found["squad-f1"] == pytest.approx(record["metrics"]["scored_f1"], rel=0, abs=1e-9), record


@pytest.mark.parametrize(
    ("name", "text", "judged", "mean"),
    [
        (
            "lme/memos/memos_lme_retrieved_memories.json.gz",
            "search_context",
            "lme/memos/memos_lme_judged.json",
            1190.37,
        ),
        ("locomo/mem0/mem0_locomo_retrieved_memories.json.gz", "retrieved_memories", MEM0, 570.8350649350649),
    ],
)
def test_the_tokens_of_every_context(name: str, text: str, judged: str, mean: float):
    """Both systems' contexts were counted in cl100k_base."""
    counts = {key(record): count_tokens(record[text], "cl100k") for record in rows(name)}
    expected = {key(r): (r["metrics"] if "metrics" in r else r["nlp_metrics"])["context_tokens"] for r in rows(judged)}
    assert counts == expected
    assert sum(counts.values()) / len(counts) == pytest.approx(mean, rel=1e-9)


def key(record: dict[str, Any]) -> str:
    """What names a record in both files of a system."""
    return str(record["question_id"] if "question_id" in record else record["question"])


@needs_metrics
def test_qwens_vocabulary_moves_the_mean():
    """Of the contexts whose mean is 1190.37 in cl100k_base."""
    records = rows("lme/memos/memos_lme_retrieved_memories.json.gz")
    counts = [count_tokens(record["search_context"], "qwen") for record in records]
    assert sum(counts) / len(counts) == pytest.approx(1247.214, rel=1e-9)
