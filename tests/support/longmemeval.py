"""Small files in LongMemEval's format, of our own texts, and a judge script of the publisher's structure."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memtrials.benchmarks import longmemeval
from memtrials.settings import evaluation

SAMPLE = evaluation() / "samples" / "longmemeval" / "longmemeval_sample.json"

COUNTS = {
    "single-session-user": (64, 6),
    "single-session-assistant": (56, 0),
    "single-session-preference": (30, 0),
    "multi-session": (121, 12),
    "temporal-reasoning": (127, 6),
    "knowledge-update": (72, 6),
}
"""Answerable and unanswerable questions of each type in the published files."""

Instance = dict[str, Any]


def instance(question_id: str = "q1", **fields: Any) -> Instance:
    """A sound instance with two sessions, the second of them evidence, and the fields that a test changes."""
    whole: Instance = {
        "question_id": question_id,
        "question_type": "single-session-user",
        "question": "Where is my kite?",
        "answer": "In the attic",
        "question_date": "2023/05/30 (Tue) 23:40",
        "haystack_dates": ["2023/05/20 (Sat) 02:21", "2023/05/21 (Sun) 09:00"],
        "haystack_session_ids": ["ultrachat_1", "answer_0a"],
        "haystack_sessions": [
            [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hi."}],
            [
                {"role": "user", "content": "My kite is in the attic.", "has_answer": True},
                {"role": "assistant", "content": "Noted.", "has_answer": False},
            ],
        ],
        "answer_session_ids": ["answer_0a"],
    }
    return {**whole, **fields}


def without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The same without these fields."""
    return {name: value for name, value in fields.items() if name not in names}


def written(path: Path, instances: Iterable[Any], **how: Any) -> Path:
    """A file of these instances."""
    path.write_text(json.dumps(list(instances), **how), "utf-8")
    return path


def sample() -> list[Instance]:
    """The instances of the bundled sample."""
    found: list[Instance] = json.loads(SAMPLE.read_text("utf-8"))
    return found


def as_published() -> list[Instance]:
    """500 small instances, as many of each type and abstention as in the published files."""
    ids = [
        (type_, f"{type_[:3]}{type_[-4:]}{n}{'_abs' if n >= answerable else ''}")
        for type_, (answerable, unanswerable) in COUNTS.items()
        for n in range(answerable + unanswerable)
    ]
    return [instance(name, question_type=type_) for type_, name in ids]


JUDGE_SCRIPT = """
import a_package_that_nobody_has


def get_anscheck_prompt(task, question, answer, response, abstention=False):
    if not abstention:
        if task in ["single-session-user", "single-session-assistant", "multi-session"]:
            template = "General. Q: {}\\nA: {}\\nR: {}\\nYes or no?"
            prompt = template.format(question, answer, response)
        elif task == "temporal-reasoning":
            template = "Temporal. Q: {}\\nA: {}\\nR: {}\\nYes or no?"
            prompt = template.format(question, answer, response)
        elif task == "knowledge-update":
            template = "Update. Q: {}\\nA: {}\\nR: {}\\nYes or no?"
            prompt = template.format(question, answer, response)
        elif task == "single-session-preference":
            template = "Preference. Q: {}\\nRubric: {}\\nR: {}\\nYes or no?"
            prompt = template.format(question, answer, response)
        else:
            raise NotImplementedError
    else:
        template = "Abstention. Q: {}\\nWhy: {}\\nR: {}\\nYes or no?"
        prompt = template.format(question, answer, response)
    return prompt


raise SystemExit("this script must not be run")
"""
"""A script like the publisher's, with texts of our own."""


def upstream(folder: Path, script: str = JUDGE_SCRIPT) -> Path:
    """A clone that holds that script."""
    path = folder / longmemeval.SCRIPT
    path.parent.mkdir(parents=True)
    path.write_text(script, "utf-8")
    return folder
