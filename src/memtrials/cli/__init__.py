"""The command line: parses, calls one function, prints. Nothing heavy is imported before a command runs."""

from memtrials.cli import (
    attributing,
    comparing,
    data,
    embeddings,
    enrichment,
    evidence,
    exchange,
    ledger,
    scrutiny,
    stages,
)
from memtrials.cli.root import cli, main

__all__ = [
    "attributing",
    "cli",
    "comparing",
    "data",
    "embeddings",
    "enrichment",
    "evidence",
    "exchange",
    "ledger",
    "main",
    "scrutiny",
    "stages",
]
