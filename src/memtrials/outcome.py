"""How a stage ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from memtrials.errors import UserError


@dataclass
class Outcome:
    """How a stage ended. pending = done + failed + left; sent: what of `left` was handed over to a batch service;
    appended counts all records."""

    stage: str
    pending: int = 0
    done: int = 0
    failed: int = 0
    left: int = 0
    sent: int = 0
    skipped: int = 0
    appended: int = 0
    notes: list[str] = field(default_factory=list)
    failures: dict[str, int] = field(default_factory=dict)
    dry_run: bool = False
    must_ask: bool = False
    interrupted: bool = False
    error: UserError | None = None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        """0 done or handed over, 1 something failed or was left, 2 a switch needs a yes, 130 interrupted."""
        if self.interrupted:
            return 130
        if self.must_ask or self.error:
            return 2
        return 1 if not self.dry_run and (self.failed or self.left > self.sent) else 0

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {
            "stage": self.stage,
            "pending": self.pending,
            "done": self.done,
            "failed": self.failed,
            "left": self.left,
            "sent": self.sent,
            "skipped": self.skipped,
            "appended": self.appended,
            "notes": self.notes,
            "failures": self.failures,
            "error": str(self.error) if self.error else None,
            "dry_run": self.dry_run,
            **self.details,
        }
