"""What formulas make of answers' texts, how long answers took, and where imported numbers depart from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from memtrials.benchmarks.base import Benchmark, Measure
from memtrials.exchange.departures import departure, pairs
from memtrials.exchange.imported import PREFIX
from memtrials.metrics import recipes
from memtrials.metrics.numbers import Cell, Departure, Number
from memtrials.records import AnswerBody, Call, Header
from memtrials.stages import shares
from memtrials.stages.folding import Folding, in_order
from memtrials.stages.measured import latency


def of_answers(folding: Folding, benchmark: Benchmark, name: str, words: Sequence[Measure]) -> list[Number]:
    """Values of the benchmark's own formulas and of `words`, and latency."""
    if folding.request.metrics:
        return []
    numbers = []
    wordless = {name: why for recipe in folding.request.lexical for name, why in recipes.unavailable(recipe).items()}
    for cell, answers in folding.cells("answer", name).items():
        calls: dict[str | None, list[Call | None]] = defaultdict(list)
        for said in answers:
            query_type = folding.questions(name)[said.task or "", said.query or ""][1]
            group = folding.group(folding.lineage(said), query_type)
            calls[group].append(folding.index.ledger.body(said, AnswerBody).call)
        numbers += _of_texts(folding, benchmark, cell, answers, words, wordless)
        for group, made in in_order(benchmark, calls):
            timed = [c for c in made if c and c.seconds is not None and c.attempts == 1]
            seconds = [c.seconds for c in timed if c.seconds is not None]
            numbers += latency(cell, group, "answer", seconds, len(made), any(c.workers > 1 for c in timed))
    return numbers


def _of_texts(
    folding: Folding,
    benchmark: Benchmark,
    cell: Cell,
    answers: Sequence[Header],
    words: Sequence[Measure],
    wordless: Mapping[str, str],
) -> list[Number]:
    """Formulas over answers' texts. A question without an answer counts as for verdicts.

    wordless: why measures of `words` can't be had, by name.
    """
    numbers = []
    of_words = [replace(measure, asks=benchmark.worded) for measure in words]
    for measure in (*(m for m in benchmark.measures if m.reads == "answer"), *of_words):
        questions = folding.questions(cell.benchmark, measure.asks)
        groups: dict[str | None, list[Header]] = defaultdict(list)
        for said in answers:
            if (place := (said.task or "", said.query or "")) in questions:
                groups[folding.group(folding.lineage(said), questions[place][1])].append(said)
        reason = wordless.get(measure.name)
        if measure in of_words and (reason or not questions):
            null = Number(cell, measure.name, "score", None, 0, 0, reason=reason or "there are no gold answers")
            numbers += [
                replace(null, of=len(folding.in_group(questions, group)), group=group, subset=folding.subset)
                for group in ([group for group, _ in in_order(benchmark, groups)] or [None])
            ]
            continue
        for group, some in in_order(benchmark, groups):
            scope, means = folding.in_group(questions, group), shares.scored(folding, measure, some)
            make: shares.Make = partial(shares.of_measure, folding, benchmark, measure, cell)
            whole = replace(make(scope, means), group=group)
            numbers += [whole, *shares.by_errata(folding, whole, make, scope, means)]
            if folding.request.by is None:
                numbers += shares.parts(folding, benchmark, measure, cell, questions, means)
    return numbers


def departures(folding: Folding, benchmark: Benchmark, name: str) -> list[Departure]:
    """Where the numbers that came with imported answers depart from what is recomputed."""
    if folding.request.metrics:
        return []
    imported = {c for c in folding.index.configs if folding.index.config(c).settings.get("system") == PREFIX}
    measures = [measure for measure in benchmark.measures if measure.reads == "answer"]
    return [
        departure(cell, measure.name, found)
        for cell, some in folding.cells("answer", name).items()
        if cell.reader in imported
        for measure in measures
        if (found := pairs(folding.index, measure, some))
    ]


def words_compared(names: Iterable[str]) -> list[Measure]:
    """The measures of answers' words by these recipes, whose comparisons are made once for all of them. A question with
    several gold answers is compared with the first. Raises UserError for an unknown recipe."""
    compared = cache(recipes.lexical)

    def measure(recipe: str, name: str) -> Measure:
        about = f"the answer's words beside the gold answer's, by the recipe {recipe}"
        return Measure(
            name, about, lambda answer, gold: compared(recipe, answer, gold.answers[0])[name], "mean", reads="answer"
        )

    return [measure(recipe, name) for recipe in names for name in recipes.lexical(recipe, "", "")]
