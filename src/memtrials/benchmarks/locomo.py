"""LoCoMo: questions about very long conversations between two people, in five categories.

A task is one conversation; its questions are keyed by their position, because twelve texts occur twice. What a system
is told of a turn is its speaker, its session's time, its text and, marked as not to be relied on, the caption of a
picture. Everything else in the file is annotation; `locomo@derived` gives part of it, summaries of sessions and
statements generated from them, to systems that take derived memories. Source: snap-research/locomo, arXiv:2402.17753.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from memtrials.benchmarks import locomo_derived, locomo_ranking
from memtrials.benchmarks.base import (
    PLAIN,
    REFUSAL,
    Benchmark,
    JudgeProfile,
    Loaded,
    LoadOptions,
    Measure,
    Metric,
    Part,
    Probes,
    ReaderProfile,
)
from memtrials.benchmarks.enrichment import Graph, Naming, Sitting, Utterance
from memtrials.benchmarks.timeline import Session, Turn, turn_id
from memtrials.errors import UserError
from memtrials.metrics import lexical, locomo_f1
from memtrials.records import DataFile, Gold, Query, Release, TaskBody, TimelineSource, clean_text, sha256

FILES = ("locomo10.json", "locomo_sample.json")
KNOWN = {
    "79fa87e90f04081343b8c8debecb80a9a6842b76a7aa537dc9fdf651ea698ff4": "10",
    "e51e690b17e8e818965d853c540859b6f9c3c6586ed87f3361bd55875f15b1a1": "sample",
}
"""Known files by their SHA-256 (byte order mark dropped, CRLF read as LF)."""

ATTRIBUTION = (
    "LoCoMo (Maharana, Lee, Tulyakov, Bansal, Barbieri, Fang, ACL 2024, arXiv:2402.17753), Copyright Snap Inc., "
    "CC BY-NC 4.0: no commercial use, and name the authors, also in what is made from it"
)
SAMPLE_ATTRIBUTION = "LoCoMo sample: fictional, written for memtrials, Apache-2.0"

CATEGORIES = {
    1: "multi-hop",
    2: "temporal",
    3: "open-domain",
    4: "single-hop",
    5: "adversarial",
}
"""Names by the number in the data. The paper's list (single-hop first) is another order, often taken for the number."""
IN_TABLES = (4, 1, 2, 3, 5)
"""The order of the paper's tables."""

NOT_MENTIONED = "Not mentioned in the conversation"
"""The right answer in the fifth category, as the official choice words it."""

DERIVED = "derived"
"""The variant with what the data concluded from each session."""

MOST_PROBLEMS = 100
MOST_ANSWER_WORDS = 60

_SESSION = re.compile(r"session_([1-9]\d*)")
_DATE = re.compile(r"session_(\d+)_date_time")
_TURN = re.compile(r"D:?(\d+):(\d+)")
_SAMPLE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TIME = re.compile(r"([1-9]|1[0-2]):([0-5]\d) ([ap])m on ([1-9]|[12]\d|3[01]) ([A-Z][a-z]+), (\d{4})")
_MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


def category_type(category: int) -> str:
    """A category as tables show it: number and name, because either alone has been misread."""
    return f"{category}-{CATEGORIES[category]}"


def parse_time(text: str) -> datetime:
    """`h:mm am|pm on D Month, YYYY`, in the conversation's own time; 12 am is hour 0. Raises ValueError."""
    found = _TIME.fullmatch(text)
    if found is None or found[5] not in _MONTHS:
        raise ValueError(f"{text!r} is not a time like 1:56 pm on 8 May, 2023")
    hour, minute, half, day, month, year = found.groups()
    clock = int(hour) % 12 + (12 if half == "p" else 0)
    return datetime(int(year), _MONTHS.index(month) + 1, int(day), clock, int(minute))  # noqa: DTZ001 - it has no zone


# --- evidence ---------------------------------------------------------------------------------------------------


class Repaired(NamedTuple):
    """An evidence element as it is read. ids: those of existing turns; leftover: what isn't the name of one."""

    ids: tuple[str, ...]
    leftover: tuple[str, ...]


def repair(element: str, turns: Mapping[str, str]) -> Repaired:
    """The turns that an evidence element names; turns: those that exist, by `dia_id`. A missing id is never guessed.

    `D8:6; D9:17` names two, `D:11:26` is `D11:26` and `D30:05` is `D30:5`.
    """
    named = [f"D{int(session)}:{int(turn)}" for session, turn in _TURN.findall(element)]
    left = [name for name in named if name not in turns]
    if not named or re.search(r"\w", _TURN.sub(" ", element)):
        left = [element]
    return Repaired(tuple(name for name in named if name in turns), tuple(left))


# --- reading and checking ---------------------------------------------------------------------------------------


class _Read(NamedTuple):
    """A file as read. samples: as in the file, not checked; file: its name and hash; size: in bytes."""

    path: Path
    samples: list[Any]
    file: DataFile
    size: int


class _Problems(list[str]):
    """What is wrong with a file, each with its sample and field."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def add(self, where: str, what: str) -> None:
        self.append(f"{self.path}, {where}: {what}")

    def raise_if_any(self) -> None:
        if len(self) == 1:
            raise UserError(self[0])
        if self:
            more = [f"… and {len(self) - MOST_PROBLEMS:,} more"] if len(self) > MOST_PROBLEMS else []
            raise UserError(f"{self.path}: {len(self):,} problems, nothing was written", [*self[:MOST_PROBLEMS], *more])


def _read(data: Path) -> _Read:
    """The file at a path, or in a folder under one of its names. Raises UserError."""
    path = next((data / name for name in FILES if (data / name).is_file()), data / FILES[0]) if data.is_dir() else data
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; point --data at {FILES[0]} or its folder") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    text = text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    try:
        samples = json.loads(text.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON ({error}); is the file cut off? Download it again") from None
    if not isinstance(samples, list) or not samples:
        raise UserError(f"{path}: not an array of conversations; download it again")
    return _Read(path, samples, DataFile(path.name, hashlib.sha256(text).hexdigest()), len(text))


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _text(row: Mapping[str, Any], field: str, where: str, problems: _Problems) -> str | None:
    value = row.get(field)
    if isinstance(value, str) and value.strip():
        return value
    what = "is missing" if field not in row else "is empty" if isinstance(value, str) else f"is {_json_type(value)}"
    problems.add(where, f"field {field} {what}; it must be a text")
    return None


def _json_type(value: object) -> str:
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "an array", dict: "an object"}
    return names.get(type(value), "null")


def _check(samples: Sequence[Any], problems: _Problems) -> None:
    seen: set[str] = set()
    for position, sample in enumerate(samples):
        where = f"sample {position}"
        if not isinstance(sample, dict):
            problems.add(where, f"{_json_type(sample)} where an object is expected")
            continue
        name = _text(sample, "sample_id", where, problems)
        if name is not None:
            where = f"sample {name}"
            if not _SAMPLE_ID.fullmatch(name):
                problems.add(where, "field sample_id holds characters other than letters, digits, dot, dash and _")
            if name in seen:
                problems.add(where, "field sample_id occurs twice")
            seen.add(name)
        if isinstance(sample.get("conversation"), dict):
            _check_conversation(sample["conversation"], where, problems)
        else:
            problems.add(where, "field conversation is missing or not an object")
        if isinstance(sample.get("qa"), list) and sample["qa"]:
            for number, row in enumerate(sample["qa"]):
                _check_question(row, f"{where}, qa[{number}]", problems)
        else:
            problems.add(where, "field qa is missing, empty or not an array")


def _check_conversation(conversation: Mapping[str, Any], where: str, problems: _Problems) -> None:
    speakers = [_text(conversation, field, where, problems) for field in ("speaker_a", "speaker_b")]
    if speakers[0] is not None and speakers[0] == speakers[1]:
        problems.add(where, "fields speaker_a and speaker_b are one name")
    for key in conversation:
        if key.startswith("session_") and not (_SESSION.fullmatch(key) or _DATE.fullmatch(key)):
            problems.add(where, f"field {key} is neither session_<number> nor session_<number>_date_time")
    numbers = session_numbers(conversation)
    if not numbers:
        problems.add(where, "the conversation has no sessions")
    before: datetime | None = None
    for number in numbers:
        key = f"session_{number}"
        time = _text(conversation, f"{key}_date_time", where, problems)
        if time is not None:
            try:
                parsed = parse_time(time)
                if before is not None and parsed <= before:
                    problems.add(where, f"field {key}_date_time is not after the session before it")
                before = parsed
            except ValueError as error:
                problems.add(where, f"field {key}_date_time: {error}")
        turns = conversation[key]
        if not isinstance(turns, list) or not turns:
            problems.add(where, f"field {key} is empty or not an array")
            continue
        for position, turn in enumerate(turns, 1):
            _check_turn(turn, f"D{number}:{position}", speakers, f"{where}, {key}[{position - 1}]", problems)


def _check_turn(turn: Any, name: str, speakers: Sequence[str | None], where: str, problems: _Problems) -> None:
    if not isinstance(turn, dict):
        problems.add(where, f"{_json_type(turn)} where an object is expected")
        return
    _text(turn, "text", where, problems)
    if turn.get("dia_id") != name:
        problems.add(where, f"field dia_id is {json.dumps(turn.get('dia_id'))}, its place is {name}")
    if None not in speakers and turn.get("speaker") not in speakers:
        problems.add(where, f"field speaker is {json.dumps(turn.get('speaker'))}, neither speaker_a nor speaker_b")
    if "blip_caption" in turn:
        _text(turn, "blip_caption", where, problems)


def _check_question(row: Any, where: str, problems: _Problems) -> None:
    if not isinstance(row, dict):
        problems.add(where, f"{_json_type(row)} where an object is expected")
        return
    _text(row, "question", where, problems)
    evidence = row.get("evidence")
    if not isinstance(evidence, list) or not all(isinstance(element, str) for element in evidence):
        problems.add(where, "field evidence is missing or not an array of texts")
    category = row.get("category")
    if not isinstance(category, int) or isinstance(category, bool) or category not in CATEGORIES:
        problems.add(where, f"field category is {json.dumps(category)}, not a number from 1 to 5")
        return
    if category == locomo_f1.ADVERSARIAL:
        _text(row, "adversarial_answer", where, problems)
    elif "adversarial_answer" in row:
        problems.add(where, f"field adversarial_answer stands in category {category}; it belongs to 5")
    number = isinstance(row.get("answer"), int) and not isinstance(row["answer"], bool)
    if not number and (category != locomo_f1.ADVERSARIAL or "answer" in row):
        _text(row, "answer", where, problems)


def session_numbers(conversation: Mapping[str, Any]) -> list[int]:
    """The numbers of a conversation's sessions, in their order. A date without a session is none."""
    return sorted(int(found[1]) for key in conversation if (found := _SESSION.fullmatch(key)))


# --- tasks and timelines ----------------------------------------------------------------------------------------


def load(data: Path, options: LoadOptions) -> Loaded:
    """Validate a file and derive its tasks, one for each conversation. Raises UserError."""
    read = _read(data)
    problems = _Problems(read.path)
    _check(read.samples, problems)
    problems.raise_if_any()
    digest = read.file.sha256
    variant = KNOWN.get(digest)
    if variant is None and not options.allow_modified:
        raise UserError(
            f"{read.path}: not a known LoCoMo file (SHA-256 {digest[:8]}…, the released one's is "
            f"{next(iter(KNOWN))[:8]}…); add --allow-modified to build it as locomo@modified-{digest[:8]}"
        )
    name = variant or f"modified-{digest[:8]}"
    derives = options.variant == DERIVED
    concluded = [_concluded(sample) for sample in read.samples] if derives else []
    if derives:
        if not any(found.graph for found in concluded):
            raise UserError(f"{read.path}: has neither summaries of sessions nor generated observations to derive from")
        name = DERIVED if variant == "10" else f"{name}-{DERIVED}"
    conversations = [sample["conversation"] for sample in read.samples]
    timelines = [_timeline(conversation) for conversation in conversations]
    release = Release(
        sha256=sha256([digest]),
        files=(read.file,),
        known=variant is not None,
        attribution=SAMPLE_ATTRIBUTION if variant == "sample" else ATTRIBUTION,
        constants=_constants(read.samples, timelines) | (locomo_derived.census(concluded) if derives else {}),
    )
    tasks = []
    notes: list[str] = []
    for sample, timeline in zip(read.samples, timelines, strict=True):
        turns = turn_ids(sample["conversation"])
        body = TaskBody(
            release=release,
            data=str(read.path.resolve()),
            source=TimelineSource(file=read.file.path, sha256=digest, start=0, end=read.size),
            sessions=tuple(session.digest() for session in timeline),
            turns=len(turns),
            queries=tuple(_query(sample["sample_id"], n, row) for n, row in enumerate(sample["qa"])),
            gold=tuple(_gold(n, row, turns) for n, row in enumerate(sample["qa"])),
            needs=("enrich",) if derives else (),
        )
        tasks.append((sample["sample_id"], None, body))
        notes += _notes(sample, body)
    return Loaded(f"locomo@{name}", release, tasks, notes)


def _constants(samples: Sequence[Mapping[str, Any]], timelines: Sequence[Sequence[Session]]) -> dict[str, int]:
    categories = Counter(row["category"] for sample in samples for row in sample["qa"])
    return {
        "conversations": len(samples),
        "sessions": sum(map(len, timelines)),
        "turns": sum(len(session.turns) for timeline in timelines for session in timeline),
        "questions": categories.total(),
        "questions_1_to_4": categories.total() - categories[locomo_f1.ADVERSARIAL],
        **{category_type(category): categories[category] for category in CATEGORIES},
    }


def turn_ids(conversation: Mapping[str, Any]) -> dict[str, str]:
    """Neutral turn ids by `dia_id`: the position of the session among those that are there, and of the turn in it."""
    return {
        turn["dia_id"]: turn_id(position, n)
        for position, number in enumerate(session_numbers(conversation))
        for n, turn in enumerate(conversation[f"session_{number}"])
    }


def _query(sample_id: str, position: int, row: Mapping[str, Any]) -> Query:
    return Query(
        id=str(position),
        text=clean_text(row["question"]),
        unit=str(position),
        cluster=sample_id,
        type=category_type(row["category"]),
    )


def _gold(position: int, row: Mapping[str, Any], turns: Mapping[str, str]) -> Gold:
    """details: `category`; `evidence`, JSON of one [element, its turn as it is written or null, its session's position
    or null] for each element; `repaired`, the `dia_id` of each turn in `Gold.evidence`; `leftover`, what names none;
    `number` where the gold is one in the data; in the fifth category `adversarial_answer`, which must not be given, and
    `own_answer` in the two rows that have one."""
    repaired = [repair(element, turns) for element in row["evidence"]]
    ids = list(dict.fromkeys(name for found in repaired for name in found.ids))
    leftover = [left for found in repaired for left in found.leftover]
    adversarial = row["category"] == locomo_f1.ADVERSARIAL
    answer = row.get("answer")
    details = {
        "category": str(row["category"]),
        "evidence": json.dumps(
            [[element, turns.get(element), _session_of(element, turns)] for element in row["evidence"]]
        ),
        "repaired": json.dumps(ids),
        **({"leftover": json.dumps(leftover)} if leftover else {}),
        **({"number": str(answer)} if isinstance(answer, int) else {}),
        **({"adversarial_answer": clean_text(row["adversarial_answer"])} if adversarial else {}),
        **({"own_answer": clean_text(str(answer))} if adversarial and "answer" in row else {}),
    }
    return Gold(
        query=str(position),
        answers=(NOT_MENTIONED if adversarial else clean_text(str(answer)),),
        evidence=tuple(turns[name] for name in ids),
        abstention=adversarial,
        details=details,
    )


def _session_of(element: str, turns: Mapping[str, str]) -> int | None:
    """The position of the session that an element names by the text before its first colon, as the official recall
    over sessions reads it."""
    first = turns.get(f"{element.partition(':')[0]}:1")
    return None if first is None else int(first.partition(".")[0])


def _notes(sample: Mapping[str, Any], body: TaskBody) -> Iterator[str]:
    """What in a conversation isn't as its form says, and what was made of it."""
    name, conversation, rows = sample["sample_id"], sample["conversation"], sample["qa"]
    numbers = set(session_numbers(conversation))
    orphans = sorted(n for key in conversation if (d := _DATE.fullmatch(key)) and (n := int(d[1])) not in numbers)
    if orphans:
        yield f"{name}: {len(orphans)} dates without a session ({orphans[0]} to {orphans[-1]}) are left out"
    turns = turn_ids(conversation)
    asked: dict[str, int] = {}
    for position, (row, gold) in enumerate(zip(rows, body.gold, strict=True)):
        place = f"{name} qa[{position}] ({category_type(row['category'])})"
        for element in dict.fromkeys(row["evidence"]):
            found = repair(element, turns)
            if found.leftover:
                kept = f"; {', '.join(found.ids)} are kept" if found.ids else ""
                yield f"{place}: evidence {json.dumps(element)} names no turn that there is{kept}"
            elif found.ids != (element,):
                yield f"{place}: evidence {json.dumps(element)} is read as {', '.join(found.ids)}"
        if len(set(row["evidence"])) < len(row["evidence"]):
            yield f"{place}: evidence is named twice"
        if not gold.evidence:
            yield f"{place}: no evidence"
        if "own_answer" in gold.details:
            yield f"{place}: its answer of its own, {json.dumps(gold.details['own_answer'])}, is read by no score"
        first = asked.setdefault(row["question"].strip(), position)
        if first != position:
            yield f"{place}: the same question as qa[{first}]"


def _timeline(conversation: Mapping[str, Any]) -> list[Session]:
    """What a system is told. speaker_a has the role of the user in the whole conversation, whoever opens a session."""
    roles = {conversation["speaker_a"]: "user", conversation["speaker_b"]: "assistant"}
    out = []
    for number in session_numbers(conversation):
        time = conversation[f"session_{number}_date_time"]
        turns = (
            Turn(roles[turn["speaker"]], content(turn), time, clean_text(turn["speaker"]))
            for turn in conversation[f"session_{number}"]
        )
        out.append(Session(tuple(turns), time))
    return out


def content(turn: Mapping[str, Any]) -> str:
    """What a turn says, and the caption of the picture that comes with it, marked: it is a machine's and may be wrong.
    Not the address of the picture, and not the words it was searched by, which hold answers."""
    text = clean_text(turn["text"])
    return (
        f"{text}\n[image, unverified caption: {clean_text(turn['blip_caption'])}]" if "blip_caption" in turn else text
    )


@functools.lru_cache(maxsize=2)
def _reopened(data: Path) -> tuple[DataFile, dict[str, tuple[dict[str, Any], list[Session]]]]:
    """A file that was built from: its hash, and samples with their timelines by name. Raises UserError."""
    read = _read(data)
    problems = _Problems(read.path)
    _check(read.samples, problems)
    problems.raise_if_any()
    return read.file, {s["sample_id"]: (s, _timeline(s["conversation"])) for s in read.samples}


def _sample(data: Path, task: str, body: TaskBody) -> tuple[dict[str, Any], list[Session]]:
    file, known = _reopened(data)
    if [file.sha256] != [f.sha256 for f in body.release.files]:
        raise UserError(f"{data}: not the file this ledger was built from; give it with --data")
    return known[task]


def samples(data: Path, body: TaskBody) -> list[dict[str, Any]]:
    """The file that was built from, whole. Raises UserError for another."""
    read = _read(data)
    if [read.file] != list(body.release.files):
        raise UserError(f"{data}: not the file this ledger was built from; give it with --data")
    return read.samples


def sessions(data: Path, benchmark: str, task: str, body: TaskBody) -> list[Session]:
    """The timeline of a conversation. Raises UserError."""
    return _sample(data, task, body)[1]


def export_timeline(data: Path, benchmark: str, task: str, body: TaskBody) -> dict[str, Any]:
    """One conversation in LoCoMo's own form, as a system is told it, with its questions."""
    sample, timeline = _sample(data, task, body)
    conversation = sample["conversation"]
    out: dict[str, Any] = {field: conversation[field] for field in ("speaker_a", "speaker_b")}
    for number, session in zip(session_numbers(conversation), timeline, strict=True):
        out[f"session_{number}_date_time"] = session.time
        out[f"session_{number}"] = [
            {"speaker": turn.speaker, "dia_id": f"D{number}:{n}", "text": turn.content}
            for n, turn in enumerate(session.turns, 1)
        ]
    return {"sample_id": task, "conversation": out, "questions": [query.text for query in body.queries]}


# --- what the data concluded ------------------------------------------------------------------------------------


def history(data: Path, benchmark: str, task: str, body: TaskBody) -> list[Sitting]:
    """A conversation by the data's own names; what was said, without captions. Raises UserError."""
    conversation = _sample(data, task, body)[0]["conversation"]
    return [
        Sitting(
            name,
            conversation[f"{name}_date_time"],
            tuple(
                Utterance(turn["dia_id"], clean_text(turn["speaker"]), clean_text(turn["text"]))
                for turn in conversation[name]
            ),
        )
        for name in (f"session_{number}" for number in session_numbers(conversation))
    ]


NAMING = Naming(
    prefix="locomo",
    dataset=lambda benchmark: "locomo",
    workflow="deterministic-exact-source-replay-v1",
    hashed=False,
    history=history,
)


def derived(data: Path, benchmark: str, task: str, body: TaskBody) -> Graph:
    """What the data concluded from a conversation. Raises UserError."""
    return _concluded(_sample(data, task, body)[0]).graph


def _concluded(sample: Mapping[str, Any]) -> locomo_derived.Concluded:
    conversation = sample["conversation"]
    return locomo_derived.concluded(sample, session_numbers(conversation), turn_ids(conversation))


# --- readers ----------------------------------------------------------------------------------------------------


def short_answer(text: str) -> str:
    """A reply's final answer: what follows the last line that begins with `Answer:`, else all of it, up to 60 words.

    Steps of reasoning before it must not be scored, and a reply that lists many candidates would please any judge.
    """
    said = re.split(r"(?im)^\W*(?:final |short )?answer\W*:\W*", text)[-1]
    words = said.split()
    return said.strip() if len(words) <= MOST_ANSWER_WORDS else " ".join(words[:MOST_ANSWER_WORDS])


def unlabelled(text: str) -> str:
    """MemoryBear's cleaning: without the labels `Short answer:`, `Answer:` and `A:`, each taken off once in this order,
    and without one pair of quotes around it."""
    said = text.strip()
    for label in ("short answer:", "answer:", "a:"):
        if said.lower().startswith(label):
            said = said[len(label) :].strip()
    if len(said) > 1 and said[0] == said[-1] and said[0] in "\"'":
        said = said[1:-1].strip()
    return said


_BY_BEGINNING = (
    (("how long",), "guidance_duration"),
    (("how many", "how old", "how much"), "guidance_count"),
    (("how often",), "guidance_frequency"),
)
_BY_CATEGORY = {
    locomo_f1.MULTI_HOP: "guidance_multi_hop",
    locomo_f1.TEMPORAL: "guidance_temporal",
    locomo_f1.OPEN_DOMAIN: "guidance_open_domain",
    locomo_f1.SINGLE_HOP: "guidance_single_hop",
    locomo_f1.ADVERSARIAL: "guidance_adversarial",
}


def guidance(query: Query, gold: Gold) -> str:
    """Which instruction MemoryBear's reader is given: by the fifth category, else by how a question begins, else by the
    category."""
    category = category_of(gold)
    if category != locomo_f1.ADVERSARIAL:
        asked = query.text.strip().lower()
        for beginnings, name in _BY_BEGINNING:
            if asked.startswith(beginnings):
                return name
    return _BY_CATEGORY[category]


READERS = {
    PLAIN: ReaderProfile(
        "answer_system", "gpt-4o-mini", {"temperature": 0, "max_completion_tokens": 4096}, clean=short_answer
    ),
    "memorybear": ReaderProfile(
        "answer_system",
        "gpt-4o",
        {"temperature": 0, "max_tokens": 64},
        guidance=guidance,
        texts=(*(name for _, name in _BY_BEGINNING), *_BY_CATEGORY.values()),
        clean=unlabelled,
    ),
}

# --- metrics ----------------------------------------------------------------------------------------------------


def category_of(gold: Gold) -> int:
    """The number of a question's category."""
    return int(gold.details["category"])


def answerable(query: Query, gold: Gold) -> bool:
    """Categories 1 to 4."""
    return not gold.abstention


def adversarial(query: Query, gold: Gold) -> bool:
    """Category 5: what is asked was never said, so declining is right."""
    return gold.abstention


METRICS = (
    Metric(
        "accuracy",
        "categories 1-4: the answer says what the gold answer says",
        reads="answer",
        asks=answerable,
        probed=lambda query, gold: True,
        prompts=("judge_answer",),
        fields=("query", "gold", "answer"),
    ),
    Metric(
        "gold-contained",
        "categories 1-4: the words of the gold answer stand in the answer (rule)",
        reads="answer",
        asks=answerable,
        rule=lambda context, answer, gold: lexical.contained(answer, gold.answers),
    ),
)

MEASURES = (
    Measure(
        "official-f1",
        "LoCoMo's own score, by category: token F1 over stems; in category 5 the official test of a refusal",
        lambda answer, gold: locomo_f1.score(answer, gold.answers[0], category_of(gold)),
        "mean",
        reads="answer",
    ),
    Measure(
        "refusal-official",
        "category 5: the answer holds `no information available` or `not mentioned`, whatever else it says",
        lambda answer, gold: float(locomo_f1.refuses(answer)),
        "share",
        adversarial,
        reads="answer",
    ),
    Measure(
        "refusal-stated",
        "category 5: the answer says in any usual way that this isn't known, and doesn't give the false answer",
        lambda answer, gold: float(locomo_f1.declines(answer, gold.details["adversarial_answer"])),
        "share",
        adversarial,
        reads="answer",
    ),
    *locomo_ranking.MEASURES,
)

PARTS = (
    Part("categories 1-4", ("official-f1",), answerable),
    Part(
        "categories 1-4, averaged over them", ("accuracy", "gold-contained", "official-f1"), answerable, over_types=True
    ),
    Part("categories 1-5, the fifth by refusal-official", ("accuracy",), with_measure="refusal-official"),
)


def probes(gold: Gold, other: Gold | None) -> Probes:
    """Answers to judge. In the fifth category declining is the gold, and the false answer is the trap."""
    right = {"gold": gold.answers[0]}
    if gold.abstention:
        return Probes("", {**right, "adversarial": gold.details["adversarial_answer"], "empty": ""})
    swapped = {} if other is None or _same(gold, other) else {"swapped": other.answers[0]}
    return Probes("", {**right, **swapped, "refusal": REFUSAL, "empty": ""})


def _same(gold: Gold, other: Gold) -> bool:
    """Whether another question's answer is right here, too."""
    return lexical.words(gold.answers[0]) == lexical.words(other.answers[0])


BENCHMARK = Benchmark(
    name="locomo",
    citation="LoCoMo, arXiv:2402.17753",
    reference={
        "author": "Maharana and Lee and Tulyakov and Bansal and Barbieri and Fang",
        "title": "Evaluating Very Long-Term Conversational Memory of {LLM} Agents",
        "booktitle": "ACL",
        "year": "2024",
        "eprint": "2402.17753",
        "archiveprefix": "arXiv",
    },
    variants=("10", DERIVED),
    load=load,
    sessions=sessions,
    metrics=METRICS,
    measures=MEASURES,
    parts=PARTS,
    readers=READERS,
    judges={
        "default": JudgeProfile("gpt-4o-mini", {"temperature": 0, "max_completion_tokens": 4096}),
        "mem0": JudgeProfile(
            "gpt-4o-mini",
            {"temperature": 0, "response_format": {"type": "json_object"}},
            rule="strict-label",
            whole_message=True,
        ),
        "memorybear": JudgeProfile("gpt-4o", {"temperature": 0, "max_tokens": 64}, rule="last-line"),
    },
    export_timeline=export_timeline,
    published_tasks=10,
    published=("10",),
    types=tuple(category_type(category) for category in IN_TABLES),
    condition=(
        "LoCoMo: categories 1-4 are judged, the fifth is right where the answer declines; the reader plain is told for "
        "every question how to decline, memorybear in the fifth category and so knows it"
    ),
    probes=probes,
    located=("accuracy", "gold-contained"),
    worded=answerable,
    naming=NAMING,
    derived=derived,
)
