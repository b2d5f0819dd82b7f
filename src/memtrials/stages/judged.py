"""What verdicts tell beside numbers: how judges agree, what they make of probes, where InMind's tasks end."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from memtrials.benchmarks.base import Benchmark
from memtrials.judging import probing
from memtrials.metrics import agreement
from memtrials.metrics.numbers import (
    Agreement,
    Attribution,
    Cell,
    Place,
    ProbeRate,
)
from memtrials.metrics.statistics import general_interval
from memtrials.records import VerdictBody
from memtrials.stages import locating
from memtrials.stages.folding import Folding


def agreements(folding: Folding, benchmark: Benchmark, name: str) -> list[Agreement]:
    """How far the judges of each cell agree, metric by metric, where more than one verdict stands on an item."""
    ratings: dict[tuple[Cell, str], dict[tuple[str, int], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    places: dict[str, str] = {}
    for verdict in folding.on_results:
        if verdict.benchmark != name or not folding.kept(verdict) or not _wanted(folding, verdict.metric):
            continue
        item = folding.index.standing(verdict.parents[0]) or ""
        places[item] = f"{verdict.task}/{verdict.query}"
        cell = Cell(name, verdict.system or "", verdict.fetch or "", verdict.reader)
        rater = (verdict.judge or "", verdict.repeat or 1)
        ratings[cell, verdict.metric or ""][rater][item] = folding.index.ledger.body(verdict, VerdictBody).score

    def turn(
        rater: tuple[str, int],
    ) -> tuple[int, int]:
        return folding.judges_in_order[rater[0]], rater[1]  # not when its verdicts happened to come

    return [
        _agreement(cell, metric, {rater: by_rater[rater] for rater in sorted(by_rater, key=turn)}, places)
        for (cell, metric), by_rater in ratings.items()
        if len(by_rater) > 1
    ]


def _wanted(folding: Folding, metric: str | None) -> bool:
    return not folding.request.metrics or metric in folding.request.metrics


def probe_rates(folding: Folding, benchmark: Benchmark, name: str) -> list[ProbeRate]:
    """How many of the constructed answers each judge accepts, by metric and kind."""
    scores: dict[tuple[str, str, str], dict[Place, list[float]]] = defaultdict(lambda: defaultdict(list))
    for verdict in folding.index.of("verdict"):
        about = probing.probed(verdict)
        if about is None or verdict.benchmark != name or not folding.kept(verdict) or not _wanted(folding, about[0]):
            continue
        place = (verdict.task or "", verdict.query or "")
        score = folding.index.ledger.body(verdict, VerdictBody).score
        scores[verdict.judge or "", *about][place].append(score)
    if not scores:
        return []
    asked = [
        ((probe.task.task or "", probe.query), probe.kind)
        for probe in probing.constructed(folding.index, benchmark, name)
        if (name, probe.task.task, probe.query) in folding.chosen.queries
    ]
    metrics = [m.name for m in benchmark.metrics]
    kinds = list(dict.fromkeys((*(kind for _, kind in asked), *(kind for _, _, kind in scores))))

    def turn(place: tuple[str, str, str]) -> tuple[int, int, int]:
        judge, metric, kind = place
        return folding.judges_in_order[judge], metrics.index(metric), kinds.index(kind)

    rates = []
    for judge, metric, kind in sorted(scores, key=turn):
        by_question = scores[judge, metric, kind]
        accepted = sum(sum(some) / len(some) for some in by_question.values()) / len(by_question)
        decided = benchmark.metric(metric)
        about_questions = folding.questions(name, decided.probed or decided.asks)
        of = sum(other == kind and place in about_questions for place, other in asked)
        flagged = kind == probing.SWAPPED and accepted > probing.MOST_SWAPPED
        n = len(by_question)
        rates.append(ProbeRate(name, judge, metric, kind, accepted, n, max(n, of), flagged))
    return rates


def attributions(folding: Folding, benchmark: Benchmark, name: str) -> list[Attribution]:
    """Waterfalls of each cell with verdicts, over trials, or pairs of them, with ordinal 1 (`--by repeat`: each
    ordinal)."""
    if benchmark.attribute is None:
        kept = [v for v in folding.on_results if folding.kept(v) and _wanted(folding, v.metric)]
        every_trial = folding.request.by == "repeat"
        return locating.waterfalls(folding.index, benchmark, name, kept, folding.questions, every_trial=every_trial)
    stored = locating.stored_facts(folding.index, benchmark, name)
    on_trials: dict[Cell, dict[tuple[int, str], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    on_answers: dict[Cell, dict[tuple[int, str], dict[str, float]]] = defaultdict(lambda: defaultdict(dict))
    for verdict in folding.on_results:
        if verdict.benchmark != name or not folding.kept(verdict):
            continue
        chain = folding.lineage(verdict)
        trial = next(h for h in chain if h.kind == "retrieval")
        if any((h.repeat or 1) != 1 for h in chain if h is not trial):
            continue
        cell = Cell(name, verdict.system or "", verdict.fetch or "", verdict.reader, verdict.judge)
        score = folding.index.ledger.body(verdict, VerdictBody).score
        place = (trial.repeat or 1, verdict.task or "")
        (on_answers if verdict.reader else on_trials)[cell][place][verdict.metric or ""] = score
    found = []
    for cell in [*on_answers, *(c for c in on_trials if _is_rule(folding, c))]:
        context = on_trials.get(cell._replace(reader=None), {})
        facts = {
            p: {**context.get(p, {}), **on_answers.get(cell, {}).get(p, {})}
            for p in {*context, *on_answers.get(cell, {})}
        }
        for (_, task), known in facts.items():
            if (cell.system, task) in stored:
                known["stored"] = stored[cell.system, task]
        ordinals = sorted({ordinal for ordinal, _ in facts}) if folding.request.by == "repeat" else [1]
        found += [
            _attribution(folding, benchmark, cell, o, {t: f for (n, t), f in facts.items() if n == o}) for o in ordinals
        ]
    return found


def _is_rule(folding: Folding, cell: Cell) -> bool:
    return cell.judge is not None and folding.index.config(cell.judge).settings.get("model") == "offline"


def _attribution(
    folding: Folding, benchmark: Benchmark, cell: Cell, ordinal: int, facts: Mapping[str, Mapping[str, float]]
) -> Attribution:
    assert benchmark.attribute is not None
    by_rule = _is_rule(folding, cell)
    tasks = {task: cluster for (task, _), (cluster, _) in folding.questions(cell.benchmark).items()}
    counts = Counter(benchmark.attribute(facts.get(task, {}), by_rule=by_rule) for task in tasks)
    direct, target = ("direct-verbatim", "target-verbatim") if by_rule else ("direct-recall", "target-recall")
    both = [t for t in tasks if facts.get(t, {}).get(direct) is not None and facts.get(t, {}).get(target) is not None]
    gaps = [facts[t][direct] - facts[t][target] for t in both]
    between = general_interval(gaps, [tasks[t] for t in both]) if len({tasks[t] for t in both}) > 1 else None
    slips = sum(f.get("naive") == 0 and f.get("direct-recall") == 1 for f in facts.values())
    return Attribution(
        cell,
        ordinal,
        by_rule,
        len(tasks),
        dict(counts),
        None if by_rule else slips,
        sum(gaps) / len(gaps) if gaps else None,
        len(gaps),
        (max(-1.0, between.low), min(1.0, between.high)) if between else None,
    )


def _agreement(
    cell: Cell, metric: str, by_rater: Mapping[tuple[str, int], Mapping[str, float]], places: Mapping[str, str]
) -> Agreement:
    several = {judge for judge, ordinal in by_rater if ordinal > 1}
    ratings = {f"{judge} #{n}" if judge in several else judge: scores for (judge, n), scores in by_rater.items()}
    band, most = agreement.score_band(ratings), agreement.majority(ratings)
    pair = tuple(ratings.values()) if len(ratings) == 2 else None
    return Agreement(
        cell,
        metric,
        tuple(ratings),
        n=band.n if band else 0,
        left_out=band.left_out if band else len({item for scores in ratings.values() for item in scores}),
        low=band.low if band else None,
        high=band.high if band else None,
        raw=agreement.raw_agreement(*pair) if pair else None,
        kappa=agreement.cohens_kappa(*pair) if pair else None,
        alpha=agreement.krippendorffs_alpha(list(ratings.values())),
        majority=sum(most.scores.values()) / len(most.scores) if most.scores else None,
        ties=most.ties,
        flips=[(places[flip.item], flip.scores) for flip in agreement.flips(ratings)],
    )
