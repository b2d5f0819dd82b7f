"""Identities that follow from names alone, so that a retry or another process arrives at the same ones."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable

NAMESPACE = uuid.UUID("9b6af7a4-9076-49bb-9231-84d1ed632cf1")


def internal_id(namespace: str, kind: str, external_id: str) -> str:
    """The id of an object or link: UUIDv5 of namespace, kind and external id, joined by NUL."""
    return str(uuid.uuid5(NAMESPACE, "\0".join((namespace, kind, external_id))))


def operation_id(namespace: str, operation: str, *identity: str) -> str:
    """`<operation>:` and the SHA-256 of namespace, operation and identity, each after its length in 8 bytes."""
    digest = hashlib.sha256()
    for part in (namespace, operation, *identity):
        data = part.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return f"{operation}:{digest.hexdigest()}"


def batch_id(namespace: str, written: Iterable[str]) -> str:
    """The operation id of a batch by the internal ids it writes: objects in order, then links."""
    ids = list(written)
    if not ids:
        return operation_id(namespace, "remember_enrichment")
    return f"cmem-eval:{internal_id(namespace, 'remember_plan', chr(0).join(ids))}"
