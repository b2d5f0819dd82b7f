"""Reading an array that is larger than memory: the same objects and places, wherever a block ends."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memtrials.benchmarks.arrays import ArrayError, elements


def read(path: Path, block: int = 64) -> list[tuple[dict[str, Any], int, int]]:
    return [tuple(element) for element in elements(path, lambda heard: None, block)]  # type: ignore[misc]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.sampled_from(['"', "\\", '\\"', "}]", '{"a": [', "\ud83d", "😀é\u2028", "\n\t"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.lists(st.dictionaries(st.text(max_size=6), VALUES, max_size=4), max_size=5)
SPACE = st.text(" \t\r\n", max_size=24)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=150)
@given(OBJECTS, st.booleans(), st.sampled_from([None, 1, "\t"]), st.lists(SPACE, min_size=13, max_size=13), st.data())
def test_objects_and_their_bytes_whatever_the_form_and_the_block(
    tmp_path: Path, objects: list[dict[str, Any]], ascii_only: bool, indent: Any, spaces: list[str], data: Any
):
    gap = iter(spaces)
    whole, places = f"{next(gap)}[{next(gap)}", []
    for number, value in enumerate(objects):
        text = json.dumps(value, ensure_ascii=ascii_only or "\\ud83d" in json.dumps(value), indent=indent)
        whole += f"{next(gap)},{next(gap)}" if number else ""
        places.append((len(whole.encode()), len((whole + text).encode())))
        whole += text
    whole += f"{next(gap)}]{next(gap)}"
    path = tmp_path / "array.json"
    path.write_bytes(whole.encode())
    heard: list[bytes] = []
    found = list(elements(path, heard.append, data.draw(st.sampled_from([1, 2, 3, 7, 64, 1 << 16]))))
    assert [element.value for element in found] == objects
    assert [(element.start, element.end) for element in found] == places
    assert b"".join(heard) == whole.encode()
    assert [json.loads(whole.encode()[start:end]) for _, start, end in found] == objects


@pytest.mark.parametrize(
    ("content", "says", "at"),
    [
        (b"", "empty", 0),
        (b" \n\xef\xbb\xbf"[2:], "empty", 3),
        (b'{"a": 1}', "not a JSON array", 0),
        (b"null", "not a JSON array", 0),
        (b"[1]", "no object stands where one is expected", 1),
        (b"[{}, []]", "no object stands where one is expected", 5),
        (b"[{},]", "no object stands where one is expected", 4),
        (b"[{} {}]", "neither a comma nor the array's end follows", 4),
        (b"[{}", "the array doesn't end", 3),
        (b"[{},", "no object stands where one is expected", 4),
        (b"[{}] []", "something follows the array", 5),
        (b'[{"a": 1', "not valid JSON (Expecting ',' delimiter)", 8),
        (b'[{"a": "b', "not valid JSON (Unterminated string starting at)", 7),
        (b'[{"a": tru}]', "not valid JSON (Expecting value)", 7),
        (b'[{"a": NaN}]', "not valid JSON (NaN is not JSON)", 1),
        (b'[{"a": -Infinity}]', "not valid JSON (-Infinity is not JSON)", 1),
        (b"[{'a': 1}]", "not valid JSON (Expecting property name enclosed in double quotes)", 2),
        (b'[{"a": "\xff"}]', "not UTF-8 text (binary, or another encoding)", 8),
        (b'[{"a": "\xc3', "not UTF-8 text (binary, or another encoding)", 8),
        ('[{"é": 1}, 2]'.encode(), "no object stands where one is expected", 12),
    ],
)
@pytest.mark.parametrize("block", [1, 5, 4096])
def test_what_is_no_array_of_objects(tmp_path: Path, content: bytes, says: str, at: int, block: int):
    path = tmp_path / "array.json"
    path.write_bytes(content)
    with pytest.raises(ArrayError) as error:
        read(path, block)
    assert (str(error.value), error.value.at) == (says, at)


def test_nesting_without_end(tmp_path: Path):
    path = tmp_path / "array.json"
    path.write_text("[" + '{"a":' * 100_000)
    with pytest.raises(ArrayError, match="nested too deeply"):
        read(path)


def test_a_byte_order_mark_is_passed_over(tmp_path: Path):
    path = tmp_path / "array.json"
    path.write_bytes(b'\xef\xbb\xbf[{"a": 1}]')
    assert read(path) == [({"a": 1}, 4, 12)]


def test_what_is_wrong_is_told_without_reading_on(tmp_path: Path):
    path = tmp_path / "array.json"
    path.write_bytes(b'[{"a": x},' + b" " * 100_000)
    heard = 0

    def hear(fresh: bytes) -> None:
        nonlocal heard
        heard += len(fresh)

    with pytest.raises(ArrayError, match="Expecting value"):
        list(elements(path, hear, 512))
    assert heard < 2048


def test_memory_is_that_of_a_few_objects(tmp_path: Path):
    """40 MB in objects of 100 KB, read in blocks of 256 KB."""
    path = tmp_path / "array.json"
    one = json.dumps({"text": "word " * 20_000})
    with path.open("w") as file:
        file.write(f"[{one}" + f", {one}" * 399 + "]")
    tracemalloc.start()
    try:
        assert sum(1 for _ in elements(path, lambda heard: None, 1 << 18)) == 400
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()
