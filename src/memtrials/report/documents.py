"""The numbers of `metrics` for papers and for other programs: Markdown, LaTeX, Parquet, a spreadsheet.

A line of a Markdown or LaTeX table is one number with its interval, n, class and notes. Files for programs have the
columns of the CSV.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memtrials.errors import UserError, not_installed
from memtrials.metrics.numbers import Report
from memtrials.report.tables import CLASSES, as_csv, as_json, departure_lines, flat_rows, lines

if TYPE_CHECKING:
    from polars import DataFrame

FILES = ("parquet", "xlsx")
HEADINGS = ("system", "number", "reader / judge", "value", "95 % interval", "n", "class", "notes")


def as_text(report: Report, form: str) -> str:
    """The report as `json`, `csv`, `markdown` or `latex`."""
    if form == "json":
        return json.dumps(as_json(report), ensure_ascii=False, default=list) + "\n"
    return {"csv": as_csv, "markdown": as_markdown, "latex": as_latex}[form](report)


def _notes(report: Report) -> list[str]:
    """What stands below all tables."""
    classes = sorted({n.class_ for n in report.numbers if n.class_})
    told = [f"class {class_}: {CLASSES[class_]}" for class_ in classes]
    return [*told, *departure_lines(report.departures, report.names), *report.notes]


# --- Markdown ---------------------------------------------------------------------------------------------------


def as_markdown(report: Report) -> str:
    """A heading and a table for each benchmark and condition, then notes."""
    parts = []
    for title, some in lines(report).items():
        rows = [HEADINGS, *some]
        table = [f"| {' | '.join(map(markdown_text, row))} |" for row in rows]
        table.insert(1, "| " + " | ".join("---" for _ in HEADINGS) + " |")
        parts.append(f"### {markdown_text(title)}\n\n" + "\n".join(table) + "\n")
    if notes := _notes(report):
        parts.append("".join(f"- {markdown_text(note)}\n" for note in notes))
    return "\n".join(parts)


def markdown_text(text: str) -> str:
    """A text that Markdown shows as it is, in one line: punctuation that could mean something has a backslash."""
    line = re.sub(r"([\\`*_{}\[\]<>#!|~&$])", r"\\\1", " ".join(text.split()))
    return re.sub(r"^(\d*)([-+.)=])", r"\1\\\2", line)


# --- LaTeX ------------------------------------------------------------------------------------------------------

LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "%": r"\%",
    "#": r"\#",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "'": r"\textquotesingle{}",
    "`": r"\textasciigrave{}",
    "–": r"\textendash{}",
    "−": r"\textminus{}",
}
"""What LaTeX takes for characters that mean something to it, or that its usual font hasn't."""


def as_latex(report: Report) -> str:
    """A `table` for each benchmark and condition, for a document that uses booktabs; notes below each."""
    parts = ["% \\usepackage[T1]{fontenc}, \\usepackage{textcomp} and \\usepackage{booktabs}\n"]
    notes = r" \\ ".join(map(latex_text, _notes(report)))
    for title, some in lines(report).items():
        head, *body = (" & ".join(map(latex_text, row)) + r" \\" for row in (HEADINGS, *some))
        parts.append(
            "\n".join(
                [
                    r"\begin{table}",
                    rf"\caption{{{latex_text(title)}}}",
                    r"\begin{tabular}{lllrrrll}",
                    *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
                    r"\end{tabular}",
                    *([rf"\par\footnotesize {notes}"] if notes else []),
                    r"\end{table}",
                    "",
                ]
            )
        )
    return "\n".join(parts)


def latex_text(text: str) -> str:
    """A text that LaTeX sets as it is, in one line; `--` and `,,` don't become one character."""
    apart = re.sub(r"([-,])(?=\1)", r"\1\0", " ".join(text.split()).replace("\0", ""))
    return "".join("{}" if character == "\0" else LATEX.get(character, character) for character in apart)


# --- files for programs -----------------------------------------------------------------------------------------


def write_file(report: Report, form: str, out: Path) -> None:
    """Write the numbers to a file of that form, one row each. Raises UserError where the extra `tables` isn't there,
    where there are no numbers, and where the file can't be written."""
    if not report.numbers:
        raise UserError("no numbers to write: replay, fetch, answer and judge come first")
    frame = _frame(flat_rows(report))
    try:
        if form == "parquet":
            frame.write_parquet(out)
        else:
            _write_sheet(frame, out)
    except OSError as error:
        raise UserError(f"{out}: can't be written ({error.strerror or error})") from None


def _frame(rows: Sequence[dict[str, Any]]) -> DataFrame:
    try:
        import polars
    except ImportError:
        raise not_installed("polars, which writes tables,", "tables") from None
    return polars.DataFrame(rows, infer_schema_length=None)


def _write_sheet(frame: DataFrame, out: Path) -> None:
    """A spreadsheet. Texts that begin with `=` stay texts. It bears no date, so that equal numbers give equal bytes."""
    try:
        import xlsxwriter
        from xlsxwriter.exceptions import FileCreateError
    except ImportError:
        raise not_installed("xlsxwriter, which writes spreadsheets,", "tables") from None
    book = xlsxwriter.Workbook(str(out), {"strings_to_formulas": False, "strings_to_urls": False})
    book.set_properties({"created": datetime(1980, 1, 1, tzinfo=UTC)})
    frame.write_excel(book, "numbers")
    try:
        book.close()
    except FileCreateError as error:
        raise UserError(f"{out}: can't be written ({error})") from None
