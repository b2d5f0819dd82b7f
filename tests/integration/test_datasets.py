"""Getting public data: every byte once, checked before it has a name, and one line for whatever goes wrong."""

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from memtrials import datasets
from memtrials.errors import UserError
from memtrials.settings import Settings
from support.cli import Finished, call_cli, environment
from support.file_server import FileServer, Script, Sent, cut, in_turn, refusing, serving, stuck, whole

DATA = random.Random(20261130).randbytes(300_000)
SHA256 = hashlib.sha256(DATA).hexdigest()
KEPT = 100_000
"""Bytes that come before a connection goes wrong."""

TABLE = """
["{name}"]
licence = "MIT"
terms = "Copyright the makers of {name}."
citation = "Somebody: Some data, 2026"
homepage = "https://data.example/{name}"
files = [{{ path = "data.bin", url = "{url}/files/{name}.bin", size = {size}, sha256 = "{sha256}" }}]
"""


class World:
    """Two datasets of one file each on a server, and a data folder."""

    def __init__(self, server: FileServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.environment = {"MEMTRIALS_DATA": str(folder / "kept")}
        self.evaluation = folder / "evaluation"
        self.evaluation.mkdir()
        self.describe(len(DATA), SHA256)

    def describe(self, size: int, sha256: str) -> None:
        tables = [TABLE.format(name=name, url=self.server.url, size=size, sha256=sha256) for name in ("toy@1", "toy@2")]
        (self.evaluation / "datasets.toml").write_text("".join(tables), "utf-8")

    def data(self, *arguments: str, **variables: str) -> Finished:
        """`memtrials data …`."""
        return call_cli("data", *arguments, env={**self.environment, **variables})

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """The same in a process of its own."""
        program = (
            "import pathlib, sys, memtrials.datasets as d\n"
            "d.evaluation = lambda: pathlib.Path(sys.argv[1])\n"
            "from memtrials.cli import main\n"
            "main(['data', *sys.argv[2:]])\n"
        )
        command = [sys.executable, "-c", program, str(self.evaluation), *arguments]
        return subprocess.Popen(command, env=environment(self.environment), stderr=subprocess.PIPE, text=True)

    @property
    def path(self) -> Path:
        return self.folder / "kept" / "toy@1" / "data.bin"

    @property
    def part(self) -> Path:
        return self.path.with_name("data.bin.part")

    def left(self) -> list[str]:
        """What lies beside the record of where it is from."""
        return sorted(path.name for path in self.path.parent.iterdir() if path.name not in (".lock", "SOURCE.json"))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with FileServer(serving(DATA)) as server:
        made = World(server, tmp_path)
        monkeypatch.setattr(datasets, "evaluation", lambda: made.evaluation)
        monkeypatch.setattr(datasets, "PAUSE", 0.01)
        yield made


def last_line(finished: Finished) -> str:
    return finished.err.splitlines()[-1]


# Getting


def test_a_dataset_is_downloaded_once_with_its_licence_beside_it(world: World):
    first = world.data("get", "toy@1")
    assert (first.code, first.out) == (0, f"toy@1: 300,000 bytes downloaded; in {world.path.parent}\n")
    assert first.err.splitlines() == [
        "toy@1: https://data.example/toy@1",
        "  licence: MIT. Copyright the makers of toy@1.",
        "  cite: Somebody: Some data, 2026",
    ]
    assert world.path.read_bytes() == DATA
    assert world.left() == ["data.bin"]
    source = json.loads((world.path.parent / "SOURCE.json").read_text("utf-8"))
    assert (source["licence"], source["citation"]) == ("MIT", "Somebody: Some data, 2026")
    assert source["files"] == [
        {"path": "data.bin", "url": f"{world.server.url}/files/toy@1.bin", "size": 300_000, "sha256": SHA256}
    ]

    second = world.data("get", "toy@1")
    assert (second.code, second.err) == (0, "")
    assert second.out == f"toy@1: nothing to do; in {world.path.parent}\n"
    assert len(world.server.asked) == 1


def test_the_licence_is_shown_and_recorded_before_anything_is_asked_for(world: World, monkeypatch: pytest.MonkeyPatch):
    order: list[str] = []

    def script(asked: object) -> Sent:
        order.append("recorded" if (world.path.parent / "SOURCE.json").exists() else "not recorded")
        return Sent(200, DATA)

    monkeypatch.setattr(datasets, "say", order.append)
    world.server.script = script
    assert world.data("get", "toy@1").code == 0
    assert order[1].startswith("  licence: MIT.")
    assert order[3:] == ["recorded"]


def test_json_is_one_object_a_dataset_on_standard_output(world: World):
    finished = world.data("get", "toy@1", "toy@1", "--json")
    (got,) = json.loads(finished.out)
    assert (got["name"], got["downloaded"], got["here"], got["path"]) == (
        "toy@1",
        300_000,
        True,
        str(world.path.parent),
    )
    assert json.loads(world.data("get", "toy@1", "--json").out)[0]["downloaded"] == 0


def test_another_folder_may_be_named(world: World, tmp_path: Path):
    assert world.data("get", "toy@1", "--to", str(tmp_path / "there")).code == 0
    assert (tmp_path / "there" / "toy@1" / "data.bin").read_bytes() == DATA
    assert world.data("where", "toy@1").code == 2
    assert world.data("where", "toy@1", MEMTRIALS_DATA=str(tmp_path / "there")).code == 0


# Going on


def test_after_a_cut_only_the_rest_is_sent(world: World):
    world.server.script = in_turn(cut(serving(DATA), KEPT), cut(serving(DATA), KEPT), serving(DATA))
    finished = world.data("get", "toy@1")
    assert (finished.code, world.path.read_bytes()) == (0, DATA)
    assert world.server.starts == [None, KEPT, 2 * KEPT]
    assert world.server.sent == len(DATA)
    assert [asked.headers.get("if-range") for asked in world.server.asked] == [None, '"v1"', '"v1"']
    assert finished.err.count("cut off (") == 2
    assert world.left() == ["data.bin"]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_ended_midway_leaves_what_the_next_one_goes_on_from(world: World, end: signal.Signals):
    world.server.script = stuck(serving(DATA), KEPT)
    process = world.start("get", "toy@1")
    deadline = time.monotonic() + 60
    while not (world.part.exists() and world.part.stat().st_size == KEPT):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(end)
    _, err = process.communicate(timeout=60)
    if end == signal.SIGINT:
        assert process.returncode == 130
        assert "  100,000 of 300,000 bytes are kept, the same command goes on there" in err.splitlines()
    assert world.left() == ["data.bin.part", "data.bin.part.etag"]

    world.server.script = serving(DATA)
    assert world.data("get", "toy@1").code == 0
    assert world.server.starts == [None, KEPT]
    assert world.server.sent == len(DATA)
    assert world.path.read_bytes() == DATA


def test_a_part_that_was_whole_when_the_process_died_needs_no_request(world: World):
    world.part.parent.mkdir(parents=True)
    world.part.write_bytes(DATA)
    assert world.data("get", "toy@1").code == 0
    assert world.server.asked == []
    assert world.left() == ["data.bin"]


def test_a_server_that_knows_no_parts_sends_it_all_again(world: World):
    world.server.script = in_turn(cut(whole(DATA), KEPT), whole(DATA))
    assert world.data("get", "toy@1").code == 0
    assert world.server.starts == [None, KEPT]
    assert world.path.read_bytes() == DATA


def test_a_file_that_changed_meanwhile_is_begun_again(world: World):
    other = bytes(len(DATA))
    world.server.script = in_turn(cut(serving(other, '"v0"'), KEPT), serving(DATA, '"v1"'))
    assert world.data("get", "toy@1").code == 0
    assert world.server.asked[1].headers["if-range"] == '"v0"'
    assert world.path.read_bytes() == DATA


def test_a_weak_version_is_not_compared(world: World):
    world.server.script = in_turn(cut(serving(DATA, 'W/"v1"'), KEPT), serving(DATA))
    assert world.data("get", "toy@1").code == 0
    assert "if-range" not in world.server.asked[1].headers
    assert world.server.sent == len(DATA)


@pytest.mark.parametrize(
    "reply",
    [
        Sent(416, headers={"Content-Range": "bytes */5"}),
        Sent(206, DATA, {"Content-Range": f"bytes 0-{len(DATA) - 1}/{len(DATA)}"}),
        Sent(206, DATA[KEPT:], {"Content-Range": f"bytes {KEPT}-{len(DATA) - 1}/999999"}),
        Sent(206, DATA[KEPT:]),
    ],
    ids=["none", "another part", "of another file", "unnamed"],
)
def test_a_part_that_does_not_go_on_where_the_last_one_ended_is_not_used(world: World, reply: Sent):
    world.server.script = in_turn(cut(serving(DATA), KEPT), lambda asked: reply, serving(DATA))
    assert world.data("get", "toy@1").code == 0
    assert world.server.starts == [None, KEPT, None]
    assert world.path.read_bytes() == DATA


# Going wrong


def test_a_wrong_hash_leaves_nothing(world: World):
    world.server.script = serving(bytes(len(DATA)))
    finished = world.data("get", "toy@1")
    wrong = hashlib.sha256(bytes(len(DATA))).hexdigest()[:12]
    assert (finished.code, finished.out) == (1, "")
    assert last_line(finished) == (
        f"memtrials: {world.server.url}/files/toy@1.bin: SHA-256 {wrong}… where {SHA256[:12]}… is expected, so it "
        "isn't the known release; nothing is kept"
    )
    assert (len(world.server.asked), world.left()) == (1, [])


def test_a_spoiled_part_costs_one_run(world: World):
    world.part.parent.mkdir(parents=True)
    world.part.write_bytes(bytes(KEPT))
    assert world.data("get", "toy@1").code == 1
    assert world.left() == []
    assert world.data("get", "toy@1").code == 0
    assert world.path.read_bytes() == DATA


def test_a_part_that_is_too_long_is_begun_again(world: World):
    world.part.parent.mkdir(parents=True)
    world.part.write_bytes(DATA + b"more")
    assert world.data("get", "toy@1").code == 0
    assert world.server.starts == [None]


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (Sent(200, DATA[:-1], keep=0), "299,999 bytes where 300,000 are expected"),
        (Sent(200, DATA + b"!", keep=0), "300,001 bytes where 300,000 are expected"),
        (Sent(200, DATA[:-1], sized=False), "299,999 bytes where 300,000 are expected"),
        (Sent(200, DATA + b"!", sized=False), "more than 300,000 bytes where 300,000 are expected"),
    ],
    ids=["announced short", "announced long", "short", "long"],
)
def test_a_wrong_size_leaves_nothing(world: World, reply: Sent, said: str):
    """What is announced is refused before it comes: the body isn't even sent here."""
    world.server.script = lambda asked: reply
    finished = world.data("get", "toy@1")
    assert finished.code == 1
    assert f"toy@1.bin: {said}, so it isn't the known release; nothing is kept" in last_line(finished)
    assert (len(world.server.asked), world.left()) == (1, [])


@pytest.mark.parametrize("status", [401, 403, 404, 410])
def test_what_is_not_there_is_asked_for_once(world: World, status: int):
    world.server.script = refusing(status)
    finished = world.data("get", "toy@1")
    assert finished.code == 1
    assert last_line(finished) == f"memtrials: {world.server.url}/files/toy@1.bin: HTTP {status}; nothing is kept"
    assert (len(world.server.asked), world.left()) == (1, [])


def test_an_error_in_mid_download_keeps_the_part(world: World):
    world.server.script = in_turn(cut(serving(DATA), KEPT), refusing(404))
    finished = world.data("get", "toy@1")
    assert last_line(finished).endswith("HTTP 404; 100,000 of 300,000 bytes are kept, the same command goes on there")
    assert world.part.read_bytes() == DATA[:KEPT]


def test_a_page_in_place_of_the_file_does_not_cost_the_part(world: World):
    page = Sent(200, b"<html>Please sign in</html>")
    world.server.script = in_turn(cut(serving(DATA), KEPT), lambda asked: page, serving(DATA))
    finished = world.data("get", "toy@1")
    assert finished.code == 1
    assert "27 bytes where 300,000 are expected" in last_line(finished)
    assert "100,000 of 300,000 bytes are kept" in last_line(finished)
    assert world.data("get", "toy@1").code == 0
    assert world.server.starts == [None, KEPT, KEPT]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_tried_again(world: World, status: int):
    world.server.script = in_turn(refusing(status), refusing(status), serving(DATA))
    assert world.data("get", "toy@1").code == 0
    assert world.server.starts == [None, None, None]


@pytest.mark.parametrize(
    ("spoil", "said", "kept"),
    [
        (lambda script: refusing(503), "HTTP 503 (5 tries); nothing is kept", 0),
        (lambda script: cut(script, 1000), "(5 tries); 5,000 of 300,000 bytes are kept, the same command", 5000),
        (lambda script: stuck(script, 1000), "nothing came for 0.2 s (5 tries); 5,000 of 300,000 bytes", 5000),
    ],
    ids=["overloaded", "cut", "silent"],
)
def test_tries_are_bounded_and_what_came_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Script], Script], said: str, kept: int
):
    monkeypatch.setattr(datasets, "SILENCE", 0.2)
    world.server.script = spoil(serving(DATA))
    finished = world.data("get", "toy@1")
    assert finished.code == 1
    assert said in last_line(finished)
    assert len(world.server.asked) == datasets.TRIES
    assert (world.part.stat().st_size if world.part.exists() else 0) == kept


def test_a_silent_connection_is_left_and_the_next_one_goes_on(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(datasets, "SILENCE", 0.2)
    world.server.script = in_turn(stuck(serving(DATA), KEPT), serving(DATA))
    assert world.data("get", "toy@1").code == 0
    assert world.server.starts == [None, KEPT]
    assert world.server.sent == len(DATA)


def test_a_dataset_that_fails_does_not_keep_others_away(world: World):
    missing = refusing(404)
    world.server.script = lambda asked: (missing if "toy@1" in asked.path else serving(DATA))(asked)
    finished = world.data("get", "toy@1", "toy@2", "--json")
    assert finished.code == 1
    failed, got = json.loads(finished.out)
    assert (failed["here"], "HTTP 404" in failed["error"]) == (False, True)
    assert (got["here"], got["downloaded"]) == (True, 300_000)


def test_two_processes_never_write_to_one_folder(world: World):
    world.path.parent.mkdir(parents=True)
    with FileLock(world.path.parent / ".lock"):
        finished = world.data("get", "toy@1")
    assert finished.code == 2
    assert last_line(finished) == f"memtrials: {world.path.parent}: another process is downloading to it; wait for it"
    assert world.server.asked == []


def test_a_folder_that_cannot_be_made_is_one_line(world: World, tmp_path: Path):
    (tmp_path / "a file").write_bytes(b"")
    finished = world.data("get", "toy@1", "--to", str(tmp_path / "a file"))
    assert finished.code == 2
    assert last_line(finished).startswith(f"memtrials: {tmp_path / 'a file'}")
    assert "can't be written" in last_line(finished)


# Mirrors


def test_a_mirror_has_each_file_under_its_dataset(world: World):
    base = world.server.url.replace("//", "//me:secret@") + "/mirror/"
    finished = world.data("get", "toy@1", MEMTRIALS_DATA_BASE_URL=base)
    assert finished.code == 0
    (asked,) = world.server.asked
    assert asked.path == "/mirror/toy@1/data.bin"
    assert asked.headers["authorization"].startswith("Basic ")
    source = (world.path.parent / "SOURCE.json").read_text("utf-8")
    assert json.loads(source)["files"][0]["url"] == f"{world.server.url}/mirror/toy@1/data.bin"
    assert "secret" not in source


def test_a_mirrors_password_is_in_no_message(world: World):
    world.server.script = refusing(404)
    finished = world.data("get", "toy@1", MEMTRIALS_DATA_BASE_URL=world.server.url.replace("//", "//me:secret@"))
    assert "HTTP 404" in finished.err
    assert "secret" not in finished.err + finished.out


@pytest.mark.parametrize("base", ["mirror", "ftp://mirror.example", "http://", "http://mirror.example:port"])
def test_a_mirror_that_is_no_address_is_one_line(world: World, base: str):
    finished = world.data("get", "toy@1", MEMTRIALS_DATA_BASE_URL=base)
    assert finished.code == 2
    said = "memtrials: MEMTRIALS_DATA_BASE_URL (environment): not an address; write it as https://HOST/PATH"
    assert last_line(finished) == said


# Looking


def test_list_says_what_is_here_without_asking_anybody(world: World):
    world.server.script = in_turn(serving(DATA), cut(serving(DATA), KEPT), refusing(404))
    world.data("get", "toy@1", "toy@2")
    asked = len(world.server.asked)
    rows = {line.split()[1]: line for line in world.data("list").out.splitlines() if "toy@" in line}
    assert "300.0 kB" in rows["toy@1"]
    assert " yes " in rows["toy@1"]
    assert "100.0 kB of it" in rows["toy@2"]
    first, second = json.loads(world.data("list", "--json").out)
    assert (first["here"], first["part"], first["size"], first["licence"]) == (True, 0, 300_000, "MIT")
    assert (second["here"], second["part"]) == (False, KEPT)
    assert len(world.server.asked) == asked


def test_where_prints_the_folder_alone(world: World):
    missing = world.data("where", "toy@1")
    assert (missing.code, missing.out) == (2, "")
    assert missing.err == (f"memtrials: toy@1 isn't in {world.path.parent}; get it: memtrials data get toy@1\n")
    world.data("get", "toy@1")
    found = world.data("where", "toy@1")
    assert (found.code, found.out, found.err) == (0, f"{world.path.parent}\n", "")


def test_names_are_a_dataset_or_the_benchmark_of_only_one(world: World):
    assert world.data("where", "toy").err == "memtrials: toy is toy@1 or toy@2; name one\n"
    assert "did you mean toy@2 or toy@1?" in world.data("where", "toy@3").err


def test_verify_reads_every_byte_again(world: World):
    assert world.data("verify").out == "no dataset is here\n"
    world.data("get", "toy@1")
    right = world.data("verify")
    assert (right.code, right.out) == (0, f"{world.path}: right\n")
    world.path.write_bytes(DATA[:-1] + b"!")
    wrong = world.data("verify", "toy@1")
    digest = hashlib.sha256(DATA[:-1] + b"!").hexdigest()
    assert wrong.code == 1
    assert wrong.out == (
        f"{world.path}: SHA-256 {digest[:12]}… where {SHA256[:12]}… is published; remove it and run "
        "`memtrials data get toy@1`\n"
    )
    assert json.loads(world.data("verify", "--json").out)[0]["sha256"] == digest
    missing = world.data("verify", "toy@2")
    assert (missing.code, missing.out.rpartition(": ")[2]) == (1, "missing\n")


# What is described


def test_what_is_described_is_complete():
    known = datasets.catalogue()
    assert list(known) == ["inmind", "longmemeval@s", "longmemeval@m", "longmemeval@oracle", "locomo@10"]
    sizes = {name: dataset.size for name, dataset in known.items()}
    assert sizes == {
        "inmind": None,
        "longmemeval@s": 277_383_467,
        "longmemeval@m": 2_737_100_077,
        "longmemeval@oracle": 15_388_478,
        "locomo@10": 2_805_274,
    }
    hashes = [file.sha256 for dataset in known.values() for file in dataset.files if file.sha256]
    assert [digest for digest in hashes if len(digest) != 64 or digest.strip("0123456789abcdef")] == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("size = 300000, ", "", "toy@1, data.bin: what has a url needs size and sha256"),
        ("url = ", "# url = ", "can't be used ("),
        ("licence", "license", "can't be used (Object contains unknown field `license`)"),
    ],
)
def test_a_description_that_cannot_be_used_is_one_line(world: World, before: str, after: str, said: str):
    path = world.evaluation / "datasets.toml"
    path.write_text(path.read_text("utf-8").replace(before, after), "utf-8")
    finished = world.data("list")
    assert (finished.code, finished.err.count("\n")) == (2, 1)
    assert said in finished.err


# What is got by hand


@pytest.fixture
def kept(tmp_path: Path) -> dict[str, str]:
    """A data folder of its own, for what is really described."""
    return {"MEMTRIALS_DATA": str(tmp_path / "kept")}


def test_what_cannot_be_downloaded_says_how_to_get_it(kept: dict[str, str], tmp_path: Path):
    finished = call_cli("data", "get", "locomo@10", "inmind", env=kept)
    folder = tmp_path / "kept" / "inmind"
    assert (finished.code, finished.out) == (2, "")
    assert "licence: none stated." in finished.err
    clone = f"git clone -c core.autocrlf=false https://github.com/imlrz/InMind {folder}"
    assert last_line(finished) == f"memtrials: inmind has to be got by hand: {clone}"
    assert not folder.parent.exists()  # nor was anything else begun


def test_what_was_got_by_hand_is_found_and_verified(kept: dict[str, str], tmp_path: Path, sample: Path):
    folder = tmp_path / "kept" / "inmind"
    shutil.copytree(sample, folder)
    assert call_cli("data", "get", "inmind", env=kept).out == f"inmind: nothing to do; in {folder}\n"
    assert call_cli("data", "where", "inmind", env=kept).out == f"{folder}\n"
    verified = call_cli("data", "verify", env=kept)
    assert verified.code == 1  # the bundled sample is no release
    assert f"{folder / 'evaluation/background/manifest.json'}: no published hash" in verified.out


# Building from it


def test_build_takes_what_was_got(kept: dict[str, str], tmp_path: Path, sample: Path):
    trials = str(tmp_path / "trials.json")
    missing = call_cli("build", "inmind@stripped", "--trials", trials, env=kept)
    folder = tmp_path / "kept" / "inmind"
    assert missing.code == 2
    assert missing.err == (
        f"memtrials: inmind isn't in {folder}; get it: memtrials data get inmind, or name the folder of the release "
        "with --data\n"
    )
    shutil.copytree(sample, folder)
    built = call_cli("build", "inmind@stripped", "--trials", trials, "--json", env=kept)
    assert (built.code, json.loads(built.out)["appended"]) == (0, 8)
    ran = call_cli("run", "inmind@stripped", "none", "--limit", "1", "--trials", trials, "--quiet", env=kept)
    assert ran.code == 0, ran.err


def test_each_variant_is_built_from_its_own_dataset_else_from_the_benchmarks(world: World):
    settings = Settings((("test", world.environment),))
    world.data("get", "toy@1")
    assert datasets.folder_for_build("toy", "1", settings) == world.path.parent
    with pytest.raises(UserError, match=r"toy@2 isn't in .*; get it: memtrials data get toy@2, or name"):
        datasets.folder_for_build("toy", "2", settings)
    with pytest.raises(UserError, match="toy is toy@1 or toy@2; name one, or name"):
        datasets.folder_for_build("toy", None, settings)
    with pytest.raises(UserError, match="own: name the folder of the release with --data"):
        datasets.folder_for_build("own", None, settings)
