"""A scripted embeddings endpoint on loopback. A text's vector is made from its letters, so any test can check it.

with EmbeddingServer() as server:
    …  # base URL server.url
assert server.texts == ["one", "two"]
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from support.model_server import ModelServer, Reply, Script, error, raw

DIMENSIONS = 8
TOKENS_EACH = 10
"""What the server says each text came to."""


def vector_of(text: str, dimensions: int = DIMENSIONS) -> np.ndarray:
    """A vector (not of unit length) that counts a text's bytes by their remainder."""
    return np.bincount(np.frombuffer(text.encode(), np.uint8) % dimensions, minlength=dimensions).astype(float)


def unit_of(text: str, dimensions: int = DIMENSIONS) -> bytes:
    """The same as it is to be kept: unit length, float32."""
    vector = vector_of(text, dimensions)
    return (vector / np.linalg.norm(vector)).astype(np.float32).tobytes()


def embedded(
    body: Mapping[str, Any],
    order: Sequence[int] | None = None,
    usage: Mapping[str, Any] | None = None,
    dimensions: int | None = None,
) -> Reply:
    """What a well-behaved server answers. order: in which order the vectors stand (default: that of the texts)."""
    texts = body["input"]
    size = dimensions or body.get("dimensions") or DIMENSIONS
    data = [
        {"object": "embedding", "index": n, "embedding": vector_of(text, size).tolist()} for n, text in enumerate(texts)
    ]
    tokens = TOKENS_EACH * len(texts)
    return raw(
        json.dumps(
            {
                "object": "list",
                "model": body["model"],
                "data": [data[n] for n in order or range(len(data))],
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens} if usage is None else usage,
            }
        ).encode()
    )


def refusing(longest: int) -> Script:
    """A server whose model takes texts of so many characters, and refuses a whole request for one that is longer."""

    def script(number: int, body: dict[str, Any]) -> Reply:
        if any(len(text) > longest for text in body["input"]):
            return error(400, None, "This model's maximum context length is 8192 tokens, however you requested more.")
        return embedded(body)

    return script


class EmbeddingServer(ModelServer):
    """A server for the time of a `with` block; it embeds unless a script says otherwise."""

    paths = ("/v1/embeddings",)

    def __init__(self, script: Script = lambda number, body: embedded(body)) -> None:
        super().__init__(script)

    def environment(self, role: str = "EMBED") -> dict[str, str]:
        """The variables that point a role here, with a key."""
        return super().environment(role)

    @property
    def batches(self) -> list[list[str]]:
        """The texts of each request."""
        return [request.body["input"] for request in self.requests]

    @property
    def texts(self) -> list[str]:
        """All texts that were sent, in order."""
        return [text for batch in self.batches for text in batch]
