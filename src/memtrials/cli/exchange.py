"""Files that go to others and come from them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from memtrials.cli.options import (
    COUNT,
    FILE,
    F,
    data_option,
    emit,
    json_option,
    opened,
    options_of,
    out_option,
    selected,
    selecting,
    settings_now,
    trials_option,
    with_options,
    write_out,
)
from memtrials.cli.root import cli
from memtrials.errors import UserError

if TYPE_CHECKING:
    from memtrials.exchange.runs import Run
    from memtrials.index import LedgerIndex


@cli.group(name="export")
def export_group() -> None:
    """Write results in other tools' formats."""


@export_group.command("inmind-submission")
@out_option
@click.option("--reader", help="Whose answers [default: the system's current reader].")
@click.option("--trial", type=COUNT, default=1, show_default=True, help="Which trial of each question.")
@click.option("--allow-partial", is_flag=True, help="Leave out tasks without a complete trial.")
@click.option("--allow-voided", is_flag=True, help="Export although results were voided after their verdict.")
@trials_option
@selecting
def export_inmind(
    out: Path | None, reader: str | None, trial: int, allow_partial: bool, allow_voided: bool, **given: Any
) -> int:
    """One JSON object per task of one system, as InMind's leaderboard takes it."""
    from memtrials.exchange import inmind_submission as format_
    from memtrials.exchange.cells import benchmark_in

    options, index, chosen = selected(given)
    benchmark = benchmark_in(index, "inmind", options.selection.benchmark)
    rows = format_.rows(index, benchmark, chosen, reader, trial, allow_partial=allow_partial, allow_voided=allow_voided)
    return write_out(_lines(rows), out, f"{len(rows)} tasks")


def _export_options(*, judged: bool) -> Callable[[F], F]:
    """What exports of one system's answers take."""
    judge = [click.option("--judge", help="Whose verdicts, where several judges decided.")] if judged else []
    return with_options(
        [
            out_option,
            click.option("--reader", help="Whose answers [default: the system's current reader]."),
            *judge,
            trials_option,
            selecting,
        ]
    )


trial_option = click.option("--trial", type=COUNT, default=1, show_default=True, help="Which trial of each question.")


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


@export_group.command("memorybear-trials")
@_export_options(judged=True)
def export_trials(out: Path | None, reader: str | None, judge: str | None, **given: Any) -> int:
    """A JSON array of LongMemEval trials, as MemoryBear's pipeline writes and reads it. An imported array comes out
    again with every field it had."""
    from memtrials.exchange import trials_array
    from memtrials.exchange.cells import answers, benchmark_in, last_verdicts

    options, index, chosen = selected(given)
    benchmark = benchmark_in(index, "longmemeval", options.selection.benchmark)
    _, trials = answers(index, benchmark, chosen, reader)
    verdicts = last_verdicts(index, trials, "accuracy", judge)
    rows = list(trials_array.export(index, benchmark, trials, verdicts))
    return write_out(json.dumps(rows, ensure_ascii=False, indent=2) + "\n", out, f"{len(rows)} trials")


@export_group.command("longmemeval-hypotheses")
@trial_option
@_export_options(judged=False)
def export_hypotheses(trial: int, out: Path | None, reader: str | None, **given: Any) -> int:
    """JSON lines of question_id and hypothesis, as LongMemEval's evaluate_qa takes them."""
    from memtrials.exchange import longmemeval_files
    from memtrials.exchange.cells import answers, benchmark_in

    options, index, chosen = selected(given)
    benchmark = benchmark_in(index, "longmemeval", options.selection.benchmark)
    rows = list(longmemeval_files.hypotheses(index, answers(index, benchmark, chosen, reader, trial)[1]))
    return write_out(_lines(rows), out, f"{len(rows)} hypotheses")


@export_group.command("longmemeval-eval-results")
@trial_option
@click.option("--legacy", is_flag=True, help="MemoryBear's fields, and of each question the last judged trial.")
@_export_options(judged=True)
def export_eval_results(
    trial: int, legacy: bool, out: Path | None, reader: str | None, judge: str | None, **given: Any
) -> int:
    """JSON lines of judged answers with autoeval_label, as LongMemEval's evaluate_qa writes them."""
    from memtrials.exchange import longmemeval_files
    from memtrials.exchange.cells import answers, benchmark_in, last_verdicts

    options, index, chosen = selected(given)
    benchmark = benchmark_in(index, "longmemeval", options.selection.benchmark)
    _, some = answers(index, benchmark, chosen, reader, None if legacy else trial)
    verdicts = last_verdicts(index, some, "accuracy", judge)
    rows = list(longmemeval_files.eval_results(index, some, verdicts, legacy=legacy))
    return write_out(_lines(rows), out, f"{len(rows)} verdicts")


@export_group.command("locomo-results")
@trial_option
@click.option("--model", help="What fields are named after [default: the reader's model].")
@click.option("--data", type=FILE, help="LoCoMo's file, whose rows are written again, if it moved since build.")
@_export_options(judged=False)
def export_locomo(
    trial: int, model: str | None, data: Path | None, out: Path | None, reader: str | None, **given: Any
) -> int:
    """LoCoMo's samples with predictions and scores; with --out also OUT's counts by category, in *_stats.json."""
    from memtrials.exchange import locomo_files
    from memtrials.exchange.cells import answers, benchmark_in, model_of

    options, index, chosen = selected(given)
    benchmark = benchmark_in(index, "locomo", options.selection.benchmark)
    cell, some = answers(index, benchmark, chosen, reader, trial)
    found = locomo_files.results(index, benchmark, some, model or model_of(index, cell.reader), data)
    count = sum(len(sample["qa"]) for sample in found.samples)
    if out is not None:
        statistics = out.with_name(f"{out.stem}_stats.json")
        write_out(json.dumps(found.statistics, ensure_ascii=False, indent=2) + "\n", statistics, "counts")
    return write_out(json.dumps(found.samples, ensure_ascii=False, indent=2) + "\n", out, f"{count} answers")


def _of_retrievals(command: F) -> F:
    """What exports of one system's retrievals take."""
    return with_options(
        [
            trial_option,
            click.option("--allow-partial", is_flag=True, help="Leave out questions without that trial."),
            data_option,
            trials_option,
            selecting,
        ]
    )(command)


def _run_of(
    given: dict[str, Any], base: str | None, run_id: str | None, trial: int, allow_partial: bool
) -> tuple[LedgerIndex, Run]:
    """The run that is selected. base: the benchmark it has to be of; None: the one that is selected or built."""
    from memtrials.exchange import harness, runs
    from memtrials.exchange.cells import benchmark_in

    options, index, chosen = selected(given)
    named = options.selection.benchmark
    if base is None:
        if len(chosen.benchmarks) > 1:
            raise UserError(f"a run is of one benchmark; name one of {', '.join(chosen.benchmarks)} with --benchmark")
        base = chosen.benchmarks[0].partition("@")[0] if chosen.benchmarks else named or ""
    benchmark = benchmark_in(index, base, named)
    dataset = harness.dataset_of(benchmark)
    return index, runs.run_of(index, benchmark, dataset, chosen, run_id, trial, allow_partial=allow_partial)


@export_group.command("rows")
@click.option("--run-id", help="The run's name [default: the ledger's name and 8 hex digits of its SHA-256].")
@click.option("--out", type=FILE, help="Where the folder RUN-ID is made [default: beside the ledger].")
@_of_retrievals
def export_rows(
    run_id: str | None, out: Path | None, trial: int, allow_partial: bool, data: Path | None, **given: Any
) -> int:
    """A folder with results.jsonl, header.json and report.json, as a retrieval harness writes and compares them.

    Of continuity the first is traces.jsonl: rows with all that was told and done up to their queries.
    """
    from memtrials.exchange import runs

    index, run = _run_of(given, None, run_id, trial, allow_partial)
    folder = runs.write(index, run, out or index.ledger.path.parent, data)
    print(f"{len(run.trials)} questions written to {folder}")
    return 0


@export_group.command("longmemeval-retrieval")
@out_option
@_of_retrievals
def export_retrieval_log(out: Path | None, trial: int, allow_partial: bool, data: Path | None, **given: Any) -> int:
    """JSON lines of what was retrieved for each question of LongMemEval."""
    from memtrials.exchange import harness

    index, run = _run_of(given, "longmemeval", None, trial, allow_partial)
    lines = _lines(harness.retrieval_log(row) for row in run.dataset.rows(index, run, data))
    return write_out(lines, out, f"{len(run.trials)} questions")


@export_group.command("locomo-retrieval")
@out_option
@click.option("--reader", help="Whose answers [default: the system's current reader].")
@_of_retrievals
def export_locomo_retrieval(
    out: Path | None, reader: str | None, trial: int, allow_partial: bool, data: Path | None, **given: Any
) -> int:
    """JSON lines of what was retrieved for each question of LoCoMo, with its answer where there is one."""
    from memtrials.exchange import harness
    from memtrials.exchange.cells import first_answers

    index, run = _run_of(given, "locomo", None, trial, allow_partial)
    said = first_answers(index, list(run.trials), reader)
    found = zip(run.trials, run.dataset.rows(index, run, data), strict=True)
    lines = _lines(harness.locomo_row(row, said.get(header.id)) for header, row in found)
    return write_out(lines, out, f"{len(run.trials)} questions")


class _Import(click.Group):
    """`import FILE…` is `import results FILE…`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        names = {*self.commands, *ctx.help_option_names}
        return super().parse_args(ctx, args if not args or args[0] in names else ["results", *args])


@cli.group(name="import", cls=_Import)
def import_group() -> None:
    """Take in results that others made, so that they can be judged and compared.

    `memtrials import FILE…` is `memtrials import results FILE…`.
    """


@import_group.command("results")
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--benchmark", help="Where several are built, the one these are results of.")
@click.option("--name", help="The system's name [default: what the file's name begins with].")
@trials_option
@json_option
def import_results(
    files: tuple[Path, ...], benchmark: str | None, name: str | None, trials: Path | None, as_json: bool
) -> int:
    """Released results of MemoryBear, MemOS and Mem0 on LongMemEval and LoCoMo, plain or gzip, and MemoryBear's trials.

    They become those of the system imported-NAME. A file of retrieved memories belongs to the judged answers named
    before it; alone, its contexts can be answered and judged. Again the same file: nothing.
    """
    from memtrials.stages import importing

    options = options_of({"trials": trials})
    outcome = importing.run(importing.ImportRequest(files, benchmark, name), options)
    if as_json:
        emit({"stage": "import", "appended": outcome.appended, "notes": outcome.notes})
    else:
        print("\n".join([*outcome.notes, f"{outcome.appended} records appended"]))
    return 0


@import_group.command("inmind-submission")
@click.argument("file", type=FILE)
@click.option("--benchmark", help="Which built InMind benchmark it belongs to.")
@trials_option
@json_option
def import_inmind(file: Path, benchmark: str | None, trials: Path | None, as_json: bool) -> int:
    """Results of a submission file become those of the system imported-NAME. Again the same file: nothing."""
    from memtrials.exchange import inmind_submission as format_
    from memtrials.exchange.cells import benchmark_in
    from memtrials.exchange.imported import append

    _, index = opened(trials, settings_now())
    appended = append(index, format_.records(index, benchmark_in(index, "inmind", benchmark), file))
    index.ledger.close()
    if as_json:
        emit({"stage": "import", "appended": appended})
    else:
        print(f"{appended} records appended")
    return 0


@cli.command()
@trials_option
@selecting
def methods(**given: Any) -> int:
    """What a paper has to say of a run: data, systems, readers, judges, how often, which intervals; and BibTeX."""
    from memtrials.report.methods import methods as told
    from memtrials.stages import metrics as stage

    options, index, chosen = selected(given)
    print(told(index, chosen, stage.fold(index, stage.MetricsRequest(), options)))
    return 0


@cli.group()
def validate() -> None:
    """Check files of other tools' formats."""


@validate.command("inmind-submission")
@click.argument("file", type=FILE)
@click.option("--allow-partial", is_flag=True, help="Accept missing tasks.")
@click.option("--benchmark", help="Which built InMind benchmark its ids belong to.")
@trials_option
def validate_inmind(file: Path, allow_partial: bool, benchmark: str | None, trials: Path | None) -> int:
    """Check a submission against the tasks of a built benchmark: every problem with its line number."""
    from memtrials.exchange import inmind_submission as format_
    from memtrials.exchange.cells import benchmark_in

    _, index = opened(trials, settings_now())
    tasks = format_.tasks_of(index, benchmark_in(index, "inmind", benchmark))
    rows = format_.read(file, tasks, allow_partial=allow_partial)
    print(f"{file}: valid, {len(rows)} of {len(tasks)} tasks")
    return 0
