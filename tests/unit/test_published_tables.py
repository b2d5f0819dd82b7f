"""Published tables are data: every one can be read, and values are rounded as a table prints them."""

from pathlib import Path

import pytest

from memtrials import benchmarks
from memtrials.benchmarks import longmemeval
from memtrials.errors import UserError
from memtrials.exchange import published
from memtrials.exchange.published import Column


@pytest.mark.parametrize("name", published.names())
def test_every_table_names_metrics_parts_and_types_that_exist(name: str):
    table = published.load(name)
    benchmark = benchmarks.find(table.benchmark)
    known = {m.name for m in (*benchmark.metrics, *benchmark.measures)}
    parts = {part.name: part.metrics for part in benchmark.parts}
    for column in table.columns.values():
        assert (column.metric is None) != (column.imported is None)
        assert column.metric is None or column.metric in known
        assert column.part is None or column.metric in parts[column.part]
        types = benchmark.types or longmemeval.TYPES
        assert column.type is None or column.type in types


@pytest.mark.parametrize("name", published.names())
def test_every_published_value_has_the_decimals_of_its_column(name: str):
    table = published.load(name)
    for system in table.systems:
        for column, value in system.published.items():
            assert round(value, table.columns[column].decimals) == value


@pytest.mark.parametrize(
    ("value", "decimals", "printed"),
    [
        (0.93984962, 2, 93.98),
        (0.954, 0, 95.0),
        (0.8571428, 1, 85.7),
        (0.00125, 2, 0.13),
        (0.995, 0, 100.0),
        (1, 2, 100.0),
    ],
)
def test_percentages_are_rounded_half_up(value: float, decimals: int, printed: float):
    assert Column(metric="accuracy", percent=True, decimals=decimals).as_printed(value) == printed


def test_other_units_are_scaled():
    seconds = Column(imported="latency_ms", scale=0.001, decimals=1)
    assert seconds.as_printed(510.0) == 0.5
    assert seconds.as_printed(550.0) == 0.6
    assert seconds.as_printed(None) is None


def test_cells_stand_in_the_tables_order_with_what_was_not_published():
    table = published.load("locomo")
    (bear,) = (system for system in table.systems if system.name == "MemoryBear")
    cells = table.cells(bear)
    assert list(cells)[-4:] == ["overall", "overall, 1-5", "F1", "F1, 1-5"]
    assert [cells[name] for name in ("overall", "overall, 1-5")] == [None, 91.54]


def test_a_description_with_unknown_columns_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "published").mkdir()
    text = (
        'title = "t"\nbenchmark = "locomo"\nsource = "s"\n[columns]\n[[systems]]\nname = "A"\npublished = { x = 1.0 }\n'
    )
    (tmp_path / "published" / "bad.toml").write_text(text, "utf-8")
    monkeypatch.setattr(published, "evaluation", lambda: tmp_path)
    with pytest.raises(UserError, match="A has columns that aren't described: x"):
        published.load("bad")
