"""Lexical measures of an answer, by the recipes that give the values others released.

F1, ROUGE, BLEU and METEOR are names of families: tokens, stems, sets or multisets and weights move them by ten points
and more. So each value has its recipe in its name, and two recipes never share a column.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from types import SimpleNamespace
from typing import Any

from memtrials.errors import UserError, not_installed, unknown
from memtrials.metrics import corpora

Tokens = Sequence[str]
Tokenise = Callable[[str], Tokens]


@dataclass(frozen=True)
class Recipe:
    """How a recipe makes its measures. f1: the tokens of F1 and exact match; sets: F1 counts distinct tokens; tokens:
    those of BLEU and METEOR, None when the recipe has F1 and exact match alone; stemmed: ROUGE compares stems; third:
    each weight of BLEU-3."""

    f1: Tokenise
    sets: bool = False
    tokens: Tokenise | None = None
    stemmed: bool = True
    third: float = 1 / 3


def squad_tokens(text: str, punctuation: str = "") -> Tokens:
    """SQuAD's normalisation: lower-cased, ASCII punctuation taken out, the words a, an and the left out.

    punctuation: what stands in its place. SQuAD's own `well-being` is `wellbeing`; with a space it is two tokens.
    """
    return _ARTICLES.sub(" ", text.lower().translate(_without_punctuation(punctuation))).split()


def spaced_squad_tokens(text: str) -> Tokens:
    """`squad_tokens` with spaces for punctuation."""
    return squad_tokens(text, " ")


def whitespace_tokens(text: str) -> Tokens:
    """Lower-cased runs without white space; punctuation stays on the word."""
    return text.lower().split()


_ARTICLES = re.compile(r"\b(a|an|the)\b")


@cache
def _without_punctuation(instead: str) -> dict[int, str]:
    return str.maketrans(dict.fromkeys(string.punctuation, instead))


RECIPES: Mapping[str, Recipe] = {
    "squad": Recipe(squad_tokens),
    "spaced-squad": Recipe(spaced_squad_tokens, tokens=corpora.word_tokens),
    "word-sets": Recipe(corpora.word_tokens, sets=True, tokens=corpora.word_tokens, third=0.33),
    "whitespace": Recipe(whitespace_tokens, tokens=whitespace_tokens, stemmed=False),
}
"""By name. Released with the values of `spaced-squad`: MemoryBear's answers to LongMemEval; of `word-sets`: MemOS's, to
LongMemEval and LoCoMo; of `whitespace`: MemoryBear's and Mem0's, to LoCoMo. Mem0's `scored_f1` there is the F1 of
`squad`; MemoryBear's is LoCoMo's own score (`locomo_f1.score`), rounded to three decimals."""


def lexical(recipe: str, prediction: str, reference: str) -> dict[str, float | None]:
    """All measures of a recipe, each in [0, 1], by their names: `whitespace-f1`, `whitespace-rouge1_f` and so on, the
    fields as they were released. None where `unavailable` has a reason. Raises UserError for an unknown recipe.
    """
    found: dict[str, float | None] = {}
    for names, values in _parts(recipe, prediction, reference):
        try:
            found.update(zip(names, values(), strict=True))
        except UserError:
            found.update(dict.fromkeys(names))
    return found


def unavailable(recipe: str) -> dict[str, str]:
    """The measures of a recipe that can't be had here, by name, each with the reason and what to do about it."""
    reasons: dict[str, str] = {}
    for names, values in _parts(recipe, "", ""):
        try:
            values()
        except UserError as error:
            reasons.update(dict.fromkeys(names, str(error)))
    return reasons


def _parts(recipe: str, prediction: str, reference: str) -> Iterator[tuple[list[str], Callable[[], Sequence[float]]]]:
    """What is made together: names of measures, and what gives their values or a UserError."""
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
    how = RECIPES[recipe]

    def named(*fields: str) -> list[str]:
        return [f"{recipe}-{field}" for field in fields]

    yield named("f1"), lambda: [token_f1(how.f1(prediction), how.f1(reference), sets=how.sets)]
    yield named("exact_match"), lambda: [exact_match(how.f1(prediction), how.f1(reference))]
    if (tokens := how.tokens) is not None:
        yield named("rouge1_f", "rouge2_f", "rougeL_f"), lambda: rouge(prediction, reference, stemmed=how.stemmed)
        yield (
            named("bleu1", "bleu2", "bleu3", "bleu4"),
            lambda: bleu(tokens(prediction), tokens(reference), third=how.third),
        )
        yield named("meteor"), lambda: [meteor(tokens(prediction), tokens(reference))]


def token_f1(said: Tokens, wanted: Tokens, *, sets: bool = False) -> float:
    """The harmonic mean of precision and recall over the multisets of tokens, or over the sets; 0 where none is
    shared."""
    if sets:
        said, wanted = sorted(set(said)), sorted(set(wanted))
    shared = (Counter(said) & Counter(wanted)).total()
    if not shared:
        return 0.0
    precision, recall = shared / len(said), shared / len(wanted)
    return 2 * precision * recall / (precision + recall)


def exact_match(said: Tokens, wanted: Tokens) -> float:
    """1.0 where both have the same tokens in the same order, else 0.0; nothing matches a text without tokens."""
    return float(bool(wanted) and list(said) == list(wanted))


def rouge(prediction: str, reference: str, *, stemmed: bool) -> tuple[float, float, float]:
    """F of ROUGE-1, ROUGE-2 and ROUGE-L as rouge-score 0.1.2 has them: its own tokens, runs of a-z and 0-9; stemmed:
    those of more than three characters as Porter stems.

    Raises UserError where the extra isn't installed. Source: Lin 2004.
    """
    found = _rouge_scorer(stemmed).score(reference, prediction)
    one, two, longest = (found[name].fmeasure for name in _ROUGES)
    return one, two, longest


_ROUGES = ("rouge1", "rouge2", "rougeL")


@cache
def _rouge_scorer(stemmed: bool) -> Any:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise not_installed("rouge-score", "metrics") from None
    return RougeScorer(_ROUGES, use_stemmer=stemmed)


def bleu(said: Tokens, wanted: Tokens, *, third: float = 1 / 3) -> tuple[float, float, float, float]:
    """BLEU-1 to BLEU-4 with one reference, NLTK's, a precision of zero above unigrams smoothed to 0.1 over its
    denominator (method 1); 0 where no token is shared. third: each of BLEU-3's weights; 0.33 is not the same.

    Source: Papineni et al. 2002; Chen and Cherry 2014.
    """
    from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu  # here: importing it takes a second

    weights = [(1.0,), (1 / 2,) * 2, (third,) * 3, (1 / 4,) * 4]
    scores = sentence_bleu([wanted], said, weights, SmoothingFunction().method1)
    one, two, three, four = map(float, scores)
    return one, two, three, four


def meteor(said: Tokens, wanted: Tokens) -> float:
    """METEOR as NLTK has it, with its defaults (alpha 0.9, beta 3, gamma 0.5), on lower-cased tokens: equal tokens,
    then equal Porter stems, then WordNet 3.0's synonyms; 0 where nothing matches. Synonyms are looked up for stems, not
    for words, so fewer are found than the authors' own program finds.

    Raises UserError where WordNet isn't installed: without it 3 to 7 of 100 released values would be too low.
    Source: Lavie and Agarwal 2007.
    """
    score: float = _meteor()(wanted, said)
    return score


@cache
def _meteor() -> Callable[[Tokens, Tokens], Any]:
    """NLTK's function with a memory: most of its time goes into the same stems and synonyms again."""
    synsets = lru_cache(maxsize=1 << 14)(corpora.wordnet().synsets)
    from nltk.stem.porter import PorterStemmer
    from nltk.translate.meteor_score import single_meteor_score

    stem = lru_cache(maxsize=1 << 16)(PorterStemmer().stem)
    return partial(single_meteor_score, stemmer=SimpleNamespace(stem=stem), wordnet=SimpleNamespace(synsets=synsets))
