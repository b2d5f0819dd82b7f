"""Benchmarks, found by name: the built-in ones and those that other packages register."""

from __future__ import annotations

from importlib import import_module

from memtrials.benchmarks.base import Benchmark
from memtrials.errors import unknown

BUILT_IN = {name: f"memtrials.benchmarks.{name}" for name in ("inmind", "locomo", "longmemeval")} | {
    "continuity": "memtrials.benchmarks.continuity.suite"
}
GROUP = "memtrials.benchmarks"


def names() -> list[str]:
    """The names of all benchmarks that can be built here."""
    from importlib.metadata import entry_points

    return sorted({*BUILT_IN, *(entry.name for entry in entry_points(group=GROUP))})


def find(name: str) -> Benchmark:
    """The benchmark of a name, with or without its variant. Raises UserError, with near matches, when there is none.

    A plugin is a module with a constant BENCHMARK, named in the entry point group `memtrials.benchmarks`.
    """
    base = name.partition("@")[0]
    if base in BUILT_IN:
        module = import_module(BUILT_IN[base])
    else:
        from importlib.metadata import entry_points  # what is built in is found without it, which takes its time

        found = [entry for entry in entry_points(group=GROUP) if entry.name == base]
        if not found:
            raise unknown("benchmark", base, names())
        module = found[0].load()
    benchmark = module.BENCHMARK
    assert isinstance(benchmark, Benchmark)
    return benchmark
