"""A table of what the benches measured, printed at the end of the run."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

Report = Callable[[str, str, str], None]
ROW = "bench"
"""The property of a test's report that holds a row, which also a worker of several sends home."""


@pytest.fixture(autouse=True, scope="package")
def _nothing_old_to_collect() -> Iterator[None]:
    """What the tests before left in memory isn't looked through again at every measurement."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """report(what, measured, bound): one row of the table."""

    def add(what: str, measured: str, bound: str) -> None:
        request.node.user_properties.append((ROW, (what, measured, bound)))

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    every = [report for some in terminalreporter.stats.values() for report in some]
    calls = [report for report in every if isinstance(report, pytest.TestReport) and report.when == "call"]
    rows = [row for report in calls for name, row in report.user_properties if name == ROW]
    if not rows:
        return
    terminalreporter.section("bench: ratios measured side by side in this run")
    width = max(len(what) for what, _, _ in rows)
    for what, measured, bound in rows:
        terminalreporter.write_line(f"{what:<{width}}  {measured:>34}  {bound}")
