"""BM25, cosine and their fusion: exact rankings over the chunks of one state."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
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


class Bm25:
    """BM25 with k1 = 1.2 and b = 0.75 over documents, given as token counts.

    score = Σ over query tokens, repeats counted, of idf · tf·(k1+1) / (tf + k1·(1 − b + b·len/avg)) with
    idf = ln((N − df + 0.5)/(df + 0.5) + 1). The length norm is 1 when all documents are empty. Source: Robertson's BM25
    with Lucene's non-negative idf.

    A token's documents are looked for when a query first has it. Once that has cost as much as sorting all tokens by
    document would, they are so sorted: many questions of one state need that, two of each of many don't.
    """

    def __init__(self, documents: Sequence[Mapping[str, int]]) -> None:
        lengths = [sum(counts.values()) for counts in documents]
        average = sum(lengths) / len(documents) if documents else 0.0
        self._documents = documents
        self._norms = [K1 * (1 - B + B * length / average) if average else K1 for length in lengths]
        self._searches_left = sum(map(len, documents)) // max(1, len(documents))
        self._sorted: dict[str, list[tuple[int, int]]] | None = None
        self._once: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}

    def rank(self, query: str) -> Ranking:
        """Documents with a score above 0."""
        import numpy as np

        scores = np.zeros(len(self._documents))
        for token, repeats in Counter(tokens(query)).items():
            holding, added = self._added(token, repeats)
            scores[holding] += added
        return _best_first(scores)

    def _added(self, token: str, repeats: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The documents that hold a query token, and what it adds to their scores."""
        import numpy as np

        if repeats == 1 and token in self._once:
            return self._once[token]
        hits, norms = self._holding(token), self._norms
        idf = repeats * math.log((len(self._documents) - len(hits) + 0.5) / (len(hits) + 0.5) + 1)
        added = [idf * tf * (K1 + 1) / (tf + norms[n]) for n, tf in hits]
        both = np.array([n for n, _ in hits], np.intp), np.array(added, np.float64)
        if repeats == 1:
            self._once[token] = both
        return both

    def _holding(self, token: str) -> list[tuple[int, int]]:
        """The documents that hold a token, and how often."""
        if self._sorted is None:
            if self._searches_left > 0:
                self._searches_left -= 1
                return [(n, tf) for n, counts in enumerate(self._documents) if (tf := counts.get(token))]
            self._sorted = defaultdict(list)
            for n, counts in enumerate(self._documents):
                for each, tf in counts.items():
                    self._sorted[each].append((n, tf))
        return self._sorted.get(token, [])


def cosine(query: NDArray[Any] | None, matrix: NDArray[Any], positions: NDArray[Any]) -> Ranking:
    """All documents that have a vector, ranked by cosine with the query.

    query: unit vector of shape (dimensions,), None for a query without tokens (no hits). matrix: unit vectors, shape
    (documents with a vector, dimensions); positions: their document numbers, an array.
    """
    if query is None or not len(positions):
        return []
    import numpy as np

    scores = np.vecdot(matrix, query)  # row by row: a matrix product rounds equal rows differently, and ties would go
    order = np.argsort(-scores, kind="stable")
    return list(zip(positions[order].tolist(), scores[order].tolist(), strict=True))


def fuse(*rankings: Ranking) -> Ranking:
    """Reciprocal rank fusion: Σ 1 / (60 + rank) over the rankings that hold a document, ranks from 1.

    Source: Cormack, Clarke and Büttcher, SIGIR 2009.
    """
    import numpy as np

    held = [np.array([n for n, _ in ranking], np.intp) for ranking in rankings]
    scores = np.zeros(1 + max((int(documents.max()) for documents in held if len(documents)), default=-1))
    for documents in held:
        scores[documents] += 1 / np.arange(FUSION_CONSTANT + 1, FUSION_CONSTANT + 1 + len(documents))
    return _best_first(scores)


def _best_first(scores: NDArray[Any]) -> Ranking:
    """The documents with a score above 0."""
    import numpy as np

    found = np.flatnonzero(scores)
    best = found[np.argsort(-scores[found], kind="stable")]
    return list(zip(best.tolist(), scores[best].tolist(), strict=True))
