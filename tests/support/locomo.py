"""The bundled LoCoMo sample, changed as a test needs it."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memtrials.benchmarks import locomo
from memtrials.benchmarks.base import Loaded, LoadOptions
from memtrials.settings import evaluation

FOLDER = evaluation() / "samples" / "locomo"
SAMPLE = FOLDER / "locomo_sample.json"

Sample = dict[str, Any]


def sample() -> Sample:
    """The one conversation of the bundled file."""
    (found,) = json.loads(SAMPLE.read_text("utf-8"))
    assert isinstance(found, dict)
    return found


def written(path: Path, *samples: Any) -> Path:
    """A file of these conversations."""
    path.write_text(json.dumps(samples), "utf-8")
    return path


def changed(path: Path, change: Callable[[Sample], object]) -> Path:
    """A file whose one conversation is the sample's, changed in place."""
    mine = sample()
    change(mine)
    return written(path, mine)


def loaded(path: Path) -> Loaded:
    """What the benchmark makes of a file of one's own."""
    return locomo.load(path, LoadOptions(allow_modified=True))


def renamed(sample_id: str) -> Sample:
    """The sample under another name."""
    return {**copy.deepcopy(sample()), "sample_id": sample_id}
