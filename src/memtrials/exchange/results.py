"""What a file of results says of a question, whatever form the file has, and how its records are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from memtrials.systems.memorybear.assembly import memory

Family = Literal["longmemeval", "locomo"]


@dataclass(frozen=True)
class Place:
    """Which question a record is about, as far as its file tells.

    LongMemEval: the question's id, or None where only its text tells. LoCoMo: the sample and the question's position in
    it, from 0; a number for the sample is its place in the data, and positions then count categories 1 to 4 alone.
    """

    family: Family
    id: str | None = None
    sample: str | int | None = None
    position: int = 0


@dataclass(frozen=True)
class Result:
    """What a file says of one question. name: the record's, for messages and to pair files.

    type: the question's type, LoCoMo's category as a digit. retrieved, said: what else the file says of the retrieval
    and the answer, under its own names. verdicts: one for each run of the judge. state, trial: whose state this is a
    trial of and the trial's ordinal. reader, judge: the models, where the file names them.
    """

    name: str
    place: Place
    question: str
    type: str
    gold: str
    date: str | None = None
    context: str | None = None
    answer: str | None = None
    verdicts: tuple[bool, ...] = ()
    retrieved: Mapping[str, Any] = field(default_factory=dict)
    said: Mapping[str, Any] = field(default_factory=dict)
    judged: Mapping[str, Any] = field(default_factory=dict)
    state: str | None = None
    trial: int = 1
    reader: str | None = None
    judge: str | None = None


# --- fields -----------------------------------------------------------------------------------------------------


class RecordError(ValueError):
    """What is wrong with a record, with its name."""


class Fields:
    """A record's fields, each asked for by its type. Raises RecordError that names record and field."""

    def __init__(self, name: str, value: Any) -> None:
        if not isinstance(value, dict):
            raise RecordError(f"{name}: not an object")
        self.name = name
        self.value: dict[str, Any] = value

    def error(self, field: str, what: str) -> RecordError:
        """An error in that field."""
        return RecordError(f"{self.name}: {field} {what}")

    def text(self, field: str) -> str:
        """A text that may be empty."""
        value = self.value.get(field)
        if not isinstance(value, str):
            raise self.error(field, f"is {shown(value)}, a text is expected" if field in self.value else "is missing")
        return value

    def optional(self, field: str) -> str | None:
        """A text, or None where the field is null or missing."""
        return None if self.value.get(field) is None else self.text(field)

    def gold(self, field: str = "golden_answer") -> str:
        """An answer as text, where files also write numbers."""
        value = self.value.get(field)
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            what = f"is {shown(value)}, a text or number is expected" if field in self.value else "is missing"
            raise self.error(field, what)
        return str(value)

    def category(self) -> str:
        """LoCoMo's category, as a digit."""
        value = self.value.get("category")
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 5:
            raise self.error("category", f"is {shown(value)}, a number from 1 to 5 is expected")
        return str(value)

    def inner(self, field: str) -> Fields:
        """An object's fields; empty where it is null or missing."""
        value = self.value.get(field)
        if value is not None and not isinstance(value, dict):
            raise self.error(field, f"is {shown(value)}, an object is expected")
        return Fields(f"{self.name}: {field}", value or {})

    def flag(self, field: str) -> bool | None:
        """True, false, or None where the field is null or missing."""
        value = self.value.get(field)
        if value is not None and not isinstance(value, bool):
            raise self.error(field, f"is {shown(value)}, true or false is expected")
        return value

    def without(self, *fields: str) -> dict[str, Any]:
        """All other fields."""
        return {name: value for name, value in self.value.items() if name not in fields}


def shown(value: Any) -> str:
    """A value as a message quotes it."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}…"


def context_of(response: Fields) -> str:
    """The reader's memory in a service's `intermediate_outputs`; empty where there is none."""
    items = response.value.get("intermediate_outputs")
    if items is None:
        return ""
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise response.error("intermediate_outputs", "is not a list of objects")
    return memory(items)
