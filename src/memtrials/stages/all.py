"""run: the stages in order, each with its own part of the flags."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from memtrials import benchmarks
from memtrials.benchmarks.base import PLAIN
from memtrials.errors import UserError
from memtrials.llm.local import identity, model_file
from memtrials.llm.pool import NO_LIMITS, CallLimits
from memtrials.llm.roles import LOCAL, check_model_path, chosen_model
from memtrials.outcome import Outcome
from memtrials.settings import ModelRole
from memtrials.stages import answer, build, fetch, judge, replay
from memtrials.stages.common import Options


@dataclass(frozen=True)
class RunRequest:
    """What `run` is told: a benchmark, its data, systems, and what the stages need."""

    benchmark: str
    systems: tuple[str, ...]
    data: Path | None = None
    variant: str | None = None
    allow_modified: bool = False
    k: int | None = None
    order: str | None = None
    budgets: tuple[int, ...] = ()
    date_in_query: bool = False
    reader: str | None = None
    judge: str | None = None
    metrics: tuple[str, ...] = ()
    profile: str = PLAIN
    prompts: str = "default"
    upstream: Path | None = None
    limits: CallLimits = NO_LIMITS
    model_path: Path | None = None


def run_all(request: RunRequest, options: Options) -> Iterator[Outcome]:
    """The outcomes of build, replay, fetch, answer and judge, each as it ends; the last is the one that stopped it.

    --repeat goes to fetch alone, and to scripted lives, which are asked while they are replayed. A stage that failed in
    part is followed by the next; one that needs the user or was interrupted is not. A dry run can look ahead only as
    far as records exist.
    """
    roles: dict[ModelRole, str] = {
        "reader": chosen_model("reader", request.reader, options.settings),
        "judge": chosen_model("judge", request.judge, options.settings),
    }
    check_model_path(request.model_path, list(roles.values()))
    paths = {role: request.model_path if model == LOCAL else None for role, model in roles.items()}
    if LOCAL in roles.values():
        identity(model_file(request.model_path))  # what isn't installed is told now, not after replay
    whole = replace(options, selection=options.selection.__class__(), repeat=1)
    outcome = build.run(
        build.BuildRequest(request.benchmark, request.data, request.variant, request.allow_modified), whole
    )
    yield outcome
    if outcome.exit_code >= 2 or not options.trials.exists():
        return
    here = replace(options.selection, benchmark=options.selection.benchmark or outcome.details["benchmark"])
    once = replace(options, selection=here, repeat=1)
    names = tuple(Path(name).stem if name.endswith(".toml") else name for name in request.systems)
    asked = replace(once, selection=replace(here, systems=here.systems or names))
    benchmark = benchmarks.find(request.benchmark)
    reader = benchmark.readers.get(PLAIN)
    official = request.prompts == "official" and reader is not None and reader.prompt in benchmark.official_prompts
    asking = fetch.FetchRequest(
        request.systems, request.k, request.order, request.budgets, request.date_in_query, request.limits
    )
    feeding = replay.ReplayRequest(
        request.systems, request.data, limits=request.limits, asked=asking, lives=options.repeat
    )
    steps: list[Callable[[], Outcome]] = [
        lambda: replay.run(feeding, once),
        lambda: fetch.run(asking, replace(once, repeat=options.repeat)),
        lambda: answer.run(
            answer.AnswerRequest(
                request.reader,
                request.profile,
                "official" if official else "default",
                request.upstream if official else None,
                request.limits,
                paths["reader"],
            ),
            asked,
        ),
        lambda: judge.run(
            judge.JudgeRequest(
                judges=(request.judge,) if request.judge else (),
                metrics=request.metrics,
                prompts=request.prompts,
                upstream=request.upstream,
                limits=request.limits,
                model_path=paths["judge"],
            ),
            asked,
        ),
    ]
    for step in steps:
        try:
            outcome = step()
        except UserError:
            if options.dry_run:
                return
            raise
        yield outcome
        if outcome.exit_code >= 2:
            return
