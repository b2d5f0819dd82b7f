"""Lexical measures by recipe. The texts are ours; they have the shape of released answers and so their values."""

from __future__ import annotations

import sys
from itertools import combinations
from math import exp, prod, sqrt
from pathlib import Path

import pytest

from memtrials.errors import UserError
from memtrials.metrics import corpora, recipes
from memtrials.metrics.corpora import word_tokens
from memtrials.metrics.recipes import (
    RECIPES,
    bleu,
    exact_match,
    lexical,
    meteor,
    rouge,
    spaced_squad_tokens,
    squad_tokens,
    token_f1,
    unavailable,
    whitespace_tokens,
)
from support.extras import needs_metrics

words = str.split


def fields(recipe: str, prediction: str, reference: str) -> dict[str, float | None]:
    """The measures of a recipe without its name."""
    return {name.removeprefix(f"{recipe}-"): value for name, value in lexical(recipe, prediction, reference).items()}


# Values that were released, each from the counts behind it


@needs_metrics
def test_two_of_three_and_of_five_tokens_that_are_neighbours():
    """A shorter answer: 2 of its 3 unigrams, 1 of its 2 bigrams, not its trigram."""
    short = exp(1 - 5 / 3)
    assert fields("spaced-squad", "Red kite, flying", "The red kite over bare hills")["f1"] == 0.5
    assert fields("spaced-squad", "red kite flying", "red kite over bare hills") == pytest.approx(
        {
            "f1": 0.5,
            "exact_match": 0.0,
            "rouge1_f": 0.5,
            "rouge2_f": 2 * (1 / 2) * (1 / 4) / (1 / 2 + 1 / 4),
            "rougeL_f": 0.5,
            "bleu1": short * 2 / 3,
            "bleu2": short * sqrt(2 / 3 * 1 / 2),
            "bleu3": short * (2 / 3 * 1 / 2 * 0.1) ** (1 / 3),
            "bleu4": short * (2 / 3 * 1 / 2 * 0.1 * 0.1) ** (1 / 4),
            "meteor": (2 / 3 * 2 / 5) / (0.9 * 2 / 3 + 0.1 * 2 / 5) * (1 - 0.5 * (1 / 2) ** 3),
        },
        abs=1e-12,
    )
    released = {"bleu1": 0.3422780793550613, "bleu3": 0.16523292610025758, "meteor": 0.39062499999999994}
    released |= {"bleu2": 0.29642151188002913, "bleu4": 0.12336445138236939, "rouge2_f": 0.3333333333333333}
    found = fields("spaced-squad", "red kite flying", "red kite over bare hills")
    assert {name: found[name] for name in released} == pytest.approx(released, abs=1e-12)


@needs_metrics
def test_two_tokens_in_a_long_answer():
    """67 tokens, 56 of them distinct, 63 of them words; both tokens of the reference are in it, side by side."""
    rest = [f"w{number % 53}" + "," * (number < 4) for number in range(61)]
    found = fields("word-sets", f"2 hours {' '.join(rest)}", "2 hours")
    assert found["f1"] == pytest.approx(2 * (2 / 56) / (2 / 56 + 1), abs=1e-12)
    assert found["rouge1_f"] == pytest.approx(2 * (2 / 63) / (2 / 63 + 1), abs=1e-12)
    assert found["bleu1"] == pytest.approx(2 / 67, abs=1e-12)
    assert found["bleu3"] == pytest.approx((2 / 67 * 1 / 66 * 0.1 / 65) ** 0.33, abs=1e-12)
    released = {"f1": 0.0689655172413793, "rouge1_f": 0.06153846153846154, "bleu1": 0.029850746268656716}
    released |= {"bleu3": 0.009290183820445884, "meteor": 0.22058823529411767}
    assert {name: found[name] for name in released} == pytest.approx(released, abs=1e-12)


@needs_metrics
def test_a_date_in_another_order():
    """By white space `4,` is not `4`; ROUGE doesn't see the comma. METEOR's two matches are two chunks."""
    found = fields("whitespace", "June 4, 1999", "4 June 1999")
    released = {"f1": 0.6666666666666666, "rouge1_f": 1.0, "rouge2_f": 0.0, "rougeL_f": 0.6666666666666666}
    released |= {"bleu1": 2 / 3, "bleu2": 0.18257418583505536, "meteor": 0.3333333333333333, "exact_match": 0.0}
    assert {name: found[name] for name in released} == pytest.approx(released, abs=1e-12)


@needs_metrics
def test_one_equal_token():
    """BLEU above unigrams is smoothed to 0.1, ROUGE-2 has nothing to count, METEOR's penalty is its largest."""
    assert fields("whitespace", "1999", "1999") == pytest.approx(
        {
            "f1": 1.0,
            "exact_match": 1.0,
            "rouge1_f": 1.0,
            "rouge2_f": 0.0,
            "rougeL_f": 1.0,
            "bleu1": 1.0,
            "bleu2": 0.316227766016838,
            "bleu3": 0.21544346900318845,
            "bleu4": 0.1778279410038923,
            "meteor": 0.5,
        },
        abs=1e-12,
    )


# Their parts


def test_squad_takes_punctuation_out_and_leaves_articles_out():
    assert list(squad_tokens("The well-being of a  Cat's theme.")) == ["wellbeing", "of", "cats", "theme"]
    assert list(spaced_squad_tokens("The well-being of a Cat's")) == ["well", "being", "of", "cat", "s"]
    assert list(squad_tokens("Café – “bar”")) == ["café", "–", "“bar”"]
    assert list(whitespace_tokens("The Cat's,\n theme.")) == ["the", "cat's,", "theme."]


def test_f1_of_multisets_and_of_sets():
    said, wanted = words("b b c"), words("b c d d")
    assert token_f1(said, wanted) == pytest.approx(2 * (2 / 3) * (2 / 4) / (2 / 3 + 2 / 4))
    assert token_f1(said, wanted, sets=True) == pytest.approx(2 * 1 * (2 / 3) / (1 + 2 / 3))
    assert token_f1(words("b b"), words("b b b")) == pytest.approx(0.8)
    assert token_f1(["a"], ["b"]) == token_f1([], ["b"]) == token_f1(["a"], []) == 0.0


def test_exact_match_is_about_tokens_in_their_order():
    assert lexical("squad", "The cat, well-fed.", "a cat wellfed") == {"squad-f1": 1.0, "squad-exact_match": 1.0}
    assert exact_match(words("b a"), words("a b")) == 0.0
    assert exact_match([], []) == 0.0


def test_bleu_clips_smooths_and_punishes_brevity():
    assert bleu(words("the the the the"), words("the cat"))[0] == 1 / 4
    assert bleu(words("a b"), words("a b c d"))[:2] == pytest.approx((exp(1 - 4 / 2), exp(1 - 4 / 2)))
    assert bleu(words("a b c d"), words("a b"))[:2] == pytest.approx((2 / 4, sqrt(2 / 4 * 1 / 3)))
    assert bleu(words("a x b"), words("a y b"))[1] == pytest.approx(sqrt(2 / 3 * 0.1 / 2))
    assert bleu(words("x y"), words("a b")) == bleu([], ["a"]) == (0.0, 0.0, 0.0, 0.0)


def test_weights_of_a_third_and_of_33_hundredths_differ():
    precisions = (4 / 5, 2 / 4, 1 / 3)
    said, wanted = words("a b c x d"), words("a b c y d")
    assert bleu(said, wanted)[2] == pytest.approx(prod(precisions) ** (1 / 3), abs=1e-12)
    assert bleu(said, wanted, third=0.33)[2] == pytest.approx(prod(precisions) ** 0.33, abs=1e-12)


@needs_metrics
def test_rouge_stems_words_of_more_than_three_letters():
    assert rouge("Walking dogs!", "walked dog", stemmed=True) == (1.0, 1.0, 1.0)
    assert rouge("Walking dogs!", "walked dog", stemmed=False) == (0.0, 0.0, 0.0)
    assert rouge("ads", "ad", stemmed=True)[0] == 0.0
    assert rouge("c b a", "a b c", stemmed=False) == pytest.approx((1.0, 0.0, 1 / 3))
    assert rouge("café", "caf", stemmed=False)[0] == 1.0


@needs_metrics
def test_meteor_matches_tokens_then_stems_then_synonyms():
    alone = 1 - 0.5 * (1 / 1) ** 3
    assert meteor(["walking"], ["walked"]) == alone
    assert meteor(["car"], ["auto"]) == alone
    assert meteor(["car"], ["automobile"]) == 0.0, "the reference's stem, automobil, is nobody's synonym"
    assert meteor(["car"], ["tree"]) == meteor([], ["car"]) == meteor(["car"], []) == 0.0
    three = 1 - 0.5 * (1 / 3) ** 3
    assert meteor(words("my car runs"), words("my auto running")) == pytest.approx(three)
    precise, recalled = 3 / 4, 3 / 3
    longer = precise * recalled / (0.9 * precise + 0.1 * recalled)
    assert meteor(words("my old car runs"), words("my car runs")) == pytest.approx(longer * (1 - 0.5 * (2 / 3) ** 3))


@needs_metrics
@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("It's Dr. Lee's dog. He barks.", "it 's dr. lee 's dog . he barks ."),
        ("At 5 p.m. or later", "at 5 p.m. or later"),
        ("Oslo–Rome—Lima", "oslo – rome — lima"),
        ("the 'nightingale' sang", "the 'nightingale ' sang"),
        ('He said: "I can\'t, OK?"', "he said : `` i ca n't , ok ? ''"),
        ("a 2-hour (or so) walk", "a 2-hour ( or so ) walk"),
        ("", ""),
    ],
)
def test_word_tokens(text: str, tokens: str):
    """Sentences first, so that the full stop inside a text is a token; dashes split; an opening apostrophe stays."""
    assert list(word_tokens(text)) == tokens.split()


# Names


def test_no_two_recipes_share_a_name():
    names = {recipe: set(lexical(recipe, "x", "x")) for recipe in RECIPES}
    assert names["squad"] == {"squad-f1", "squad-exact_match"}
    assert {len(names[recipe]) for recipe in RECIPES if recipe != "squad"} == {10}
    assert [pair for pair in combinations(RECIPES, 2) if names[pair[0]] & names[pair[1]]] == []


def test_one_answer_has_a_different_f1_in_each():
    said, wanted = "The well-being, the dogs.", "the well being of the dogs"
    assert len({lexical(recipe, said, wanted)[f"{recipe}-f1"] for recipe in RECIPES}) == len(RECIPES)


def test_an_unknown_recipe_is_an_error():
    with pytest.raises(UserError, match=r"unknown recipe 'whitespaces'; did you mean whitespace"):
        lexical("whitespaces", "x", "x")


# What isn't installed


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Nothing is loaded yet, and what a test loads isn't kept."""
    for function in (corpora.sentence_splitter, corpora.wordnet):
        monkeypatch.setattr(corpora, function.__name__, function.__wrapped__)
    monkeypatch.setattr(recipes, "_rouge_scorer", recipes._rouge_scorer.__wrapped__)
    monkeypatch.setattr(recipes, "_meteor", recipes._meteor.__wrapped__)
    word_tokens.cache_clear()
    return monkeypatch


def test_without_the_extra_the_measures_that_need_none_are_there(fresh: pytest.MonkeyPatch):
    for name in ("punkt", "rouge_score", "rouge_score.rouge_scorer", "wn"):
        fresh.setitem(sys.modules, name, None)
    found, reasons = lexical("whitespace", "1999", "1999"), unavailable("whitespace")
    assert [name for name, value in found.items() if value is None] == list(reasons)
    assert list(reasons) == [f"whitespace-{field}" for field in ("rouge1_f", "rouge2_f", "rougeL_f", "meteor")]
    assert found["whitespace-f1"] == found["whitespace-bleu1"] == 1.0
    assert reasons["whitespace-rouge1_f"] == (
        "rouge-score isn't installed: uv run --extra metrics memtrials … in a checkout, "
        "pip install 'memtrials[metrics]' elsewhere"
    )
    assert len(unavailable("word-sets")) == 10
    assert set(lexical("word-sets", "1999", "1999").values()) == {None}
    assert unavailable("squad") == {}


@needs_metrics
def test_without_wordnet_meteor_alone_is_null(fresh: pytest.MonkeyPatch, tmp_path: Path):
    """Later packages named `wn` hold no data."""
    (tmp_path / "wn").mkdir()
    (tmp_path / "wn" / "__init__.py").write_text("raise ImportError")
    fresh.syspath_prepend(tmp_path)
    fresh.delitem(sys.modules, "wn", raising=False)
    assert list(unavailable("word-sets")) == ["word-sets-meteor"]
    assert unavailable("word-sets")["word-sets-meteor"].startswith("wn 0.0.23, which holds WordNet 3.0, isn't inst")
    found = lexical("word-sets", "1999", "1999")
    assert [name for name, value in found.items() if value is None] == ["word-sets-meteor"]
