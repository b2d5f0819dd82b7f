"""What an exported run says of where its vectors come from."""

from __future__ import annotations

from typing import Any

import pytest

from memtrials.exchange.runs import binding

KNOWN: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "no vectors": ({"retriever": "bm25", "embedding": None}, {"kind": "bm25"}),
    "a system that doesn't tell": ({"system": "memorybear"}, None),
    "the bundled model": (
        {"embedding": "wordllama-256"},
        {"kind": "live", "provider": "wordllama", "model": "wordllama-256", "vector_size": 256},
    ),
    "hashed words": (
        {"embedding": "deterministic-64"},
        {"kind": "live", "provider": "deterministic", "model": "deterministic-64", "vector_size": 64},
    ),
    "an endpoint": (
        {"embedding": "openai:nomic-embed-text:latest", "dimensions": 512},
        {"kind": "live", "provider": "open_ai", "model": "nomic-embed-text:latest", "vector_size": 512},
    ),
    "an endpoint that wasn't asked for a size": (
        {"embedding": "openai:text-embedding-3-small"},
        {"kind": "live", "provider": "open_ai", "model": "text-embedding-3-small", "vector_size": None},
    ),
    "a store": (
        {"embedding": "frozen:demo:1", "embedding_revision": "ab12"},
        {
            "kind": "frozen",
            "store_sha256": "ab12",
            "source": None,
            "model": "demo:1",
            "vector_size": None,
            "dimension_policy": None,
        },
    ),
    "an authored geometry": (
        {"embedding": "controllable:one", "embedding_revision": "cd34"},
        {"kind": "controllable", "fixture_sha256": "cd34", "vector_size": None, "dimension_policy": None},
    ),
}


@pytest.mark.parametrize(("settings", "expected"), KNOWN.values(), ids=KNOWN)
def test_the_binding_of_a_system(settings: dict[str, Any], expected: dict[str, Any] | None):
    assert binding(settings) == expected
