"""LongMemEval's questions alone, as a file of results holds them: tasks without a timeline, so that results can be
counted, answered again and judged where the data itself isn't.

Their release is the questions: its hash is over id, type, question and gold of each, so any file that holds the same
ones makes the same tasks.
"""

from __future__ import annotations

from collections.abc import Sequence

from memtrials.benchmarks.base import Loaded
from memtrials.benchmarks.longmemeval import ABSTENTION, LICENCE, QUESTION, TYPES
from memtrials.errors import UserError
from memtrials.exchange.artifacts import Artifact
from memtrials.exchange.results import Result
from memtrials.records import DataFile, Gold, Query, Release, TaskBody, TimelineSource, clean_text, sha256

BENCHMARK = "longmemeval@questions"
KNOWN = "d2b6a1b9b4578c34c3365d776ae98e88b53fa891448b69d4c871919181912e76"
"""The hash of the 500 questions of the published data."""


def load(artifact: Artifact) -> Loaded:
    """The questions of a file as tasks. Raises UserError for a file that doesn't name their ids."""
    questions: dict[str, Result] = {}
    for result in artifact.results:
        name = result.place.id
        if name is None:
            raise UserError(
                f"{artifact.path}: its records don't name LongMemEval's questions by id; build longmemeval first, or "
                "import a file that does before it"
            )
        if result.type not in TYPES:
            raise UserError(f"{artifact.path}, {result.name}: type {result.type!r} is none of {', '.join(TYPES)}")
        questions.setdefault(clean_text(name), result)
    digest = sha256(sorted([name, r.type, clean_text(r.question), clean_text(r.gold)] for name, r in questions.items()))
    file = DataFile(artifact.path.name, next(iter(artifact.hashes.values())))
    release = Release(
        sha256=digest,
        files=(file,),
        known=digest == KNOWN,
        attribution=LICENCE,
        constants={"questions": len(questions)},
    )
    source = TimelineSource(file.path, file.sha256, 0, 0)
    tasks = [
        (
            name,
            result.type,
            TaskBody(
                release=release,
                data=str(artifact.path.resolve()),
                source=source,
                sessions=(),
                turns=0,
                queries=(_query(name, result),),
                gold=(_gold(name, result),),
            ),
        )
        for name, result in questions.items()
    ]
    note = f"{BENCHMARK}: {len(tasks)} questions without their histories, which can't be replayed"
    return Loaded(BENCHMARK, release, tasks, (note,))


def _query(name: str, result: Result) -> Query:
    """Without a date: files of the same questions give different ones, which stand with their retrievals."""
    cluster = name.partition(ABSTENTION)[0]
    return Query(id=QUESTION, text=clean_text(result.question), unit=name, cluster=cluster, type=result.type)


def _gold(name: str, result: Result) -> Gold:
    """With the details of a history without sessions, which is what the task has."""
    details = {"timeline": "[]", "evidence_sessions": "[]"}
    return Gold(query=QUESTION, answers=(clean_text(result.gold),), abstention=ABSTENTION in name, details=details)


def refuse_strangers(artifact: Artifact, held: Sequence[str]) -> None:
    """Raise UserError where the file asks what the ledger's questions don't hold."""
    strangers = [r for r in artifact.results if r.place.id is not None and clean_text(r.place.id) not in held]
    if strangers:
        raise UserError(
            f"{artifact.path}, {strangers[0].name}: {len(strangers)} of its questions aren't among those of "
            f"{BENCHMARK}; use another ledger (--trials), or import the file with all questions first"
        )
