"""A file of LongMemEval-S instances through build, replay and fetch: bounded memory, and the same cost for each.

The file is made of the real S instance with other ids; each instance's first turn differs, so that none is a copy that
a fork would save. MEMTRIALS_LME_INSTANCES=500 makes a file of S's own size; the default keeps the bench short.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.conftest import Report
from bench.measuring import settled

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

DATA = Path(os.environ.get("MEMTRIALS_REAL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "longmemeval"
S = DATA / "longmemeval_s_e47becba.json"
MANY = int(os.environ.get("MEMTRIALS_LME_INSTANCES", "50"))
FEW = max(10, MANY // 10)

RUN = r"""
import json, re, sys, time
from collections import Counter
from pathlib import Path
from memtrials.settings import Settings
from memtrials.stages import build, fetch, replay
from memtrials.stages.common import Options
from memtrials.systems.embedding import WordLlama

folder = Path(sys.argv[1])
embedded = Counter()
embed = WordLlama.embed
def counting(self, text, role):
    embedded[role, text] += 1
    return embed(self, text, role)
WordLlama.embed = counting
WordLlama().embed("load the model before anything is timed", "query")
embedded.clear()
settings = Settings.load({"MEMTRIALS_CACHE": str(folder / "cache")}, folder)
options = Options(trials=folder / "trials.json", settings=settings, quiet=True)
seconds = []
for stage in (
    lambda: build.run(build.BuildRequest("longmemeval", folder / "data.json", allow_modified=True), options),
    lambda: replay.run(replay.ReplayRequest(["hybrid"]), options),
    lambda: fetch.run(fetch.FetchRequest(), options),
):
    began = time.process_time()
    outcome = stage()
    seconds.append(time.process_time() - began)
    assert outcome.failed == outcome.left == 0, outcome
peak = int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024
texts = Counter(role for role, _ in embedded)
print(json.dumps([seconds, peak, max(embedded.values()), texts["document"], outcome.done]))
"""


class Measured(NamedTuple):
    """Processor seconds of build, replay and fetch; peak megabytes; how often the most embedded text was embedded."""

    seconds: list[float]
    peak: float
    most: int
    documents: int
    done: int


def made(path: Path, count: int) -> set[str]:
    """Write a file of so many instances; the distinct texts of its turns."""
    (real,) = json.loads(S.read_text("utf-8"))
    texts = {turn["content"] for session in real["haystack_sessions"] for turn in session}
    first = real["haystack_sessions"][0][0]
    texts.remove(own := first["content"])
    with path.open("w", encoding="utf-8") as file:
        for number in range(count):
            real["question_id"], first["content"] = f"copy{number:04}", f"{own} ({number})"
            texts.add(first["content"])
            file.write(("[" if number == 0 else ",\n") + json.dumps(real, indent=4, ensure_ascii=False))
        file.write("]")
    return texts


def run(folder: Path, count: int) -> Measured:
    """The three stages in a process of its own; its ledger and cache are new."""
    folder.mkdir()
    texts = made(folder / "data.json", count)
    command: list[Any] = [sys.executable, "-c", RUN, str(folder)]
    out = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = Measured(*json.loads(out.stdout))
    assert measured.done == count
    assert measured.documents == len({text for text in texts if text.strip()})
    return measured


@pytest.mark.skipif(not S.is_file(), reason=f"no LongMemEval instance at {S} (MEMTRIALS_REAL_DATA names another place)")
def test_memory_is_bounded_and_instances_cost_the_same(tmp_path: Path, report: Report) -> None:
    whole: list[Measured] = []

    def growth() -> float:
        """Cost of one more instance beyond the first FEW, over that of one of those; embedding is paid in the first."""
        few = run(tmp_path / f"few{len(whole)}", FEW)
        middle = run(tmp_path / f"middle{len(whole)}", (FEW + MANY) // 2)
        whole.append(run(tmp_path / f"many{len(whole)}", MANY))
        early = (sum(middle.seconds) - sum(few.seconds)) / ((FEW + MANY) // 2 - FEW)
        late = (sum(whole[-1].seconds) - sum(middle.seconds)) / (MANY - (FEW + MANY) // 2)
        return late / early

    ratio = settled(growth, lambda value: value <= 1.3)
    last = whole[-1]
    size = MANY * S.stat().st_size / 1e6
    stages = ", ".join(f"{s:.1f}" for s in last.seconds)
    report(
        f"LongMemEval-S x {MANY} ({size:.0f} MB), hybrid: later / earlier instances",
        f"{ratio:.2f} ({stages} s of CPU, peak {last.peak:.0f} MB)",
        "at most 1.3, under 1,000 MB",
    )
    assert all(measured.most == 1 for measured in whole)
    assert max(measured.peak for measured in whole) < 1000
    assert ratio <= 1.3
