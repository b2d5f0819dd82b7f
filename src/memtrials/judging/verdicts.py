"""The strict reading of a judge's reply: a score of 0 or 1, or unreadable. There is no third way to a number."""

from __future__ import annotations

import json
import re
from typing import Any

from memtrials.benchmarks.base import VerdictRule, WordRule

VERDICT_FORMAT = {
    "type": "json_schema",
    "json_schema": {
        "name": "verdict",
        "strict": True,
        "schema": {
            "type": "object",
            "properties": {"score": {"type": "integer", "enum": [0, 1]}, "reason": {"type": "string"}},
            "required": ["score", "reason"],
            "additionalProperties": False,
        },
    },
}
"""The form of a verdict as a `response_format`: a server that takes one can then return nothing unreadable."""

PARSER_VERSION = 1
_WRITTEN = re.compile(r"[01](?:\.0+)?")
_BEGUN = re.compile(r'\{\s*"score"\s*:\s*"?([01])(?:\.0+)?"?\s*[,}]')


class UnreadableError(ValueError):
    """The reply holds no verdict; the work failed, it isn't a 0."""


def parse_score(reply: str) -> tuple[float, str]:
    """The score (0.0 or 1.0) and reason of a `{"score": …, "reason": …}` reply.

    Readable: the object alone, in a code fence, or with text around it; a score written as 1, 1.0 or "1". Raises
    UnreadableError for everything else: no object, several that disagree, a missing score, 0.5, true. An object that
    can't be decoded gives no score, but its score has a say in whether there are several: in
    `{"score": 0, "reason": "it says "{"score": 1}""}` the judge's own isn't the one that decodes.
    """
    objects, broken = _objects(reply)
    found = [value for value in objects if "score" in value]
    if not found:
        raise UnreadableError("the reply holds no JSON object with a score")
    scores = {_binary(value["score"]) for value in found}
    if len(scores | broken) > 1:
        raise UnreadableError("the reply holds scores that disagree")
    reason = found[-1].get("reason", "")
    return scores.pop(), reason if isinstance(reason, str) else json.dumps(reason, ensure_ascii=False)


STRICT: dict[VerdictRule, WordRule] = {"official": "strict", "last-line": "strict-label"}
"""What to hold a published rule against."""


def read_verdict(reply: str, rule: VerdictRule) -> tuple[float, str]:
    """The score and reason of a reply under a rule. Raises UnreadableError."""
    return parse_score(reply) if rule == "score" else parse_yes_no(reply, rule=rule)


def holds_verdict(answer: str) -> bool:
    """Whether a text that is to be judged holds a verdict in the judge's own form."""
    try:
        parse_score(answer)
    except UnreadableError:
        return False
    return True


def _binary(score: object) -> float:
    value = float(score) if isinstance(score, str) and _WRITTEN.fullmatch(score.strip()) else score
    if isinstance(value, bool) or value not in (0, 1):
        raise UnreadableError(f"the score is {json.dumps(score)[:60]}, neither 0 nor 1")
    return 1.0 if value else 0.0


def _objects(text: str) -> tuple[list[dict[str, Any]], set[float]]:
    """Every outermost JSON object in the text, in order, and the scores that objects which can't be decoded begin with.

    Line breaks inside strings are let pass, as models write them. Raises UnreadableError.
    """
    decoder = json.JSONDecoder(object_pairs_hook=_each_once, strict=False)
    found: list[dict[str, Any]] = []
    broken: set[float] = set()
    at = 0
    while (start := text.find("{", at)) >= 0:
        try:
            value, at = decoder.raw_decode(text, start)
            found.append(value)
        except RecursionError:
            raise UnreadableError("the reply is nested too deeply") from None
        except ValueError:
            at = start + 1
            if begun := _BEGUN.match(text, start):
                broken.add(float(begun[1]))
    return found, broken


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of these. Raises ValueError for a key that occurs twice: which value is meant can't be known."""
    value = dict(pairs)
    if len(value) < len(pairs):
        raise ValueError("a key occurs twice")
    return value


# --- a word as verdict ---

_WORDS = {
    "strict": {"yes": 1.0, "no": 0.0},
    "strict-label": {"correct": 1.0, "incorrect": 0.0, "wrong": 0.0},
}
_KEYS = frozenset({"answer", "decision", "judgement", "judgment", "label", "verdict"})
_KEY = "|".join(sorted(_KEYS))
_LEFT_OVER = re.compile(rf"""["'“‘]({_KEY})["'”’]\s*:""", re.IGNORECASE)
_THOUGHT = re.compile(r"\A\s*<think(ing)?>.*?</think(ing)?>", re.DOTALL)
_THINKING = re.compile(r"</?think(ing)?>")
_FENCE = re.compile(r"^[ \t]*(```|~~~)[ \t]*[A-Za-z]*[ \t]*$", re.MULTILINE)
_MARKS = str.maketrans("", "", "*_`\ufeff\u200b")  # emphasis, and what nobody sees
_BULLET = re.compile(r"([#•+-] ?)+")  # "~~" is none: it strikes out
_QUOTED = re.compile(r"""["'“‘«]([^"'“”‘’«»]*)["'”’»][.!]*""")
_BREAK = re.compile(
    r"""\.(?![ ]?\d)                       # "No. 5 is right" stays whole
    | (?<=\?)                              # a question keeps its mark, so it never is a verdict
    | [!;,…()\[\]–—] | [ ]-+[ ] | \bbecause\b
    | (?<=\byes): | (?<=\bno): | (?<=correct): | (?<=\bwrong):""",
    re.VERBOSE,
)
_SAID = re.compile(
    rf"""(?P<label>
           ( ((my|the)[ ])?(final[ ])?({_KEY})[ ]?:[ ]?
           | (so[ ]|thus[ ]|therefore[ ])?(my[ ](final[ ])?|the[ ]final[ ])({_KEY})[ ]is:?[ ] )
           ["'“‘]? )?
        (?P<word>[a-z]+)
        (?(label)["'”’]?)""",
    re.VERBOSE,
)
_MENTIONED = re.compile(r"(?<!:)(?<! or) (yes|no)$")


def parse_yes_no(reply: str, *, rule: WordRule = "strict") -> tuple[float, str]:
    """The verdict (0.0 or 1.0) and the reason of a reply whose verdict is a word.

    rule: `strict`, the default because a verdict nobody gave must not become a score; `official`, LongMemEval's: 1 if
    `yes` occurs anywhere in the lower-cased reply ("yesterday" does), else 0; `last-line`, MemoryBear's for LoCoMo: on
    the last non-empty line "incorrect" or "wrong" is 0, else "correct" is 1, else the same on the whole reply, else 0;
    `strict-label`, what to hold `last-line` against: the strict rule for the words correct, incorrect and wrong.
    The published two read everything, an empty reply as 0; they are for parity.

    Readable by a strict rule is a verdict word, whatever its case, emphasis, fence or quotes,
    - that begins the first line, bare or after a label, and is set off by punctuation or "because": `No, it differs`;
    - that is the last line, or ends it after a label: `The year differs. Verdict: no`;
    - that is so given by a JSON object's `answer`, `verdict`, `label`, `judgment` or `decision`.
    Raises UnreadableError for everything else, and when both verdicts stand: as a clause of their own anywhere, or at
    the end of one ("it should be no"), unless quoted or under another label (`Gold: no`). A first block of thoughts in
    `<think>` is no part of the reply; one without end makes it unreadable. Ordinary uses of the words ("no errors",
    "a yes would need") are neither. The words alone are read: "Yes, that isn't right" is a yes.

    The reason is the object's `reason` where that is text, else the reply without such thoughts.
    """
    if rule == "official":
        return float("yes" in reply.lower()), reply.strip()
    if rule == "last-line":
        return _on_last_line(reply.lower()), reply.strip()
    if rule not in _WORDS:
        raise ValueError(f"unknown verdict rule {rule!r}")
    return _strictly(reply, _WORDS[rule])


def _on_last_line(reply: str) -> float:
    for text in (*reply.strip().splitlines()[-1:], reply):
        if "incorrect" in text or "wrong" in text:
            return 0.0
        if "correct" in text:
            return 1.0
    return 0.0


def _strictly(reply: str, words: dict[str, float]) -> tuple[float, str]:
    text = _THOUGHT.sub("", reply, count=1)
    if _THINKING.search(text):
        raise UnreadableError("the reply's thoughts don't end")
    objects, rest = _set_apart(text)
    if _LEFT_OVER.search(rest):
        raise UnreadableError("the reply holds a verdict in JSON that can't be decoded")
    scores, stated = _verdicts(rest, words)
    reason = text.strip()
    for found in objects:
        for value in (value for key, value in found.items() if key.lower() in _KEYS):
            also, stated = _verdicts(value, words) if isinstance(value, str) else (set[float](), False)
            if not stated:
                raise UnreadableError(f"the object's verdict is none of {', '.join(words)}")
            scores |= also
            reason = found["reason"] if isinstance(found.get("reason"), str) else reason
    if len(scores) > 1:
        raise UnreadableError("the reply holds verdicts that disagree")
    if not stated:
        raise UnreadableError(f"none of {', '.join(words)} stands as the reply's verdict")
    return scores.pop(), reason


def _verdicts(text: str, words: dict[str, float]) -> tuple[set[float], bool]:
    """All verdicts that stand in the text, and whether one stands where a reply states it."""
    lines = [clauses for line in _FENCE.sub("", text).splitlines() if (clauses := _clauses(line))]
    if not lines:
        return set(), False
    scores: set[float] = set()
    for clause in (clause for clauses in lines for clause in clauses):
        said, mentioned = _SAID.fullmatch(clause), _MENTIONED.search(clause)
        scores.update(words[word] for word in (said and said["word"], mentioned and mentioned[1]) if word in words)
    first, last = _SAID.fullmatch(lines[0][0]), _SAID.fullmatch(lines[-1][-1])
    begins = first is not None and first["word"] in words
    ends = last is not None and last["word"] in words and (len(lines[-1]) == 1 or last["label"] is not None)
    return scores, begins or ends


def _clauses(line: str) -> list[str]:
    """The line in lower case without emphasis, bullet and quotes around it, cut where punctuation sets words off.

    Empty for a line that `>` marks as someone else's.
    """
    plain = " ".join(line.translate(_MARKS).lower().split())
    if plain.startswith(">"):
        return []
    if bullet := _BULLET.match(plain):
        plain = plain[bullet.end() :]
    if quoted := _QUOTED.fullmatch(plain):
        plain = quoted[1]
    clauses = (clause.strip() for clause in _BREAK.split(plain))
    return [clause for clause in clauses if any(map(str.isalnum, clause))]


def _set_apart(text: str) -> tuple[list[dict[str, Any]], str]:
    """Every outermost JSON object that can be decoded, and the text with `{}` in its place. Raises UnreadableError."""
    decoder = json.JSONDecoder(object_pairs_hook=_each_once, strict=False)
    found: list[dict[str, Any]] = []
    rest: list[str] = []
    at = 0
    while (start := text.find("{", at)) >= 0:
        try:
            value, end = decoder.raw_decode(text, start)
        except RecursionError:
            raise UnreadableError("the reply is nested too deeply") from None
        except ValueError:
            rest.append(text[at : start + 1])
            at = start + 1
        else:
            found.append(value)
            rest += text[at:start], "{}"
            at = end
    return found, "".join((*rest, text[at:]))
