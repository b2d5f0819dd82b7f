"""BM25, cosine and their fusion: exact rankings over the chunks of one state."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

Ranking = list[tuple[int, float]]
"""(position of the document, score), best first; ties in document order."""

K1, B = 1.2, 0.75
FUSION_CONSTANT = 60
_WORD = re.compile(r"[^\W_]+")
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def tokens(text: str) -> list[str]:
    """Maximal runs of Unicode alphanumeric characters; only ASCII letters are lower-cased; nothing is stemmed."""
    return [w.lower() if w.isascii() else w.translate(_ASCII_LOWER) for w in _WORD.findall(text)]


@lru_cache(maxsize=2048)
def token_counts(text: str) -> dict[str, int]:
    """How often each token occurs in a text, counted once for texts that states share."""
    return dict(Counter(tokens(text)))


def bm25(query: str, documents: Sequence[dict[str, int]], lengths: Sequence[int]) -> Ranking:
    """Documents with a score above 0, ranked by BM25 with k1 = 1.2 and b = 0.75.

    documents: token counts; lengths: their token totals. score = Σ over query tokens, repeats counted, of
    idf · tf·(k1+1) / (tf + k1·(1 − b + b·len/avg)) with idf = ln((N − df + 0.5)/(df + 0.5) + 1). The length norm is 1
    when all documents are empty. Source: Robertson's BM25 with Lucene's non-negative idf.
    """
    if not documents:
        return []
    average = sum(lengths) / len(documents)
    norms = [K1 * (1 - B + B * length / average) if average else K1 for length in lengths]
    scores: dict[int, float] = {}
    for token, repeats in Counter(tokens(query)).items():
        hits = [(n, tf) for n, counts in enumerate(documents) if (tf := counts.get(token))]
        idf = math.log((len(documents) - len(hits) + 0.5) / (len(hits) + 0.5) + 1)
        for n, tf in hits:
            scores[n] = scores.get(n, 0.0) + repeats * idf * tf * (K1 + 1) / (tf + norms[n])
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def cosine(query: NDArray[Any] | None, matrix: NDArray[Any], positions: Sequence[int]) -> Ranking:
    """All documents that have a vector, ranked by cosine with the query.

    query: unit vector of shape (dimensions,), None for a query without tokens (no hits). matrix: unit vectors, shape
    (documents with a vector, dimensions); positions: their document numbers.
    """
    if query is None or not positions:
        return []
    import numpy as np

    scores = np.vecdot(matrix, query)  # row by row: a matrix product rounds equal rows differently, and ties would go
    order = np.argsort(-scores, kind="stable")
    return [(positions[i], float(scores[i])) for i in order.tolist()]


def fuse(*rankings: Ranking) -> Ranking:
    """Reciprocal rank fusion: Σ 1 / (60 + rank) over the rankings that hold a document, ranks from 1.

    Source: Cormack, Clarke and Büttcher, SIGIR 2009.
    """
    scores: dict[int, float] = {}
    for ranking in rankings:
        for rank, (n, _) in enumerate(ranking, 1):
            scores[n] = scores.get(n, 0.0) + 1 / (FUSION_CONSTANT + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
