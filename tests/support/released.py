"""Result files in the shapes in which others released theirs, about questions of our own."""

import gzip
import json
from pathlib import Path
from typing import Any

from memtrials.settings import evaluation

Row = dict[str, Any]

LOCOMO = evaluation() / "samples" / "locomo"
QA: list[Row] = json.loads((LOCOMO / "locomo_sample.json").read_text("utf-8"))[0]["qa"]
CONVERSATION = "conv-1"
NAMES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
REFUSAL = "No information available."

QUESTIONS: list[Row] = [
    {"id": "u1", "type": "single-session-user", "question": "What is my cat called?", "gold": "Pixel"},
    {"id": "m1", "type": "multi-session", "question": "How many plants do I own?", "gold": 3},
    {"id": "m2_abs", "type": "multi-session", "question": "How many cars do I own?", "gold": "You never said."},
    {"id": "t1", "type": "temporal-reasoning", "question": "When did I last swim?", "gold": "4 May 2023"},
]
DATE = "2023/05/10 (Wed) 10:00"


def write(path: Path, content: Any, *, compressed: bool = False) -> Path:
    """A file of that content."""
    data = json.dumps(content).encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    return path


def answer_of(row: Row) -> str:
    """A right answer to a question of the LoCoMo sample."""
    return REFUSAL if row["category"] == 5 else str(row["answer"]).partition(";")[0]


def listed_locomo(*, categories: range = range(1, 6)) -> list[Row]:
    """Judged answers as MemoryBear's and Mem0's files list them: all right."""
    return [
        {
            "question_id": f"{CONVERSATION}_q{position:03}",
            "conv_id": CONVERSATION,
            "question": row["question"],
            "question_type": NAMES[row["category"]],
            "category": row["category"],
            "golden_answer": row.get("answer", row.get("adversarial_answer")),
            "hypothesis": answer_of(row),
            "llm_judge": {"correct": True},
            "metrics": {"context_tokens": 10 + position, "scored_f1": 1.0, "lexical": {"f1": 1.0}},
            "latency_ms": 100.0 + position,
        }
        for position, row in enumerate(QA, 1)
        if row["category"] in categories
    ]


def listed_locomo_memories() -> list[Row]:
    """The memories of these, in another order."""
    kept = ("question_id", "conv_id", "question", "question_type", "category", "golden_answer", "latency_ms")
    rows = [{name: row[name] for name in kept} for row in listed_locomo(categories=range(1, 5))]
    return [
        {**row, "retrieved_memories": f"{row['question'].strip(' ?')}: {row['golden_answer']}."}
        for row in reversed(rows)
    ]


def locomo_by_user() -> dict[str, list[Row]]:
    """Judged answers as MemOS's file keeps them: a user for each conversation, categories 1 to 4 in order."""
    rows = [row for row in QA if row["category"] != 5]
    return {
        "exp_user_0": [
            {
                "question": row["question"],
                "answer": answer_of(row),
                "golden_answer": row["answer"],
                "category": row["category"],
                "llm_judgments": {"judgment_1": True},
                "nlp_metrics": {"context_tokens": 50, "lexical": {"f1": 1.0}},
                "search_duration_ms": 7.5,
                "status": "success",
            }
            for row in rows
        ]
    }


def listed_longmemeval() -> list[Row]:
    """Judged answers as MemoryBear's file lists them; the second is wrong."""
    return [
        {
            "question_id": one["id"],
            "question": one["question"],
            "question_type": one["type"],
            "question_date": DATE,
            "golden_answer": one["gold"],
            "hypothesis": f"It is {one['gold']}",
            "llm_judge": {"correct": number != 1},
            "metrics": {"context_tokens": 100 * (number + 1), "lexical": {"f1": 0.5}},
            "latency_ms": 500.0,
        }
        for number, one in enumerate(QUESTIONS)
    ]


def longmemeval_by_user() -> dict[str, Row]:
    """Judged answers as MemOS's file keeps them: without ids, on another date; the first is wrong."""
    return {
        f"user_{number}": {
            "user_id": f"user_{number}",
            "category": one["type"],
            "question": one["question"],
            "question_date": "2023/06/01 (Thu) 09:00",
            "golden_answer": one["gold"],
            "answer": f"{one['gold']}, I think",
            "llm_judgments": {"judgment_1": one["id"] != "u1"},
            "nlp_metrics": {"context_tokens": 40, "lexical": {"f1": 0.25}},
            "search_duration_ms": 12.5,
            "status": "success",
        }
        for number, one in enumerate(reversed(QUESTIONS))
    }


def longmemeval_memories_by_user() -> dict[str, list[Row]]:
    """The memories of these: a list of one for each user."""
    return {
        user: [
            {
                "question": row["question"],
                "category": row["category"],
                "date": row["question_date"],
                "golden_answer": row["golden_answer"],
                "search_context": f"Remembered: {row['golden_answer']}",
                "search_duration_ms": 12.5,
                "status": "success",
            }
        ]
        for user, row in longmemeval_by_user().items()
    }


def trial(question: Row, number: int, *, hypothesis: str | None = None, label: bool | None = None) -> Row:
    """A record of MemoryBear's trials array."""
    return {
        "trial_id": f"20260101_00000{number}_{question['id']}",
        "run_ts": f"20260101_00000{number}",
        "question_id": question["id"],
        "question_type": question["type"],
        "question": question["question"],
        "question_date": DATE,
        "answer": question["gold"],
        "end_user_id": f"user-{question['id']}",
        "latency_s": 0.51,
        "read_response": {
            "code": 0,
            "data": {"answer": "summary", "intermediate_outputs": [{"content": f"Fact {number}", "score": 0.9}]},
        },
        "hypothesis": hypothesis,
        "reader": None if hypothesis is None else {"model": "reader-x"},
        "autoeval_label": None if label is None else {"model": "judge-y-2026", "label": label},
    }
