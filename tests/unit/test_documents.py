"""Texts and numbers in Markdown, LaTeX, Parquet and spreadsheets."""

import csv
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from memtrials.report.documents import HEADINGS, LATEX, latex_text, markdown_text
from support.cli import call_cli
from support.extras import needs_tables
from support.trials import ended

SPECIAL = "\\`*_{}[]<>()#+-.!|~&$%^\"'–−:=@0a \n"
texts = st.text(st.sampled_from(SPECIAL) | st.characters(codec="utf-8", exclude_categories=["C"]), max_size=20)


def words(text: str) -> str:
    return " ".join(text.split())


def cells(markdown: str) -> list[list[str]]:
    """The cells of all rows of Markdown's tables, as they are shown, and then of its list."""
    tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
    rows: list[list[str]] = []
    for token in tokens:
        if token.type in ("tr_open", "list_item_open"):
            rows.append([])
        if token.type == "inline" and rows:
            children = token.children or []
            assert {child.type for child in children} <= {"text", "text_special"}
            rows[-1].append("".join(child.content for child in children))
    return rows


@given(texts, texts)
def test_markdown_shows_a_text_as_it_is(one: str, other: str):
    head = "| a | b |\n| --- | --- |\n"
    found = cells(f"{head}| {markdown_text(one)} | {markdown_text(other)} |\n\n- {markdown_text(one)}\n")
    assert found[1] == [words(one), words(other)]
    assert "".join(found[2] if len(found) > 2 else []) == words(one)


@given(texts)
def test_latex_sets_a_text_as_it_is(text: str):
    written = latex_text(text)
    known = sorted([*LATEX.values(), "{}"], key=len, reverse=True)
    back = {value: key for key, value in LATEX.items()} | {"{}": ""}
    parts = re.split("(" + "|".join(map(re.escape, known)) + ")", written)
    assert not any(set(part) & set("\\{}$&%#_~^<>|\"'`") for part in parts if part not in back)
    assert "".join(back.get(part, part) for part in parts) == words(text)
    assert "--" not in written


def test_latex_escapes_by_hand():
    assert latex_text("a_b & 50% of {x} -- C:\\d ~^") == (
        r"a\_b \& 50\% of \{x\} -{}- C:\textbackslash{}d \textasciitilde{}\textasciicircum{}"
    )


def metrics(trials: Path, *arguments: str) -> str:
    return ended(call_cli("metrics", "--trials", str(trials), *arguments)).out


def test_every_number_has_a_line_with_interval_n_class_and_notes(judged: Path):
    numbers = json.loads(metrics(judged, "--json"))["numbers"]
    markdown, latex = metrics(judged, "--format", "markdown"), metrics(judged, "--format", "latex")
    rows = [row for row in cells(markdown) if len(row) == len(HEADINGS) and row != list(HEADINGS)]
    assert len(rows) >= len(numbers)
    seen = {(row[0].removesuffix(" (control)"), row[1], row[2]): dict(zip(HEADINGS, row, strict=True)) for row in rows}
    for number in numbers:
        who = " / ".join(name for name in (number["reader_name"], number["judge_name"]) if name)
        row = seen[number["system_name"], number["metric"], who]
        assert row["n"] == f"{number['n']} of {number['of']}"
        assert row["class"] == (number["class"] or "")
        if number["value"] is None and number["score"] is None:
            assert (row["value"], row["notes"]) == ("–", number["reason"])
        if number["unit"] == "share" and number["interval"]:
            low, high = number["interval"]
            assert row["interval" if "interval" in row else "95 % interval"] == f"{low:.3f} to {high:.3f}"
            assert f"{low:.3f} to {high:.3f}" in latex
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == markdown.count("### ")
    assert any("class R" in row[0] for row in cells(markdown) if len(row) == 1)


def test_text_goes_to_a_file_where_one_is_named(judged: Path, tmp_path: Path):
    for form in ("json", "csv", "markdown", "latex"):
        said = metrics(judged, "--format", form, "--out", str(tmp_path / form))
        assert said.endswith(f"numbers written to {tmp_path / form}\n")
        assert (tmp_path / form).read_text("utf-8") == metrics(judged, "--format", form)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("--format", "xlsx"), "name a file with --out"), (("--out", "a.txt"), "a table goes to the terminal")],
)
def test_forms_and_files_that_do_not_fit(judged: Path, arguments: tuple[str, ...], told: str):
    refused = call_cli("metrics", "--trials", str(judged), *arguments)
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert told in refused.err


def csv_of(trials: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(metrics(trials, "--format", "csv"))))


def same(value: Any, written: str) -> bool:
    """Whether a cell of a file holds what the CSV says."""
    if value is None:
        return written == ""
    if isinstance(value, str) or written == "":
        return str(value) == written
    return float(value) == pytest.approx(float(written), rel=1e-12)


@needs_tables
@pytest.mark.parametrize("form", ["parquet", "xlsx"])
def test_a_file_holds_the_rows_of_the_csv(judged: Path, tmp_path: Path, form: str):
    import openpyxl
    import polars

    files = [tmp_path / f"{n}.{form}" for n in "ab"]
    for path in files:
        metrics(judged, "--format", form, "--out", str(path))
    assert files[0].read_bytes() == files[1].read_bytes()
    if form == "parquet":
        rows = polars.read_parquet(files[0]).rows()
        columns = polars.read_parquet(files[0]).columns
    else:
        sheet = openpyxl.load_workbook(files[0])["numbers"]
        columns, *rows = [tuple(cell.value for cell in row) for row in sheet.iter_rows()]
    expected = csv_of(judged)
    assert list(columns) == list(expected[0])
    assert len(rows) == len(expected) > 5
    for row, line in zip(rows, expected, strict=True):
        for value, (name, written) in zip(row, line.items(), strict=True):
            if isinstance(value, bool):
                assert str(value) == written, name
            else:
                assert same(value, written), name


@needs_tables
def test_a_sheet_takes_no_text_for_a_formula(judged: Path, tmp_path: Path):
    import openpyxl
    import polars

    from memtrials.report import documents

    out = tmp_path / "a.xlsx"
    documents._write_sheet(polars.DataFrame({"text": ["=1+1", "http://a.b"]}), out)
    sheet = openpyxl.load_workbook(out)["numbers"]
    assert [(cell.value, cell.data_type, cell.hyperlink) for (cell,) in sheet.iter_rows(2)] == [
        ("=1+1", "s", None),
        ("http://a.b", "s", None),
    ]


@pytest.mark.parametrize("form", ["parquet", "xlsx"])
def test_without_the_extra_it_says_how_to_get_it(
    judged: Path, tmp_path: Path, form: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "polars", None)
    refused = call_cli("metrics", "--trials", str(judged), "--format", form, "--out", str(tmp_path / "a"))
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--extra tables" in refused.err
    assert not (tmp_path / "a").exists()
