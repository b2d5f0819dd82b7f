"""LoCoMo's own score of an answer: token F1 over stems, by the rule of the question's category.

Source: the scoring module of snap-research/locomo. Other F1s (sets for multisets, no stems, `and` kept, no parts)
differ from it by 5 to 15 points, and have other names.
"""

from __future__ import annotations

import re
import string
from functools import cache, lru_cache
from typing import Any

from memtrials.metrics import recipes
from memtrials.metrics.lexical import holds, words

MULTI_HOP, TEMPORAL, OPEN_DOMAIN, SINGLE_HOP, ADVERSARIAL = 1, 2, 3, 4, 5
OFFICIAL_REFUSALS = ("no information available", "not mentioned")

_LEFT_OUT = re.compile(r"\b(a|an|the|and)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


def score(prediction: str, gold: str, category: int) -> float:
    """The official score of an answer, in [0, 1].

    Single-hop and temporal: `token_f1`. Open-domain: of the gold up to its first `;`. Multi-hop: both are split on
    commas, and the score is the mean over the gold's parts of the best F1 with a part of the prediction, so further
    parts cost nothing and a date with a comma is two parts. Adversarial: `refuses`; the gold isn't read.
    """
    if category == ADVERSARIAL:
        return float(refuses(prediction))
    if category == MULTI_HOP:
        said = [part.strip() for part in prediction.split(",")]
        wanted = [part.strip() for part in gold.split(",")]
        return sum(max(token_f1(part, one) for part in said) for one in wanted) / len(wanted)
    if category == OPEN_DOMAIN:
        gold = gold.partition(";")[0].strip()
    return token_f1(prediction, gold)


def token_f1(prediction: str, gold: str) -> float:
    """The harmonic mean of precision and recall over the multisets of stems; 0 where none is shared."""
    return recipes.token_f1(stems(prediction), stems(gold))


def stems(text: str) -> list[str]:
    """Porter stems of the normalised words: lower-cased, ASCII punctuation taken out (not replaced: `self-care` is
    `selfcare`), then the words a, an, the and and."""
    return [_stem(word) for word in _LEFT_OUT.sub(" ", text.lower().translate(_PUNCTUATION)).split()]


@lru_cache(maxsize=1 << 16)
def _stem(word: str) -> str:
    stem: str = _stemmer().stem(word)
    return stem


@cache
def _stemmer() -> Any:
    """NLTK's Porter stemmer in its default mode, whose departures from Porter's algorithm are part of the score."""
    from nltk.stem.porter import PorterStemmer  # here, because importing it takes a second

    return PorterStemmer()


def refuses(prediction: str) -> bool:
    """The official test of a refusal: one of two phrases, whatever else is said."""
    said = prediction.lower()
    return any(phrase in said for phrase in OFFICIAL_REFUSALS)


_NOT = r"(?:not|n't|never)"
_SAID = (
    r"(?:mention(?:ed)?|stated?|specif(?:y|ied)|provided?|given|said?|discuss(?:ed)?|described?|recorded|known|clear)"
)
_DECLINES = re.compile(
    rf"""\b no \s (?:\w+ \s)? (?:information|mention|record|memory|memories|details?)
    | {_NOT} \s (?:\w+ \s)? {_SAID} \b
    | {_NOT} \s (?:know|sure|remember|recall|available|enough \s information|answerable)
    | \b (?:unknown|unanswerable|unspecified|unavailable|insufficient \s information)
    | \b (?:can(?:not|'t)|could \s not|couldn't|unable \s to) \s (?:be \s)?
         (?:answer|determine|tell|say|know|infer)
    | \b nothing \s (?:\w+ \s){{0,6}} (?:bears|mentions|says|about)""",
    re.VERBOSE,
)


def declines(prediction: str, false_answer: str) -> bool:
    """A wider test than the official one: the answer says that it isn't known, in any of the usual ways, and doesn't
    give the false answer all the same."""
    said = prediction.lower().replace("’", "'")
    rest, found = _DECLINES.subn(" ", said)
    return found > 0 and not holds(words(rest), words(false_answer))
