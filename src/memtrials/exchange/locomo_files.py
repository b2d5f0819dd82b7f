"""LoCoMo's results: the data's questions with `<model>_prediction` and `<model>_f1`, and counts by category."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memtrials import benchmarks
from memtrials.benchmarks import locomo
from memtrials.exchange.cells import Answered
from memtrials.index import LedgerIndex
from memtrials.records import AnswerBody, Item, RetrievalBody

SCORE = "official-f1"


class Results(NamedTuple):
    """samples: as LoCoMo writes them, with the questions that were answered. statistics: by model, answered questions
    and the sum of their scores, three decimals each, by category."""

    samples: list[dict[str, Any]]
    statistics: dict[str, Any]


def results(index: LedgerIndex, benchmark: str, answers: Iterable[Answered], model: str, data: Path | None) -> Results:
    """Answers in LoCoMo's form. model: what its fields are named after. data: the file that was built from, whose rows
    are written again; None: where it was then. Raises UserError for another file."""
    by_place = {(trial.task or "", trial.query or ""): (trial, answer) for trial, answer in answers if answer}
    measure = next(m for m in benchmarks.find(benchmark).measures if m.name == SCORE)
    built = next(index.task(name, task) for name, task in index.tasks if name == benchmark)
    counts: Counter[int] = Counter()
    sums: dict[int, float] = {}
    samples = []
    for sample in locomo.samples(data or Path(built.data), built):
        name = sample["sample_id"]
        task = index.task(benchmark, name)
        rows = []
        for position, row in enumerate(sample["qa"]):
            if (name, str(position)) not in by_place:
                continue
            trial, answer = by_place[name, str(position)]
            text = index.ledger.body(answer, AnswerBody).text
            value = measure.value(text, task.gold_of(str(position)))
            assert value is not None
            score = round(value, 3)
            counts[row["category"]] += 1
            sums[row["category"]] = sums.get(row["category"], 0.0) + score
            context = _context(index.shown(index.ledger.body(trial, RetrievalBody)), sample)
            rows.append(
                {
                    **row,
                    f"{model}_prediction": text,
                    **({} if context is None else {f"{model}_prediction_context": context}),
                    f"{model}_f1": score,
                }
            )
        if rows:
            samples.append({"sample_id": name, "qa": rows})
    statistics = {
        model: {
            "category_counts": {str(c): counts[c] for c in locomo.IN_TABLES if counts[c]},
            "cum_accuracy_by_category": {str(c): sums[c] for c in locomo.IN_TABLES if counts[c]},
        }
    }
    return Results(samples, statistics)


def _context(items: Sequence[Item] | None, sample: dict[str, Any]) -> list[str] | None:
    """The retrieved turns by their names in the data, best first; None where the system gives no evidence."""
    if items is None or any(item.turns is None for item in items):
        return None
    names = {turn: name for name, turn in locomo.turn_ids(sample["conversation"]).items()}
    return list(dict.fromkeys(names[turn] for item in items for turn in item.turns or ()))
