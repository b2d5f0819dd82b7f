"""InMind: does a memory system apply a fact it was told, when a later query needs it but doesn't name it?

Every task replays one background of sessions with a two-turn target at the end of one of them, then asks a direct and
an indirect query of the same frozen state. Source: imlrz/InMind, arXiv:2607.24368.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memtrials.benchmarks.base import (
    PLAIN,
    REFUSAL,
    Asks,
    Benchmark,
    JudgeProfile,
    Loaded,
    LoadOptions,
    Measure,
    Metric,
    Probes,
    ReaderProfile,
    read_text,
)
from memtrials.benchmarks.timeline import Session, Turn, turn_id
from memtrials.errors import UserError
from memtrials.metrics import attribution
from memtrials.metrics.lexical import verbatim
from memtrials.metrics.retrieval import first_hit, hit
from memtrials.records import DataFile, Gold, Query, Release, TaskBody, TimelineSource, clean_text, sha256

TASK_FILES = ("benchmark/dataset/inmind.jsonl", "benchmark/dataset/inmind_en.jsonl")
BACKGROUND = "evaluation/background/lme_s_background.jsonl"
MANIFEST = "evaluation/background/manifest.json"
SUMS = "benchmark/dataset/SHA256SUMS"
PROTOCOL = "inmind-middle-injection-v1"
DIRECT, INDIRECT = "naive_query", "query"

KNOWN = {
    (
        "4e27c56047d1f7c3eaf21ad5b6662f638f81a434034546be08b85e09876675a4",
        "aef51e8a4e606a3ac5ceafdc64d875a7f1f41a051dafd68dce45f9c90d626da1",
    ): "released",
    (
        "277b2635c0e2e40cff363cfac8b75c39b73ea7846ed9a76a3583aa3321fdfec0",
        "40e33154534bbf67cfa63c378af6e4348e7d4e4084e3f648d505ca8fac0aca97",
    ): "sample",
}
"""Known releases by the SHA-256 of tasks and background (byte order mark dropped, CRLF read as LF)."""

TASK_FIELDS: dict[str, tuple[type, ...]] = {
    "domain": (str,),
    "entity_1": (str, type(None)),
    "entity_2": (str, type(None)),
    "relation": (str, type(None)),
    "explanation": (str,),
    "user_message": (str,),
    "assistant_message": (str,),
    "naive_query": (str,),
    "query": (str,),
    "provenance": (dict,),
}
CONSTANTS = (
    "turns",
    "sessions",
    "user_turns",
    "assistant_turns",
    "injection_session_index",
    "injection_session_number",
    "phase_a_sessions",
    "prefix_user_turns",
    "injection_user_turn_locator",
    "background_user_turns_before_target",
    "post_injection_sessions",
)


@dataclass(frozen=True)
class Background:
    """The sessions every task shares. blocks: (session id, rows); constants: as in the manifest, derived here."""

    blocks: tuple[tuple[str, tuple[dict[str, Any], ...]], ...]
    constants: dict[str, int]

    @property
    def injection(self) -> int:
        """The index of the session that the target ends."""
        return self.constants["injection_session_index"]


@dataclass(frozen=True)
class InMindRelease:
    """A release as read from its folder, with everything that is wrong with it."""

    tasks: tuple[tuple[dict[str, Any], int, int], ...]  # row, first byte, byte after
    background: Background | None
    manifest: dict[str, Any]
    files: tuple[DataFile, ...]
    notes: tuple[str, ...]


# --- reading and checking ---------------------------------------------------------------------------------------


class _Problems(list[str]):
    def add(self, path: Path, line: int | None, what: str) -> None:
        self.append(f"{path}, line {line}: {what}" if line else f"{path}: {what}")


def _read(path: Path, problems: _Problems) -> bytes:
    """The file's bytes without byte order mark and with LF line ends; b"" and a problem when it can't be used."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        problems.add(path, None, "missing; point --data at a complete InMind release (a clone of its repository)")
        return b""
    except OSError as error:
        problems.add(path, None, f"can't be read ({error.strerror})")
        return b""
    data = data.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n")
    if not data.strip():
        problems.add(path, None, "empty; download the release again")
        return b""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problems.add(path, line, "not UTF-8 text (binary, or another encoding); download the release again")
        return b""
    return data


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _object(text: bytes, path: Path, line: int | None, problems: _Problems) -> dict[str, Any] | None:
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        why = f"not valid JSON ({error}); is the file cut off?"
        problems.add(path, line, why)
        return None
    if not isinstance(value, dict):
        problems.add(path, line, f"{_json_type(value)} where an object is expected")
        return None
    return value


def _rows(data: bytes, path: Path, problems: _Problems) -> list[tuple[int, dict[str, Any], int, int]]:
    """Line number, object, first byte and byte after, of every line that isn't blank."""
    rows, at = [], 0
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip() and (row := _object(line, path, number, problems)) is not None:
            rows.append((number, row, at, at + len(line)))
        at += len(line) + 1
    return rows


def _check_tasks(rows: list[tuple[int, dict[str, Any], int, int]], path: Path, problems: _Problems) -> None:
    seen: dict[int, int] = {}
    for line, row, _, _ in rows:
        task_id = row.get("task_id")
        if "task_id" not in row:
            problems.add(path, line, "field task_id is missing")
        elif isinstance(task_id, bool) or not isinstance(task_id, int):
            problems.add(path, line, f"task_id {json.dumps(task_id)} is {_json_type(task_id)}, not an integer")
        elif task_id in seen:
            problems.add(path, line, f"task_id {task_id} occurs twice (first in line {seen[task_id]})")
        else:
            seen[task_id] = line
        for field, types in TASK_FIELDS.items():
            value: Any = row.get(field)
            if field not in row:
                problems.add(path, line, f"field {field} is missing")
            elif not isinstance(value, types):
                problems.add(path, line, f"field {field} is {_json_type(value)}")
            elif (
                isinstance(value, str) and type(None) not in types and not value.strip()
            ):  # what may be null may also be empty, as in the release
                problems.add(path, line, f"field {field} is empty")


def _json_type(value: object) -> str:
    names = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return names.get(type(value), "null")


def _blocks(
    rows: list[tuple[int, dict[str, Any], int, int]], path: Path, problems: _Problems
) -> tuple[tuple[str, tuple[dict[str, Any], ...]], ...]:
    """Check the background's rows and group them into sessions."""
    blocks: list[tuple[str, list[dict[str, Any]]]] = []
    begun: set[str] = set()
    for line, row, _, _ in rows:
        session, mark, number = str(row.get("id", "")).rpartition("-turn-")
        if not mark or not number.isdigit() or not session:
            problems.add(path, line, f"id {json.dumps(row.get('id'))} is not <session id>-turn-<number>")
            continue
        if not blocks or blocks[-1][0] != session:
            if session in begun:
                problems.add(path, line, f"session {session} goes on after another began; its turns must be together")
            begun.add(session)
            blocks.append((session, []))
        if int(number) != len(blocks[-1][1]):
            problems.add(path, line, f"turn {number} of session {session} stands where {len(blocks[-1][1])} is due")
        blocks[-1][1].append(row)
        _check_turn(row, path, line, problems)
    return tuple((session, tuple(turns)) for session, turns in blocks)


def _check_turn(row: dict[str, Any], path: Path, line: int, problems: _Problems) -> None:
    if row.get("role") not in ("user", "assistant"):
        problems.add(path, line, f"field role is {json.dumps(row.get('role'))}, neither user nor assistant")
    content, mapping = row.get("content"), row.get("timestamp_mapping")
    if not isinstance(content, str) or not content.strip():
        problems.add(path, line, "field content is missing or not a text")
        return
    if not isinstance(mapping, dict) or len(mapping) != 1 or not all(isinstance(v, str) for v in mapping.values()):
        problems.add(path, line, "field timestamp_mapping is missing or doesn't name exactly one date")
    elif not content.endswith(f"\n---TIMESTAMP: {next(iter(mapping.values()))}"):
        problems.add(path, line, "content doesn't end with the ---TIMESTAMP: line of its timestamp_mapping")


def _derive_constants(blocks: Sequence[tuple[str, Sequence[dict[str, Any]]]], locator: int) -> dict[str, int] | None:
    """The manifest's constants, from the rows. None when no session reaches the locator's user turn."""
    users = [sum(row.get("role") == "user" for row in rows) for _, rows in blocks]
    index = before = 0
    while index < len(users) and before + users[index] < locator:
        before += users[index]
        index += 1
    if index == len(users):
        return None
    turns = sum(len(rows) for _, rows in blocks)
    return {
        "turns": turns,
        "sessions": len(blocks),
        "user_turns": sum(users),
        "assistant_turns": turns - sum(users),
        "injection_session_index": index,
        "injection_session_number": index + 1,
        "phase_a_sessions": index,
        "prefix_user_turns": before,
        "injection_user_turn_locator": locator,
        "background_user_turns_before_target": before + users[index],
        "post_injection_sessions": len(blocks) - index - 1,
    }


def _background(
    data: bytes, path: Path, manifest: dict[str, Any], manifest_path: Path, problems: _Problems
) -> Background | None:
    blocks = _blocks(_rows(data, path, problems), path, problems)
    locator = manifest.get("injection_user_turn_locator")
    if isinstance(locator, bool) or not isinstance(locator, int):
        problems.add(manifest_path, None, "injection_user_turn_locator is missing or not an integer")
        return None
    constants = _derive_constants(blocks, locator)
    if constants is None:
        problems.add(path, None, f"it has fewer user turns than the manifest's locator {locator}")
        return None
    for name in CONSTANTS:
        if manifest.get(name) != constants[name]:
            problems.add(manifest_path, None, f"{name} is {manifest.get(name)!r}, the background has {constants[name]}")
    return Background(blocks, constants)


def read_release(folder: Path) -> InMindRelease:
    """Read and check a release folder. Raises UserError that lists every problem with its file and line."""
    problems = _Problems()
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; point --data at an InMind release (a clone of its repository)")
    task_path = next((folder / f for f in TASK_FILES if (folder / f).exists()), folder / TASK_FILES[0])
    background_path, manifest_path, sums_path = folder / BACKGROUND, folder / MANIFEST, folder / SUMS
    task_bytes = _read(task_path, problems)
    background_bytes = _read(background_path, problems)
    manifest_bytes = _read(manifest_path, problems)
    manifest = (_object(manifest_bytes, manifest_path, None, problems) if manifest_bytes else None) or {}
    task_hash, background_hash = (hashlib.sha256(b).hexdigest() for b in (task_bytes, background_bytes))

    rows = _rows(task_bytes, task_path, problems)
    _check_tasks(rows, task_path, problems)
    background = None
    if background_bytes and manifest:
        if manifest.get("sha256") != background_hash:
            problems.add(
                manifest_path, None, f"sha256 is {manifest.get('sha256')!r}, the background's is {background_hash}"
            )
        background = _background(background_bytes, background_path, manifest, manifest_path, problems)
    if task_bytes and sums_path.exists():
        _check_sums(sums_path, task_path, task_hash, problems)
    if problems:
        raise UserError(
            problems[0] if len(problems) == 1 else f"{folder}: {len(problems)} problems, nothing was written",
            problems if len(problems) > 1 else (),
        )
    files = (DataFile(TASK_FILES[0], task_hash), DataFile(BACKGROUND, background_hash))
    notes = _notes([row for _, row, _, _ in rows], background)
    return InMindRelease(tuple((row, a, b) for _, row, a, b in rows), background, manifest, files, notes)


def _check_sums(path: Path, task_path: Path, task_hash: str, problems: _Problems) -> None:
    raw_hash = hashlib.sha256(task_path.read_bytes()).hexdigest()
    for number, line in enumerate(_read(path, problems).decode().splitlines(), 1):
        digest, _, name = line.strip().partition(" ")
        if Path(name.strip().lstrip("*")).name == task_path.name and digest.lower() not in (task_hash, raw_hash):
            problems.add(path, number, f"{task_path.name} has another hash ({task_hash}); download the release again")


def _notes(rows: list[dict[str, Any]], background: Background | None) -> tuple[str, ...]:
    notes = [
        f"task {row['task_id']}: its annotation_status is fail; it is kept, as in the release"
        for row in rows
        if row["provenance"].get("annotation_status") == "fail"
    ]
    text = "\n".join(turn["content"] for _, turns in (background.blocks if background else ()) for turn in turns)
    notes += [
        f"task {row['task_id']}: its user_message stands in the background too, so verbatim measures overcount"
        for row in rows
        if row["user_message"] in text
    ]
    return tuple(notes)


# --- tasks and timelines ----------------------------------------------------------------------------------------


def load(data: Path, options: LoadOptions) -> Loaded:
    """Validate a release folder and derive its tasks. Raises UserError."""
    release = read_release(data)
    assert release.background is not None
    background = release.background
    variant = options.variant or "released"
    known = KNOWN.get((release.files[0].sha256, release.files[1].sha256))
    digest = sha256([f.sha256 for f in release.files])
    if known is None and not options.allow_modified:
        raise UserError(
            f"{data}: not a known InMind release (tasks {release.files[0].sha256[:8]}…, background "
            f"{release.files[1].sha256[:8]}…); add --allow-modified to build it as inmind@modified-{digest[:8]}"
        )
    base = known or f"modified-{digest[:8]}"
    stripped = variant == "stripped"
    name = base if not stripped else "stripped" if base == "released" else f"{base}-stripped"
    source = release.manifest.get("source")
    origin = source if isinstance(source, dict) else {}
    whole = Release(
        sha256=digest,
        files=release.files,
        known=known is not None,
        attribution=(
            f"Background: {origin.get('project', 'unknown origin')} {origin.get('dataset', '')} "
            f"{origin.get('question_id', '')}, licence {origin.get('license', 'unknown')}, "
            f"{origin.get('repository', '')}"
        )
        .rstrip(", ")
        .replace("  ", " "),
        constants=background.constants,
    )
    shared = [_session(rows, stripped) for _, rows in background.blocks]
    digests = [session.digest() for session in shared]
    tasks = []
    for row, start, end in release.tasks:
        target = _with_target(shared[background.injection], row)
        sessions = (*digests[: background.injection], target.digest(), *digests[background.injection + 1 :])
        body = TaskBody(
            release=whole,
            data=str(data.resolve()),
            source=TimelineSource(
                file=release.files[0].path,
                sha256=release.files[0].sha256,
                start=start,
                end=end,
                options={"stripped": str(stripped).lower(), "background_sha256": release.files[1].sha256},
            ),
            sessions=sessions,
            turns=background.constants["turns"] + 2,
            queries=tuple(_query(row, query) for query in (DIRECT, INDIRECT)),
            gold=tuple(_gold(row, query, background.injection, target) for query in (DIRECT, INDIRECT)),
        )
        tasks.append((str(row["task_id"]), clean_text(row["domain"]), body))
    return Loaded(f"inmind@{name}", whole, tasks, release.notes)


def _query(row: dict[str, Any], query: str) -> Query:
    return Query(
        id=query,
        text=clean_text(row[query]),
        unit=str(row["task_id"]),
        cluster=sha256(clean_text(row["user_message"]))[:16],
        type=clean_text(row["domain"]),
    )


def _gold(row: dict[str, Any], query: str, injection: int, target: Session) -> Gold:
    last = len(target.turns) - 1
    return Gold(
        query=query,
        evidence=(turn_id(injection, last - 1), turn_id(injection, last)),
        details={name: clean_text(row[name]) for name in ("user_message", "explanation")},
    )


def _session(rows: Sequence[dict[str, Any]], stripped: bool) -> Session:
    turns = []
    for row in rows:
        time = next(iter(row["timestamp_mapping"].values()))
        content = row["content"].removesuffix(f"\n---TIMESTAMP: {time}") if stripped else row["content"]
        turns.append(Turn(role=row["role"], content=clean_text(content), time=time))
    return Session(tuple(turns), time=turns[0].time)


def _with_target(session: Session, row: dict[str, Any]) -> Session:
    """The injection session of one task: the target pair stands last and has the session's time."""
    pair = (
        Turn("user", clean_text(row["user_message"]), session.time),
        Turn("assistant", clean_text(row["assistant_message"]), session.time),
    )
    return Session((*session.turns, *pair), session.time)


@functools.lru_cache(maxsize=2)
def _reopened(data: Path) -> tuple[InMindRelease, dict[str, dict[str, Any]]]:
    release = read_release(data)
    return release, {str(row["task_id"]): row for row, _, _ in release.tasks}


@functools.lru_cache(maxsize=4)
def _shared_sessions(data: Path, stripped: bool) -> tuple[Session, ...]:
    background = _reopened(data)[0].background
    assert background is not None
    return tuple(_session(rows, stripped) for _, rows in background.blocks)


def _row(data: Path, task: str, body: TaskBody) -> tuple[Background, dict[str, Any], bool]:
    release, rows = _reopened(data)
    if [f.sha256 for f in release.files] != [f.sha256 for f in body.release.files]:
        raise UserError(f"{data}: not the release this ledger was built from; give its folder with --data")
    assert release.background is not None
    return release.background, rows[task], body.source.options["stripped"] == "true"


def sessions(data: Path, benchmark: str, task: str, body: TaskBody) -> list[Session]:
    """The timeline of a task: shared sessions, one of them with the task's target at its end. Raises UserError."""
    background, row, stripped = _row(data, task, body)
    timeline = list(_shared_sessions(data, stripped))
    timeline[background.injection] = _with_target(timeline[background.injection], row)
    return timeline


def export_timeline(data: Path, benchmark: str, task: str, body: TaskBody) -> dict[str, Any]:
    """One task's timeline in the benchmark's exchange format (for people and other tools, not for systems)."""
    background, row, stripped = _row(data, task, body)
    out = []
    for index, (session_id, rows) in enumerate(background.blocks):
        shown = _session(rows, stripped)
        turns = [
            {**turn, "content": seen.content, "source": "lme_s_background"}
            for turn, seen in zip(rows, shown.turns, strict=True)
        ]
        if index == background.injection:
            turns += [
                {"id": f"inmind-task-{task}-turn-{n}", "role": role, "content": row[field], "source": "inmind_target"}
                for n, (role, field) in enumerate((("user", "user_message"), ("assistant", "assistant_message")))
            ]
        out.append({"session_id": session_id, "turns": turns})
    constants = background.constants
    return {
        "task_id": row["task_id"],
        "protocol": {
            "name": PROTOCOL,
            "background_sessions": constants["sessions"],
            "background_turns": constants["turns"],
            **{name: constants[name] for name in CONSTANTS if name.startswith(("injection", "phase", "prefix"))},
            "background_user_turns_before_target": constants["background_user_turns_before_target"],
            "post_injection_sessions": constants["post_injection_sessions"],
            "target_position": "end_of_injection_session",
            "query_state_policy": "both queries read the same frozen state and change nothing in it",
        },
        "sessions": out,
        "queries": {DIRECT: row[DIRECT], INDIRECT: row[INDIRECT]},
    }


# --- metrics ----------------------------------------------------------------------------------------------------


def _verbatim(context: str, answer: str, gold: Gold) -> tuple[float, str]:
    return verbatim(context, gold.details["user_message"])


def _is(name: str) -> Asks:
    return lambda query, gold: query.id == name


METRICS = (
    Metric(
        "naive",
        "direct query: the context holds the fact and the answer states it",
        reads="answer",
        asks=_is(DIRECT),
        prompts=("judge_naive",),
        fields=("user_message", "context", "query", "answer"),
    ),
    Metric(
        "target-recall",
        "indirect query: the context itself holds the fact",
        reads="retrieval",
        asks=_is(INDIRECT),
        prompts=("judge_target_recall",),
        fields=("user_message", "context", "query", "explanation"),
    ),
    Metric(
        "application",
        "indirect query: the context holds the fact and the answer applies it",
        reads="answer",
        asks=_is(INDIRECT),
        prompts=("judge_application",),
        fields=("user_message", "context", "query", "explanation", "answer"),
    ),
    Metric(
        "answer-only",
        "indirect query: the answer applies the fact, whatever was retrieved",
        reads="answer",
        asks=_is(INDIRECT),
        prompts=("judge_answer_only",),
        fields=("user_message", "query", "explanation", "answer"),
    ),
    Metric(
        "direct-recall",
        "direct query: the context itself holds the fact (our diagnostic)",
        reads="retrieval",
        asks=_is(DIRECT),
        prompts=("judge_target_recall",),
        fields=("user_message", "context", "query", "explanation"),
        diagnostic=True,
    ),
    Metric(
        "direct-verbatim",
        "direct query: the user's message stands verbatim in the context (rule)",
        reads="retrieval",
        asks=_is(DIRECT),
        rule=_verbatim,
        verbatim=True,
    ),
    Metric(
        "target-verbatim",
        "indirect query: the user's message stands verbatim in the context (rule)",
        reads="retrieval",
        asks=_is(INDIRECT),
        rule=_verbatim,
        verbatim=True,
    ),
)

MEASURES = tuple(
    measure
    for prefix, query in (("direct", DIRECT), ("target", INDIRECT))
    for measure in (
        Measure(
            f"{prefix}-hit@k",
            "a chunk holding the target's user turn is among the first k",
            lambda items, gold: hit(items, gold.evidence[:1]),
            "share",
            _is(query),
        ),
        Measure(
            f"{prefix}-rank",
            "rank of the first chunk holding the target's user turn, where it was retrieved",
            lambda items, gold: first_hit(items, gold.evidence[:1]),
            "median",
            _is(query),
        ),
    )
)


def attribute(verdicts: Mapping[str, float | None], *, by_rule: bool) -> str:
    """The class of one pair of trials, from one judge's scores by metric (None: no verdict), and `stored`."""
    stored = verdicts.get("stored")
    if by_rule:
        return attribution.inmind_by_rule(verdicts.get("direct-verbatim"), verdicts.get("target-verbatim"), stored)
    direct, target = verdicts.get("direct-recall"), verdicts.get("target-recall")
    return attribution.inmind(direct, target, verdicts.get("application"), stored)


def probes(gold: Gold, other: Gold | None) -> Probes:
    """Answers to judge: with the fact (direct query) and its consequence (indirect); the context holds the fact."""
    answers = {"gold": _told(gold)}
    if other is not None:
        answers["swapped"] = _told(other)
    return Probes(gold.details["user_message"], {**answers, "refusal": REFUSAL, "empty": ""})


def _told(gold: Gold) -> str:
    fact = f"You told me: “{gold.details['user_message']}”"
    return fact if gold.query == DIRECT else f"{fact} With that in mind: {gold.details['explanation']}"


OFFICIAL = {
    "answer_system": "43b42e53b64c754478b8b17e0ceda6ed2476367e3133766239c97c07ed8eba54",
    "judge_naive": "3fa007ac801223bc3fe070e1c511cfb44e03839280843342ce0900a18e8a0cca",
    "judge_target_recall": "af55e9eacb13adfc5163cb137509194b3fd8bfdfbade869d0c6afecb44158f1d",
    "judge_application": "d45cc35770befb8b8526454a48b745fdd07e067234b1d98262177a9445b5f64c",
    "judge_answer_only": "70c074e55438e037dc3e83b1c3d24fe0d4ee6b22b01b3f3089464fd6b4339ea2",
}
"""The SHA-256 of the published prompts."""


def _official(upstream: Path, names: Sequence[str]) -> dict[str, str]:
    folder = upstream / "evaluation" / "prompts"
    return {name: read_text(folder / f"{name}.txt") for name in names}


BENCHMARK = Benchmark(
    name="inmind",
    citation="InMind, arXiv:2607.24368",
    reference={"title": "InMind", "eprint": "2607.24368", "archiveprefix": "arXiv", "year": "2026"},
    variants=("released", "stripped"),
    queries=(DIRECT, INDIRECT),
    load=load,
    sessions=sessions,
    metrics=METRICS,
    measures=MEASURES,
    readers={PLAIN: ReaderProfile("answer_system", "gpt-5-mini", {"max_completion_tokens": 16384})},
    judges=dict.fromkeys(("default", "official"), JudgeProfile("gpt-5-mini", {"max_completion_tokens": 4096})),
    official_prompts=OFFICIAL,
    official_texts=_official,
    export_timeline=export_timeline,
    published_tasks=125,
    published=("released",),
    attribute=attribute,
    located=("direct-recall", "direct-verbatim"),
    probed=lambda gold: gold.evidence[:1],
    condition="one background: all tasks share one history, which is a condition, not a sample",
    probes=probes,
)
