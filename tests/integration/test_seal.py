"""A seal holds while a ledger grows, and whatever was done to what it sealed is told by name."""

import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from memtrials.ledger import Ledger
from memtrials.records import Header, Record, VerdictBody, new_id
from support.cli import Finished, call_cli
from support.trials import ended, records, stage

METRIC = "direct-verbatim"


def sealed(trials: Path, *arguments: str) -> Path:
    """A seal of the ledger as it is."""
    out = trials.with_name("seal.json")
    ended(call_cli("seal", "--trials", str(trials), "--out", str(out), *arguments))
    return out


def verified(seal: Path, trials: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    finished = ended(call_cli("verify", str(seal), "--trials", str(trials), "--json", *arguments), code)
    found: dict[str, Any] = json.loads(finished.out)
    return found


@pytest.fixture(scope="module")
def seal_of_judged(ledgers: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("seals") / "seal.json"
    ended(call_cli("seal", "--trials", str(ledgers["judge"]), "--out", str(out)))
    return out


@pytest.fixture
def copy(seal_of_judged: Path, tmp_path: Path) -> Path:
    """A seal of `ledgers["judge"]`, to be changed."""
    return Path(shutil.copy(seal_of_judged, tmp_path))


def edited(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change a seal or plan as somebody with an editor would."""
    content = json.loads(path.read_text("utf-8"))
    change(content)
    path.write_text(json.dumps(content))


def number(found: dict[str, Any], system: str, metric: str = METRIC) -> dict[str, Any]:
    """A verified number of one system; its four values rounded."""
    (row,) = [n for n in found["numbers"] if n["system"].startswith(f"{system}-") and n["metric"] == metric]
    ways = ("sealed", "published", "with_voided", "first")
    return {way: None if row[way] is None else round(row[way], 4) for way in ways}


def of(trials: Path, kind: str, system: str) -> list[dict[str, Any]]:
    return [r for r in records(trials, kind) if r["system"].startswith(f"{system}-")]


def rewrite(trials: Path, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines of a ledger as somebody with an editor would."""
    lines = trials.read_bytes().removeprefix(b"[\n").removesuffix(b"\n]\n").split(b",\n")
    trials.write_bytes(b"[\n" + b",\n".join(change(lines)) + b"\n]\n")


def line_of(lines: list[bytes], record: dict[str, Any]) -> int:
    return next(n for n, line in enumerate(lines) if line.startswith(b'{"id":"%b"' % record["id"].encode()))


# --- what a seal is ---------------------------------------------------------------------------------------------


def test_the_first_line_says_the_class_and_the_hash_is_printed_for_citation(judged: Path):
    out = judged.with_name("seal.json")
    finished = ended(call_cli("seal", "--trials", str(judged), "--out", str(out)))
    first = out.read_text("utf-8").splitlines()[0]
    assert "class R: rule, no model" in first
    assert "inmind@sample" in first
    content = json.loads(out.read_text("utf-8"))
    assert finished.out.splitlines()[-1] == f"SHA-256 {verified(out, judged)['sha256']}"
    lines = judged.read_bytes().removesuffix(b"\n]\n")
    assert (content["ledger"]["bytes"], content["ledger"]["records"]) == (len(lines), len(records(judged)))
    assert content["ledger"]["last_id"] == records(judged)[-1]["id"]
    assert {row["class"] for row in content["headline"] if row["judge"]} == {"R"}
    assert content["data"]["inmind@sample"]["sha256"] == records(judged, "task")[0]["body"]["release"]["sha256"]
    assert {c["key"] for c in records(judged, "config")} == set(content["configurations"])
    assert content["environment"].keys() >= {"memtrials", "python", "packages", "commit", "dirty"}


def test_a_seal_is_never_overwritten(judged: Path):
    out = sealed(judged)
    before = out.read_bytes()
    finished = ended(call_cli("seal", "--trials", str(judged), "--out", str(out)), 2)
    assert "exists" in finished.err
    assert out.read_bytes() == before


def test_by_default_a_seal_stands_beside_its_ledger_and_verify_finds_that(judged: Path):
    ended(call_cli("seal", "--trials", str(judged)))
    (out,) = judged.parent.glob("trials.seal-*.json")
    assert "verified" in ended(call_cli("verify", str(out))).out.splitlines()[-1]


def test_a_ledger_without_a_score_is_not_sealed(built: Path):
    assert "nothing to seal" in ended(call_cli("seal", "--trials", str(built)), 2).err


@pytest.mark.parametrize("content", ["{}", "[1]", "no JSON", '{"seal": "x", "form": 1}'])
def test_what_is_no_seal_is_refused(judged: Path, content: str):
    other = judged.with_name("other.json")
    other.write_text(content)
    finished = ended(call_cli("verify", str(other), "--trials", str(judged)), 2)
    assert "other.json" in finished.err


def test_a_seal_of_a_part_says_which_and_is_verified_as_that_part(judged: Path):
    out = sealed(judged, "--split", "test")
    content = json.loads(out.read_text("utf-8"))
    assert "subset: split = test" in content["seal"]
    assert content["headline"][0]["of"] < len(records(judged, "task"))
    assert all(row["subset"] for row in content["headline"])
    assert verified(out, judged)["verified"]


# --- what holds, and what doesn't -------------------------------------------------------------------------------


def test_a_ledger_that_grew_still_verifies_and_says_how_much_is_unsealed(judged: Path):
    out = sealed(judged)
    before = len(records(judged))
    stage(judged, "fetch", "--repeat", "2")
    stage(judged, "answer")
    stage(judged, "judge")
    found = verified(out, judged)
    added = len(records(judged)) - before
    assert found["failures"] == []
    assert any(f"{before} records are sealed; {added} unsealed" in fact for fact in found["facts"])
    assert any(w.startswith("since it was sealed: repeats added after verdicts existed") for w in found["warnings"])
    assert number(found, "bm25") == {"sealed": 0.75, "published": 0.75, "with_voided": 0.75, "first": 0.75}


def test_one_changed_byte_is_named(judged: Path):
    out = sealed(judged)
    trial = of(judged, "retrieval", "bm25")[3]

    def one_byte(lines: list[bytes]) -> list[bytes]:
        n = line_of(lines, trial)
        at = lines[n].index(b'"context":"') + 20
        lines[n] = lines[n][:at] + bytes([lines[n][at] ^ 1]) + lines[n][at + 1 :]
        return lines

    rewrite(judged, one_byte)
    (failure,) = verified(out, judged, code=1)["failures"]
    assert failure.startswith(f"1 sealed retrieval was changed: {trial['id']} ({trial['task']}/{trial['query']}")


def test_a_dropped_trial_is_named_by_what_was_made_of_it(judged: Path):
    out = sealed(judged)
    trial = of(judged, "retrieval", "bm25")[3]

    def without(lines: list[bytes]) -> list[bytes]:
        return [line for n, line in enumerate(lines) if n != line_of(lines, trial)]

    rewrite(judged, without)
    failures = verified(out, judged, code=1)["failures"]
    assert failures[0] == "1 sealed retrieval was dropped"
    assert trial["id"] in failures[1]


def test_a_trial_dropped_with_all_that_was_made_of_it_is_named(judged: Path):
    out = sealed(judged)
    gone = {of(judged, "retrieval", "bm25")[3]["id"]}
    for record in records(judged):
        if gone.intersection(record["parents"]):
            gone.add(record["id"])
    kinds = [r["kind"] for r in records(judged) if r["id"] in gone]
    rewrite(judged, lambda lines: [line for line in lines if json.loads(line)["id"] not in gone])
    failures = verified(out, judged, code=1)["failures"]
    assert [re.sub(r"\D", "", failure) for failure in failures] == [str(kinds.count(k)) for k in dict.fromkeys(kinds)]
    assert [failure.split()[2] for failure in failures] == list(dict.fromkeys(kinds))


def test_two_swapped_verdicts_are_named_although_the_mean_is_the_same(judged: Path):
    out = sealed(judged)
    mine = [v for v in of(judged, "verdict", "bm25") if v["metric"] == METRIC]
    right, wrong = (next(v for v in mine if v["body"]["score"] == score) for score in (1.0, 0.0))

    def swap(lines: list[bytes]) -> list[bytes]:
        for verdict, old, new in ((right, b"1.0", b"0.0"), (wrong, b"0.0", b"1.0")):
            n = line_of(lines, verdict)
            lines[n] = lines[n].replace(b'"score":' + old, b'"score":' + new)
        return lines

    rewrite(judged, swap)
    (failure,) = verified(out, judged, code=1)["failures"]
    assert failure.startswith("2 sealed verdict records were changed")
    assert right["id"] in failure
    assert wrong["id"] in failure


def test_a_record_put_among_the_sealed_ones_is_named(judged: Path):
    out = sealed(judged)
    verdict = records(judged, "verdict")[-1]
    extra = json.dumps({**verdict, "id": new_id()}, separators=(",", ":")).encode()
    rewrite(judged, lambda lines: [*lines[:-3], extra, *lines[-3:]])
    (failure,) = verified(out, judged, code=1)["failures"]
    assert failure.startswith("1 verdict")
    assert "among the sealed" in failure


def test_another_order_is_told(judged: Path):
    out = sealed(judged)
    rewrite(judged, lambda lines: [lines[1], lines[0], *lines[2:]])
    (failure,) = verified(out, judged, code=1)["failures"]
    assert "another order" in failure


def test_a_cut_file_and_a_rewritten_one_fail_and_say_why(judged: Path):
    out = sealed(judged)
    whole = judged.read_bytes()
    rewrite(judged, lambda lines: lines[:-1])
    assert verified(out, judged, code=1)["failures"] == ["1 sealed verdict was dropped"]
    judged.write_text(json.dumps(json.loads(whole), indent=1))
    (failure,) = verified(out, judged, code=1)["failures"]
    assert "the sealed bytes were changed" in failure


def test_a_number_edited_in_the_seal_is_not_what_the_records_give(judged: Path):
    out = sealed(judged)
    content = json.loads(out.read_text("utf-8"))
    row = next(row for row in content["headline"] if row["metric"] == METRIC and row["system_name"] == "bm25")
    row["value"] = row["score"] = 0.875
    out.write_text(json.dumps(content))
    (failure,) = verified(out, judged, code=1)["failures"]
    assert METRIC in failure
    assert "value 0.875 sealed, 0.75 computed" in failure


def test_a_number_left_out_of_the_seal_is_told(judged: Path):
    out = sealed(judged)
    content = json.loads(out.read_text("utf-8"))
    count = len(content["headline"])
    del content["headline"][0]
    out.write_text(json.dumps(content))
    (failure,) = verified(out, judged, code=1)["failures"]
    assert failure.startswith("title: ")
    content["seal"] = content["seal"].replace(f"{count} numbers", f"{count - 1} numbers")
    out.write_text(json.dumps(content))
    assert verified(out, judged)["warnings"] == ["left out of the seal: 1 numbers that the sealed records hold"]


def test_a_false_title_is_told_and_not_repeated_as_the_title(judged: Path):
    out = sealed(judged)
    edited(out, lambda content: content.update(seal="class P: published protocol; 10 numbers of 3 systems on all"))
    finished = ended(call_cli("verify", str(out), "--trials", str(judged)), 1)
    first, *_, failure, outcome = finished.out.splitlines()
    assert first == "class R: rule, no model; 10 numbers of 3 systems on inmind@sample"
    assert failure.startswith('failed: title: "class P: published protocol; 10 numbers')
    assert outcome == "not verified"


def configuration(content: dict[str, Any]) -> dict[str, Any]:
    """The settings that a seal gives of the first configuration."""
    found: dict[str, Any] = next(iter(content["configurations"].values()))
    return found


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c["data"]["inmind@sample"].update(sha256="0" * 64), "data inmind@sample: not what .*: sha256$"),
        (lambda c: c["data"]["inmind@sample"].pop("known"), "data inmind@sample: not what .*: known$"),
        (lambda c: c["data"].clear(), "data inmind@sample: left out of the seal$"),
        (lambda c: c["data"].update(other={}), "data other: not in the sealed records$"),
        (lambda c: configuration(c)["settings"].update(k=99), "configurations .*: not what .*: settings$"),
        (lambda c: configuration(c).update(name="best", more=1), "configurations .*: not what .*: name, more$"),
        (lambda c: c["configurations"].popitem(), "configurations .*: left out of the seal$"),
        (lambda c: c["configurations"].update(other={}), "configurations other: not in the sealed records$"),
        (
            lambda c: c["ledger"].update(records=100_000),
            "ledger: .* first 100000 records are: records 100000 sealed, 184 computed$",
        ),
        (lambda c: c["ledger"].update(records=0), r"ledger: .* are: bytes \d+ sealed, 0 computed; last_id"),
        (lambda c: c["ledger"].update(records=183), r"ledger: .* are: bytes \d+ sealed, \d+ computed; last_id"),
        (lambda c: c["ledger"].update(last_id="x"), 'ledger: .* are: last_id "x" sealed, '),
        (lambda c: c["ledger"].update(bytes=0, sha256=sha256(b"").hexdigest()), "ledger: .* are: bytes 0 sealed, "),
        (lambda c: c["fingerprints"].popitem(), "fingerprints: not those of the sealed records$"),
        (lambda c: c["headline"].append(c["headline"][0]), "headline: some numbers are sealed twice$"),
        (lambda c: c["headline"].clear(), "headline: no number is sealed, 10 computed$"),
        (lambda c: c["headline"][0].update(value=float("inf")), ".*: value Infinity sealed, 0.75 computed$"),
        (lambda c: c["headline"][0].update(judge="unknown-1"), ".* / unknown-1: .*: there is no such number$"),
        (lambda c: c["headline"][0].update({"class": "P"}), '.*: class "P" sealed, "R" computed$'),
    ],
)
def test_what_a_seal_says_falsely_is_named(
    ledgers: dict[str, Path], copy: Path, change: Callable[[dict[str, Any]], Any], says: str
):
    edited(copy, change)
    told = [
        failure for failure in verified(copy, ledgers["judge"], code=1)["failures"] if not failure.startswith("title: ")
    ]
    assert len(told) == 1
    assert re.match(says, told[0]), told


def test_a_seal_of_nothing_is_not_verified(judged: Path):
    out = sealed(judged)
    nothing = {"bytes": 0, "records": 0, "last_id": None, "sha256": sha256(b"").hexdigest()}
    title = "no class: neither reader nor judge; 0 numbers of 0 systems on "
    empty = {"headline": [], "data": {}, "configurations": {}, "fingerprints": {}}
    edited(out, lambda c: c.update(seal=title, ledger=c["ledger"] | nothing, **empty))
    assert verified(out, judged, code=1)["failures"] == ["headline: no number is sealed, 0 computed"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda c: c.update(form="1"), "`$.form`"),
        (lambda c: c.update(form=0), "`$.form`"),
        (lambda c: c.update(seal=1), "`$.seal`"),
        (lambda c: c.update(ledger=[]), "`$.ledger`"),
        (lambda c: c["ledger"].pop("sha256"), "missing required field `sha256` - at `$.ledger`"),
        (lambda c: c["ledger"].update(bytes="5"), "`$.ledger.bytes`"),
        (lambda c: c["ledger"].update(records=-1), "`$.ledger.records`"),
        (lambda c: c.update(selection={"sample": "x"}), "`$.selection.sample`"),
        (lambda c: c.update(selection={"shard": [1, 0]}), "a shard 1 of 0"),
        (lambda c: c["headline"][0].pop("part"), "missing required field `part` - at `$.headline[0]`"),
        (lambda c: c["headline"][0].pop("system_name"), "missing required field `system_name` - at `$.headline[0]`"),
        (lambda c: c["headline"][1].update(value="x"), "`$.headline[1].value`"),
        (lambda c: c["headline"][0].update({"class": "Z"}), "`$.headline[0].class`"),
        (lambda c: c.update(headline={}), "`$.headline`"),
        (lambda c: c.pop("data"), "missing required field `data`"),
        (lambda c: c.update(data={"inmind@sample": None}), "`$.data[...]`"),
        (lambda c: c.update(configurations=[]), "`$.configurations`"),
        (lambda c: c.update(fingerprints=[]), "`$.fingerprints`"),
    ],
)
def test_a_malformed_seal_is_refused_in_one_line(
    ledgers: dict[str, Path], copy: Path, change: Callable[[dict[str, Any]], Any], says: str
):
    edited(copy, change)
    for arguments in ((), ("--trials", str(ledgers["judge"]))):
        (line,) = ended(call_cli("verify", str(copy), *arguments), 2).err.splitlines()
        assert line.startswith(f"memtrials: {copy}: not the seal of a ledger (")
        assert says in line
        assert line.endswith("; `memtrials seal` writes one")


@pytest.mark.parametrize("name", ["", ".", "..", "/", "nul\0.json", "../other.json"])
def test_a_ledger_whose_sealed_name_is_none_is_looked_for_as_for_every_command(
    ledgers: dict[str, Path], copy: Path, name: str
):
    edited(copy, lambda c: c["ledger"].update(name=name))
    assert verified(copy, ledgers["judge"])["verified"]
    assert ended(call_cli("verify", str(copy)), 2).err.count("\n") == 1


def test_a_seal_or_plan_of_a_newer_form_asks_for_a_newer_version(judged: Path):
    out = sealed(judged)
    ended(plan(judged, "hybrid"))
    planned = judged.with_name("trials.plan.json")
    edited(planned, lambda c: c.update(form=2, budget="another"))
    (line,) = ended(call_cli("verify", str(out), "--plan", str(planned)), 2).err.splitlines()
    assert line == f"memtrials: {planned}: a plan of form 2, this version reads up to 1; update memtrials"
    edited(out, lambda c: c.update(form=2, ledger="another"))
    (line,) = ended(call_cli("verify", str(out)), 2).err.splitlines()
    assert line == f"memtrials: {out}: a seal of form 2, this version reads up to 1; update memtrials"


# --- what verdicts may have been chosen by ----------------------------------------------------------------------


def again(trials: Path, voided: list[dict[str, Any]]) -> None:
    """Make voided verdicts once more, this time right."""
    with Ledger.open(trials) as ledger:
        for old in voided:
            header = ledger.header(old["id"])
            fresh = Header(**{**{f: getattr(header, f) for f in header.__struct_fields__}, "id": new_id()})
            ledger.append(Record(fresh, VerdictBody(score=1.0, reason="looked at again")))


def test_voiding_and_running_again_only_the_failures_is_named(judged: Path):
    wrong = [v for v in of(judged, "verdict", "bm25") if v["metric"] == METRIC and v["body"]["score"] == 0.0]
    ended(call_cli("void", *(v["id"] for v in wrong), "--reason", "a slip", "--trials", str(judged)))
    again(judged, wrong)
    found = verified(sealed(judged), judged)
    assert number(found, "bm25") == {"sealed": 1.0, "published": 1.0, "with_voided": 0.875, "first": 0.75}
    assert found["warnings"][0] == (
        f"void and re-run (only failures): {len(wrong)} trials were voided after their verdict was known, 0 right and "
        f"{len(wrong)} wrong; {len(wrong)} of them were made again"
    )


def test_voiding_after_the_seal_is_told_and_breaks_nothing(judged: Path):
    out = sealed(judged)
    wrong = [v for v in of(judged, "verdict", "bm25") if v["body"]["score"] == 0.0]
    ended(call_cli("void", wrong[0]["id"], "--reason", "a slip", "--trials", str(judged)))
    found = verified(out, judged)
    assert found["failures"] == []
    assert [w.partition(":")[2].strip()[:22] for w in found["warnings"]] == ["voided (only failures)"]
    assert number(found, "bm25")["published"] == 0.75


def test_a_retrieval_voided_with_what_was_made_of_it_counts_once_as_a_trial(judged: Path):
    trial = of(judged, "retrieval", "bm25")[0]
    answers = [a["id"] for a in records(judged, "answer") if trial["id"] in a["parents"]]
    below = [v for v in records(judged, "verdict") if {trial["id"], *answers}.intersection(v["parents"])]
    assert below
    ended(call_cli("void", trial["id"], "--reason", "lost", "--trials", str(judged)))
    for command in ("fetch", "answer", "judge"):
        stage(judged, command)
    (warning,) = verified(sealed(judged), judged)["warnings"]
    right = sum(v["body"]["score"] for v in below)
    assert f"1 trials were voided after their verdict was known, {right:.0f} right and" in warning
    assert f"and {len(below) - right:.0f} wrong; 1 of them were made again" in warning


def test_what_was_voided_before_any_verdict_is_nobodys_business(answered: Path):
    trial = of(answered, "retrieval", "bm25")[0]
    ended(call_cli("void", trial["id"], "--reason", "lost", "--trials", str(answered)))
    for command in ("fetch", "answer", "judge"):
        stage(answered, command)
    assert verified(sealed(answered), answered)["warnings"] == []


def test_the_best_of_seven_configurations_is_named(judged: Path):
    for k in range(1, 7):
        stage(judged, "fetch", "bm25", "--k", str(k), "--force")
    stage(judged, "judge", "--metric", METRIC)
    (best,) = {r["fetch"] for r in of(judged, "retrieval", "bm25") if r["fetch"].startswith("k6-")}
    found = verified(sealed(judged, "--config", best), judged)
    bests = [w for w in found["warnings"] if w.startswith("best of")]
    assert bests == [f"best of 7: bm25 / offline has 7 configurations on inmind@sample {METRIC}; 1 shown"]


def test_files_of_one_kind_of_system_are_configurations_of_it_whatever_they_are_called(built: Path):
    for k in range(1, 4):
        file = built.with_name(f"mine-{k}.toml")
        file.write_text(f'[state]\nsystem = "embedded"\nretriever = "bm25"\n[fetch]\nk = {k}\n')
        stage(built, "replay", str(file))
    stage(built, "fetch")
    stage(built, "judge", "--metric", METRIC)
    found = verified(sealed(built, "--system", "mine-2"), built)
    assert [w for w in found["warnings"] if w.startswith("best of 3")]


def test_repeats_before_a_verdict_are_fine_and_after_it_are_told(fetched: Path):
    stage(fetched, "fetch", "--repeat", "2")
    stage(fetched, "answer")
    stage(fetched, "judge")
    out = sealed(fetched)
    assert verified(out, fetched)["warnings"] == []
    stage(fetched, "fetch", "bm25", "--repeat", "3")
    out.unlink()
    (warning,) = verified(sealed(fetched), fetched)["warnings"]
    assert re.match(r"repeats added after verdicts existed: \d+ of bm25-", warning)


# --- plans ------------------------------------------------------------------------------------------------------


def plan(trials: Path, *arguments: str) -> Finished:
    return call_cli("plan", *arguments, "--metric", METRIC, "--trials", str(trials))


def kept(trials: Path) -> dict[str, bool | None]:
    found = verified(sealed(trials), trials, "--plan", str(trials.with_name("trials.plan.json")))
    return {one["what"]: one["kept"] for one in found["plan"]}


def test_a_plan_that_was_kept(fetched: Path):
    ended(plan(fetched, "bm25", "none", "in-context", "--judge", "offline", "--max-requests", "10"))
    content = json.loads(fetched.with_name("trials.plan.json").read_text("utf-8"))
    assert (content["n"], content["repeat"], content["comparisons"]) == (8, 1, [])
    stage(fetched, "answer")
    stage(fetched, "judge")
    found = kept(fetched)
    assert found.pop("the file") is None
    assert set(found) >= {
        "before any verdict",
        "data",
        "questions",
        "primary metric",
        "system bm25",
        "judge",
        "n",
        "budget",
    }
    assert set(found.values()) == {True}


def test_what_was_not_kept_is_said_one_by_one(fetched: Path, tmp_path: Path):
    other = tmp_path / "other.toml"
    other.write_text('[state]\nsystem = "embedded"\nretriever = "bm25"\nchunk = "pair"\n')
    ended(plan(fetched, "bm25", str(other), "--judge", "model-j", "--repeat", "2"))
    stage(fetched, "judge", "--limit", "3")
    broken = {what for what, was in kept(fetched).items() if was is False}
    assert broken == {"system other", "no other system", "comparison bm25 : other", "judge", "n", "repeats"}


def test_no_plan_after_a_verdict_of_these_systems_even_a_void_one(judged: Path):
    ended(call_cli("void", "--kind", "verdict", "--reason", "never seen", "--trials", str(judged)))
    finished = ended(plan(judged, "bm25"), 2)
    assert "what is known can't be planned" in finished.err
    assert not judged.with_name("trials.plan.json").exists()


def test_verdicts_of_others_are_in_the_plan(judged: Path):
    ended(plan(judged, "hybrid"))
    content = json.loads(judged.with_name("trials.plan.json").read_text("utf-8"))
    asked = {r["query"] for r in records(judged, "verdict") if r["metric"] == METRIC}
    systems = (v["system"].rpartition("-")[0] for v in records(judged, "verdict") if v["query"] in asked)
    assert content["verdicts_of_others"] == Counter(systems)


def test_a_plan_of_another_ledger_is_not_taken_for_one_of_this(fetched: Path):
    ended(plan(fetched, "bm25"))
    edited(fetched.with_name("trials.plan.json"), lambda c: c["ledger"].update(sha256="0" * 64))
    stage(fetched, "judge")
    assert kept(fetched)["before any verdict"] is False


def test_a_plan_that_says_it_was_made_of_fewer_records_is_not_believed(fetched: Path):
    ended(plan(fetched, "bm25"))
    edited(fetched.with_name("trials.plan.json"), lambda c: c["ledger"].update(records=0))
    stage(fetched, "judge")
    assert kept(fetched)["before any verdict"] is False


NO_PLANS: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    *(
        (lambda c, name=name: c.pop(name), f"missing required field `{name}`")
        for name in ("benchmark", "data", "selection", "reader", "judge", "n", "repeat", "budget")
    ),
    *(
        (lambda c, name=name, value=value: c.update({name: value}), f"`$.{name}")
        for name, value in (
            ("form", "1"),
            ("ledger", []),
            ("ledger", {"records": 1}),
            ("benchmark", 5),
            ("primary", None),
            ("systems", ["bm25"]),
            ("systems", {"bm25": 1}),
            ("comparisons", {}),
            ("comparisons", [["bm25"]]),
            ("n", "8"),
            ("repeat", -1),
            ("selection", {"limit": "x"}),
            ("budget", 5),
            ("budget", {"max_cost": "x", "max_requests": None}),
        )
    ),
    (lambda c: c.update(comparisons=[["bm25", "other"]]), "`comparisons` name 'bm25', 'other'"),
]


def test_a_malformed_plan_is_refused_in_one_line(judged: Path):
    ended(plan(judged, "hybrid"))
    path, out = judged.with_name("trials.plan.json"), sealed(judged)
    whole = path.read_text("utf-8")
    for change, says in NO_PLANS:
        path.write_text(whole)
        edited(path, change)
        (line,) = ended(call_cli("verify", str(out), "--trials", str(judged), "--plan", str(path)), 2).err.splitlines()
        assert line.startswith(f"memtrials: {path}: not a plan (")
        assert says in line
        assert line.endswith("; `memtrials plan` writes one")


@pytest.mark.parametrize(
    ("change", "says"),
    [({"benchmark": "inmint@sample"}, "unknown benchmark"), ({"primary": "directverbatim"}, "unknown metric in ")],
)
def test_a_plan_of_what_there_is_not_is_refused_in_one_line(judged: Path, change: dict[str, str], says: str):
    ended(plan(judged, "hybrid"))
    path = judged.with_name("trials.plan.json")
    edited(path, lambda c: c.update(change))
    (line,) = ended(call_cli("verify", str(sealed(judged)), "--plan", str(path)), 2).err.splitlines()
    assert says in line


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("bm26",), "unknown system"),
        (("bm25", "--reference", "none"), "unknown system of this plan"),
        (("bm25", "--system", "bm25"), "as arguments"),
        (("bm25", "--metric", "directverbatim"), "unknown metric"),
    ],
)
def test_what_can_not_be_planned(fetched: Path, arguments: tuple[str, ...], says: str):
    finished = ended(call_cli("plan", "--metric", METRIC, *arguments, "--trials", str(fetched)), 2)
    assert says in finished.err


# --- a package --------------------------------------------------------------------------------------------------


def test_a_package_holds_the_submission_and_all_that_checks_it(judged: Path):
    out = judged.with_name("package")
    ended(call_cli("export", "inmind-package", "--system", "bm25", "--trials", str(judged), "--out", str(out)))
    names = {"submission.jsonl", "configuration.json", "hashes.json", "verdicts.jsonl", "seal.json"}
    assert {path.name for path in out.iterdir()} == names
    alone = ended(call_cli("export", "inmind-submission", "--system", "bm25", "--trials", str(judged)))
    assert (out / "submission.jsonl").read_text("utf-8") == alone.out
    verdicts = [json.loads(line) for line in (out / "verdicts.jsonl").read_text("utf-8").splitlines()]
    assert len(verdicts) == len(of(judged, "verdict", "bm25"))
    configurations = json.loads((out / "configuration.json").read_text("utf-8"))
    assert {c["role"] for c in configurations.values()} == {"system", "fetch", "reader", "judge"}
    assert verified(out, judged)["verified"]
    assert verified(out / "seal.json", judged)["verified"]
    with (out / "verdicts.jsonl").open("ab") as file:
        file.write(b" ")
    assert verified(out, judged, code=1)["failures"] == ["verdicts.jsonl: changed"]


def test_a_package_is_never_written_over_a_folder(judged: Path):
    out = judged.with_name("package")
    out.mkdir()
    finished = call_cli("export", "inmind-package", "--system", "bm25", "--trials", str(judged), "--out", str(out))
    assert "exists" in ended(finished, 2).err
    assert list(out.iterdir()) == []


def test_a_package_refuses_what_was_voided_after_its_verdict(judged: Path):
    verdict = of(judged, "verdict", "bm25")[0]
    ended(call_cli("void", verdict["id"], "--reason", "a slip", "--trials", str(judged)))
    arguments = ("export", "inmind-package", "--system", "bm25", "--trials", str(judged), "--out")
    assert "--allow-voided" in ended(call_cli(*arguments, str(judged.with_name("a"))), 2).err
    ended(call_cli(*arguments, str(judged.with_name("b")), "--allow-voided"))
