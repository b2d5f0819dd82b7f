"""From a service's items to the text a reader sees.

One store: each item's content, with its description under DETAILS. Two stores: a labelled block for each person.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SEPARATOR = "\uff1b"
"""What joins dated descriptions of one entity: the full-width semicolon."""
PINNED = 0.999
"""The score from which an item is pinned: the profile has 1."""
RULE = "=" * 17

_OWNER = re.compile(r"\b(?:(?i:the user)|User)\b")


@dataclass(frozen=True)
class Picked:
    """The items of one store that are shown: pinned first, then the others, best first. reranked: whether they were
    chosen here, so that the service's own answer is about others."""

    pinned: Sequence[Mapping[str, Any]]
    others: Sequence[Mapping[str, Any]]
    reranked: bool = False

    @property
    def items(self) -> list[Mapping[str, Any]]:
        """Both, in the order in which they are shown."""
        return [*self.pinned, *self.others]


def text_of(item: Mapping[str, Any]) -> str:
    """An item's own text, stripped."""
    content = item.get("content")
    return content.strip() if isinstance(content, str) else ""


def description_of(item: Mapping[str, Any]) -> str:
    """The description behind an item, stripped; empty where it has none."""
    data = item.get("data")
    found = data.get("description") if isinstance(data, dict) else None
    return found.strip() if isinstance(found, str) else ""


def document_of(item: Mapping[str, Any]) -> str:
    """What a reranker is shown: the bare content, else the wrapped one."""
    data = item.get("data")
    bare = data.get("content") if isinstance(data, dict) else None
    return bare.strip() if isinstance(bare, str) and bare.strip() else text_of(item)


def score_of(item: Mapping[str, Any]) -> float:
    """An item's score; 0 where it has none that is a finite number."""
    score = item.get("score")
    if not isinstance(score, int | float) or isinstance(score, bool):
        return 0.0
    try:
        return float(score) if math.isfinite(score) else 0.0
    except OverflowError:
        return 0.0


def memory(items: Iterable[Mapping[str, Any]]) -> str:
    """The memory of a single store: blocks of content and details, an empty line between them."""
    blocks = []
    for item in items:
        content, description = text_of(item), description_of(item)
        if description:
            content = f"{content}\nDETAILS:\n{description.replace(SEPARATOR, chr(10)).strip()}".strip()
        if content:
            blocks.append(content)
    return "\n\n".join(blocks)


def labelled(name: str, picked: Picked, answer: str) -> str:
    """One person's store, under a heading with the name.

    The memory is the service's answer or, reranked, the contents of what was chosen; then a list of the distinct
    descriptions. The service writes "the user" for the owner, so those words become the name. That also rewrites a
    "User" that means no one (a user interface, quoted speech): nothing in the text tells them apart.
    """
    parts = [text_of(item) for item in picked.items] if picked.reranked else [answer.strip()]
    described = dict.fromkeys(d for item in picked.items if (d := description_of(item)))
    if described:
        parts.append("\n".join(["Entity details (with timestamps):", *(f"- {d}" for d in described)]))
    text = "\n\n".join(part for part in parts if part)
    owner = name[:1].upper() + name[1:]
    text = _OWNER.sub(lambda _: owner, text)
    about = f"(What {owner} remembers, in the first person; anyone called by another name is somebody else.)"
    return f"{RULE} MEMORY STORE: {owner} {RULE}\n{about}\n{text or '(none)'}"
