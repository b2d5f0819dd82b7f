"""A JSON array that is too large for memory, read object by object, with the place of each in the file.

The standard library's decoder tells where a value ends, so one pass finds the objects and parses them [tried on
LongMemEval: twice as fast as a scan for their ends and the fastest parser after it].
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

BLOCK = 4 << 20
"""Bytes read at a time."""
LARGEST = 256 << 20
"""Characters of an object that is still waited for. The largest that is published has about 6 million."""
_UNFINISHED = 16
"""Characters from the end in which a cut inside a word, number or escape is told."""
_SPACE = re.compile(r"[ \t\n\r]*")


class Element(NamedTuple):
    """An object of the array, its first byte in the file and the byte after its last."""

    value: dict[str, Any]
    start: int
    end: int


class ArrayError(ValueError):
    """The file isn't one JSON array of objects. at: the byte where that shows."""

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.at = at


def elements(path: Path, hear: Callable[[bytes], object], block: int = BLOCK) -> Iterator[Element]:
    """The objects of the array in a file, in order. hear: is given every byte of the file, in order.

    Holds one block, or one object where that is larger. A byte order mark is passed over. Raises ArrayError for
    anything but one array of objects in UTF-8, OSError for a file that can't be read.
    """
    with path.open("rb") as file:
        window = _Window(lambda size: file.read(size), hear, block)
        if window.next_character() == "\ufeff":
            window.drop(1)
        first = window.next_character()
        if not first:
            raise window.error("empty")
        if first != "[":
            raise window.error("not a JSON array")
        window.drop(1)
        if window.next_character() == "]":
            window.drop(1)
        else:
            yield window.take_object()
            while (mark := window.next_character()) == ",":
                window.drop(1)
                yield window.take_object()
            if mark != "]":
                raise window.error("neither a comma nor the array's end follows" if mark else "the array doesn't end")
            window.drop(1)
        if window.next_character():
            raise window.error("something follows the array")


class _Window:
    """The part of the file that is being looked at. begin: the byte of its first character."""

    def __init__(self, read: Callable[[int], bytes], hear: Callable[[bytes], object], block: int) -> None:
        self.read, self.hear, self.block = read, hear, block
        self.text, self.at, self.begin = "", 0, 0
        self.ended = False
        self._heard = 0
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._decoder = json.JSONDecoder(parse_constant=_refuse_constant)

    def next_character(self) -> str:
        """The next character that isn't white space, without going past it; empty at the end of the file."""
        while True:
            match = _SPACE.match(self.text, self.at)
            assert match is not None
            self.drop(match.end() - self.at)
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def drop(self, count: int) -> None:
        """Go past so many characters."""
        self.begin += len(self.text[self.at : self.at + count].encode())
        self.at += count

    def more(self) -> bool:
        """Read on, by as much again as is held already; whether there was anything."""
        if self.ended:
            return False
        self.text, self.at = self.text[self.at :], 0
        fresh = self.read(max(self.block, len(self.text)))
        self.hear(fresh)
        self._heard += len(fresh)
        self.ended = not fresh
        try:
            self.text += self._decode(fresh, final=self.ended)
        except UnicodeDecodeError as error:
            at = self._heard - len(error.object) + error.start
            raise ArrayError("not UTF-8 text (binary, or another encoding)", at) from None
        return not self.ended

    def take_object(self) -> Element:
        """The object that comes next."""
        if self.next_character() != "{":
            raise self.error("no object stands where one is expected")
        while True:
            try:
                value, end = self._decoder.raw_decode(self.text, self.at)
            except RecursionError:
                raise self.error("nested too deeply") from None
            except json.JSONDecodeError as error:
                right = error.pos - self.at  # characters before the place, wherever the window moves
                if self._may_go_on(error) and self.more():
                    continue
                self.drop(right)
                raise self.error(f"not valid JSON ({error.msg})") from None
            except ValueError as error:
                raise self.error(f"not valid JSON ({error})") from None
            start = self.begin
            self.drop(end - self.at)
            return Element(value, start, self.begin)

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """Whether it may only be that the object isn't wholly here."""
        if len(self.text) - self.at > LARGEST:
            return False
        end = min(len(self.text) - _UNFINISHED, len(self.text.rstrip(" \t\n\r")))
        return error.pos >= end or error.msg.startswith("Unterminated string")

    def error(self, what: str) -> ArrayError:
        """An error at the next character."""
        return ArrayError(what, self.begin)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
