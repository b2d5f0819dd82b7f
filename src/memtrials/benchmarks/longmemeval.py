"""LongMemEval: does an assistant answer questions about a long history of chats, and say so when it can't?

Every task is one question, asked on a day after a history of its own. A file is one JSON array of instances; it is read
instance by instance, and a task remembers its bytes, so that memory is bounded whatever the file's size. Source:
xiaowu0162/LongMemEval (MIT), arXiv:2410.10813.
"""

from __future__ import annotations

import ast
import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

from memtrials.benchmarks.arrays import ArrayError, elements
from memtrials.benchmarks.base import (
    PLAIN,
    REFUSAL,
    Benchmark,
    JudgeProfile,
    Loaded,
    LoadOptions,
    Metric,
    Part,
    Probes,
    ReaderProfile,
    read_text,
)
from memtrials.benchmarks.enrichment import Naming, Sitting, Utterance
from memtrials.benchmarks.longmemeval_ranking import MEASURES, is_answerable
from memtrials.benchmarks.timeline import Session, Turn, turn_id
from memtrials.errors import UserError
from memtrials.metrics.lexical import contained
from memtrials.records import DataFile, Gold, Query, Release, TaskBody, TimelineSource, clean_text, sha256

QUESTION = "question"
"""The id of every task's only query."""

FILES = {
    "s": "longmemeval_s_cleaned.json",
    "m": "longmemeval_m_cleaned.json",
    "oracle": "longmemeval_oracle.json",
    "sample": "longmemeval_sample.json",
}
KNOWN = {
    "d6f21ea9d60a0d56f34a05b609c79c88a451d2ae03597821ea3d5a9678c3a442": "s",
    "9d79e5524794a2e6900a3aa9cb7d9152c5a3e8319c9a87c25494ba1eacee495f": "m",
    "821a2034d219ab45846873dd14c14f12cfe7776e73527a483f9dac095d38620c": "oracle",
    "31c6c28a7d003a4d3484d60a8d6045cee301a2437545b595638c28f4ea7673b0": "sample",
}
"""Known files by their SHA-256. S and M are those of September 2025, cleaned of sessions that changed an answer."""

LICENCE = "LongMemEval: MIT License, Copyright (c) 2024 Di Wu, https://github.com/xiaowu0162/LongMemEval"
NOTICES = dict.fromkeys(("s", "m", "oracle"), LICENCE) | {"sample": "Sample: written for memtrials, Apache-2.0"}

PREFERENCE = "single-session-preference"
PROMPT_OF_TYPE = {
    "single-session-user": "judge_general",
    "single-session-assistant": "judge_general",
    PREFERENCE: "judge_preference",
    "multi-session": "judge_general",
    "temporal-reasoning": "judge_temporal",
    "knowledge-update": "judge_update",
}
TYPES = tuple(PROMPT_OF_TYPE)
ABSTENTION = "_abs"
"""What the id of a question holds that its history doesn't answer. It is no type: the question keeps its own."""

ARRAYS = ("haystack_sessions", "haystack_dates", "haystack_session_ids", "answer_session_ids")
FIELDS = ("question_id", "question_type", "question", "answer", "question_date", *ARRAYS)
MOST_TOLD = 40
"""Problems of a file that are listed; the others are counted."""

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DATE = re.compile(rf"(\d{{4}}/\d\d/\d\d) \(({'|'.join(_DAYS)})\) (\d\d:\d\d)", re.ASCII)


# --- reading and checking ---------------------------------------------------------------------------------------


def moment(text: str) -> datetime:
    """The time of a date such as `2023/05/30 (Tue) 23:40`, without a zone: the data names none. Raises ValueError."""
    match = _DATE.fullmatch(text)
    if match is None:
        raise ValueError("not written as 2023/05/30 (Tue) 23:40")
    time = datetime.strptime(f"{match[1]} {match[3]}", "%Y/%m/%d %H:%M")  # noqa: DTZ007
    if _DAYS[time.weekday()] != match[2]:
        raise ValueError(f"a {_DAYS[time.weekday()]}, not a {match[2]}")
    return time


def identities(ids: Sequence[str]) -> list[str]:
    """Names for the sessions of one history, in which an id may stand more than once: the first keeps its id, each
    later one takes the smallest `#n`, n from 2, that names no session yet."""
    taken = set(ids)
    found: dict[str, None] = {}
    for raw in ids:
        name = raw
        if raw in found:
            name = next(free for n in count(2) if (free := f"{raw}#{n}") not in taken)
            taken.add(name)
        found[name] = None
    return list(found)


@dataclass(frozen=True)
class _Instance:
    """What is kept of an instance when its text is let go."""

    query: Query
    gold: Gold
    digests: tuple[str, ...]
    turns: int
    start: int
    end: int


class _Problems:
    """What is wrong with a file. told: the first of it; count: how much there is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.told: list[str] = []
        self.count = 0

    def add(self, item: int, name: object, what: str) -> None:
        self.count += 1
        if self.count <= MOST_TOLD:
            called = f" (question_id {_shown(name)})" if name is not None else ""
            self.told.append(f"{self.path}, item {item}{called}: {what}")

    def refuse(self) -> None:
        """Raise UserError where there are any."""
        if self.count == 1:
            raise UserError(self.told[0])
        if self.count:
            left_out = self.count - len(self.told)
            more = [f"{self.path}: and {left_out} more"] if left_out else []
            raise UserError(f"{self.path}: {self.count} problems, nothing was written", [*self.told, *more])


def _shown(value: object) -> str:
    """A value as JSON, cut short."""
    text = json.dumps(value, ensure_ascii=False)
    return clean_text(text if len(text) <= 60 else text[:59] + "…")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _defects(item: Mapping[str, Any]) -> Iterator[str]:
    """Everything that is wrong with an instance, field by field."""
    yield from (f"field {name} is missing" for name in FIELDS if name not in item)
    for name in ("question_id", "question"):
        if name in item and not _is_text(item[name]):
            yield f"{name} is {_shown(item[name])}, not a text"
    if "question_type" in item and item["question_type"] not in TYPES:
        yield f"question_type {_shown(item['question_type'])} is none of {', '.join(TYPES)}"
    if "answer" in item and not (_is_text(item["answer"]) or type(item["answer"]) is int):
        yield f"answer is {_shown(item['answer'])}, neither a text nor an integer"
    if "question_date" in item and (why := _bad_date(item["question_date"])):
        yield f"question_date {why}"
    lists = {name: item[name] for name in ARRAYS if isinstance(item.get(name), list)}
    yield from (
        f"{name} is {_shown(item[name])}, not an array" for name in ARRAYS if name in item and name not in lists
    )
    if len(lists) == len(ARRAYS):
        yield from _defects_of_history(**lists)


def _bad_date(value: object) -> str | None:
    """What is wrong with a date; None when nothing is."""
    if not _is_text(value):
        return f"is {_shown(value)}, not a date"
    try:
        moment(str(value))
    except ValueError as error:
        return f"{_shown(value)} isn't a date as the data writes it ({error})"
    return None


def _defects_of_history(
    haystack_sessions: list[Any],
    haystack_dates: list[Any],
    haystack_session_ids: list[Any],
    answer_session_ids: list[Any],
) -> Iterator[str]:
    sessions = len(haystack_sessions)
    if not sessions:
        yield "haystack_sessions is empty"
    for name, parallel in (("haystack_dates", haystack_dates), ("haystack_session_ids", haystack_session_ids)):
        if len(parallel) != sessions:
            yield f"{name} has {len(parallel)} entries but haystack_sessions has {sessions}"
    for position, date in enumerate(haystack_dates):
        if why := _bad_date(date):
            yield f"haystack_dates[{position}] {why}"
    for name, ids in (("haystack_session_ids", haystack_session_ids), ("answer_session_ids", answer_session_ids)):
        for position, session_id in enumerate(ids):
            if not _is_text(session_id):
                yield f"{name}[{position}] is {_shown(session_id)}, not a text"
    if not answer_session_ids:
        yield "answer_session_ids is empty"
    for session_id in answer_session_ids:
        if session_id not in haystack_session_ids:
            yield f"answer_session_ids names {_shown(session_id)}, which is not among haystack_session_ids"
    for position, (session, session_id) in enumerate(zip(haystack_sessions, haystack_session_ids, strict=False)):
        yield from _defects_of_session(session, f"haystack_sessions[{position}]", session_id in answer_session_ids)


def _defects_of_session(session: Any, place: str, is_evidence: bool) -> Iterator[str]:
    """A session's turns. Every turn of an evidence session, and no other, says whether it holds the answer."""
    if not isinstance(session, list) or not session:
        yield f"{place} is {_shown(session)}, not an array of turns"
        return
    for number, turn in enumerate(session):
        where = f"{place}[{number}]"
        if not isinstance(turn, dict):
            yield f"{where} is {_shown(turn)}, not a turn"
            continue
        if turn.get("role") not in ("user", "assistant"):
            yield f"{where}.role is {_shown(turn.get('role'))}, neither user nor assistant"
        if not isinstance(turn.get("content"), str):
            yield f"{where}.content is {_shown(turn.get('content'))}, not a text"
        if "has_answer" not in turn:
            if is_evidence:
                yield f"{where}.has_answer is missing in a session of answer_session_ids"
        elif not is_evidence:
            yield f"{where}.has_answer stands in a session that isn't one of answer_session_ids"
        elif not isinstance(turn["has_answer"], bool):
            yield f"{where}.has_answer is {_shown(turn['has_answer'])}, neither true nor false"


def _file(data: Path, variant: str | None) -> Path:
    """The file to read: data itself, or the one with a published name in that folder. Raises UserError."""
    if data.is_file():
        return data
    if not data.is_dir():
        raise UserError(f"{data}: no such file or folder; point --data at a LongMemEval file")
    names = [FILES[variant]] if variant else list(FILES.values())
    found = [data / name for name in names if (data / name).is_file()]
    if len(found) != 1:
        which = f"none of {', '.join(names)}" if not found else f"{len(found)} of the published files"
        raise UserError(f"{data}: holds {which}; point --data at the file itself")
    return found[0]


def load(data: Path, options: LoadOptions) -> Loaded:
    """Validate a file and derive its tasks, holding one instance at a time. Raises UserError with every problem."""
    path = _file(data, options.variant)
    digest = hashlib.sha256()
    problems = _Problems(path)
    instances: list[_Instance] = []
    first: dict[str, int] = {}
    tally: Counter[str] = Counter()
    number = 0
    try:
        for number, (item, start, end) in enumerate(elements(path, digest.update), 1):
            name, defects = item.get("question_id"), list(_defects(item))
            if isinstance(name, str) and first.setdefault(name, number) != number:
                defects.append(f"question_id occurs twice (first in item {first[name]})")
            for what in defects:
                problems.add(number, name, what)
            if not problems.count:
                instances.append(_instance(item, start, end, tally))
    except ArrayError as error:
        problems.add(number + 1, None, f"byte {error.at}: {error}; is the file cut off? Download it again")
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    if not number and not problems.count:
        problems.add(1, None, "missing: the array is empty; download the file again")
    problems.refuse()
    file = DataFile(path.name, digest.hexdigest())
    variant = _variant(path, file, options)
    release = Release(
        sha256=sha256([file.sha256]),
        files=(file,),
        known=file.sha256 in KNOWN,
        attribution=NOTICES.get(
            variant, f"Data of one's own in LongMemEval's format. What is made from it keeps: {LICENCE}"
        ),
        constants={name: tally[name] for name in ("questions", "abstention", "sessions", "turns", "blank_turns")},
    )
    tasks = [(i.query.unit, i.query.type, _task(i, path, release)) for i in instances]
    return Loaded(f"longmemeval@{variant}", release, tasks, _notes(tally))


def _variant(path: Path, file: DataFile, options: LoadOptions) -> str:
    """What the file is by its hash, whatever it is called. Raises UserError for another than was asked for."""
    known = KNOWN.get(file.sha256)
    own = f"modified-{sha256([file.sha256])[:8]}"
    if known is None and not options.allow_modified:
        raise UserError(
            f"{path}: not a known LongMemEval file (SHA-256 {file.sha256[:8]}…); add --allow-modified to build it as "
            f"longmemeval@{own}"
        )
    if options.variant not in (None, known):
        raise UserError(f"{path}: by its SHA-256 this is longmemeval@{known or own}, not @{options.variant}")
    return known or own


def _instance(item: Mapping[str, Any], start: int, end: int, tally: Counter[str]) -> _Instance:
    sessions, asked = _timeline(item), moment(item["question_date"])
    begun = [moment(date) for date in item["haystack_dates"]]
    tally["questions"] += 1
    tally["abstention"] += ABSTENTION in item["question_id"]
    tally["sessions"] += len(sessions)
    tally["turns"] += sum(len(session.turns) for session in sessions)
    tally["blank_turns"] += sum(not turn.content.strip() for session in sessions for turn in session.turns)
    tally["repeated"] += len(sessions) - len(set(item["haystack_session_ids"]))
    tally["later"] += sum(time > asked for time in begun)
    tally["later_day"] += sum(time.date() > asked.date() for time in begun)
    return _Instance(
        query=_query(item),
        gold=_gold(item),
        digests=tuple(session.digest() for session in sessions),
        turns=sum(len(session.turns) for session in sessions),
        start=start,
        end=end,
    )


def _notes(tally: Mapping[str, int]) -> tuple[str, ...]:
    later = f"{tally['later']} of {tally['sessions']} sessions are later by the clock, {tally['later_day']} by the day"
    notes = [f"no history is cut at its question's date: {later}"]
    if tally["repeated"]:
        notes.append(f"{tally['repeated']} sessions repeat another's id in their history; each is kept in its place")
    if tally["blank_turns"]:
        notes.append(f"{tally['blank_turns']} turns are blank; they are kept")
    return tuple(notes)


# --- tasks and timelines ----------------------------------------------------------------------------------------


def _query(item: Mapping[str, Any]) -> Query:
    name: str = item["question_id"]
    return Query(
        id=QUESTION,
        text=clean_text(item["question"]),
        unit=clean_text(name),
        cluster=clean_text(name.partition(ABSTENTION)[0]),
        date=item["question_date"],
        type=item["question_type"],
    )


def _gold(item: Mapping[str, Any]) -> Gold:
    """An instance's gold.

    evidence: turns with has_answer. details, as JSON texts: `timeline`, for each session in order [its id, a letter
    for each turn: u or a for the role, a capital where has_answer is true]; `evidence_sessions`, the positions of all
    sessions whose id is among answer_session_ids; `number`, the answer where the data has an integer. They are what
    measures by session, and the published ones by the user's turns, need.
    """
    ids, sessions, answer = item["haystack_session_ids"], item["haystack_sessions"], item["answer"]
    evidence = [(p, n) for p, turns in enumerate(sessions) for n, turn in enumerate(turns) if turn.get("has_answer")]
    parts = zip(ids, sessions, strict=True)
    details = {
        "timeline": [[clean_text(name), "".join(map(_letter, turns))] for name, turns in parts],
        "evidence_sessions": [position for position, name in enumerate(ids) if name in item["answer_session_ids"]],
        **({"number": answer} if isinstance(answer, int) else {}),
    }
    return Gold(
        query=QUESTION,
        answers=(clean_text(str(answer)),),
        evidence=tuple(turn_id(*place) for place in evidence),
        abstention=ABSTENTION in item["question_id"],
        details={name: json.dumps(value, ensure_ascii=False, separators=(",", ":")) for name, value in details.items()},
    )


def _letter(turn: Mapping[str, Any]) -> str:
    letter: str = turn["role"][0]
    return letter.upper() if turn.get("has_answer") else letter


def _task(instance: _Instance, path: Path, release: Release) -> TaskBody:
    file = release.files[0]
    return TaskBody(
        release=release,
        data=str(path.resolve()),
        source=TimelineSource(file.path, file.sha256, instance.start, instance.end),
        sessions=instance.digests,
        turns=instance.turns,
        queries=(instance.query,),
        gold=(instance.gold,),
    )


def _timeline(item: Mapping[str, Any]) -> list[Session]:
    """What systems are shown: roles, texts and dates, without ids and flags. A turn's time is its session's."""
    return [
        Session(tuple(Turn(turn["role"], clean_text(turn["content"]), date) for turn in turns), date)
        for turns, date in zip(item["haystack_sessions"], item["haystack_dates"], strict=True)
    ]


def _reread(data: Path, task: str, body: TaskBody) -> dict[str, Any]:
    """One instance, from its bytes. Raises UserError when they are another's."""
    path = data / body.source.file if data.is_dir() else data
    try:
        with path.open("rb") as file:
            file.seek(body.source.start)
            item = json.loads(file.read(body.source.end - body.source.start))
    except FileNotFoundError:
        raise UserError(f"{path}: missing; say with --data where the file is that this ledger was built from") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror})") from None
    except (ValueError, RecursionError):
        item = None
    if not isinstance(item, dict) or clean_text(str(item.get("question_id"))) != task or any(_defects(item)):
        raise UserError(f"{path}: not the file this ledger was built from; say with --data where that is")
    return item


def sessions(data: Path, benchmark: str, task: str, body: TaskBody) -> list[Session]:
    """The timeline of a task, read from its part of the file. Raises UserError."""
    return _timeline(_reread(data, task, body))


def export_timeline(data: Path, benchmark: str, task: str, body: TaskBody) -> dict[str, Any]:
    """One task's timeline (for people and other tools, not for systems): sessions by names that are unique in it."""
    item = _reread(data, task, body)
    parts = zip(identities(item["haystack_session_ids"]), _timeline(item), strict=True)
    return {
        "task_id": task,
        "sessions": [
            {
                "session_id": name,
                "date": session.time,
                "turns": [{"role": turn.role, "content": turn.content} for turn in session.turns],
            }
            for name, session in parts
        ],
        "queries": {QUESTION: item["question"]},
        "question_date": item["question_date"],
    }


def history(data: Path, benchmark: str, task: str, body: TaskBody) -> list[Sitting]:
    """A task's history by names that are unique in it. Raises UserError."""
    item = _reread(data, task, body)
    parts = zip(identities(item["haystack_session_ids"]), _timeline(item), strict=True)
    return [
        Sitting(
            name,
            session.time or "",
            tuple(Utterance(f"{name}:turn:{n}", turn.role, turn.content) for n, turn in enumerate(session.turns, 1)),
        )
        for name, session in parts
    ]


NAMING = Naming(
    prefix="lme",
    dataset=lambda benchmark: benchmark.replace("@", "-"),
    workflow="deterministic-exact-source-replay-v2",
    hashed=True,
    history=history,
)


# --- metrics ----------------------------------------------------------------------------------------------------


def is_abstention(query: Query, gold: Gold) -> bool:
    """Whether the history doesn't hold the answer."""
    return gold.abstention


def is_stated(query: Query, gold: Gold) -> bool:
    """Whether gold is a text that an answer can contain: neither an explanation nor a rubric."""
    return not gold.abstention and query.type != PREFERENCE


def judge_prompt(query: Query, gold: Gold) -> str:
    """The prompt that decides a question: abstention comes before the type."""
    return "judge_abstention" if gold.abstention else PROMPT_OF_TYPE[query.type or ""]


def _contained(context: str, answer: str, gold: Gold) -> tuple[float, str]:
    return contained(answer, gold.answers)


METRICS = (
    Metric(
        "accuracy",
        "the answer is right by its type's rubric; an abstention question's says that it can't be answered",
        reads="answer",
        fields=("query", "gold", "answer"),
        prompts=(*dict.fromkeys(PROMPT_OF_TYPE.values()), "judge_abstention"),
        prompt_of=judge_prompt,
    ),
    Metric(
        "gold-contained",
        "the words of the gold answer stand in the answer (rule; neither preference nor abstention, whose gold is no "
        "answer)",
        reads="answer",
        asks=is_stated,
        rule=_contained,
    ),
)

PARTS = (
    Part("types averaged", ("accuracy", "gold-contained"), over_types=True),
    Part("abstention", ("accuracy",), asks=is_abstention),
    Part("answerable", ("accuracy",), asks=is_answerable),
)

NOT_KNOWN = "I can't answer that: what you have told me doesn't say."


def probes(gold: Gold, other: Gold | None) -> Probes:
    """Answers to judge: what gold says, or that it isn't known where it can't be. A refusal is an abstention too, and
    so is no probe there; nor is another's answer that would be right here."""
    answers = {"gold": _told(gold)}
    if other is not None and not _would_be_right(gold, other):
        answers["swapped"] = _told(other)
    if not gold.abstention:
        answers["refusal"] = REFUSAL
    return Probes("", {**answers, "empty": ""})


def _would_be_right(gold: Gold, other: Gold) -> bool:
    if gold.abstention:
        return other.abstention
    return contained(_told(other), gold.answers)[0] == 1.0


def _told(gold: Gold) -> str:
    return NOT_KNOWN if gold.abstention else gold.answers[0]


# --- prompts ----------------------------------------------------------------------------------------------------

GUIDANCE_OF_TYPE = {
    "single-session-user": "guidance_user",
    "single-session-assistant": "guidance_assistant",
    PREFERENCE: "guidance_preference",
    "multi-session": "guidance_sessions",
    "temporal-reasoning": "guidance_temporal",
    "knowledge-update": "guidance_update",
}


def reader_guidance(query: Query, gold: Gold) -> str:
    """What MemoryBear's pipeline tells the reader about a question. It gives away whether it can be answered."""
    return "guidance_abstention" if gold.abstention else GUIDANCE_OF_TYPE[query.type or ""]


READERS = {
    PLAIN: ReaderProfile("answer_system", "gpt-4o-2024-08-06", {"temperature": 0, "n": 1, "max_tokens": 500}),
    "memorybear": ReaderProfile(
        "answer",
        "qwen3.7-plus",
        {"temperature": 0, "n": 1, "max_tokens": 512},
        whole_message=True,
        guidance=reader_guidance,
        texts=(*GUIDANCE_OF_TYPE.values(), "guidance_abstention"),
    ),
}

JUDGE = "gpt-4o-2024-08-06"
JUDGES = {
    "default": JudgeProfile(JUDGE, {"temperature": 0, "max_completion_tokens": 4096}),
    "official": JudgeProfile(JUDGE, {"temperature": 0, "n": 1, "max_tokens": 10}, rule="official", whole_message=True),
}

SCRIPT = Path("src", "evaluation", "evaluate_qa.py")
OFFICIAL = {
    "judge_general": "658529210f9c6dd9d8d933861cb0aa12c147f02a24a1717271e6c7ed5e13edee",
    "judge_temporal": "f3680ecc4cab92644607a413f250bcebb950d2022c988958c81fc6ca6b03dee7",
    "judge_update": "ccff9729bc92c4ff004708e48cc8299b8c35520c8b7e7481b124738699881b07",
    "judge_preference": "18bdfd8210f3ca45a9f27208b5de8b885ae6c0a7634fd1ed420b604b070fceed",
    "judge_abstention": "fa6273d70bd72b6cf17169af35c58ef38d28699c65088967c80a1e361c541870",
}
"""The SHA-256 of the published templates, their three places named."""


def official_texts(upstream: Path, names: Sequence[str]) -> dict[str, str]:
    """The published judge templates, found in their script without running it. Raises UserError.

    Its function `get_anscheck_prompt` assigns one text in each branch: by type, and by abstention in the last one.
    """
    path = upstream / SCRIPT
    try:
        script = ast.parse(read_text(path))
    except SyntaxError as error:
        raise UserError(f"{path}: not a Python script ({error.msg})") from None
    found: dict[str, str] = {}
    for node in ast.walk(script):
        if isinstance(node, ast.FunctionDef) and node.name == "get_anscheck_prompt":
            for branch in (n for n in ast.walk(node) if isinstance(n, ast.If)):
                types = {n.value for n in ast.walk(branch.test) if isinstance(n, ast.Constant)}
                if types:
                    found |= {PROMPT_OF_TYPE[t]: _template(branch.body) for t in types if t in PROMPT_OF_TYPE}
                else:
                    found["judge_abstention"] = _template(branch.orelse)
    for name in names:
        if found.get(name, "").count("{}") != 3:
            raise UserError(f"{path}: the template for {name} isn't in it; check --upstream")
    return {name: _with_names(found[name]) for name in names}


def _template(branch: Sequence[ast.stmt]) -> str:
    """The text that a branch assigns; empty where there is none."""
    values = (node.value for node in branch if isinstance(node, ast.Assign))
    texts = (v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str))
    return next(texts, "")


def _with_names(template: str) -> str:
    begin, query, gold, end = template.split("{}")
    return f"{begin}{{query}}{query}{{gold}}{gold}{{answer}}{end}"


BENCHMARK = Benchmark(
    name="longmemeval",
    citation="LongMemEval, arXiv:2410.10813",
    reference={
        "author": "Wu and Wang and Yu and Zhang and Chang and Yu",
        "title": "{LongMemEval}: Benchmarking Chat Assistants on Long-Term Interactive Memory",
        "booktitle": "ICLR",
        "year": "2025",
        "eprint": "2410.10813",
        "archiveprefix": "arXiv",
    },
    variants=("s", "m", "oracle"),
    queries=(QUESTION,),
    load=load,
    sessions=sessions,
    metrics=METRICS,
    measures=MEASURES,
    readers=READERS,
    judges=JUDGES,
    official_prompts=OFFICIAL,
    official_texts=official_texts,
    export_timeline=export_timeline,
    published_tasks=500,
    published=("s", "m", "oracle"),
    parts=PARTS,
    probes=probes,
    located=("accuracy", "gold-contained"),
    naming=NAMING,
)
