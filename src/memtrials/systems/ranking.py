"""BM25, cosine and their fusion: exact rankings over the chunks of one state."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Ranking(NamedTuple):
    """Positions of documents and their scores, as arrays, best first; ties in document order."""

    documents: NDArray[Any]
    scores: NDArray[Any]

    def first(self, k: int | None = None) -> list[tuple[int, float]]:
        """The k best (None: all), each with its score."""
        return list(zip(self.documents[:k].tolist(), self.scores[:k].tolist(), strict=True))


K1, B = 1.2, 0.75
FUSION_CONSTANT = 60
_WORD = re.compile(r"[^\W_]+")
_ASCII_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def tokens(text: str) -> list[str]:
    """Maximal runs of Unicode alphanumeric characters; only ASCII letters are lower-cased; nothing is stemmed."""
    return _WORD.findall(text.lower() if text.isascii() else text.translate(_ASCII_LOWER))


@lru_cache(maxsize=2048)
def token_counts(text: str) -> dict[str, int]:
    """How often each token occurs in a text, counted once for texts that states share."""
    return dict(Counter(tokens(text)))


class Bm25:
    """BM25 with k1 = 1.2 and b = 0.75 over documents, given as token counts.

    score = Σ over query tokens, repeats counted, of idf · tf·(k1+1) / (tf + k1·(1 − b + b·len/avg)) with
    idf = ln((N − df + 0.5)/(df + 0.5) + 1). The length norm is 1 when all documents are empty. Source: Robertson's BM25
    with Lucene's non-negative idf.

    A token's documents are looked for when a query first has it. Once that has cost as much as sorting all tokens
    would, they are sorted: hundreds of questions of one state need that, two of each of many states don't.
    """

    def __init__(self, documents: Sequence[Mapping[str, int]]) -> None:
        import numpy as np

        lengths = np.array([sum(counts.values()) for counts in documents], np.float64)
        average = lengths.sum() / len(documents) if documents else 0.0
        self._documents = documents
        self._norms = K1 * (1 - B + B * lengths / average) if average else np.full(len(documents), K1)
        self._searches_left = sum(map(len, documents)) // max(1, len(documents))
        self._sorted: _Postings | None = None
        self._once: dict[str, tuple[NDArray[Any], NDArray[Any]]] = {}

    def rank(self, query: str) -> Ranking:
        """Documents with a score above 0."""
        import numpy as np

        parts = [self._added(token, repeats) for token, repeats in Counter(tokens(query)).items()]
        if not parts:
            return _nothing()
        holding, added = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return _best_first(np.bincount(holding, added, len(self._documents)))

    def _added(self, token: str, repeats: int) -> tuple[NDArray[Any], NDArray[Any]]:
        """The documents that hold a query token, and what it adds to their scores."""
        if repeats == 1 and token in self._once:
            return self._once[token]
        holding, tf = self._holding(token)
        idf = repeats * math.log((len(self._documents) - len(holding) + 0.5) / (len(holding) + 0.5) + 1)
        added = idf * tf * (K1 + 1) / (tf + self._norms[holding])
        if repeats == 1:
            self._once[token] = holding, added
        return holding, added

    def _holding(self, token: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """The documents that hold a token, and how often."""
        import numpy as np

        if self._sorted is None and self._searches_left > 0:
            self._searches_left -= 1
            hits = [(n, tf) for n, counts in enumerate(self._documents) if (tf := counts.get(token))]
            return np.array([n for n, _ in hits], np.intp), np.array([tf for _, tf in hits], np.intp)
        if self._sorted is None:
            self._sorted = _postings(self._documents)
        return self._sorted.of(token)


class _Postings(NamedTuple):
    """All tokens with the documents that hold them and how often, token after token; ends: where each one's end."""

    numbers: dict[str, int]
    holding: NDArray[Any]
    tf: NDArray[Any]
    ends: NDArray[Any]

    def of(self, token: str) -> tuple[NDArray[Any], NDArray[Any]]:
        """Those of one token."""
        number = self.numbers.get(token)
        if number is None:
            return self.holding[:0], self.tf[:0]
        part = slice(self.ends[number - 1] if number else 0, self.ends[number])
        return self.holding[part], self.tf[part]


def _postings(documents: Sequence[Mapping[str, int]]) -> _Postings:
    import numpy as np

    numbers: dict[str, int] = {}
    each = np.array([numbers.setdefault(token, len(numbers)) for counts in documents for token in counts], np.intp)
    tf = np.array([tf for counts in documents for tf in counts.values()], np.intp)
    holding = np.repeat(np.arange(len(documents)), [len(counts) for counts in documents])
    order = np.argsort(each, kind="stable")
    return _Postings(numbers, holding[order], tf[order], np.cumsum(np.bincount(each)))


def cosine(query: NDArray[Any] | None, matrix: NDArray[Any], positions: NDArray[Any]) -> Ranking:
    """All documents that have a vector, ranked by cosine with the query.

    query: unit vector of shape (dimensions,), None for a query without tokens (no hits). matrix: unit vectors, shape
    (documents with a vector, dimensions); positions: their document numbers, an array.
    """
    if query is None or not len(positions):
        return _nothing()
    import numpy as np

    scores = np.vecdot(matrix, query)  # row by row: a matrix product rounds equal rows differently, and ties would go
    order = np.argsort(-scores, kind="stable")
    return Ranking(positions[order], scores[order])


def fuse(*rankings: Ranking) -> Ranking:
    """Reciprocal rank fusion: Σ 1 / (60 + rank) over the rankings that hold a document, ranks from 1.

    Source: Cormack, Clarke and Büttcher, SIGIR 2009.
    """
    import numpy as np

    scores = np.zeros(1 + max((int(r.documents.max()) for r in rankings if len(r.documents)), default=-1))
    for ranking in rankings:
        count = len(ranking.documents)
        scores[ranking.documents] += 1 / np.arange(FUSION_CONSTANT + 1, FUSION_CONSTANT + 1 + count)
    return _best_first(scores)


def _best_first(scores: NDArray[Any]) -> Ranking:
    """The documents with a score above 0."""
    import numpy as np

    found = np.flatnonzero(scores)
    best = found[np.argsort(-scores[found], kind="stable")]
    return Ranking(best, scores[best])


def _nothing() -> Ranking:
    import numpy as np

    return Ranking(np.empty(0, np.intp), np.empty(0))
