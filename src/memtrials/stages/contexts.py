"""How long the histories are that contexts stand for: read from the data again, because a ledger holds only digests."""

from __future__ import annotations

from pathlib import Path

from memtrials import benchmarks
from memtrials.errors import UserError
from memtrials.exchange.harness import TOLD
from memtrials.index import LedgerIndex
from memtrials.tokens import count_tokens


class Histories:
    """Tokens of one benchmark's whole histories, each counted once. reason: why they aren't known, if they aren't."""

    def __init__(self, index: LedgerIndex, benchmark: str) -> None:
        self.reason = "there is no history here"
        self._index = index
        self._benchmark = benchmark
        self._tokens: dict[str, int | None] = {}

    def tokens(self, task: str) -> int | None:
        """Tokens of a task's history, every turn in a line with who said it; None where there is none, or where its
        data isn't any more."""
        if task not in self._tokens:
            text = self._text(task)
            self._tokens[task] = None if text is None else count_tokens(text)
        return self._tokens[task]

    def _text(self, task: str) -> str | None:
        body = self._index.task(self._benchmark, task)
        if body.scripted:
            self.reason = "a scripted life grows from query to query; full_history_tokens counts it"
            return None
        base, data = self._benchmark.partition("@")[0], Path(body.data)
        try:
            if base in TOLD:
                return TOLD[base].history(data, self._benchmark, task, body).text
            sessions = benchmarks.find(self._benchmark).sessions(data, self._benchmark, task, body)
        except UserError as error:
            self.reason = str(error)
            return None
        return "\n".join(f"{turn.speaker or turn.role}: {turn.content}" for s in sessions for turn in s.turns)
