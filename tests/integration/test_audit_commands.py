"""`audit sample` and `audit score`: what annotators get, what becomes of it, and what is told when a file is wrong."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtrials.records import encode
from support.cli import call_cli
from support.records import file_of
from support.trials import ended, stage
from support.verdicts import ledger_of, records_of

PLACES = [f"conv-{c}/{n}" for c in range(10) for n in range(12)]
QUESTIONS = {f"conv-{c}": 12 for c in range(10)}
RIGHT = {
    "x": {place: float(n % 3 != 0) for n, place in enumerate(PLACES)},
    "y": {place: float(n % 3 == 1) for n, place in enumerate(PLACES)},
}
"""80 and 40 of 120 are right."""
SCORES = {
    (system, "judge-a"): {place: 1.0 if n % 12 == 0 else right for n, (place, right) in enumerate(some.items())}
    for system, some in RIGHT.items()
}
"""The judge also accepts every twelfth, of which none is right: 90 and 50."""


@pytest.fixture
def trials(tmp_path: Path) -> Path:
    return ledger_of(tmp_path / "trials.json", QUESTIONS, SCORES)


def sampled(trials: Path, *arguments: str, n: int = 160, name: str = "items.csv") -> Path:
    out = trials.parent / name
    stage(trials, "audit", "sample", "--n", str(n), "--out", str(out), *arguments)
    return out


def rows(items: Path) -> list[dict[str, str]]:
    with items.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def key_of(items: Path) -> dict[str, Any]:
    key = json.loads(items.with_name(f"{items.stem}.key.json").read_bytes())
    assert isinstance(key, dict)
    return key


def truth(items: Path) -> dict[str, float]:
    """The right label of every item."""
    return {
        one["item"]: RIGHT[some["system"]][f"{one['task']}/{one['query']}"]
        for some in key_of(items)["populations"]
        for one in some["judged"]
        if "item" in one
    }


def annotated(
    items: Path, name: str, label: Callable[[str, float], str] = lambda item, right: "yes" if right else "No"
) -> Path:
    """A copy that somebody filled in."""
    right, path = truth(items), items.with_name(name)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows(items)[0]))
        writer.writeheader()
        writer.writerows(row | {"right": label(row["id"], right[row["id"]])} for row in rows(items))
    return path


def score(trials: Path, *files: Path, code: int = 0) -> dict[str, Any]:
    key = ("--key", str(trials.parent / "items.key.json"))
    return stage(trials, "audit", "score", *map(str, files), *key, code=code)


def told(trials: Path, *files: Path) -> str:
    """What is said of a file that is wrong."""
    key = ("--key", str(trials.parent / "items.key.json"))
    return ended(call_cli("audit", "score", *map(str, files), *key, "--trials", str(trials)), 2).err


def test_annotators_see_neither_verdict_nor_system_nor_judge(trials: Path) -> None:
    items = sampled(trials)
    assert list(rows(items)[0]) == ["id", "question", "gold", "answer", "right"]
    assert {row["right"] for row in rows(items)} == {""}
    text = items.read_text("utf-8-sig")
    assert [word for word in ("judge-a", "model-r", "k10", "verdict", "as told") if word in text] == []
    first = rows(items)[0]
    assert first["answer"].removeprefix("answer to ") == first["question"].removeprefix("Question ").removesuffix("?")


def test_the_draw_is_by_stratum_and_on_record(trials: Path) -> None:
    key = key_of(sampled(trials, n=160))
    found = [[(s["score"], s["size"], s["drawn"], s["probability"]) for s in p["strata"]] for p in key["populations"]]
    assert found == [[(1.0, 90, 44, 44 / 90), (0.0, 30, 30, 1.0)], [(1.0, 50, 43, 43 / 50), (0.0, 70, 43, 43 / 70)]]


def test_a_seed_decides_the_draw_and_not_the_order(trials: Path) -> None:
    first, again = sampled(trials), sampled(trials, name="again.csv")
    other = sampled(trials, "--seed", "1", name="other.csv")
    assert first.read_bytes() == again.read_bytes()
    drawn = [
        {one["verdict"] for p in key_of(f)["populations"] for one in p["judged"] if "item" in one}
        for f in (first, other)
    ]
    assert drawn[0] != drawn[1]
    accepted = {i["item"]: i["score"] for p in key_of(first)["populations"] for i in p["judged"] if "item" in i}
    in_order = [accepted[row["id"]] for row in rows(first)]
    assert 20 < sum(in_order[:80]) < 65  # 87 of 160 are accepted


def test_corrected_shares_are_the_truth_where_all_is_audited(trials: Path) -> None:
    """Se 1: all right answers are accepted. Sp: of 40 and 80 wrong ones 10 and 10 are accepted."""
    items = sampled(trials, n=240)
    said = score(trials, annotated(items, "anna.csv"))
    x, y = said["systems"]
    assert (x["judged"], y["judged"]) == (0.75, pytest.approx(50 / 120))
    assert (x["value"], y["value"]) == (pytest.approx(80 / 120), pytest.approx(40 / 120))
    assert x["sensitivity"]["value"] == pytest.approx(1.0)
    assert (x["specificity"]["value"], y["specificity"]["value"]) == (pytest.approx(30 / 40), pytest.approx(70 / 80))
    assert x["interval"][0] < 80 / 120 < x["interval"][1]
    (between,) = said["differences"]
    assert (between["first"], between["second"], between["n"]) == ("x", "y", 120)
    assert between["value"] == pytest.approx(1 / 3)
    assert between["p"] == pytest.approx(2 / 1024)


def test_a_sample_says_about_the_same(trials: Path) -> None:
    said = score(trials, annotated(sampled(trials, n=160), "anna.csv"))
    for system, right in zip(said["systems"], (80 / 120, 40 / 120), strict=True):
        assert system["value"] == pytest.approx(right, abs=0.06)
        assert system["interval"][0] < right < system["interval"][1]
    assert said["systems"][0]["rogan_gladen"] is None


def test_rates_from_outside(trials: Path) -> None:
    items = sampled(trials)
    command = ("audit", "score", str(annotated(items, "a.csv")), "--key", str(items.with_name("items.key.json")))
    by_rates = stage(trials, *command, "--rates", "0.9", "0.8")["systems"][0]["rogan_gladen"]
    assert by_rates == pytest.approx((0.75 + 0.8 - 1) / 0.7)
    assert stage(trials, *command, "--rates", "0.6", "0.4")["systems"][0]["rogan_gladen"] is None


def test_two_annotators(trials: Path) -> None:
    """The second one says yes to everything: the estimates count the mean of both."""
    items = sampled(trials, n=240)
    anna, bert = annotated(items, "anna.csv"), annotated(items, "bert.csv", lambda item, right: "1")
    said = score(trials, anna, bert)
    assert said["systems"][0]["value"] == pytest.approx((80 / 120 + 1) / 2)
    people = said["annotators"]
    assert (people["n"], people["raw"], people["kappa"], len(people["differing"])) == (240, 0.5, 0.0, 120)
    assert "named twice" in told(trials, anna, anna)


def test_few_items_have_no_headline(trials: Path) -> None:
    said = score(trials, annotated(sampled(trials, n=40), "anna.csv"))
    x = said["systems"][0]
    assert (x["value"], x["reason"]) == (None, "fewer than 30 audited items")
    assert x["corrected"]["estimate"] is not None
    assert said["differences"][0]["value"] is None
    key = ("--key", str(trials.parent / "items.key.json"))
    shown = call_cli("audit", "score", str(trials.parent / "anna.csv"), *key, "--trials", str(trials)).out
    assert "fewer than 30 audited items" in shown
    assert "too few audited items for a difference" in shown


def test_rows_that_are_wrong_are_told(trials: Path) -> None:
    items = sampled(trials)
    ids = [row["id"] for row in rows(items)]
    odd = {ids[0]: "", ids[1]: "perhaps"}
    path = annotated(items, "anna.csv", lambda item, right: odd.get(item, "y"))
    lines = path.read_text("utf-8").splitlines()
    lines[3], lines[5] = lines[3].replace(ids[2], "000000000000"), lines[4]
    path.write_text("\n".join(lines), "utf-8")
    said = told(trials, path).splitlines()
    assert said == [
        f"{path}, row 2 ({ids[0]}): right is empty",
        f"{path}, row 3 ({ids[1]}): right is 'perhaps', which is neither yes nor no",
        f"{path}, row 4: '000000000000' isn't an item of audit {key_of(items)['audit']}",
        f"{path}, row 6: {ids[3]} is there twice",
        f"{path}: 2 items are missing: {ids[2]}, {ids[4]}",
        f"memtrials: {path}: 5 problems; every item needs one row with yes or no",
    ]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"\xff\xfe\x00", "not UTF-8 text"),
        ("a.csv", b"number,right\n1,yes\n", "row 2: no id or no right"),
        ("a.csv", b'id,right\n"1,yes\n', "can't be read"),
        ("a.jsonl", b'{"id": "1", "right": true}\n{"id"\n', "row 2: can't be read"),
        ("a.xlsx", b"PK", "ends in .csv or .jsonl"),
    ],
)
def test_files_that_cannot_be_read(trials: Path, name: str, content: bytes, said: str) -> None:
    sampled(trials)
    path = trials.parent / name
    path.write_bytes(content)
    assert said in told(trials, path)


def test_what_spreadsheets_and_json_make_of_it(trials: Path) -> None:
    """Semicolons and a byte order mark; JSON's own true and false."""
    items = sampled(trials)
    right = truth(items)
    semicolons = trials.parent / "excel.csv"
    lines = [f"{item};{'TRUE' if label else 'FALSE'}" for item, label in right.items()]
    semicolons.write_text("\r\n".join(["id;right", *lines, ""]), "utf-8-sig", newline="")
    lines = [json.dumps({"right": bool(label), "id": item}) for item, label in right.items()]
    (trials.parent / "b.jsonl").write_text("\n".join(lines), "utf-8")
    plain = score(trials, annotated(items, "anna.csv"))
    assert score(trials, semicolons) == score(trials, trials.parent / "b.jsonl") == plain


def test_the_ledger_has_grown(trials: Path) -> None:
    """One system got more questions and lost a verdict since; the numbers are of what stood when it was drawn."""
    fewer = {side: dict(list(some.items())[:-20]) for side, some in SCORES.items()}
    before = records_of(QUESTIONS, fewer)
    trials.write_bytes(file_of([encode(one) for one in before]))
    path = annotated(sampled(trials), "anna.csv")
    then = score(trials, path)
    later = [one for one in records_of(QUESTIONS, SCORES) if one.header.id not in {b.header.id for b in before}]
    trials.write_bytes(file_of([encode(one) for one in [*before, *later]]))
    ended(call_cli("void", "verdict x conv-0/0 judge-a", "--reason", "a test", "--trials", str(trials)))
    now = score(trials, path)
    assert now["systems"] == then["systems"]
    assert [note.partition(";")[0] for note in now["notes"] if note not in then["notes"]] == [
        "40 questions got a verdict after the sample was drawn",
        "1 of the audited verdicts no longer count",
    ]
    other = ledger_of(trials.parent / "other.json", {"conv-0": 12}, {("x", "judge-a"): {"conv-0/3": 1.0}})
    key = ("--key", str(trials.parent / "items.key.json"))
    assert (
        "name theirs with --trials" in ended(call_cli("audit", "score", str(path), *key, "--trials", str(other)), 2).err
    )


def test_questions_without_a_verdict(trials: Path) -> None:
    """Work that is left leaves no headline."""
    fewer = {side: dict(list(some.items())[:-20]) for side, some in SCORES.items()}
    ledger_of(trials, QUESTIONS, fewer)
    x = score(trials, annotated(sampled(trials), "anna.csv"))["systems"][0]
    assert (x["status"], x["value"], x["reason"], x["n"], x["of"]) == ("partial", None, "results are missing", 100, 120)


def test_an_audit_is_of_one_judge(trials: Path) -> None:
    ledger_of(trials, QUESTIONS, {**SCORES, ("x", "judge-b"): SCORES["x", "judge-a"]})
    command = ("audit", "sample", "--n", "100", "--trials", str(trials), "--out", str(trials.parent / "i.jsonl"))
    assert (
        "  --judge judge-a\n  --judge judge-b\nmemtrials: an audit is of one judge" in ended(call_cli(*command), 2).err
    )
    ended(call_cli(*command, "--judge", "judge-b"))
    lines = (trials.parent / "i.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 100
    assert json.loads(lines[0])["right"] == ""
    assert "exists; move it away" in ended(call_cli(*command, "--judge", "judge-b"), 2).err


def test_too_small_a_sample_is_refused(trials: Path) -> None:
    command = ("audit", "sample", "--n", "7", "--trials", str(trials), "--out", str(trials.parent / "i.csv"))
    assert "7 items are too few for 4 strata: 8 are needed" in ended(call_cli(*command), 2).err
    assert not (trials.parent / "i.csv").exists()


def test_a_metric_that_reads_the_context_shows_it(judged: Path) -> None:
    """InMind's sample: what the annotator sees is what the rule saw."""
    out = judged.parent / "items.csv"
    metric = ("--metric", "target-verbatim", "--system", "in-context")
    stage(judged, "audit", "sample", "--n", "8", "--out", str(out), *metric)
    assert list(rows(out)[0]) == ["id", "question", "gold", "context", "right"]
    assert all(row["context"] for row in rows(out))
