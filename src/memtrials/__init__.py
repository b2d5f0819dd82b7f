"""memtrials: evaluate the long-term memory of LLM agents, stage by stage, over one append-only ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from memtrials.frames import Frames

__version__ = "0.1.0"


def load(path: str | Path) -> Frames:
    """A ledger as data frames: `memtrials.load("results/trials.json").verdicts`. It needs the extra `tables`.

    Raises UserError where it can't be read. docs/ledger.md lists the frames and their columns.
    """
    from memtrials.frames import load as load_frames

    return load_frames(path)
