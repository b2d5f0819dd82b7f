"""What was precomputed of a history: the files' rules, snapshots and their manifests, and what a system may see."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memtrials.benchmarks.enrichment import (
    GOLD_KEYS,
    Derived,
    End,
    Entity,
    Graph,
    Link,
    Origin,
    Sitting,
    Thread,
    Utterance,
    manifest_of,
    neutral,
    read_enrichment,
    read_snapshot,
)
from memtrials.errors import UserError

Json = dict[str, Any]

BOAT: Json = {
    "namespace": "lme:q1",
    "entities": [{"external_id": "noor", "entity_type": "person", "name": "Noor"}],
    "threads": [{"external_id": "th:boat", "title": "Boat repair", "summary": "Noor repairs a boat."}],
    "derived_memories": [
        {
            "external_id": "dm:1",
            "derived_type": "claim",
            "text": "Noor owns a boat.",
            "source_episode_external_ids": ["s1"],
            "thread_external_ids": ["th:boat"],
            "entity_external_ids": ["noor"],
        }
    ],
    "links": [
        {
            "external_id": "lk:1",
            "from": {"object_type": "derived_memory", "external_id": "dm:1"},
            "relation": "part_of_thread",
            "to": {"object_type": "memory_thread", "external_id": "th:boat"},
        }
    ],
}
HISTORY = (
    Sitting("answer_0a", "2023/05/20 (Sat) 02:21", (Utterance("answer_0a:turn:1", "user", "Hello."),)),
    Sitting(
        "s1",
        "2023/05/21 (Sun) 09:00",
        (Utterance("s1:turn:1", "user", "My boat leaks."), Utterance("s1:turn:2", "assistant", "Oh.")),
    ),
)


def lines(path: Path, *rows: Any) -> Path:
    """A file of these rows, each as it is if it is a text."""
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows), "utf-8")
    return path


def boat(change: Callable[[Json], object] = lambda row: None) -> Json:
    """The example's line, changed."""
    row: Json = json.loads(json.dumps(BOAT))
    change(row)
    return row


def memory(row: Json) -> Json:
    """The derived memory of a line."""
    (found,) = row["derived_memories"]
    assert isinstance(found, dict)
    return found


# --- enrichment files -------------------------------------------------------------------------------------------


def test_what_is_left_out_has_its_default(tmp_path: Path):
    graph = read_enrichment(lines(tmp_path / "x.jsonl", "", BOAT)).graph("lme:q1", "q1")
    assert graph == Graph(
        namespace="lme:q1",
        entities=(
            Entity(external_id="noor", entity_type="person", name="Noor", aliases=(), canonical_key=None, summary=None),
        ),
        threads=(
            Thread(
                external_id="th:boat",
                title="Boat repair",
                summary="Noor repairs a boat.",
                status="active",
                last_touched_at=None,
                salience=0.5,
                canonical_key=None,
            ),
        ),
        derived=(
            Derived(
                external_id="dm:1",
                derived_type="claim",
                text="Noor owns a boat.",
                episodes=("s1",),
                observations=(),
                threads=("th:boat",),
                entities=("noor",),
                confidence=1.0,
                salience=0.5,
                stability="medium",
                is_current=True,
                supersedes=(),
                metadata=None,
            ),
        ),
        links=(
            Link(
                external_id="lk:1",
                source=End("derived_memory", "dm:1"),
                relation="part_of_thread",
                target=End("memory_thread", "th:boat"),
                confidence=1.0,
                rationale=None,
            ),
        ),
    )


def test_a_file_without_a_namespace_holds_nothing_of_it(tmp_path: Path):
    assert read_enrichment(lines(tmp_path / "x.jsonl", BOAT)).graph("lme:q2", "q2") is None


def test_a_byte_order_mark_and_windows_line_ends_change_nothing(tmp_path: Path):
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(BOAT).encode() + b"\r\n\r\n")
    found = read_enrichment(path).graph("lme:q1", "q1")
    assert found is not None
    assert found.derived[0].text == "Noor owns a boat."


def test_the_lines_of_a_namespace_are_one_graph_in_order(tmp_path: Path):
    more = {"namespace": "lme:q1", "entities": [{"external_id": "ana", "entity_type": "person", "name": "Ana"}]}
    other = {**more, "namespace": "lme:q2"}
    graph = read_enrichment(lines(tmp_path / "x.jsonl", BOAT, other, more)).graph("lme:q1", "q1")
    assert graph is not None
    assert [entity.name for entity in graph.entities] == ["Noor", "Ana"]
    assert len(graph.derived) == 1


def test_lines_that_dont_go_together_are_told_by_the_later_one(tmp_path: Path):
    other = {**BOAT, "namespace": "lme:q2"}
    path = lines(tmp_path / "x.jsonl", BOAT, other, "", {"namespace": "lme:q1", "entities": BOAT["entities"]})
    with pytest.raises(UserError, match=r"x\.jsonl, line 4: entity 'noor' stands there twice in lme:q1"):
        read_enrichment(path)


BAD: list[tuple[Callable[[Json], object], str]] = [
    (lambda row: row.pop("namespace"), "namespace is missing or blank"),
    (lambda row: row.update(namespace=" "), "namespace is missing or blank"),
    (lambda row: row.update(entitys=[]), "unknown field `entitys`"),
    (lambda row: row["entities"][0].pop("name"), "missing required field `name`"),
    (lambda row: row["entities"][0].update(name=" "), r"\$\.entities\[0\]\.name"),
    (lambda row: row["entities"][0].update(entity_type="location"), "'location' - at"),
    (lambda row: row["entities"].append(row["entities"][0]), "entity 'noor' stands there twice"),
    (lambda row: row["threads"][0].update(title=""), r"\$\.threads\[0\]\.title"),
    (lambda row: row["threads"][0].update(summary=""), r"\$\.threads\[0\]\.summary"),
    (lambda row: row["threads"][0].update(status="open"), "'open' - at"),
    (lambda row: row["threads"][0].update(last_touched_at="1 May"), "last_touched_at is '1 May', not RFC 3339"),
    (lambda row: row["threads"][0].update(last_touched_at="2024-13-01T00:00:00Z"), "not RFC 3339"),
    (lambda row: row["threads"].append(row["threads"][0]), "thread 'th:boat' stands there twice"),
    (lambda row: memory(row).update(text="\t"), r"\$\.derived_memories\[0\]\.text"),
    (lambda row: memory(row).update(derived_type="fact"), "'fact' - at"),
    (lambda row: memory(row).update(stability="rock"), "'rock' - at"),
    (lambda row: memory(row).update(confidence=1.01), "<= 1"),
    (lambda row: memory(row).update(salience_score=-0.1), ">= 0"),
    (lambda row: memory(row).pop("source_episode_external_ids"), "'dm:1' has no source"),
    (lambda row: memory(row).update(entity_external_ids=["noor", "noor"]), "'dm:1' names an object twice"),
    (lambda row: row["derived_memories"].append(memory(row)), "derived memory 'dm:1' stands there twice"),
    (lambda row: row["links"][0].pop("to"), "missing required field `to`"),
    (lambda row: row["links"][0].update(relation="likes"), "'likes' - at"),
    (lambda row: row["links"][0]["from"].update(object_type="memory_link"), "'memory_link' - at"),
    (lambda row: row["links"].append(row["links"][0]), "link 'lk:1' stands there twice"),
    (lambda row: row["links"][0].update(confidence="1"), "Expected `float`"),
]


@pytest.mark.parametrize(("change", "why"), BAD)
def test_what_is_wrong_is_told_with_its_line(tmp_path: Path, change: Callable[[Json], object], why: str):
    with pytest.raises(UserError, match=rf"x\.jsonl, line 2: .*{why}"):
        read_enrichment(lines(tmp_path / "x.jsonl", {**BOAT, "namespace": "lme:q0"}, boat(change)))


@pytest.mark.parametrize(("text", "why"), [("{", "not valid JSON"), ("[]", "not an object"), ('{"a": NaN}', "JSON")])
def test_a_line_that_is_no_object(tmp_path: Path, text: str, why: str):
    with pytest.raises(UserError, match=f"line 1: .*{why}"):
        read_enrichment(lines(tmp_path / "x.jsonl", text))


def test_a_file_that_holds_nothing_and_one_that_isnt_there(tmp_path: Path):
    with pytest.raises(UserError, match="holds no line"):
        read_enrichment(lines(tmp_path / "x.jsonl", "", " "))
    with pytest.raises(UserError, match="can't be read"):
        read_enrichment(tmp_path / "y.jsonl")


@pytest.mark.parametrize("key", [*sorted(GOLD_KEYS), "gold_", "gold_turns", "GOLD_X", "Has_Answer", "EVIDENCE"])
def test_a_key_of_gold_is_refused_wherever_it_stands(tmp_path: Path, key: str):
    row = boat(lambda row: memory(row).update(metadata={"runs": [[{"by": {key: None}}]]}))
    with pytest.raises(UserError, match=f"line 3: key '{key}' is one of gold"):
        read_enrichment(lines(tmp_path / "x.jsonl", "", "", row))


def test_words_of_gold_that_arent_keys_and_keys_that_only_hold_one_are_none(tmp_path: Path):
    row = boat(lambda row: memory(row).update(metadata={"answered": "gold_label", "golden": ["answer"]}))
    assert read_enrichment(lines(tmp_path / "x.jsonl", row)).rows.keys() == {"lme:q1"}


def test_a_file_that_changes_after_it_was_checked_is_noticed(tmp_path: Path):
    path = lines(tmp_path / "x.jsonl", BOAT)
    found = read_enrichment(path)
    lines(path, boat(lambda row: row["entities"][0].update(name="Nora")))
    with pytest.raises(UserError, match="line 1 has changed since it was checked"):
        found.graph("lme:q1", "q1")


# --- snapshots --------------------------------------------------------------------------------------------------

DATA = "a" * 64
ORIGIN = Origin("deterministic-exact-source-replay-v2", "longmemeval-s", DATA, hashed=True)


def snapshot(item: str = "q1", **fields: Any) -> Json:
    """A row."""
    space = f"lme:{item}"
    cutoff = {"type": "question_date", "value": "2023/05/30 (Tue) 23:40"}
    whole = {"snapshot_id": f"{space}@question_date", "namespace": space, "dataset_item_id": item, "cutoff": cutoff}
    return {**whole, "graph": {**BOAT, "namespace": space}, **fields}


def with_manifest(path: Path, rows: tuple[Any, ...] = (snapshot(),), **fields: Any) -> Path:
    """A snapshot with its manifest, in which fields are others (None: left out)."""
    lines(path, *rows)
    manifest = {
        "workflow_id": ORIGIN.workflow,
        "dataset": {"name": ORIGIN.dataset, "sha256": DATA.upper()},
        "artifact": {"sha256": hashlib.sha256(path.read_bytes()).hexdigest().upper()},
        "source": {"sha256": "b" * 64},
        **fields,
    }
    whole = {name: value for name, value in manifest.items() if value is not None}
    manifest_of(path).write_text(json.dumps(whole), "utf-8")
    return path


def test_a_snapshot_is_found_by_its_item(tmp_path: Path):
    found = read_snapshot(with_manifest(tmp_path / "x.jsonl", (snapshot("q0"), snapshot())), ORIGIN)
    graph = found.graph("lme:q1", "q1")
    assert graph is not None
    assert graph.namespace == "lme:q1"
    with pytest.raises(UserError, match="holds no snapshot of 'q2'"):
        found.graph("lme:q2", "q2")
    with pytest.raises(UserError, match="line 2: namespace is 'lme:q1', that of 'q1' is 'locomo:q1'"):
        found.graph("locomo:q1", "q1")


OTHER_ROWS = (
    snapshot(graph={**BOAT, "namespace": "lme:other"}),  # wrong in every way that comes after the manifest
    snapshot(),
    snapshot(),
)
CHECKS: list[tuple[str, dict[str, Any]]] = [
    ("workflow_id is 'other'", {"workflow_id": "other"}),
    ("dataset is 'locomo', the data that is used 'longmemeval-s'", {"dataset": "locomo"}),
    ("dataset.sha256 is missing", {"dataset": "longmemeval-s"}),
    (f"dataset.sha256 is {'c' * 64}", {"dataset": {"name": "longmemeval-s", "sha256": "c" * 64}}),
    ("artifact.sha256 is missing", {"artifact": {}}),
    (f"artifact.sha256 is {'d' * 64}", {"artifact": {"sha256": "d" * 64}}),
]


@pytest.mark.parametrize("first", range(len(CHECKS)))
def test_a_manifest_is_checked_in_order(tmp_path: Path, first: int):
    wrong: dict[str, Any] = {}
    for _, fields in reversed(CHECKS[first:]):
        wrong |= fields
    with pytest.raises(UserError, match=CHECKS[first][0]):
        read_snapshot(with_manifest(tmp_path / "x.jsonl", OTHER_ROWS, **wrong), ORIGIN)


def test_rows_are_checked_after_the_manifest(tmp_path: Path):
    with pytest.raises(UserError, match="line 1: namespace is 'lme:q1', its graph's 'lme:other'"):
        read_snapshot(with_manifest(tmp_path / "x.jsonl", OTHER_ROWS), ORIGIN)
    with pytest.raises(UserError, match="line 2: dataset_item_id 'q1' has a snapshot in line 1"):
        read_snapshot(with_manifest(tmp_path / "x.jsonl", OTHER_ROWS[1:]), ORIGIN)
    leaking = snapshot(graph={**BOAT, "namespace": "lme:q1", "labels": []})
    with pytest.raises(UserError, match="line 1: key 'labels' is one of gold"):
        read_snapshot(with_manifest(tmp_path / "x.jsonl", (leaking,)), ORIGIN)


def test_a_hash_of_the_data_may_be_missing_where_the_workflow_gives_none(tmp_path: Path):
    origin = Origin(ORIGIN.workflow, "locomo", DATA, hashed=False)
    assert read_snapshot(with_manifest(tmp_path / "x.jsonl", dataset="locomo"), origin).snapshot
    with pytest.raises(UserError, match=r"dataset\.sha256 is cc"):
        read_snapshot(with_manifest(tmp_path / "x.jsonl", dataset={"name": "locomo", "sha256": "cc"}), origin)


def test_a_snapshot_without_its_manifest_or_with_a_broken_one(tmp_path: Path):
    path = with_manifest(tmp_path / "x.jsonl")
    manifest_of(path).write_text("{", "utf-8")
    with pytest.raises(UserError, match=r"x_manifest\.json: not valid JSON"):
        read_snapshot(path, ORIGIN)
    manifest_of(path).unlink()
    with pytest.raises(UserError, match=r"x_manifest\.json: missing; a snapshot needs its manifest"):
        read_snapshot(path, ORIGIN)
    with pytest.raises(UserError, match="line 1: a snapshot's row; name the file as `snapshot`"):
        read_enrichment(path)


# --- what a system may see --------------------------------------------------------------------------------------


def graph_of(row: Json, path: Path) -> Graph:
    """The graph of a line."""
    found = read_enrichment(lines(path, row)).graph("lme:q1", "q1")
    assert found is not None
    return found


def test_a_system_sees_positions_and_numbers_alone(tmp_path: Path):
    def all_ends(row: Json) -> None:
        memory(row).update(source_observation_external_ids=["s1:turn:2", "answer_0a:turn:1"], metadata={"id": "q1"})
        second = {**memory(row), "external_id": "dm:2", "supersedes_external_ids": ["dm:1"]}
        row["derived_memories"].append(second)
        ends = [("episode", "answer_0a"), ("observation", "s1:turn:1"), ("entity", "noor"), ("derived_memory", "dm:2")]
        row["links"] += [
            {**row["links"][0], "external_id": f"lk:{kind}", "to": {"object_type": kind, "external_id": name}}
            for kind, name in ends
        ]

    seen = neutral(graph_of(boat(all_ends), tmp_path / "x.jsonl"), HISTORY)
    assert [part.external_id for part in (*seen.entities, *seen.threads)] == ["e0", "t0"]
    first, second = seen.derived
    assert (first.external_id, second.external_id, second.supersedes) == ("d0", "d1", ("d0",))
    assert (first.episodes, first.observations) == (("1",), ("1.1", "0.0"))
    assert (first.threads, first.entities, first.metadata) == (("t0",), ("e0",), None)
    assert [link.external_id for link in seen.links] == ["l0", "l1", "l2", "l3", "l4"]
    assert [(link.target.object_type, link.target.external_id) for link in seen.links] == [
        ("memory_thread", "t0"),
        ("episode", "0"),
        ("observation", "1.0"),
        ("entity", "e0"),
        ("derived_memory", "d1"),
    ]
    assert seen.namespace == ""


def test_a_sessions_name_in_a_text_becomes_its_position(tmp_path: Path):
    def telling(row: Json) -> None:
        row["entities"][0].update(aliases=["s1"], canonical_key="person:answer_0a", summary="Seen in answer_0a.")
        row["threads"][0].update(title="Session answer_0a", summary="Source (answer_0a)", canonical_key="answer_0a#2")
        memory(row).update(text="As answer_0a says, answer_0ab and s1s stay.")
        row["links"][0].update(rationale="answer_0a, s1")

    seen = neutral(graph_of(boat(telling), tmp_path / "x.jsonl"), HISTORY)
    (entity,), (thread,), (claim,), (link,) = seen.entities, seen.threads, seen.derived, seen.links
    assert (entity.aliases, entity.canonical_key, entity.summary) == (("1",), "person:0", "Seen in 0.")
    assert (thread.title, thread.summary, thread.canonical_key) == ("Session 0", "Source (0)", "answer_0a#2")
    assert claim.text == "As 0 says, answer_0ab and s1s stay."
    assert link.rationale == "0, 1"


def test_a_session_that_is_called_by_a_mere_word_or_number_changes_no_text(tmp_path: Path):
    row = boat(lambda row: memory(row).update(text="A boat for 3 of us.", source_episode_external_ids=["3"]))
    named = (HISTORY[0]._replace(name="boat"), HISTORY[1]._replace(name="3"))
    (claim,) = neutral(graph_of(row, tmp_path / "x.jsonl"), named).derived
    assert (claim.text, claim.episodes) == ("A boat for 3 of us.", ("1",))


def test_names_that_begin_with_others_are_told_apart(tmp_path: Path):
    row = boat(lambda row: memory(row).update(text="s.1 and s.1#2, s.10", source_episode_external_ids=["s.1#2"]))
    named = (HISTORY[0]._replace(name="s.1"), HISTORY[1]._replace(name="s.1#2"))
    (claim,) = neutral(graph_of(row, tmp_path / "x.jsonl"), named).derived
    assert (claim.text, claim.episodes) == ("0 and 1, s.10", ("1",))


LOST: list[tuple[Callable[[Json], object], str]] = [
    (lambda row: memory(row).update(source_episode_external_ids=["s9"]), "'dm:1' names episode 's9'"),
    (lambda row: memory(row).update(source_observation_external_ids=["s1:turn:3"]), "names observation 's1:turn:3'"),
    (lambda row: memory(row).update(thread_external_ids=["noor"]), "names memory_thread 'noor'"),
    (lambda row: memory(row).update(entity_external_ids=["ana"]), "names entity 'ana'"),
    (lambda row: memory(row).update(supersedes_external_ids=["dm:0"]), "names derived_memory 'dm:0'"),
    (lambda row: row["links"][0]["from"].update(external_id="lk:1"), "link 'lk:1' names derived_memory 'lk:1'"),
]


@pytest.mark.parametrize(("change", "why"), LOST)
def test_a_reference_that_leads_nowhere(tmp_path: Path, change: Callable[[Json], object], why: str):
    with pytest.raises(UserError, match=f"{why}, which there isn't"):
        neutral(graph_of(boat(change), tmp_path / "x.jsonl"), HISTORY)


def hushed(*names: str) -> list[Sitting]:
    """HISTORY with nothing but blanks in these turns."""
    return [
        sitting._replace(
            turns=tuple(turn._replace(text=" \n") if turn.name in names else turn for turn in sitting.turns)
        )
        for sitting in HISTORY
    ]


def test_a_memory_keeps_its_sources_that_have_words(tmp_path: Path):
    row = boat(lambda row: memory(row).update(source_observation_external_ids=["s1:turn:1", "answer_0a:turn:1"]))
    memory(row)["source_episode_external_ids"] += ["answer_0a"]
    graph = graph_of(row, tmp_path / "x.jsonl")
    (claim,) = neutral(graph, hushed("s1:turn:1", "answer_0a:turn:1")).derived
    assert (claim.episodes, claim.observations) == (("1",), ())
    (claim,) = neutral(graph, hushed("s1:turn:1")).derived
    assert (claim.episodes, claim.observations) == (("1", "0"), ("0.0",))


SILENT: list[tuple[Callable[[Json], object], str]] = [
    (lambda row: None, "derived memory 'dm:1' has no source but s1, where nothing was said"),
    (
        lambda row: memory(row).update(source_observation_external_ids=["s1:turn:2"]),
        "'dm:1' has no source but s1, s1:turn:2, where",
    ),
    (
        lambda row: (
            memory(row).update(source_episode_external_ids=["answer_0a"]),
            row["links"][0]["to"].update(object_type="observation", external_id="s1:turn:1"),
        ),
        "link 'lk:1' names observation 's1:turn:1', where nothing was said",
    ),
]


@pytest.mark.parametrize(("change", "why"), SILENT)
def test_a_reference_that_leads_to_silence_alone(tmp_path: Path, change: Callable[[Json], object], why: str):
    with pytest.raises(UserError, match=why):
        neutral(graph_of(boat(change), tmp_path / "x.jsonl"), hushed("s1:turn:1", "s1:turn:2"))
