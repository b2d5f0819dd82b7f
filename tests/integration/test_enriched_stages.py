"""What was precomputed, from the command that makes it to the system that is given it; and what the data derived."""

import json
from pathlib import Path
from typing import Any

import pytest

from memtrials import systems
from memtrials.benchmarks.enrichment import Derived, Entity, Graph, manifest_of
from memtrials.benchmarks.timeline import Session, Turn
from memtrials.settings import evaluation
from memtrials.systems.base import Enriched, Surroundings
from memtrials.systems.embedding import CachedEmbedder
from memtrials.systems.substrate.plugin import EmbeddedSubstrate
from memtrials.tokens import count_tokens
from support.canary import CanaryCopy, locomo_copy, longmemeval_copy
from support.cli import call_cli
from support.locomo import FOLDER as LOCOMO
from support.locomo import changed
from support.longmemeval import SAMPLE as LONGMEMEVAL
from support.trials import ended, files, records, stage

SESSIONS, TURNS = 5, 33
SUMMARIES, STATEMENTS = 5, 10

Given = dict[str, Graph]
"""What systems were given, by namespace."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    seen: Given = {}
    enrich = EmbeddedSubstrate.enrich

    def spied(self: EmbeddedSubstrate, namespace: str, graph: Graph) -> None:
        seen[namespace] = graph
        enrich(self, namespace, graph)

    monkeypatch.setattr(EmbeddedSubstrate, "enrich", spied)
    return seen


@pytest.fixture
def trials(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "trials.json"


def made(benchmark: str, data: Path, out: Path, *flags: str) -> Path:
    """A snapshot of a benchmark."""
    ended(call_cli("enrichment", "build", benchmark, "--data", str(data), "--out", str(out), *flags))
    return out


def system(path: Path, key: str, file: str) -> str:
    """A system that is given a file."""
    path.write_text(f'[state]\nsystem = "substrate"\n{key} = "{file}"\n', "utf-8")
    return str(path)


def refused(trials: Path, *arguments: str) -> str:
    """What a command says that the user must fix something about; it writes nothing."""
    before = files(trials.parent)
    finished = ended(call_cli(*arguments, "--trials", str(trials)), 2)
    assert files(trials.parent) == before
    return finished.err


def told_before(item: dict[str, Any]) -> dict[int, list[dict[str, Any]]]:
    """The sessions of an instance up to its question, by position."""
    asked = item["question_date"][:10] + item["question_date"][-6:]
    sessions = enumerate(zip(item["haystack_dates"], item["haystack_sessions"], strict=True))
    return {n: turns for n, (date, turns) in sessions if date[:10] + date[-6:] <= asked}


def lines(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


# --- snapshots --------------------------------------------------------------------------------------------------


def test_a_snapshot_says_every_turn_once_more_and_nothing_else(tmp_path: Path):
    path = made("locomo", LOCOMO, tmp_path / "x.jsonl")
    (row,) = (json.loads(line) for line in path.read_text("ascii").splitlines())
    assert (row["snapshot_id"], row["namespace"], row["dataset_item_id"]) == (
        "locomo:conv-1@final_session",
        "locomo:conv-1",
        "conv-1",
    )
    assert row["cutoff"] == {"type": "final_session", "value": "session_5"}
    conversation = json.loads((LOCOMO / "locomo_sample.json").read_bytes())[0]["conversation"]
    said = [turn for n in range(1, SESSIONS + 1) for turn in conversation[f"session_{n}"]]
    graph = row["graph"]
    assert [memory["text"] for memory in graph["derived_memories"]] == [turn["text"] for turn in said]
    assert [memory["source_observation_external_ids"] for memory in graph["derived_memories"]] == [
        [turn["dia_id"]] for turn in said
    ]
    assert graph["threads"][0]["last_touched_at"] == "2024-03-03T18:40:00Z"
    assert [entity["name"] for entity in graph["entities"]] == ["Ines", "Tobias"]
    assert len(graph["links"]) == 2 * TURNS
    manifest = json.loads(manifest_of(path).read_bytes())
    assert manifest["workflow_id"] == "deterministic-exact-source-replay-v1"
    assert manifest["dataset"]["name"] == "locomo"


def test_sessions_after_the_question_are_left_out(tmp_path: Path):
    path = made("longmemeval", LONGMEMEVAL, tmp_path / "x.jsonl")
    instances = {item["question_id"]: item for item in json.loads(LONGMEMEVAL.read_bytes())}
    left_out = 0
    for row in map(json.loads, path.read_text("ascii").splitlines()):
        item = instances[row["dataset_item_id"]]
        assert row["cutoff"] == {"type": "question_date", "value": item["question_date"]}
        told = told_before(item)
        assert len(row["graph"]["threads"]) == len(told)
        left_out += len(item["haystack_sessions"]) - len(told)
    assert left_out == 2


@pytest.mark.parametrize("benchmark", ["locomo", "longmemeval"])
def test_the_same_conversations_give_the_same_bytes_whatever_gold_says(tmp_path: Path, benchmark: str):
    data = LOCOMO / "locomo_sample.json" if benchmark == "locomo" else LONGMEMEVAL
    twin = json.loads(data.read_bytes())
    for item in twin:
        for row in item.get("qa", [item]):
            row.update(answer="a token", question="a token?", **({"evidence": []} if "evidence" in row else {}))
            if "adversarial_answer" in row:
                row["adversarial_answer"] = "a token"
        for block in ("observation", "session_summary", "event_summary"):
            if block in item:
                item[block] = {"session_1": "a token"}
        if "haystack_sessions" in item:
            item["question_type"] = "multi-session"
            item["answer_session_ids"] = [item["haystack_session_ids"][0]]
            for name, turns in zip(item["haystack_session_ids"], item["haystack_sessions"], strict=True):
                for turn in turns:
                    turn.pop("has_answer", None)
                    if name == item["haystack_session_ids"][0]:
                        turn["has_answer"] = True
    other = tmp_path / "twin.json"
    other.write_text(json.dumps(twin), "utf-8")
    first, again = made(benchmark, data, tmp_path / "1.jsonl"), made(benchmark, data, tmp_path / "2.jsonl")
    third = made(benchmark, other, tmp_path / "3.jsonl", "--allow-modified")
    assert first.read_bytes() == again.read_bytes() == third.read_bytes()
    manifests = [json.loads(manifest_of(path).read_bytes()) for path in (first, again, third)]
    assert len({manifest["source"]["sha256"] for manifest in manifests}) == 1
    assert len({manifest["dataset"]["sha256"] for manifest in manifests}) == 2


def test_a_file_that_is_there_stays(tmp_path: Path):
    path = made("locomo", LOCOMO, tmp_path / "x.jsonl")
    before = files(tmp_path)
    again = ended(call_cli("enrichment", "build", "locomo", "--data", str(LOCOMO), "--out", str(path)), 2)
    assert "is there already; name a new file" in again.err
    named = ended(call_cli("enrichment", "build", "locomo", "--data", str(LOCOMO), "--out", str(tmp_path / "x")), 2)
    assert "NAME.jsonl" in named.err
    assert files(tmp_path) == before


def test_validate_tells_what_replay_would(tmp_path: Path):
    path = made("longmemeval", LONGMEMEVAL, tmp_path / "x.jsonl")
    asked = ("--data", str(LONGMEMEVAL), "--json")
    found = json.loads(ended(call_cli("enrichment", "validate", "longmemeval", str(path), *asked)).out)
    assert (found["kind"], found["counts"]["tasks"]) == ("snapshot", 10)
    path.write_bytes(path.read_bytes().replace(b"sourdough", b"sourdoubt", 1))
    told = ended(call_cli("enrichment", "validate", "longmemeval", str(path), *asked), 2).err
    assert "artifact.sha256 is" in told
    inmind = str(evaluation() / "samples" / "inmind")
    nothing = ended(call_cli("enrichment", "validate", "inmind", str(path), "--data", inmind), 2)
    assert "has no names by which something precomputed could be told apart" in nothing.err


# --- what replay makes of them ----------------------------------------------------------------------------------


def test_a_system_is_given_the_snapshot_of_its_task(tmp_path: Path, trials: Path, given: Given):
    made("longmemeval", LONGMEMEVAL, tmp_path / "x.jsonl")
    stage(trials, "build", "longmemeval", "--data", str(LONGMEMEVAL))
    stage(trials, "replay", system(tmp_path / "with.toml", "snapshot", "x.jsonl"))
    namespaces = {r["task"]: r["body"]["namespace"] for r in records(trials, "ingest")}
    assert given.keys() == set(namespaces.values())
    for item in json.loads(LONGMEMEVAL.read_bytes()):
        graph = given[namespaces[item["question_id"]]]
        said = [
            (f"{session}.{n}", turn["content"])
            for session, turns in told_before(item).items()
            for n, turn in enumerate(turns)
            if turn["content"].strip()
        ]
        assert [(*memory.observations, memory.text) for memory in graph.derived] == said
        assert {memory.episodes for memory in graph.derived} == {(turn.partition(".")[0],) for turn, _ in said}
    stage(trials, "fetch")
    assert any(
        item["memory"]["kind"] == "derived_memory" for r in records(trials, "retrieval") for item in r["body"]["items"]
    )


def test_what_stands_in_a_file_is_part_of_the_system_and_where_it_lies_is_not(tmp_path: Path, trials: Path):
    row = {"namespace": "locomo:conv-1", "entities": [{"external_id": "i", "entity_type": "person", "name": "Ines"}]}
    stage(trials, "build", "locomo", "--data", str(LOCOMO))
    (tmp_path / "there").mkdir()
    for folder, name in ((tmp_path, "x.jsonl"), (tmp_path / "there", "y.jsonl")):
        lines(folder / name, row)
        stage(trials, "replay", system(folder / "s.toml", "enrichment", name))
    assert len(records(trials, "ingest")) == 1
    lines(tmp_path / "x.jsonl", row, {"namespace": "locomo:conv-2"})
    assert stage(trials, "replay", str(tmp_path / "s.toml"))["done"] == 1
    systems = [r["body"]["settings"] for r in records(trials, "config") if r["body"]["role"] == "system"]
    assert len({settings["enrichment"] for settings in systems}) == 2
    assert str(tmp_path).encode() not in json.dumps(systems).encode()


def test_a_reference_to_nothing_is_told_before_anything_is_written(tmp_path: Path, trials: Path):
    claim = {"external_id": "d", "derived_type": "claim", "text": "x", "source_episode_external_ids": ["session_9"]}
    lines(tmp_path / "x.jsonl", {"namespace": "locomo:conv-1", "derived_memories": [claim]})
    stage(trials, "build", "locomo", "--data", str(LOCOMO))
    told = refused(trials, "replay", system(tmp_path / "s.toml", "enrichment", "x.jsonl"))
    assert "task conv-1 of locomo@sample: derived memory 'd' names episode 'session_9', which there isn't" in told


def test_a_turn_without_words_is_no_source(tmp_path: Path, trials: Path, given: Given):
    item = json.loads(LONGMEMEVAL.read_bytes())[0]
    item["haystack_sessions"][0][1]["content"] = " "
    data = tmp_path / "hushed.json"
    data.write_text(json.dumps([item]), "utf-8")
    turns = [f"{item['haystack_session_ids'][0]}:turn:{n}" for n in (1, 2)]
    claim = {"external_id": "d", "derived_type": "claim", "text": "x", "source_observation_external_ids": turns}
    row = {"namespace": f"lme:{item['question_id']}", "derived_memories": [claim]}
    path = lines(tmp_path / "x.jsonl", row)
    stage(trials, "build", "longmemeval", "--data", str(data), "--allow-modified")
    spec = system(tmp_path / "s.toml", "enrichment", "x.jsonl")
    assert stage(trials, "replay", spec)["done"] == 1
    ((memory,),) = (graph.derived for graph in given.values())
    assert (memory.episodes, memory.observations) == ((), ("0.0",))
    claim["source_observation_external_ids"] = turns[1:]
    lines(path, row)
    assert f"derived memory 'd' has no source but {turns[1]}, where nothing was said" in refused(trials, "replay", spec)


def test_a_file_of_other_tasks_is_told_before_anything_is_written(tmp_path: Path, trials: Path):
    stage(trials, "build", "locomo", "--data", str(LOCOMO))
    lines(tmp_path / "x.jsonl", {"namespace": "lme:q1"})
    told = refused(trials, "replay", system(tmp_path / "s.toml", "enrichment", "x.jsonl"))
    assert "holds nothing of locomo@sample, whose namespaces are locomo:<task>; its first is 'lme:q1'" in told
    other = changed(tmp_path / "other.json", lambda sample: sample.update(sample_id="conv-2"))
    made("locomo", other, tmp_path / "y.jsonl", "--allow-modified")
    told = refused(trials, "replay", system(tmp_path / "s.toml", "snapshot", "y.jsonl"))
    assert "dataset.sha256" in told
    manifest = json.loads(manifest_of(tmp_path / "y.jsonl").read_bytes())
    manifest_of(tmp_path / "y.jsonl").write_text(json.dumps({**manifest, "dataset": "locomo"}), "utf-8")
    told = refused(trials, "replay", str(tmp_path / "s.toml"))
    assert "holds no snapshot of 'conv-1'" in told


def test_only_systems_that_can_take_it_may_name_a_file(tmp_path: Path, trials: Path):
    stage(trials, "build", "locomo", "--data", str(LOCOMO))
    path = Path(system(tmp_path / "s.toml", "enrichment", "x.jsonl"))
    assert "can't be read" in refused(trials, "replay", str(path))
    lines(tmp_path / "x.jsonl", {"namespace": "locomo:conv-1"})
    baseline = (evaluation() / "systems" / "substrate-bm25.toml").read_text("utf-8")
    (tmp_path / "b.toml").write_text(baseline.replace("[fetch]", 'enrichment = "x.jsonl"\n[fetch]'), "utf-8")
    told = refused(trials, "replay", str(tmp_path / "b.toml"))
    assert "b.toml: by its [fetch] it looks in what was said alone, so take out enrichment" in told
    path.write_text(path.read_text("utf-8") + 'snapshot = "x.jsonl"\n', "utf-8")
    assert "enrichment and snapshot exclude each other" in refused(trials, "replay", str(path))
    path.write_text('[state]\nsystem = "embedded"\nretriever = "bm25"\nenrichment = "x.jsonl"\n', "utf-8")
    assert "unknown key 'enrichment'" in refused(trials, "replay", str(path))


def test_the_same_graph_again_changes_nothing(tmp_path: Path):
    spec = systems.load("substrate-bm25")
    opened = spec.plugin.open(spec.state, Surroundings(tmp_path / "stores", tmp_path / "cache"))
    assert isinstance(opened, EmbeddedSubstrate)
    assert isinstance(opened, Enriched)
    claim = Derived(external_id="d0", derived_type="claim", text="Ana owns a boat.", observations=("0.0",))
    graph = Graph(entities=(Entity(external_id="e0", entity_type="person", name="Ana"),), derived=(claim,))
    states = []
    for name, times in (("once", 1), ("twice", 2)):
        opened.create(name, "user")
        opened.add(name, Session((Turn("user", "I own a boat."),)))
        for _ in range(times):
            opened.enrich(name, graph)
        opened.freeze(name)
        states.append(opened.files.path(name).read_bytes())
    opened.close()
    assert states[0] == states[1]


# --- locomo@derived ---------------------------------------------------------------------------------------------


def test_what_the_data_derived_reaches_a_system_that_takes_it(tmp_path: Path, trials: Path, given: Given):
    stage(trials, "build", "locomo", "--variant", "derived", "--data", str(LOCOMO))
    stage(trials, "build", "locomo", "--data", str(LOCOMO))
    stage(trials, "replay", "substrate")
    assert [record["benchmark"] for record in records(trials, "task")] == ["locomo@sample-derived", "locomo@sample"]
    (graph,) = given.values()
    assert (graph.entities, graph.threads, graph.links) == ((), (), ())
    summaries = [memory for memory in graph.derived if memory.derived_type == "reflection"]
    claims = [memory for memory in graph.derived if memory.derived_type == "claim"]
    assert (len(summaries), len(claims)) == (SUMMARIES, STATEMENTS)
    assert {memory.salience for memory in graph.derived} == {0.6}
    assert [memory.episodes for memory in summaries] == [("0",), ("1",), ("2",), ("3",), ("4",)]
    assert summaries[0].text == "Ines and Tobias catch up on 3 March, 2024."
    assert [(memory.text, memory.observations) for memory in claims[:2]] == [
        ("Ines told of her life in session 1.", ("0.1",)),
        ("Tobias told of his work in session 1.", ("0.0", "0.2")),
    ]
    stage(trials, "fetch")
    tables = {number["benchmark"] for number in stage(trials, "metrics")["numbers"]}
    assert tables == {"locomo@sample", "locomo@sample-derived"}


def test_it_stands_beside_a_snapshot(tmp_path: Path, trials: Path, given: Given):
    made("locomo", LOCOMO, tmp_path / "x.jsonl")
    stage(trials, "build", "locomo", "--variant", "derived", "--data", str(LOCOMO))
    stage(trials, "replay", system(tmp_path / "s.toml", "snapshot", "x.jsonl"))
    (graph,) = given.values()
    assert len(graph.derived) == SUMMARIES + STATEMENTS + TURNS
    assert len(graph.threads) == SESSIONS


@pytest.mark.parametrize("name", ["bm25", "full-context", "substrate-bm25", "substrate-vector"])
def test_no_baseline_is_fed_from_it(trials: Path, name: str):
    stage(trials, "build", "locomo", "--variant", "derived", "--data", str(LOCOMO))
    told = refused(trials, "replay", name)
    assert f"comes with memories that were derived from it, and {name} looks in what was said alone" in told


def test_a_state_that_was_given_it_is_asked_by_no_baseline(tmp_path: Path, trials: Path):
    stage(trials, "build", "locomo", "--variant", "derived", "--data", str(LOCOMO))
    tables = (evaluation() / "systems" / "substrate-vector.toml").read_text("utf-8")
    asked, fed = tmp_path / "mine.toml", '[state]\nsystem = "substrate"\nembedding = "wordllama-256"\n'
    asked.write_text(fed, "utf-8")
    stage(trials, "replay", str(asked))
    asked.write_text(tables, "utf-8")
    assert "was given more than what was said" in refused(trials, "fetch", str(asked))
    asked.write_text(fed, "utf-8")
    assert stage(trials, "fetch", str(asked))["done"] == 15


def test_a_dry_run_counts_what_would_be_embedded_of_it(tmp_path: Path, trials: Path):
    made("locomo", LOCOMO, tmp_path / "x.jsonl")
    stage(trials, "build", "locomo", "--data", str(LOCOMO))
    path = Path(system(tmp_path / "s.toml", "snapshot", "x.jsonl"))
    remote = 'embedding = "openai:some-model"\n'
    path.write_text(path.read_text("utf-8") + remote, "utf-8")
    whole = stage(trials, "replay", str(path), "--dry-run")
    path.write_text(f'[state]\nsystem = "substrate"\n{remote}', "utf-8")
    alone = stage(trials, "replay", str(path), "--dry-run")
    said = json.loads((LOCOMO / "locomo_sample.json").read_bytes())[0]["conversation"]
    texts = [f"Reflection: {' '.join(t['text'].split())}" for n in range(1, SESSIONS + 1) for t in said[f"session_{n}"]]
    texts += [f"Thread summary: Source session {n}" for n in range(1, SESSIONS + 1)] + [
        "Entity: Ines",
        "Entity: Tobias",
    ]
    assert whole["embedding_tokens"] - alone["embedding_tokens"] == sum(map(count_tokens, dict.fromkeys(texts)))


# --- what crosses -----------------------------------------------------------------------------------------------


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    texts: list[str] = []
    vectors = CachedEmbedder.vectors

    def spied(self: CachedEmbedder, some: list[str], role: Any) -> Any:
        texts.extend(some)
        return vectors(self, some, role)

    monkeypatch.setattr(CachedEmbedder, "vectors", spied)
    return texts


def copied(copy: CanaryCopy) -> Path:
    """The data of a copy whose private fields are tokens."""
    (data,) = copy.folder.iterdir()
    return data


def test_no_token_of_a_history_crosses_with_a_snapshot(tmp_path: Path, trials: Path, given: Given, embedded: list[str]):
    copy = longmemeval_copy(tmp_path / "copy", "here")
    made("longmemeval", copied(copy), tmp_path / "x.jsonl", "--allow-modified")
    stage(trials, "build", "longmemeval", "--data", str(copied(copy)), "--allow-modified")
    stage(trials, "replay", system(tmp_path / "s.toml", "snapshot", "x.jsonl"))
    assert copy.leaks((tmp_path / "x.jsonl").read_bytes()), "the file names items and sessions as the data does"
    assert len(given) == len(copy.tasks)
    assert not copy.leaks([list(given.items()), embedded])


def test_of_the_annotation_only_summaries_and_statements_cross(
    tmp_path: Path, trials: Path, given: Given, embedded: list[str]
):
    copy = locomo_copy(tmp_path / "copy", "here")
    flags = ("--data", str(copied(copy)), "--allow-modified")
    stage(trials, "build", "locomo", "--variant", "derived", *flags)
    stage(trials, "replay", "substrate")
    expected = {
        f"{kind} session_{n}_{end}"
        for n in range(1, SESSIONS + 1)
        for kind, end in (("observation", "observation"), ("session_summary", "summary"))
    }
    assert set(copy.leaks(list(given.items()))) == expected
    assert set(copy.leaks(embedded)) == expected
