"""LongMemEval's files: hypotheses as its scripts take them, and verdicts as they write them, one JSON object a line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from memtrials.exchange.cells import Answered, model_of
from memtrials.index import LedgerIndex
from memtrials.records import AnswerBody, Header, VerdictBody


def hypotheses(index: LedgerIndex, answers: Iterable[Answered]) -> Iterator[dict[str, Any]]:
    """Each question's id and answer."""
    for retrieval, answer in answers:
        if answer is not None:
            yield {"question_id": retrieval.task, "hypothesis": index.ledger.body(answer, AnswerBody).text}


def eval_results(
    index: LedgerIndex, answers: Iterable[Answered], verdicts: Mapping[str, Header], *, legacy: bool
) -> Iterator[dict[str, Any]]:
    """Judged answers with `autoeval_label`, the judge's model and its yes or no. verdicts: by the answer's id.

    legacy: as MemoryBear writes it, with the question's type, and of each question the last trial that was judged.
    """
    judged = [(trial, answer) for trial, answer in answers if answer is not None and answer.id in verdicts]
    if legacy:
        judged = list({trial.task: (trial, answer) for trial, answer in judged}.values())
    for trial, answer in judged:
        verdict = verdicts[answer.id]
        label = index.ledger.body(verdict, VerdictBody).score == 1.0
        yield {
            "question_id": trial.task,
            **({"question_type": answer.type} if legacy else {}),
            "hypothesis": index.ledger.body(answer, AnswerBody).text,
            "autoeval_label": {"model": model_of(index, verdict.judge), "label": label},
        }
