"""The full InMind release through build, replay and fetch, against the same code without cache and fork."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.conftest import Report
from bench.measuring import seconds
from memtrials.index import LedgerIndex
from memtrials.ledger import Ledger
from memtrials.records import IngestBody, RetrievalBody
from memtrials.selection import Selection
from memtrials.settings import Settings
from memtrials.stages import build, fetch, replay
from memtrials.stages.common import Options
from memtrials.systems import embedded, ranking
from memtrials.systems.embedding import CachedEmbedder, WordLlama

pytestmark = [pytest.mark.bench, pytest.mark.timeout(900)]

REAL = Path(os.environ.get("MEMTRIALS_REAL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "inmind"
SAMPLED = 10


def run(folder: Path, limit: int | None) -> Path:
    """Build, replay and fetch with `hybrid` in a ledger and cache of its own."""
    folder.mkdir()
    settings = Settings.load({"MEMTRIALS_CACHE": str(folder / "cache")}, folder)
    ledger = folder / "trials.json"
    whole = Options(trials=ledger, settings=settings, quiet=True)
    some = Options(trials=ledger, settings=settings, quiet=True, selection=Selection(limit=limit))
    build.run(build.BuildRequest("inmind", REAL), whole)
    replay.run(replay.ReplayRequest(["hybrid"]), some)
    assert fetch.run(fetch.FetchRequest(), some).failed == 0
    return ledger


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the InMind release isn't at {REAL} (MEMTRIALS_REAL_DATA names another)")
def test_cache_and_fork_pay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    embedded_texts: Counter[tuple[str, str]] = Counter()
    real_embed = WordLlama.embed

    def counting(self: WordLlama, text: str, role: Any) -> Any:
        embedded_texts[role, text] += 1
        return real_embed(self, text, role)

    monkeypatch.setattr(WordLlama, "embed", counting)
    WordLlama().embed("load the model before anything is timed", "query")
    embedded_texts.clear()
    ours = seconds(lambda: run(tmp_path / "ours", None))

    assert max(embedded_texts.values()) == 1
    with Ledger.open(tmp_path / "ours" / "trials.json") as ledger:
        index = LedgerIndex(ledger)
        assert (len(index.of("ingest")), len(index.of("retrieval"))) == (125, 250)
        efforts = [ledger.body(h, IngestBody).effort for h in index.of("ingest")]
        efforts += [ledger.body(h, RetrievalBody).effort for h in index.of("retrieval")]
    misses = sum(effort.cache_misses for effort in efforts if effort)
    prefix = len(embedded_texts) - misses
    assert 0 < prefix < 150, "what isn't counted as a miss of a state or query belongs to the one shared prefix"

    with monkeypatch.context() as scratch:
        scratch.setattr(CachedEmbedder, "_look_up", lambda self, keys: {})
        scratch.setattr(CachedEmbedder, "_keep", lambda self, fresh: None)
        scratch.setattr(embedded.Embedded, "capabilities", embedded.CAPABILITIES - {"fork"})
        scratch.setattr(embedded, "token_counts", ranking.token_counts.__wrapped__)
        theirs = seconds(lambda: run(tmp_path / "scratch", SAMPLED)) * 125 / SAMPLED

    report(
        "InMind, build + replay + fetch, hybrid: from scratch / with cache and fork",
        f"{theirs / ours:.1f} ({ours:.1f} s, {len(embedded_texts):,} texts, each once)",
        "at least 6, under 20 s",
    )
    assert theirs / ours >= 6
    assert ours < 20
