"""A table of what the benches measured, printed at the end of the run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

ROWS = pytest.StashKey[list[tuple[str, str, str]]]()

Report = Callable[[str, str, str], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[ROWS] = []


@pytest.fixture
def report(request: pytest.FixtureRequest) -> Report:
    """report(what, measured, bound): one row of the table."""
    rows = request.config.stash[ROWS]

    def add(what: str, measured: str, bound: str) -> None:
        rows.append((what, measured, bound))

    return add


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[ROWS]
    if not rows:
        return
    terminalreporter.section("bench: ratios measured side by side in this run")
    width = max(len(what) for what, _, _ in rows)
    for what, measured, bound in rows:
        terminalreporter.write_line(f"{what:<{width}}  {measured:>34}  {bound}")
