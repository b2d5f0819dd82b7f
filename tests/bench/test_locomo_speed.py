"""All of LoCoMo through build, replay and fetch, against a loop that does nothing but rank."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from rank_bm25 import BM25Okapi

from bench.conftest import Report
from bench.measuring import ratio, settled
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.settings import Settings
from memtrials.stages import build, fetch, replay
from memtrials.stages.common import Options
from memtrials.systems.embedding import WordLlama
from memtrials.systems.ranking import tokens

REAL = Path(os.environ.get("MEMTRIALS_REAL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "locomo"
K = 10

pytestmark = [
    pytest.mark.bench,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not REAL.is_dir(), reason=f"LoCoMo isn't at {REAL} (MEMTRIALS_REAL_DATA names another place)"),
]


def run(folder: Path, system: str) -> None:
    """Build, replay and fetch in a ledger and cache of its own, every record durable."""
    folder.mkdir()
    settings = Settings.load({"MEMTRIALS_CACHE": str(folder / "cache")}, folder)
    options = Options(trials=folder / "trials.json", settings=settings, quiet=True)
    build.run(build.BuildRequest("locomo", REAL), options)
    replay.run(replay.ReplayRequest([system]), options)
    assert fetch.run(fetch.FetchRequest(), options).failed == 0
    with Ledger.open(options.trials) as ledger:
        index = LedgerIndex(ledger)
        assert (len(index.of("ingest")), len(index.of("retrieval"))) == (10, 1986)


def rank_only() -> None:
    """Read the file, index each conversation's turns, rank them for each question; nothing is kept."""
    for sample in json.loads((REAL / "locomo10.json").read_bytes()):
        sessions = (turns for turns in sample["conversation"].values() if isinstance(turns, list))
        texts = [turn["text"] for turns in sessions for turn in turns]
        ranker = BM25Okapi([tokens(text) for text in texts])
        for row in sample["qa"]:
            assert len(ranker.get_top_n(tokens(row["question"]), texts, K)) == K


@pytest.mark.parametrize(("system", "bound"), [("bm25", 1.0), ("hybrid", 3.0)])
def test_everything_durable_takes_no_longer_than_ranking_alone(
    system: str, bound: float, tmp_path: Path, report: Report
) -> None:
    """`hybrid` embeds all 7,868 texts, too: its cache is empty each time."""
    WordLlama().embed("load the model before anything is timed", "query")
    folders = (tmp_path / str(n) for n in itertools.count())
    seen: list[tuple[float, float, float]] = []

    def measured() -> float:
        seen.append(ratio(lambda: run(next(folders), system), rank_only, rounds=3))
        return seen[-1][0]

    found = settled(measured, lambda value: value <= bound)
    _, ours, theirs = seen[-1]
    report(
        f"LoCoMo, build + replay + fetch, {system} / a loop that only ranks",
        f"{found:.2f} ({ours:.1f} s / {theirs:.1f} s)",
        f"at most {bound:g}",
    )
    assert found <= bound
