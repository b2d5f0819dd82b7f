"""What embeddings from an endpoint cost: under caps, in failures, in `status` and in a dry run.

The server says that each text came to 10 tokens, and `model-e` costs a dollar for 1,000 tokens: a cent a text.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memtrials.llm import money
from memtrials.systems.endpoint import EndpointEmbedder
from memtrials.systems.substrate import plugin as substrate
from memtrials.tokens import count_tokens
from support.cli import call_cli
from support.embedding_server import TOKENS_EACH, EmbeddingServer, embedded
from support.lives import fixture, key, query, remember, visitors
from support.model_server import Reply, error
from support.trials import ended, records, stage

TASKS = 8
TEXT = 0.01
VECTOR = '[state]\nsystem = "embedded"\nretriever = "vector"\nembedding = "openai:model-e"\n'


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EndpointEmbedder, "pause", 0.0)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The price of the model."""
    rows: dict[str, Any] = {"model-e": {"input": 1000.0, "output": 0}}
    monkeypatch.setattr(money, "_table", lambda path: rows if path.name == "prices.toml" else {})
    return rows


@pytest.fixture
def server() -> Iterator[EmbeddingServer]:
    with EmbeddingServer() as server:
        yield server


@pytest.fixture
def env(server: EmbeddingServer, tmp_path: Path) -> dict[str, str]:
    return {**server.environment(), "MEMTRIALS_CACHE": str(tmp_path / "cache")}


@pytest.fixture
def vector(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(VECTOR, "utf-8")
    return str(path)


def sent_by(trials: Path, *kinds: str) -> tuple[int, int]:
    """Requests and tokens that records of these kinds say were sent."""
    usages = [r["body"].get("usage") or {} for kind in kinds for r in records(trials, kind)]
    requests, tokens = (sum(u.get(f"embedding_{n}", 0) for u in usages) for n in ("requests", "tokens"))
    return requests, tokens


def test_requests_are_capped_over_all_runs(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str):
    """A state that the cap cuts off fails with what it sent, and the next run goes on from the cache."""
    capped = ("replay", vector, "--max-requests", "5")
    outcome = stage(built, *capped, code=1, env=env)
    assert len(server.requests) == 5
    assert outcome["done"] + outcome["failed"] + outcome["left"] == TASKS
    assert any("stopped at --max-requests 5" in note for note in outcome["notes"])
    assert sent_by(built, "ingest", "failure") == (5, TOKENS_EACH * len(server.texts))
    (failure,) = records(built, "failure")
    assert (failure["class"], failure["stage"], failure["body"]["cause"]) == ("transient", "replay", "service")
    assert failure["body"]["message"].startswith("--max-requests 5 after ")
    again = stage(built, *capped, code=1, env=env)
    assert (again["done"], again["failed"], again["left"], len(server.requests)) == (0, 0, again["pending"], 5)
    assert stage(built, "replay", vector, env=env)["failed"] == 0
    assert len(set(server.texts)) == len(server.texts)  # nothing was sent twice
    assert list(built.with_suffix(".stores").glob("*/*.part")) == []


def test_money_is_capped_over_all_runs(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str, table: dict[str, Any]
):
    """No request goes that could cross the cap, by the tokens of its texts; what it really cost is counted after."""
    capped = ("replay", vector, "--max-cost", "0.9")
    stage(built, *capped, code=1, env=env)
    spent = TEXT * len(server.texts)
    assert 0 < spent <= 0.9
    sent = len(server.requests)
    stage(built, *capped, code=1, env=env)
    assert len(server.requests) == sent
    done = stage(built, "replay", vector, "--max-cost", "1000", env=env)
    assert done["left"] == done["failed"] == 0
    texts = len(server.texts)
    assert stage(built, "fetch", "--max-cost", "0.0001", code=1, env=env)["done"] == 0  # another stage, another purse
    assert len(server.texts) == texts
    assert stage(built, "fetch", "--max-cost", "1000", env=env)["done"] == 2 * TASKS
    assert len(server.texts) > texts


def test_queries_are_capped_over_all_runs(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str):
    stage(built, "replay", vector, env=env)
    before = len(server.requests)
    outcome = stage(built, "fetch", "--max-requests", "3", code=1, env=env)
    assert (outcome["done"], outcome["failed"], len(server.requests) - before) == (3, 0, 3)
    assert stage(built, "fetch", "--max-requests", "3", code=1, env=env)["done"] == 0
    assert stage(built, "fetch", "--max-requests", "4", code=1, env=env)["done"] == 1


def test_a_cap_needs_a_price(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str):
    told = call_cli("replay", vector, "--max-cost", "1", "--trials", str(built), env=env)
    assert ended(told, 2).err.startswith("memtrials: --max-cost: model-e has no price")
    assert (records(built, "ingest"), server.requests) == ([], [])
    assert stage(built, "replay", "vector", "--max-cost", "1", env=env)["done"] == TASKS  # nothing to pay for


def test_unreported_tokens_are_taken_at_their_dearest_and_are_unknown_afterwards(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str, table: dict[str, Any]
):
    server.script = lambda number, body: embedded(body, usage={})
    stage(built, "replay", vector, "--max-cost", "2", code=1, env=env)
    assert sum(map(count_tokens, server.texts)) / 1000 <= 2
    told = call_cli("replay", vector, "--max-cost", "2", "--trials", str(built), env=env)
    assert "model-e reported no usage" in ended(told, 2).err


def test_work_that_sent_nothing_before_a_cap_stays_pending(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str, table: dict[str, Any], tmp_path: Path
):
    """Part of the second state is in the cache, without its tokens; what it would send is over the cap."""
    other = tmp_path / "other" / "trials.json"
    other.parent.mkdir()
    other.write_bytes(built.read_bytes())
    server.script = lambda number, body: embedded(body, usage={})
    stage(other, "replay", vector, "--limit", "1", env=env)
    sent = len(server.requests)
    outcome = stage(built, "replay", vector, "--max-cost", "0.0001", code=1, env=env)
    assert (outcome["done"], outcome["failed"], outcome["left"]) == (1, 0, TASKS - 1)
    assert len(server.requests) == sent


def test_what_failed_states_took_is_recorded(built: Path, server: EmbeddingServer, env: dict[str, str], vector: str):
    def script(number: int, body: dict[str, Any]) -> Reply:
        return embedded(body) if number <= 2 else error(401, "invalid_api_key")

    server.script = script
    stage(built, "replay", vector, code=2, env=env)
    (failure,) = records(built, "failure")
    texts = sum(len(r.body["input"]) for r in server.requests[:2])
    assert failure["body"]["usage"]["embedding_requests"] == 3
    assert failure["body"]["usage"]["embedding_tokens"] == TOKENS_EACH * texts


def test_status_counts_embeddings(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str, table: dict[str, Any]
):
    stage(built, "replay", vector, env=env)
    (row,) = stage(built, "status")["rows"]
    replayed = len(server.texts)
    assert row["spent"] == pytest.approx(TOKENS_EACH * replayed, abs=TASKS)  # each record rounds
    assert row["usd"] == pytest.approx(TEXT * replayed, abs=TASKS * 0.001)
    stage(built, "fetch", env=env)
    (row,) = stage(built, "status")["rows"]
    assert row["spent"] == pytest.approx(TOKENS_EACH * len(server.texts), abs=TASKS)
    assert row["usd"] == pytest.approx(TEXT * len(server.texts), abs=TASKS * 0.001)
    del table["model-e"]
    (row,) = stage(built, "status")["rows"]
    assert (row["spent"] > 0, row["usd"]) == (True, None)


def test_a_dry_run_says_what_would_be_embedded_at_most(
    built: Path, server: EmbeddingServer, env: dict[str, str], vector: str, table: dict[str, Any]
):
    dry = stage(built, "replay", vector, "--dry-run", env=env)
    assert server.requests == []
    stage(built, "replay", vector, env=env)
    assert dry["embedding_requests"] == len(server.requests)
    assert dry["embedding_tokens"] == sum(map(count_tokens, server.texts))
    assert dry["cost_usd_max"] == pytest.approx(dry["embedding_tokens"] / 1000)
    assert "cost_usd_min" not in dry
    replayed = len(server.requests)
    queries = stage(built, "fetch", "--dry-run", "--repeat", "2", env=env)
    assert len(server.requests) == replayed
    stage(built, "fetch", env=env)
    assert queries["embedding_requests"] == len(server.requests) - replayed == 2 * TASKS
    assert queries["embedding_tokens"] == sum(count_tokens(r.body["input"][0]) for r in server.requests[replayed:])
    told = call_cli("replay", vector, "--dry-run", "--repeat", "2", "--trials", str(built), env=env)
    assert f", at most ${dry['cost_usd_max']:.4f}" in ended(told).err
    del table["model-e"]
    dry = stage(built, "replay", vector, "--dry-run", "--repeat", "2", env=env)
    assert ("embedding_tokens" in dry, "cost_usd_max" in dry) == (True, False)
    assert "embedding_tokens" not in stage(built, "replay", "hybrid", "--dry-run", env=env)


# --- scripted lives ---------------------------------------------------------------------------------------------


def described() -> dict[str, Any]:
    """A life whose three objects say different things, in a thread that was there before."""
    text, thread = "The lamp  stands on the sill.", {"thread_external_id": "canary-lamp", "confidence": 0.5}
    surfaces = {"episode": text, "observation": "The lamp was seen there.", "derived": "It lights the yard."}
    events = [
        remember(1, "sill", text, thread=thread),
        remember(2, "yard", text, thread=thread, surface_texts=surfaces),
        query(3, "canary-ask-lamp", "Where is the lamp?", []),
    ]
    return {**visitors(), "fixture_id": "canary-lamp-life", "namespace": "canary-space-lamp", "events": events}


@pytest.mark.parametrize("kind", ["substrate", "embedded"])
def test_a_dry_run_says_what_would_be_embedded_of_lives(
    tmp_path: Path, server: EmbeddingServer, env: dict[str, str], vector: str, kind: str
):
    """Also of one that is asked by means of copies, and with dates in what is asked."""
    trials = tmp_path / "lives.json"
    data = fixture(tmp_path / "fixture.json", key(), visitors(), described())
    stage(trials, "build", "continuity", "--data", str(data), "--allow-modified")
    if kind == "substrate":
        Path(vector).write_text('[state]\nsystem = "substrate"\nembedding = "openai:model-e"\n', "utf-8")
    asked = ("replay", vector, "--date-in-query")
    dry = stage(trials, *asked, "--dry-run", "--repeat", "2", env=env)
    assert server.requests == []
    stage(trials, *asked, env=env)
    assert dry["embedding_requests"] == len(server.requests)
    assert dry["embedding_tokens"] == sum(map(count_tokens, server.texts))


def test_a_dry_run_says_what_it_does_not_know_of_lives(
    tmp_path: Path, env: dict[str, str], vector: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(substrate.PLUGINS, "substrate", replace(substrate.PLUGINS["substrate"], embeds_life=None))
    trials = tmp_path / "lives.json"
    stage(trials, "build", "continuity", "--data", str(fixture(tmp_path / "f.json")), "--allow-modified")
    Path(vector).write_text('[state]\nsystem = "substrate"\nembedding = "openai:model-e"\n', "utf-8")
    dry = stage(trials, "replay", vector, "--dry-run", env=env)
    assert "embedding_requests" not in dry
    assert dry["notes"] == ["mine: nobody knows beforehand what it has embedded of a life"]
