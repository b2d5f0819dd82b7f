"""Copies of the bundled samples whose private fields are tokens, so that a leak can be seen wherever it happens.

Searching for the fields' own texts can't work: a domain is an everyday word, a task id a small number. In a copy every
private field is a token that stands nowhere else, and every query carries a token of its own. What a system may see
(sessions, the target pair, the queries) is as in the sample, but for those query tokens.
"""

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtrials.benchmarks.longmemeval import QUESTION, TYPES
from support import locomo, longmemeval
from support.releases import MANIFEST, change_background, change_manifest, change_tasks, sample_copy

PRIVATE = ("domain", "entity_1", "entity_2", "relation", "explanation")
QUERIES = ("naive_query", "query")


@dataclass(frozen=True)
class Task:
    """A task of a copy, by what a system may see of it. queries: text by query id."""

    id: str
    user_message: str
    queries: Mapping[str, str]


@dataclass(frozen=True)
class CanaryCopy:
    """A release folder. private: where each private token stands; queries: the text that carries each query token."""

    folder: Path
    tasks: tuple[Task, ...]
    private: Mapping[str, str]
    queries: Mapping[str, str]

    def leaks(self, crossed: object) -> list[str]:
        """Which private fields something that crossed a boundary holds."""
        text = _bytes(crossed)
        return [place for token, place in self.private.items() if token.encode() in text]

    def queries_in(self, crossed: object) -> set[str]:
        """The queries whose tokens something that crossed a boundary holds."""
        text = _bytes(crossed)
        return {query for token, query in self.queries.items() if token.encode() in text}


def _bytes(crossed: object) -> bytes:
    """Tokens are ASCII, so `repr` shows them in any value."""
    return crossed if isinstance(crossed, bytes) else repr(crossed).encode("utf-8", "backslashreplace")


def _tokens(seed: str) -> Iterator[str]:
    source = random.Random(seed)
    while True:
        yield f"canary{source.getrandbits(64):016x}"


def canary_copy(folder: Path, seed: str) -> CanaryCopy:
    """A copy of the sample in `folder`. Copies of two seeds are twins: they differ in private fields alone."""
    fresh, asked, numbers = _tokens(seed), _tokens("queries"), random.Random(seed)
    private: dict[str, str] = {}
    queries: dict[str, str] = {}
    tasks: list[Task] = []

    def hidden(place: str) -> str:
        token = next(fresh)
        private[token] = place
        return token

    def carrying(text: str) -> str:
        token = next(asked)
        queries[token] = f"{text} {token}"
        return queries[token]

    def hide_tasks(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            old = row["task_id"]
            row["task_id"] = numbers.randrange(10**11, 10**12)
            private[str(row["task_id"])] = f"task_id of task {old}"
            row.update({name: hidden(f"{name} of task {old}") for name in PRIVATE})
            row["provenance"] = {name: hidden(f"provenance.{name} of task {old}") for name in row["provenance"]}
            row["annotator"] = hidden(f"an unknown field of task {old}")
            row.update({name: carrying(row[name]) for name in QUERIES})
            tasks.append(Task(str(row["task_id"]), row["user_message"], {name: row[name] for name in QUERIES}))

    def hide_ids(turns: list[dict[str, Any]]) -> None:
        names: dict[str, str] = {}
        question = hidden("question id of the background")
        for turn in turns:
            session, _, number = turn["id"].rpartition("-turn-")
            if session not in names:
                names[session] = hidden(f"session id {session}")
            turn["id"] = f"{names[session]}-turn-{number}"
            turn["timestamp_mapping"] = {f"question:{question}": date for date in turn["timestamp_mapping"].values()}

    change_tasks(sample_copy(folder), hide_tasks)
    change_background(folder, hide_ids)
    source = json.loads((folder / MANIFEST).read_text("utf-8"))["source"]
    change_manifest(folder, source={name: hidden(f"source.{name} of the manifest") for name in source})
    return CanaryCopy(folder, tuple(tasks), private, queries)


def longmemeval_copy(folder: Path, seed: str) -> CanaryCopy:
    """The same of the LongMemEval sample: ids of questions and sessions, answers and fields that nobody knows are
    tokens; types and whether a question can be answered are drawn anew. Evidence stays where it is."""
    fresh, asked, drawn = _tokens(seed), _tokens("queries"), random.Random(seed)
    private: dict[str, str] = {}
    queries: dict[str, str] = {}
    tasks: list[Task] = []

    def hidden(place: str) -> str:
        token = next(fresh)
        private[token] = place
        return token

    rows = longmemeval.sample()
    for number, row in enumerate(rows):
        row["question_id"] = hidden(f"question_id {number}") + drawn.choice(("", "_abs"))
        row["question_type"] = drawn.choice(TYPES)
        row["answer"] = hidden(f"answer {number}")
        row["annotator"] = hidden(f"an unknown field of {number}")
        token = next(asked)
        row["question"] = queries[token] = f"{row['question']} {token}"
        evidence = set(row["answer_session_ids"])
        names = {
            name: f"{'answer_' if name in evidence else ''}{hidden(f'a session id of {number}')}"
            for name in dict.fromkeys(row["haystack_session_ids"])
        }
        row["haystack_session_ids"] = [names[name] for name in row["haystack_session_ids"]]
        row["answer_session_ids"] = [names[name] for name in row["answer_session_ids"]]
        for turn in (turn for turns in row["haystack_sessions"] for turn in turns):
            turn["label"] = hidden(f"an unknown field of a turn of {number}")
        tasks.append(Task(row["question_id"], "", {QUESTION: row["question"]}))
    folder.mkdir()
    longmemeval.written(folder / f"{hidden('the name of the file')}.json", rows)
    return CanaryCopy(folder, tuple(tasks), private, queries)


def locomo_copy(folder: Path, seed: str) -> CanaryCopy:
    """The same of the LoCoMo sample: its name, answers, search words, addresses, annotation and fields that nobody
    knows are tokens; categories are drawn anew. Evidence stays where it is."""
    fresh, asked, drawn = _tokens(seed), _tokens("queries"), random.Random(seed)
    private: dict[str, str] = {}
    queries: dict[str, str] = {}

    def hidden(place: str) -> str:
        token = next(fresh)
        private[token] = place
        return token

    sample = locomo.sample()
    sample["sample_id"] = hidden("sample_id")
    sample["annotator"] = hidden("an unknown field")
    for block in ("observation", "session_summary", "event_summary"):
        sample[block] = {key: hidden(f"{block} {key}") for key in sample[block]}
    for turn in (t for value in sample["conversation"].values() if isinstance(value, list) for t in value):
        turn["label"] = hidden("an unknown field of a turn")
        turn["query"], turn["img_url"] = hidden("query of a turn"), [hidden("img_url of a turn")]
    for number, row in enumerate(sample["qa"]):
        row["category"] = drawn.randint(1, 5)
        field = "adversarial_answer" if row["category"] == 5 else "answer"
        row.pop("answer", None)
        row.pop("adversarial_answer", None)
        row[field] = hidden(f"answer {number}")
        row["annotator"] = hidden(f"an unknown field of {number}")
        token = next(asked)
        row["question"] = queries[token] = f"{row['question']} {token}"
    folder.mkdir()
    locomo.written(folder / f"{hidden('the name of the file')}.json", sample)
    task = Task(sample["sample_id"], "", {str(n): row["question"] for n, row in enumerate(sample["qa"])})
    return CanaryCopy(folder, (task,), private, queries)
