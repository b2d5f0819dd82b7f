"""The evidence of an exported run: copied byte for byte, sealed once, checked file by file."""

import hashlib
import json
from pathlib import Path

import pytest

from memtrials.errors import UserError
from memtrials.sealing.files import changed_files, seal_run, write_once
from support.cli import call_cli
from support.trials import ended, files

AT = "2026-01-01T00:00:00Z"
RUN = {
    "rows.jsonl": b'{"run_id":"demo","question_id":"q1"}\n',
    "header.json": b'{\n  "run_id": "demo",\n  "dataset": "locomo"\n}\n',
    "report.json": b'{\n  "num_questions": 1\n}\n',
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for name, content in RUN.items():
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return tmp_path / "evidence"


def test_three_files_are_copied_and_their_seal_stands_at_both_places(run: Path, evidence: Path):
    (run / "stores").mkdir()
    folder, sha256 = seal_run(run, evidence, AT)
    assert folder == evidence / "demo"
    expected = {
        "files": {name: hashlib.sha256(RUN[name]).hexdigest() for name in sorted(RUN)},
        "header": {"run_id": "demo", "dataset": "locomo"},
        "sealed_at": AT,
    }
    sealed = (json.dumps(expected, indent=2) + "\n").encode()
    assert files(folder) == {**RUN, "seal.json": sealed}
    assert (run / "seal.json").read_bytes() == sealed
    assert sha256 == hashlib.sha256(sealed).hexdigest()
    assert changed_files(folder) == (sorted(RUN), {})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda run: (run / "more.jsonl").write_bytes(b""), "holds 2 .jsonl files"),
        (lambda run: (run / "rows.jsonl").unlink(), "holds 0 .jsonl files"),
        (lambda run: (run / "report.json").unlink(), "report.json: not a regular file"),
        (
            lambda run: (run / "report.json").rename(run / "r") and (run / "report.json").symlink_to("r"),
            "not a regular",
        ),
        (lambda run: (run / "header.json").write_bytes(b"{}"), "run_id is None"),
        (lambda run: (run / "header.json").write_bytes(b'{"run_id": 7}'), "run_id is 7"),
        (lambda run: (run / "header.json").write_bytes(b"[]"), "not a JSON object"),
        (lambda run: (run / "header.json").write_bytes(b"{"), "not valid JSON"),
    ],
)
def test_what_is_no_run_is_refused_and_nothing_is_written(run: Path, evidence: Path, change, says: str):  # type: ignore[no-untyped-def]
    change(run)
    before = files(run)
    with pytest.raises(UserError, match=says):
        seal_run(run, evidence, AT)
    assert files(run) == before
    assert not evidence.exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\\b", "c:d"])
def test_an_id_that_is_no_folder_name_is_refused(run: Path, evidence: Path, name: str):
    (run / "header.json").write_text(json.dumps({"run_id": name}))
    with pytest.raises(UserError, match="must be a name for a folder"):
        seal_run(run, evidence, AT)
    assert not evidence.exists()


def test_evidence_that_is_there_is_never_touched(run: Path, evidence: Path):
    (evidence / "demo").mkdir(parents=True)
    with pytest.raises(UserError, match="never overwritten"):
        seal_run(run, evidence, AT)
    assert files(evidence) == {"demo/": b""}
    assert not (run / "seal.json").exists()


@pytest.mark.parametrize("dangling", [False, True])
def test_a_run_that_is_sealed_is_refused_before_anything_is_written(run: Path, evidence: Path, dangling: bool):
    if dangling:
        (run / "seal.json").symlink_to("nowhere")
    else:
        seal_run(run, evidence, AT)
    other = evidence.with_name("other")
    with pytest.raises(UserError, match=r"seal\.json exists: this run is sealed already"):
        seal_run(run, other, AT)
    assert not other.exists()


def test_a_failure_half_way_leaves_what_was_written_and_names_it(
    run: Path, evidence: Path, monkeypatch: pytest.MonkeyPatch
):
    def full(path: Path, data: bytes) -> str:
        if path.name == "seal.json":
            raise UserError(f"{path}: can't be written (No space left on device)")
        return write_once(path, data)

    monkeypatch.setattr("memtrials.sealing.files.write_once", full)
    with pytest.raises(UserError) as error:
        seal_run(run, evidence, AT)
    assert "seal.json: can't be written" in str(error.value)
    assert str(evidence / "demo" / "report.json") in str(error.value)
    assert files(evidence / "demo") == RUN


def test_every_changed_or_missing_file_is_told(run: Path, evidence: Path):
    folder, _ = seal_run(run, evidence, AT)
    (folder / "rows.jsonl").unlink()
    (folder / "report.json").write_bytes(RUN["report.json"].replace(b"1", b"2"))
    assert changed_files(folder)[1] == {"report.json": "changed", "rows.jsonl": "missing"}


def test_hashes_are_compared_whatever_their_case(run: Path, evidence: Path):
    folder, _ = seal_run(run, evidence, AT)
    seal = json.loads((folder / "seal.json").read_bytes())
    seal["files"] = {name: digest.upper() for name, digest in seal["files"].items()}
    (folder / "seal.json").write_text(json.dumps(seal))
    assert changed_files(folder)[1] == {}


@pytest.mark.parametrize(
    "files_", [{}, None, {"../header.json": "0"}, {"seal.json": "0"}, {"header.json": 0}, {"a/b": "0"}]
)
def test_a_seal_that_lists_what_it_may_not_is_refused(run: Path, files_: object):
    (run / "seal.json").write_text(json.dumps({"files": files_}))
    with pytest.raises(UserError, match=r"seal\.json"):
        changed_files(run)


def test_the_commands_seal_and_verify_a_run(run: Path, evidence: Path):
    said = ended(call_cli("seal", "--run-dir", str(run), "--out", str(evidence))).out
    assert said.splitlines()[-1] == f"SHA-256 {hashlib.sha256((run / 'seal.json').read_bytes()).hexdigest()}"
    assert ended(call_cli("verify", str(evidence / "demo"))).out.splitlines()[-1] == "verified"
    (evidence / "demo" / "report.json").write_bytes(b"")
    failed = ended(call_cli("verify", str(evidence / "demo")), 1).out.splitlines()
    assert failed[-2:] == ["failed: report.json: changed", "not verified"]
