"""What repeats tell beside the mean: how far runs scatter, from which step, and how often k tries succeed.

Repeats never make n larger: a headline's interval comes of its questions (`statistics.nested_mean` and the intervals
there). What is here stands beside it, never in its place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

Question = TypeVar("Question", bound=Hashable)
Path = tuple[str, ...]

LEVELS = ("ingest", "retrieval", "reader", "judge")
"""The steps that can be repeated, outermost first."""


@dataclass(frozen=True)
class Spread:
    """How a headline differs from run to run. sd: in the unit of the scores; None where nothing was repeated.

    variances: by level, squared units; None at a level that was not repeated. runs: how many there are. n: questions
    they are means over. left_out: questions with a score that lack one in some run.
    """

    sd: float | None
    variances: Mapping[str, float | None]
    runs: int
    n: int
    left_out: int


def run_spread(scores: Mapping[Question, Mapping[Path, float]]) -> Spread | None:
    """SD of the headline between runs that repeat what was repeated, and its split; None without a score.

    scores: by question, then by the ordinals (ingest, retrieval, answer, verdict) of a run, such as ("1", "1", "2",
    "1"); an ordinal counts below its parent only. Raises ValueError for a path of another length or a score that is not
    finite.

    A run's headline is its mean over the same questions as any other's: runs are the paths that more than half of the
    questions have, and a question that lacks one of them is left out. The split is `nested_variances` of the headlines,
    so noise that questions share (one state asked them all) stays in it; sd² is the sum of the parts, for a single
    repeated level the sample variance. Two or three repeats determine either only roughly.
    """
    if not all(len(path) == len(LEVELS) for paths in scores.values() for path in paths):
        raise ValueError(f"a path has one ordinal for each of {', '.join(LEVELS)}")
    counts = Counter(path for paths in scores.values() for path in paths)
    runs = sorted(path for path, count in counts.items() if 2 * count > len(scores))
    whole = [paths for paths in scores.values() if all(path in paths for path in runs)]
    if not runs or not whole:
        return None
    headlines = {path: math.fsum(paths[path] for paths in whole) / len(whole) for path in runs}
    variances = dict(zip(LEVELS, nested_variances(headlines), strict=True))
    known = [variance for variance in variances.values() if variance is not None]
    return Spread(
        sd=math.sqrt(math.fsum(known)) if known else None,
        variances=variances,
        runs=len(runs),
        n=len(whole),
        left_out=len(scores) - len(whole),
    )


def nested_variances(values: Mapping[Path, float]) -> list[float | None]:
    """Variance components of a nested design, outermost level first; None at a level where no parent has two children.

    values: one per leaf, by its path of ids; all paths of one length, 1 or more. Squared units of the values. Raises
    ValueError without values, for unequal lengths or a value that is not finite.

    Analysis of variance: each level's sum of squares is set equal to its expectation, innermost level first, for any
    numbers of children. The noise of a level that was not repeated can't be told from that of the repeated level above
    it and is counted there. An estimate below zero is given as 0.
    Source: Gates and Shiue (1962), Biometrics 18:529; Searle, Casella and McCulloch (1992), Variance Components, 3.
    """
    lengths = {len(path) for path in values}
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"paths must be of one length, 1 or more, not {sorted(lengths)}")
    if not all(math.isfinite(value) for value in values.values()):
        raise ValueError("values must be finite numbers")
    depth = lengths.pop()
    leaves = [_gather(values, level) for level in range(depth + 1)]
    sizes = [{node: len(below) for node, below in nodes.items()} for nodes in leaves]
    means = [{node: math.fsum(below) / len(below) for node, below in nodes.items()} for nodes in leaves]

    def weight(level: int, inner: int) -> float:
        """How often the component of `inner` is in the expected sum of squares of `level`."""
        return math.fsum(
            size**2 / sizes[level][node[:level]] - size**2 / sizes[level - 1][node[: level - 1]]
            for node, size in sizes[inner].items()
        )

    found: list[float | None] = [None] * depth
    for level in range(depth, 0, -1):
        if len(leaves[level]) == len(leaves[level - 1]):
            continue
        squares = math.fsum(
            size * (means[level][node] - means[level - 1][node[:-1]]) ** 2 for node, size in sizes[level].items()
        )
        inside = math.fsum(
            weight(level, inner) * component
            for inner in range(level + 1, depth + 1)
            if (component := found[inner - 1]) is not None
        )
        found[level - 1] = (squares - inside) / weight(level, level)
    return [None if component is None else max(0.0, component) for component in found]


def _gather(values: Mapping[Path, float], level: int) -> dict[Path, list[float]]:
    """The values below each node of a level; level 0 is the one root."""
    nodes: dict[Path, list[float]] = {}
    for path, value in values.items():
        nodes.setdefault(path[:level], []).append(value)
    return nodes


@dataclass(frozen=True)
class PassRates:
    """Means over the n questions with k trials or more. at_k: pass@k. hat_k: pass^k. left_out: questions with fewer."""

    k: int
    at_k: float
    hat_k: float
    n: int
    left_out: int


def pass_rates(counts: Iterable[tuple[int, int]], k: int) -> PassRates | None:
    """pass@k and pass^k averaged over the questions with at least k trials; None where none has.

    counts: (right trials, trials) per question. k: 1 or more. Raises ValueError as `pass_at_k` does.
    """
    asked = list(counts)
    at_k = [(pass_at_k(right, of, k), pass_hat_k(right, of, k)) for right, of in asked]
    some = [(any_, all_) for any_, all_ in at_k if any_ is not None and all_ is not None]
    if not some:
        return None
    anys, alls = zip(*some, strict=True)
    n = len(some)
    return PassRates(k, math.fsum(anys) / n, math.fsum(alls) / n, n, len(asked) - n)


def pass_at_k(right: int, of: int, k: int) -> float | None:
    """Chance that at least one of k of a question's trials, drawn without return, is right; None with fewer than k.

    1 - C(of - right, k) / C(of, k). Raises ValueError for k below 1 or right outside 0 to of.
    Source: Chen et al. (2021), https://arxiv.org/abs/2107.03374.
    """
    _check_counts(right, of, k)
    return 1.0 - math.comb(of - right, k) / math.comb(of, k) if of >= k else None


def pass_hat_k(right: int, of: int, k: int) -> float | None:
    """Chance that all of k of a question's trials, drawn without return, are right (pass^k); None with fewer than k.

    C(right, k) / C(of, k). Raises ValueError as `pass_at_k` does.
    Source: Yao et al. (2024), https://arxiv.org/abs/2406.12045.
    """
    _check_counts(right, of, k)
    return math.comb(right, k) / math.comb(of, k) if of >= k else None


def _check_counts(right: int, of: int, k: int) -> None:
    if k < 1:
        raise ValueError(f"k must be 1 or more, not {k}")
    if not 0 <= right <= of:
        raise ValueError(f"{right} right of {of} trials")
