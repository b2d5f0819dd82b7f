"""Bags of words by hashing: texts that share words are near each other, and no model is needed to say so."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_BETWEEN = re.compile(r"[\W_]+")


def token_hash(token: str) -> int:
    """64 bits of a token's UTF-8 bytes, ASCII letters in lower case: multiply by 16777619, then exclusive or."""
    value = 2166136261
    for byte in token.encode().lower():
        value = (value * 16777619 & _MASK) ^ byte
    return value


def hashed_vector(text: str, size: int) -> NDArray[np.float32]:
    """How many tokens (runs of letters and digits) fall into each bucket: float32, shape (size,), not normalised.

    A text without tokens has 1 in the first component. size: 1 or more.
    """
    import numpy as np

    vector = np.zeros(size, np.float32)
    tokens = [token for token in _BETWEEN.split(text) if token]
    for token in tokens:
        vector[token_hash(token) % size] += 1
    if not tokens:
        vector[0] = 1
    return vector
