"""Where a question failed whose gold names its evidence: one class for what is known, by the order of the rules."""

from itertools import product

import pytest

from memtrials.metrics.attribution import (
    BY_EVIDENCE,
    CUT,
    DISPUTED,
    DISTRACTED,
    JUDGES_DISAGREE,
    LOST,
    NOT_PROBED,
    NOT_RETRIEVED,
    NOT_RETRIEVED_OR_CUT,
    NOT_STORED,
    ORACLE_FAILS,
    ORACLE_UNASKED,
    PART_ONLY,
    RIGHT_ALL,
    RIGHT_NONE_NAMED,
    RIGHT_PART,
    RIGHT_UNKNOWN,
    RIGHT_WITHOUT,
    UNDETERMINED,
    UNRETRIEVABLE,
    WRONG_NONE_NAMED,
    WRONG_UNKNOWN,
    Facts,
    by_evidence,
    inmind,
    inmind_by_rule,
)


def turns(names: str | None) -> frozenset[str] | None:
    return None if names is None else frozenset(names)


@pytest.mark.parametrize(
    ("retrieved", "shown", "right", "wrong"),
    [
        ("ab", "ab", RIGHT_ALL, ORACLE_UNASKED),
        ("ab", "a", RIGHT_PART, CUT),
        ("ab", "", RIGHT_WITHOUT, CUT),
        ("a", "a", RIGHT_PART, PART_ONLY),
        ("a", "", RIGHT_WITHOUT, CUT),
        ("", "", RIGHT_WITHOUT, NOT_PROBED),
        (None, None, RIGHT_UNKNOWN, WRONG_UNKNOWN),
        (None, "ab", RIGHT_ALL, ORACLE_UNASKED),
        (None, "a", RIGHT_PART, PART_ONLY),
        (None, "", RIGHT_WITHOUT, NOT_RETRIEVED_OR_CUT),
    ],
)
def test_what_came_back_and_what_is_shown(retrieved: str | None, shown: str | None, right: str, wrong: str):
    known = {"evidence": frozenset("ab"), "retrieved": turns(retrieved), "shown": turns(shown)}
    assert by_evidence(Facts(1.0, **known)) == right
    assert by_evidence(Facts(0.0, **known)) == wrong


@pytest.mark.parametrize(
    ("stored", "retrieved", "shown", "expected"),
    [
        ((("a", "+"), ("b", "+")), "", "", NOT_RETRIEVED),
        ((("a", "+"),), "", "", NOT_PROBED),
        ((("a", "+"), ("b", "-")), "", "", LOST),
        ((("a", "+"), ("b", "-")), "a", "a", LOST),
        ((("a", "-"), ("b", "+")), "a", "a", PART_ONLY),  # it came back, whatever the probe found
        ((("a", "-"), ("b", "-")), None, None, LOST),
        ((("a", "+"), ("b", "+")), None, None, WRONG_UNKNOWN),
    ],
)
def test_what_is_stored(stored: tuple[tuple[str, str], ...], retrieved: str | None, shown: str | None, expected: str):
    probes = {name: sign == "+" for name, sign in stored}
    facts = Facts(0.0, evidence=frozenset("ab"), retrieved=turns(retrieved), shown=turns(shown), stored=probes)
    assert by_evidence(facts) == expected


@pytest.mark.parametrize(("oracle", "expected"), [(None, ORACLE_UNASKED), (0.0, ORACLE_FAILS), (1.0, DISTRACTED)])
def test_what_the_same_reader_makes_of_the_evidence_alone(oracle: float | None, expected: str):
    everything = frozenset("ab")
    facts = Facts(0.0, evidence=everything, retrieved=everything, shown=everything, oracle=oracle)
    assert by_evidence(facts) == expected


def test_what_comes_before_right_and_wrong():
    assert by_evidence(Facts(None, disputed=True)) == UNDETERMINED
    assert by_evidence(Facts(1.0, disputed=True, disagree=True)) == DISPUTED
    assert by_evidence(Facts(0.0, disagree=True)) == JUDGES_DISAGREE


def test_gold_that_names_no_evidence():
    assert by_evidence(Facts(1.0, retrieved=frozenset(), shown=frozenset())) == RIGHT_NONE_NAMED
    assert by_evidence(Facts(0.0, retrieved=frozenset(), shown=frozenset())) == WRONG_NONE_NAMED


def test_every_combination_has_one_class_and_every_class_a_combination():
    sets = (None, frozenset(), frozenset("a"), frozenset("ab"))
    found = set()
    for score, disputed, disagree, evidence, retrieved, shown, a, oracle in product(
        (None, 0.0, 1.0),
        (False, True),
        (False, True),
        (frozenset[str](), frozenset("ab")),
        sets,
        sets,
        ({}, {"a": True, "b": True}, {"a": False}),
        (None, 0.0, 1.0),
    ):
        found.add(by_evidence(Facts(score, disputed, disagree, evidence, retrieved, shown, a, oracle)))
    assert found == set(BY_EVIDENCE)


@pytest.mark.parametrize(("stored", "expected"), [(None, NOT_STORED), (0.0, "not stored"), (1.0, UNRETRIEVABLE)])
def test_the_storage_probe_splits_what_inmind_never_surfaces(stored: float | None, expected: str):
    assert inmind(0.0, 0.0, 0.0, stored) == inmind_by_rule(0.0, 0.0, stored) == expected
    assert inmind(1.0, 0.0, 0.0, stored) == "blind spot"
