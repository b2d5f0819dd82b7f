"""Systems whose embeddings come from an endpoint, through all stages: what crosses, what is kept, what goes wrong."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memtrials.systems.endpoint import EndpointEmbedder
from support.canary import CanaryCopy, canary_copy
from support.cli import call_cli, environment
from support.embedding_server import DIMENSIONS, TOKENS_EACH, EmbeddingServer, embedded, refusing, vector_of
from support.model_server import KEY, error
from support.trials import ended, files, records, stage

TASKS = 8

VECTOR = """
[state]
system = "embedded"
retriever = "vector"
embedding = "openai:model-e"
"""


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EndpointEmbedder, "pause", 0.0)


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server


@pytest.fixture
def env(server: EmbeddingServer, tmp_path: Path) -> dict[str, str]:
    """Where the server is, and a cache of one's own."""
    return {**server.environment(), "MEMTRIALS_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def vector(tmp_path: Path) -> str:
    return toml(tmp_path, "mine", VECTOR)


def toml(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.toml"
    path.write_text(text, "utf-8")
    return str(path)


def one_line(trials: Path, *arguments: str, env: dict[str, str]) -> str:
    """What a command that ends with 2 says, which is one line."""
    finished = ended(call_cli(*arguments, "--trials", str(trials), "--quiet", env=env), 2)
    (line,) = finished.err.splitlines()
    return line


def stopped(trials: Path, *arguments: str, env: dict[str, str]) -> str:
    """What a stage says that a fatal trouble ended."""
    return ended(call_cli(*arguments, "--trials", str(trials), "--quiet", env=env), 2).err


def everything(folder: Path) -> bytes:
    """Every file and file name below a folder."""
    return b"".join(path.encode() + content for path, content in files(folder).items())


# All stages


@pytest.mark.parametrize("system", ["vector", "hybrid", "naive-rag"])
def test_replay_and_fetch_use_the_endpoint(built: Path, server: EmbeddingServer, env: dict[str, str], system: str):
    named = toml(
        built.parent,
        "mine",
        f'[state]\nsystem = "{"naive-rag" if system == "naive-rag" else "embedded"}"\n'
        f'retriever = "{"hybrid" if system == "hybrid" else "vector"}"\nembedding = "openai:model-e"\n',
    )
    assert stage(built, "replay", named, env=env)["done"] == TASKS
    assert stage(built, "fetch", "mine", env=env)["done"] == 2 * TASKS
    assert len(set(server.texts)) == len(server.texts), "no text is sent twice"
    (config,) = (r["body"] for r in records(built, "config") if r["body"]["role"] == "system")
    assert config["settings"]["embedding_model"] == "model-e"
    if system == "vector":
        retrieval = records(built, "retrieval")[0]["body"]
        items = retrieval["items"]
        asked = vector_of(retrieval["question"])
        for item in items:
            shown = vector_of(item["text"])
            cosine = shown @ asked / (sum(shown**2) * sum(asked**2)) ** 0.5
            assert item["score"] == pytest.approx(cosine, abs=1e-5)
        assert [i["score"] for i in items] == sorted((i["score"] for i in items), reverse=True)


def test_a_session_is_one_request(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str):
    stage(built, "replay", vector, "--limit", "1", env=env)
    assert len(server.requests) <= 12
    assert max(map(len, server.batches)) > 1


def test_a_second_ledger_sends_nothing_and_is_charged_the_same(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str, tmp_path: Path
):
    other = tmp_path / "other" / "trials.json"
    other.parent.mkdir()
    other.write_bytes(built.read_bytes())
    for trials in (built, other):
        sent = len(server.requests)
        stage(trials, "replay", vector, env=env)
        stage(trials, "fetch", env=env)
    assert len(server.requests) == sent
    charged = []
    for trials in (built, other):
        bodies = [r["body"] for kind in ("ingest", "retrieval") for r in records(trials, kind)]
        charged.append([body["usage"]["charged_embedding_tokens"] for body in bodies])
        spent = sum(body["usage"]["embedding_tokens"] for body in bodies)
        assert spent == pytest.approx(TOKENS_EACH * len(server.texts) if trials is built else 0, abs=len(bodies))
        assert sum(body["usage"]["embedding_requests"] for body in bodies) == (sent if trials is built else 0)
    assert charged[0] == charged[1]
    assert all(tokens > 0 for tokens in charged[0])
    for body in (r["body"] for r in records(other, "ingest")):
        assert body["effort"]["charged_seconds"] > body["effort"]["seconds"]
        assert "embedded_at" not in body
    assert records(built, "ingest")[0]["body"]["embedded_at"] == server.url


def test_another_process_sends_nothing_that_is_cached(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str
):
    stage(built, "replay", vector, "--limit", "3", env=env)
    sent = server.texts
    done = subprocess.run(
        [sys.executable, "-m", "memtrials", "replay", vector, "--trials", str(built), "--quiet"],
        env=environment(env),
        check=False,
    )
    assert done.returncode == 0
    assert len(records(built, "ingest")) == TASKS
    assert not set(sent) & set(server.texts[len(sent) :])


# The model is part of the id; keys and endpoints are not


def test_the_id_is_made_by_model_dimensions_and_revision_alone(
    built: Path, server: EmbeddingServer, env: dict[str, str], tmp_path: Path
):
    def replayed(more: str = "", **variables: str) -> str:
        stage(built, "replay", toml(tmp_path, "mine", VECTOR + more), "--limit", "1", env={**env, **variables})
        return records(built, "ingest")[-1]["system"]

    first = replayed()
    ids = {first, replayed("dimensions = 4\n"), replayed('revision = "q4"\n')}
    assert len(ids) == 3
    assert len(records(built, "ingest")) == 3
    with EmbeddingServer() as elsewhere:
        replayed(**elsewhere.environment(), EMBED_MODEL="model-x")
    assert len(records(built, "ingest")) == 3
    assert elsewhere.requests == []


def test_endpoint_takes_the_configured_model_and_makes_the_same_id(
    built: Path, server: EmbeddingServer, env: dict[str, str], tmp_path: Path, vector: str
):
    stage(built, "replay", vector, env=env)
    same = toml(tmp_path, "mine", VECTOR.replace("openai:model-e", "endpoint"))
    assert stage(built, "replay", same, env={**env, "EMBED_MODEL": "model-e"})["pending"] == 0
    assert "EMBED_MODEL, which isn't set" in one_line(built, "replay", same, env={**env, "LLM_MODEL": "chat"})
    assert stage(built, "fetch", same, env={**env, "EMBED_MODEL": "model-e"})["done"] == 2 * TASKS


def test_a_key_alone_never_spends(built: Path, server: EmbeddingServer, env: dict[str, str]):
    stage(built, "replay", "vector", "--limit", "1", env={**env, "EMBED_MODEL": "model-e", **server.environment("LLM")})
    assert server.requests == []


def test_llm_and_openai_variables_are_looked_at_too(built: Path, server: EmbeddingServer, tmp_path: Path, vector: str):
    for role in ("OPENAI", "LLM"):
        env = {**server.environment(role), "MEMTRIALS_CACHE": str(tmp_path / role)}
        stage(built, "replay", vector, "--limit", "1", "--repeat", "1" if role == "OPENAI" else "2", env=env)
    assert {request.headers["authorization"] for request in server.requests} == {f"Bearer {KEY}"}


# What the user must fix


def test_a_missing_key_ends_before_anything_is_written(built: Path, vector: str, tmp_path: Path):
    before, env = files(tmp_path), {"EMBED_BASE_URL": "http://127.0.0.1:9/v1"}
    line = one_line(built, "replay", vector, env=env)
    assert line.startswith("memtrials: no key for embed model-e: set EMBED_API_KEY, LLM_API_KEY or OPENAI_API_KEY")
    after = files(tmp_path)
    assert {name: after[name] for name in before} == before
    assert not [name for name in after if name not in before and "locks" not in name]


def test_fetch_needs_the_key_too(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str):
    stage(built, "replay", vector, env=env)
    before = built.read_bytes()
    without = {name: value for name, value in env.items() if "KEY" not in name}
    assert "no key for embed model-e" in one_line(built, "fetch", env=without)
    assert built.read_bytes() == before


def test_a_dry_run_needs_no_key_and_sends_nothing(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str
):
    without = {name: value for name, value in env.items() if "KEY" not in name}
    assert stage(built, "replay", vector, "--dry-run", env=without)["states"] == TASKS
    stage(built, "replay", vector, env=env)
    sent = len(server.requests)
    assert stage(built, "fetch", "--dry-run", env=without)["pending"] == 2 * TASKS
    assert len(server.requests) == sent


def test_a_wrong_key_costs_one_request(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str):
    server.script = lambda number, body: error(401, "invalid_api_key", f"Incorrect API key provided: {KEY}")
    line = stopped(built, "replay", vector, env=env)
    assert f"embedding model model-e at {server.url}: HTTP 401: Incorrect API key provided: ***" in line
    assert len(server.requests) == 1
    (failure,) = records(built, "failure")
    assert (failure["stage"], failure["class"], failure["body"]["cause"]) == ("replay", "fatal", "service")
    assert list(built.with_suffix(".stores").glob("*/*")) == []
    server.script = lambda number, body: embedded(body)
    assert stage(built, "replay", vector, env=env)["done"] == TASKS


def test_other_dimensions_than_asked_for_end_the_stage(
    built: Path, server: EmbeddingServer, env: dict[str, str], tmp_path: Path
):
    server.script = lambda number, body: embedded(body, dimensions=DIMENSIONS)
    four = toml(tmp_path, "four", VECTOR + "dimensions = 4\n")
    assert "a vector has 8 dimensions, 4 were asked for" in stopped(built, "replay", four, env=env)
    assert len(server.requests) == 1


def test_other_dimensions_at_fetch_than_at_replay_end_the_stage(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str
):
    stage(built, "replay", vector, env=env)
    server.script = lambda number, body: embedded(body, dimensions=6)
    line = stopped(built, "fetch", env=env)
    assert "the state's vectors have 8 dimensions and the query's 6" in line


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ('embedding = "wordlama-256"\n', "unknown embedding 'wordlama-256'; did you mean wordllama-256?"),
        ("dimensions = 64\n", "dimensions is for a model behind an endpoint"),
        ('embedding = "openai:m"\ndimensions = "64"\n', "dimensions is '64'; its type must be int"),
        ('embedding = "openai:m"\ndimensions = 0\n', "dimensions is 0"),
        ('embedding = "openai:"\n', "name the model too"),
        ('retriever = "bm25"\ndimensions = 64\n', "dimensions is for embeddings, and the retriever bm25 makes none"),
    ],
)
def test_what_is_wrong_in_a_toml_is_said(built: Path, tmp_path: Path, more: str, complaint: str):
    wrong = toml(tmp_path, "wrong", f'[state]\nsystem = "embedded"\n{more}')
    line = one_line(built, "replay", wrong, env={})
    assert line.startswith(f"memtrials: {wrong}, table [state]: ")
    assert complaint in line


def test_doctor_shows_the_embedding_endpoint(tmp_path: Path):
    def shown(**env: str) -> tuple[int, list[str]]:
        finished = call_cli("doctor", "--trials", str(tmp_path / "trials.json"), env={"COLUMNS": "200", **env})
        assert KEY not in finished.out + finished.err
        return finished.code, [line.strip() for line in finished.out.splitlines() if "embed " in line]

    code, lines = shown()
    assert code == 0
    assert [line.split("  ")[0] for line in lines] == ["embed model", "embed base URL", "embed key"]
    code, lines = shown(EMBED_MODEL="model-e", EMBED_BASE_URL="http://127.0.0.1:9/v1", EMBED_API_KEY=KEY)
    assert code == 0
    for line, value in zip(lines, ("model-e", "http://127.0.0.1:9/v1", "…ef"), strict=True):
        assert value in line
        assert "EMBED_" in line
    code, lines = shown(EMBED_MODEL="model-e")
    assert code == 2


# What passes, and what is about one text


def test_troubles_that_pass_leave_no_trace(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str):
    busy = error(429, "rate_limit_exceeded", headers={"Retry-After": "0"})
    server.script = lambda number, body: (busy, error(500), embedded(body))[number % 3]
    assert stage(built, "replay", vector, env=env)["done"] == TASKS
    assert records(built, "failure") == []


def test_an_endpoint_that_stays_away_fails_states_not_the_stage(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str
):
    server.script = lambda number, body: error(500)
    outcome = stage(built, "replay", vector, "--limit", "2", code=1, env=env)
    assert (outcome["failed"], outcome["left"]) == (2, 0)
    assert len(server.requests) == 2 * 6
    assert {(f["class"], f["body"]["cause"], f["body"]["attempts"]) for f in records(built, "failure")} == {
        ("transient", "service", 6)
    }
    server.script = lambda number, body: embedded(body)
    assert stage(built, "replay", vector, "--limit", "2", env=env)["done"] == 2


def test_a_text_that_is_too_long_fails_its_state_and_the_stage_goes_on(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str
):
    target = records(built, "task")[3]["body"]["gold"][0]["details"]["user_message"]

    def script(number: int, body: dict[str, Any]) -> Any:
        too_long = target in body["input"]
        return error(400, None, "maximum context length is 8192 tokens") if too_long else embedded(body)

    server.script = script
    for run in (1, 2, 3):
        outcome = stage(built, "replay", vector, code=1, env=env)
        assert (outcome["done"], outcome["failed"], outcome["left"]) == (TASKS - 1 if run == 1 else 0, 1, 0)
    for failure in records(built, "failure"):
        assert (failure["class"], failure["body"]["cause"], failure["body"]["attempts"]) == ("content", "system", 1)
        assert failure["body"]["message"].endswith(f"; the text has {len(target):,} characters")
    sent = len(server.requests)
    assert stage(built, "replay", vector, env=env)["skipped"] == 1  # given up after three runs
    assert len(server.requests) == sent


def test_a_query_that_is_too_long_fails_alone(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str):
    stage(built, "replay", vector, env=env)
    questions = [q["text"] for r in records(built, "task") for q in r["body"]["queries"]]
    longest = max(questions, key=len)
    server.script = refusing(len(longest) - 1)
    outcome = stage(built, "fetch", code=1, env=env)
    too_long = sum(len(q) == len(longest) for q in questions)
    assert (outcome["done"], outcome["failed"]) == (2 * TASKS - too_long, too_long)
    assert {f["class"] for f in records(built, "failure")} == {"content"}


# Secrets and canaries


def test_the_key_is_in_no_file(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str, tmp_path: Path):
    server.script = lambda number, body: error(400, None, f"no: {KEY}") if number == 1 else embedded(body)
    said = ended(call_cli("replay", vector, "--trials", str(built), env=env), 2)
    stage(built, "replay", vector, env=env)
    stage(built, "fetch", env=env)
    assert KEY.encode() not in everything(tmp_path)
    assert KEY not in said.out + said.err
    assert server.url.encode() in built.read_bytes()  # recorded in bodies, in no id


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[CanaryCopy, EmbeddingServer, Path]]:
    """A canary copy replayed and fetched with an endpoint."""
    folder = tmp_path_factory.mktemp("canary")
    copy = canary_copy(folder / "data", "here")
    run = folder / "run"
    run.mkdir()
    with EmbeddingServer() as server:
        env = {**server.environment(), "MEMTRIALS_CACHE": str(folder / "cache")}
        stage(run / "trials.json", "build", "inmind", "--data", str(copy.folder), "--allow-modified")
        stage(run / "trials.json", "replay", toml(folder, "mine", VECTOR), env=env)
        stage(run / "trials.json", "fetch", env=env)
        yield copy, server, folder


def test_only_texts_cross_to_the_endpoint(canary: tuple[CanaryCopy, EmbeddingServer, Path]):
    copy, server, folder = canary
    ingests = [r["body"] for r in records(folder / "run" / "trials.json", "ingest")]
    assert len(ingests) == TASKS
    names = [name for body in ingests for name in (body["namespace"], body["user"])]
    asked = []
    for request in server.requests:
        crossed = request.path.encode() + repr(sorted(request.headers.items())).encode() + request.raw
        assert not copy.leaks(crossed)
        assert set(request.body) == {"model", "input", "encoding_format"}
        assert not [name for name in names if name.encode() in crossed]
        for word in (b"inmind", b"lme_s_background", b"naive_query"):
            assert word not in crossed
        if queries := copy.queries_in(crossed):
            assert request.body["input"] == [*queries]
            asked += queries
    assert sorted(asked) == sorted(copy.queries.values())


def test_the_cache_and_the_stores_hold_nothing_private(canary: tuple[CanaryCopy, EmbeddingServer, Path]):
    copy, _, folder = canary
    for kept in (folder / "cache", folder / "run" / "trials.stores"):
        assert files(kept)
        assert not copy.leaks(everything(kept))


# Ctrl-C


def test_ctrl_c_is_heard_while_the_endpoint_is_slow(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str
):
    """The state in flight is finished, no other is begun."""

    def slow(number: int, body: dict[str, Any]) -> Any:
        time.sleep(0.1)
        return embedded(body)

    server.script = slow
    command = [sys.executable, "-m", "memtrials", "replay", vector, "--trials", str(built), "--json"]
    process = subprocess.Popen(command, env=environment(env), stdout=subprocess.PIPE, start_new_session=True)
    while not server.requests:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    outcome = json.loads(out)
    assert outcome["done"] <= 1
    assert outcome["done"] + outcome["left"] == TASKS
    assert list(built.with_suffix(".stores").glob("*/*.part")) == []
