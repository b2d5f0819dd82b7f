"""Records: what names them, how they are written and what a reader of the file may rely on."""

import hashlib
import inspect
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memtrials.records import (
    BODIES,
    BODY_MARK,
    KINDS,
    SCHEMA,
    AnswerBody,
    ConfigBody,
    Gold,
    Header,
    Item,
    Kind,
    Record,
    RetrievalBody,
    TaskBody,
    VerdictBody,
    canonical,
    clean_text,
    config_id,
    config_record,
    decode_body,
    decode_header,
    describe,
    encode,
    new_id,
    plain_name,
    sha256,
    text_sha256,
    work_key,
)
from support.records import AT, SAMPLE_BODIES, answer, record


def parsed(line: bytes) -> tuple[Header, Any]:
    """The record again, cut where a scan cuts it."""
    head, _, rest = line.partition(BODY_MARK)
    header = decode_header(head + b"}")
    return header, decode_body(header.kind, rest[:-1])


def sha(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


# What names a piece of work


def test_canonical_json_has_sorted_keys_and_no_spaces():
    assert canonical({"b": [1, None, 0.5], "a": "ü"}) == '{"a":"ü","b":[1,null,0.5]}'.encode()


def test_hashes_are_taken_of_text_as_it_is_written():
    assert sha256(["a\ud800"]) == sha('["a\ufffd"]'.encode())
    assert text_sha256("a\ud800") == sha("a\ufffd".encode())
    assert text_sha256("Oslo") == sha(b"Oslo")


def test_a_key_is_the_hash_of_kind_place_parent_configuration_and_metric():
    parent = record("a1", "answer", key="k", repeat=2, content="c").header
    assert work_key(
        "verdict", benchmark="b@v", task="17", query="q", parent=parent, config="j-1", metric="accuracy"
    ) == sha(b'["verdict","b@v","17","q",["k",2,"c"],"j-1","accuracy"]')


def test_a_key_without_a_parent():
    assert work_key("task", benchmark="b@v", task="17") == sha(b'["task","b@v","17",null,null,null,null]')


def test_works_own_ordinal_is_not_in_its_key():
    assert "repeat" not in inspect.signature(work_key).parameters


PARENT = record("r1", "retrieval", key="k", repeat=1, content="c", benchmark="b@v", system="bm25-1").header


@pytest.mark.parametrize("change", [{"key": "other"}, {"repeat": 2}, {"content": "other"}], ids=str)
def test_another_parent_key_repeat_or_content_is_other_work(change: dict[str, Any]):
    changed = msgspec.structs.replace(PARENT, **change)
    assert answer_key(changed) != answer_key(PARENT)


@pytest.mark.parametrize("change", [{"id": "r2"}, {"at": "2027"}, {"parents": ("x",)}, {"type": "food"}], ids=str)
def test_the_same_work_on_two_machines_has_one_key(change: dict[str, Any]):
    changed = msgspec.structs.replace(PARENT, **change)
    assert answer_key(changed) == answer_key(PARENT)


def answer_key(parent: Header) -> str:
    return work_key("answer", benchmark="b@v", task="17", query="q", parent=parent, config="offline-1")


def test_each_part_of_a_key_has_its_own_place():
    keys = [
        work_key("ingest", benchmark="x", task="y"),
        work_key("retrieval", benchmark="x", task="y"),
        work_key("ingest", benchmark="y", task="x"),
        work_key("ingest", benchmark="x", task="y", query="z"),
        work_key("ingest", benchmark="x", task="y", config="z"),
        work_key("ingest", benchmark="x", task="y", metric="z"),
    ]
    assert len(set(keys)) == len(keys)


def test_a_configuration_id_is_its_name_and_eight_digits_of_its_settings():
    assert config_id("bm25", {"k1": 1.2, "b": 0.75}) == "bm25-" + sha(b'{"b":0.75,"k1":1.2}')[:8]


def test_a_configuration_id_does_not_depend_on_the_order_of_settings():
    assert config_id("x", {"a": 1, "b": [2]}) == config_id("x", {"b": (2,), "a": 1})
    assert config_id("x", {"a": 1}) != config_id("x", {"a": 2})


def test_unusual_characters_of_a_name_become_hyphens():
    assert plain_name("AZaz09._-") == "AZaz09._-"
    assert plain_name("org/model:free é\n") == "org-model-free---"
    assert re.fullmatch(r"org-model-[0-9a-f]{8}", config_id("org/model", {}))


def test_a_configuration_record_names_itself_in_its_own_role():
    made = config_record("judge", "rules", {"prompt": "Is it right?"}, {"file": "x"})
    own = config_id("rules", {"prompt": "Is it right?"})
    assert (made.header.kind, made.header.key, made.header.judge, made.header.reader) == ("config", own, own, None)
    assert made.header.parents == ()
    assert made.body == ConfigBody(
        role="judge", name="rules", settings={"prompt": "Is it right?"}, provenance={"file": "x"}
    )


def test_ids_are_ulids_and_never_repeat():
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[0-9A-HJKMNP-TV-Z]{26}", i) for i in ids)


def test_what_differs_between_two_configurations_is_named():
    assert describe({"model": "a", "seed": 1, "k": 1}, {"model": "b", "seed": 1, "top_p": 1}) == ["k", "model", "top_p"]


# How a record is written

HEADER_FIELDS = [
    "id",
    "kind",
    "schema",
    "key",
    "content",
    "parents",
    "benchmark",
    "task",
    "query",
    "type",
    "system",
    "fetch",
    "reader",
    "judge",
    "metric",
    "stage",
    "class",
    "repeat",
    "at",
]


def test_a_record_is_written_like_this():
    one = record("v1", "verdict", ["a1"], key="k", repeat=1, judge="rules-1", metric="accuracy")
    assert encode(one) == (
        b'{"id":"v1","kind":"verdict","schema":1,"key":"k","parents":["a1"],"judge":"rules-1","metric":"accuracy",'
        b'"repeat":1,"at":"2026-11-30T12:00:00.000Z","body":{"score":1.0,"reason":"same city"}}'
    )


def test_header_fields_stand_in_one_order_and_the_body_is_last():
    every = record(
        "f1",
        "failure",
        ["x"],
        **{name: name for name in HEADER_FIELDS[3:16] if name != "parents"},
        class_="content",
        repeat=1,
    )
    assert list(json.loads(encode(every))) == [*HEADER_FIELDS, "body"]


def test_fields_that_do_not_apply_are_left_out():
    assert list(json.loads(encode(record("r")))) == ["id", "kind", "schema", "parents", "at", "body"]


def test_every_record_says_its_schema_so_that_old_versions_can_refuse_it():
    assert json.loads(encode(record("r")))["schema"] == SCHEMA == 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_as_it_was(kind: Kind):
    made = record("x", kind, ["p"])
    assert parsed(encode(made)) == (made.header, SAMPLE_BODIES[kind])


def test_lone_surrogates_become_replacement_characters_and_are_counted():
    made = record(
        "r",
        "retrieval",
        task="t\ud800",
        body=RetrievalBody(question="\udfff?", context="ok", items=(Item(rank=1, text="a\ud800\ud800"),)),
    )
    written = json.loads(encode(made))
    assert (written["task"], written["body"]["question"]) == ("t\ufffd", "\ufffd?")
    assert written["body"]["items"][0]["text"] == "a\ufffd\ufffd"
    assert written["body"]["replaced_surrogates"] == 4


def test_lone_surrogates_in_names_of_free_fields_are_replaced_too():
    made = record("c", "config", body=ConfigBody(role="reader", name="x", settings={"\udc00": {"y": "z"}}))
    written = json.loads(encode(made))["body"]
    assert written["settings"] == {"\ufffd": {"y": "z"}}
    assert written["replaced_surrogates"] == 1


def test_whole_characters_outside_the_basic_plane_are_left_alone():
    assert clean_text("a😀é") == "a😀é"
    assert "replaced_surrogates" not in json.loads(encode(answer("a", "😀")))["body"]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_not_one_is_refused(value: float):
    with pytest.raises(ValueError, match="can't be recorded"):
        encode(record("v", "verdict", body=VerdictBody(score=value, reason="")))
    with pytest.raises(ValueError, match="can't be recorded"):
        encode(record("c", "config", body=ConfigBody(role="reader", name="x", settings={"a": [{"b": value}]})))


HOSTILE = [
    ',"body":',
    '{"id":"x","kind":"answer","body":{}}',
    "a\nb\r\nc",
    "\x00\x1f\x7f",
    "\u2028\u2029\x85\x0b\x0c",
    '\\",\\"body\\":',
    "]",
    "\ufeff\ufffe\uffff",
    "‮⁦",
]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_no_text_breaks_a_line_or_its_header(text: str):
    made = record("r" + text, query=text, type=text, parents=[text], body=AnswerBody(text=text, raw=text))
    line = encode(made)
    assert b"\n" not in line
    assert b"\0" not in line
    assert json.loads(line)["body"] == {"text": text, "raw": text}
    assert parsed(line) == (made.header, made.body)


def test_bodies_of_five_megabytes_come_back_whole():
    made = record("r", "retrieval", body=RetrievalBody(question=",é", context=',"body":é\n' * 500_000))
    line = encode(made)
    assert len(line) > 5_000_000
    assert parsed(line) == (made.header, made.body)


hostile_text = st.one_of(
    st.lists(st.sampled_from([*HOSTILE, "\ud800", '"', "\\", "{", "}", ","]), max_size=6).map("".join),
    st.text(st.characters(exclude_categories=()), max_size=20),
)


@given(
    texts=st.lists(hostile_text, min_size=10, max_size=10),
    parents=st.lists(hostile_text, max_size=3).map(tuple),
    repeat=st.none() | st.integers(-(2**63), 2**63),
    items=st.none() | st.lists(st.builds(Item, rank=st.integers(1, 99), text=hostile_text), max_size=3).map(tuple),
)
def test_any_record_comes_back_as_it_was_but_for_lone_surrogates(
    texts: list[str], parents: tuple[str, ...], repeat: int | None, items: tuple[Item, ...] | None
):
    def made(text: list[str], above: tuple[str, ...], found: tuple[Item, ...] | None) -> Record:
        header = Header(
            id=text[0],
            kind="retrieval",
            parents=above,
            at=AT,
            repeat=repeat,
            **dict(zip(["key", "benchmark", "task", "query", "type", "system", "metric"], text[1:8], strict=True)),
        )
        return Record(header, RetrievalBody(question=text[8], context=text[9], items=found))

    cleaned = made(
        [clean_text(text) for text in texts],
        tuple(clean_text(parent) for parent in parents),
        items and tuple(msgspec.structs.replace(item, text=clean_text(item.text)) for item in items),
    )
    line = encode(made(texts, parents, items))
    assert b"\n" not in line
    json.loads(line)
    assert parsed(line) == (cleaned.header, cleaned.body)


# What a reader of the file may rely on


def test_fields_of_a_later_version_are_passed_over():
    body = decode_body("void", b'{"new":[{"a":1}],"reason":"x","kinds":{},"right":1,"wrong":0,"newer":null}')
    assert (body.reason, body.right) == ("x", 1)
    assert decode_header(b'{"id":"a","kind":"void","parents":[],"at":"","new":{"a":[1]}}').id == "a"


@pytest.mark.parametrize(
    "head",
    [
        b'{"id":"a","kind":"opinion","parents":[],"at":""',
        b'{"id":"a","kind":"void","at":""',
        b'{"id":1,"kind":"void","parents":[],"at":""',
        b'{"id":"a","kind":"void","parents":["x",',
        b'{"id":"\xff","kind":"void","parents":[],"at":""',
        b"",
    ],
)
def test_a_header_that_is_not_one_is_refused(head: bytes):
    with pytest.raises(msgspec.DecodeError):
        decode_header(head + b"}")


def test_gold_and_queries_of_a_task_are_found_by_query():
    task = SAMPLE_BODIES["task"]
    assert isinstance(task, TaskBody)
    assert task.query("q").text == "Where?"
    assert task.gold_of("q") == Gold(query="q")
    with pytest.raises(KeyError):
        task.query("other")


def json_types(annotation: msgspec.inspect.Type) -> Iterator[str]:
    """The JSON types a value of that type is written as; null isn't one, and a free value has none."""
    if isinstance(annotation, msgspec.inspect.UnionType):
        for part in annotation.types:
            yield from json_types(part)
    elif isinstance(annotation, msgspec.inspect.LiteralType):
        yield from {type(value).__name__ for value in annotation.values}
    elif isinstance(annotation, msgspec.inspect.VarTupleType):
        yield from (f"list of {item}" for item in json_types(annotation.item_type))
    elif isinstance(annotation, msgspec.inspect.TupleType):
        yield "list"
    elif not isinstance(annotation, msgspec.inspect.NoneType):
        yield {
            msgspec.inspect.StrType: "str",
            msgspec.inspect.BoolType: "bool",
            msgspec.inspect.IntType: "number",
            msgspec.inspect.FloatType: "number",
            msgspec.inspect.DictType: "object",
            msgspec.inspect.StructType: "object",
        }[type(annotation)]


def structs_in(annotation: msgspec.inspect.Type) -> Iterator[msgspec.inspect.StructType]:
    """Every struct in a type, however deep."""
    if isinstance(annotation, msgspec.inspect.StructType):
        yield annotation
        for field in annotation.fields:
            yield from structs_in(field.type)
    elif isinstance(annotation, msgspec.inspect.UnionType):
        for part in annotation.types:
            yield from structs_in(part)
    elif isinstance(annotation, msgspec.inspect.VarTupleType):
        yield from structs_in(annotation.item_type)


def test_one_field_name_has_one_json_type_in_all_kinds():
    written: dict[str, set[str]] = defaultdict(set)
    for struct in (Header, *BODIES.values()):
        for found in structs_in(msgspec.inspect.type_info(struct)):
            for field in found.fields:
                written[field.encode_name].update(json_types(field.type))
    assert len(written) > 80
    assert {name: types for name, types in written.items() if len(types) != 1} == {}


def test_every_kind_has_a_body_and_no_body_has_the_mark_of_replaced_surrogates_as_a_field():
    assert set(BODIES) == set(get_args(Kind))
    assert all("replaced_surrogates" not in body.__struct_fields__ for body in BODIES.values())
