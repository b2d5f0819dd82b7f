"""Where settings come from, what `.env` may look like, and what `doctor` shows of it all."""

import errno
import os
import re
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memtrials import settings as settings_module
from memtrials.errors import UserError
from memtrials.llm.roles import OFFLINE, chosen_model, endpoint
from memtrials.settings import Settings, cache_folder, checkout, evaluation, ledger_path, masked
from support.cli import Finished, call_cli

KEY = "sk-proj-4f8a61c2d9e07b35"


@pytest.fixture
def cwd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: a folder of its own."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout that stands for the one memtrials runs from."""
    folder = tmp_path / "repository"
    folder.mkdir()
    monkeypatch.setattr(settings_module, "checkout", lambda: folder)
    return folder


def loaded(**environment: str) -> Settings:
    return Settings.load(environment)


def write(folder: Path, text: str | bytes, name: str = ".env") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# Precedence


@pytest.mark.parametrize(
    ("environment", "here", "there", "found"),
    [
        ("environment", "here", "there", "environment"),
        (None, "here", "there", "here"),
        (None, None, "there", "there"),
        (None, None, None, None),
        ("environment", None, "there", "environment"),
        ("", "here", "there", "here"),
        ("", "", "there", "there"),
        ("  ", " ", "", None),
    ],
)
def test_environment_over_here_over_repository(
    cwd: Path, repository: Path, environment: str | None, here: str | None, there: str | None, found: str | None
):
    """An empty variable counts as unset, wherever it is."""
    for folder, value in ((cwd, here), (repository, there)):
        if value is not None:
            write(folder, f"READER_MODEL={value}\n")
    settings = loaded(**({} if environment is None else {"READER_MODEL": environment}))
    assert settings.text("READER_MODEL") == found


def test_a_value_says_where_it_is_from(cwd: Path, repository: Path):
    write(cwd, "JUDGE_MODEL=judge\n")
    write(repository, "OPENAI_API_KEY=key\n")
    settings = loaded(READER_MODEL="reader")
    assert str(settings.model("reader")).count("READER_MODEL (environment)") == 1
    for value, source in (
        (settings.model("reader"), "READER_MODEL (environment)"),
        (settings.model("judge"), f"JUDGE_MODEL ({cwd / '.env'})"),
        (settings.api_key("judge"), f"OPENAI_API_KEY ({repository / '.env'})"),
    ):
        assert value is not None
        assert value.source == source


def test_the_command_line_is_over_everything(cwd: Path, repository: Path):
    settings = loaded(READER_MODEL="configured", TRIALS_FILE="elsewhere.json")
    assert chosen_model("reader", "asked", settings) == "asked"
    assert chosen_model("reader", None, settings) == "configured"
    assert chosen_model("judge", None, settings) == OFFLINE
    assert ledger_path(Path("named.json"), settings) == Path("named.json")
    assert ledger_path(None, settings) == Path("elsewhere.json")


def test_a_folder_that_is_both_is_read_once(repository: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(repository)
    write(repository, "A=1\n")
    assert [source for source, _ in loaded().layers] == ["environment", str(repository / ".env")]


def test_no_env_file_is_no_layer(cwd: Path, repository: Path):
    (cwd / ".env").mkdir()
    assert [source for source, _ in loaded().layers] == ["environment"]


# Roles


@pytest.mark.parametrize("role", ["reader", "judge"])
def test_a_role_has_its_own_then_the_common_names(cwd: Path, repository: Path, role: str):
    own = {f"{role.upper()}_{what}": f"own {what}" for what in ("MODEL", "BASE_URL", "API_KEY")}
    llm = {f"LLM_{what}": f"llm {what}" for what in ("MODEL", "BASE_URL", "API_KEY")}
    openai = {f"OPENAI_{what}": f"openai {what}" for what in ("MODEL", "BASE_URL", "API_KEY")}

    def three(values: Mapping[str, str]) -> list[str | None]:
        settings = loaded(**values)
        found = (settings.model(role), settings.base_url(role), settings.api_key(role))  # type: ignore[arg-type]
        return [value and value.text for value in found]

    assert three({**own, **llm, **openai}) == ["own MODEL", "own BASE_URL", "own API_KEY"]
    assert three({**llm, **openai}) == ["llm MODEL", "llm BASE_URL", "llm API_KEY"]
    assert three(openai) == [None, "openai BASE_URL", "openai API_KEY"]
    assert three({}) == [None, None, None]


def test_a_roles_own_name_in_a_file_is_over_a_common_name_in_the_environment(cwd: Path, repository: Path):
    write(repository, "READER_MODEL=small\n")
    assert loaded(LLM_MODEL="large").text("READER_MODEL", "LLM_MODEL") == "small"
    assert chosen_model("judge", None, loaded(LLM_MODEL="large")) == "large"


def test_a_key_alone_chooses_no_model(cwd: Path, repository: Path):
    settings = loaded(OPENAI_API_KEY=KEY, READER_API_KEY=KEY, LLM_API_KEY=KEY)
    assert chosen_model("reader", None, settings) == chosen_model("judge", None, settings) == OFFLINE


def test_a_model_without_a_key_is_told_which_names_would_do(cwd: Path, repository: Path):
    with pytest.raises(UserError, match="no key for judge m: set JUDGE_API_KEY, LLM_API_KEY or OPENAI_API_KEY"):
        endpoint("judge", "m", loaded(READER_API_KEY=KEY))


# What a .env file may look like


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NAME=value", "value"),
        ("NAME=value\n", "value"),
        ("NAME = value", "value"),
        ("  NAME=value  ", "value"),
        ("export NAME=value", "value"),
        ('NAME="two words"', "two words"),
        ("NAME='two words'", "two words"),
        ("NAME=two words", "two words"),
        ("NAME=value # a comment", "value"),
        ('NAME="value # no comment"', "value # no comment"),
        ("# a comment\n\n# another\nNAME=value", "value"),
        ("NAME=first\nNAME=second", "second"),
        ("\ufeffNAME=value\n", "value"),
        ("OTHER=1\r\nNAME=value\r\n", "value"),
        ("NAME=Zürich 🙂", "Zürich 🙂"),
        ("NAME=a=b=c", "a=b=c"),
        ("NAME=", None),
        ("NAME=''", None),
        ("", None),
    ],
)
def test_env_lines(cwd: Path, repository: Path, text: str, value: str | None):
    write(cwd, text)
    assert loaded().text("NAME") == value


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("READER_MODEL\n", 1),
        ("A=1\nREADER_MODEL m\n", 2),
        ("# fine\n\n\nA=1\n\n   gpt-5-mini\nB=2\n", 6),
        ('A=1\nB="never closed\nC=3\n', 2),
        ("A=1\r\nB=2\r\noops\r\n", 3),
        ("\ufeffoops\n", 1),
        ("export A\n", 1),
    ],
)
def test_a_malformed_line_is_named(cwd: Path, repository: Path, text: str, line: int):
    path = write(cwd, text)
    with pytest.raises(UserError) as caught:
        loaded()
    assert str(caught.value) == f"{path}, line {line}: not a `NAME=value` line; correct it or put `#` before it"


@settings(max_examples=30)
@given(names=st.lists(st.from_regex(r"[A-Z][A-Z_]{0,9}", fullmatch=True), unique=True, min_size=1), at=st.data())
def test_wherever_the_malformed_line_stands(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], at: st.DataObject
):
    folder = tmp_path_factory.mktemp("env")
    lines = [f"{name}=1" for name in names]
    position = at.draw(st.integers(0, len(lines)))
    lines.insert(position, "not a setting")
    write(folder, "\n".join(lines))
    with pytest.raises(UserError, match=rf"\.env, line {position + 1}: not a"):
        Settings.load({}, folder)


def test_a_file_in_another_encoding_is_named(cwd: Path, repository: Path):
    path = write(cwd, "NAME=Zürich".encode("utf-16"))
    with pytest.raises(UserError, match=re.escape(f"{path}: not UTF-8 text; save it as UTF-8")):
        loaded()


def test_a_file_that_may_not_be_read_is_named(cwd: Path, repository: Path, monkeypatch: pytest.MonkeyPatch):
    path = write(cwd, "A=1\n")

    def refuse(*_: object, **__: object) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_text", refuse)
    with pytest.raises(UserError, match=re.escape(f"{path}: may not be read by this user; check its permissions")):
        loaded()


# Places


def test_the_default_ledger_is_the_checkouts_or_the_working_directorys(
    cwd: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
):
    assert ledger_path(None, loaded()) == repository / "results" / "trials.json"
    monkeypatch.setattr(settings_module, "checkout", lambda: None)
    assert ledger_path(None, loaded()) == cwd / "results" / "trials.json"


@pytest.mark.parametrize("how", ["command line", "TRIALS_FILE"])
def test_a_named_ledger_needs_its_folder(cwd: Path, repository: Path, how: str):
    def path_of(name: str) -> Path:
        return (
            ledger_path(Path(name), loaded()) if how == "command line" else ledger_path(None, loaded(TRIALS_FILE=name))
        )

    assert path_of("mine.json") == Path("mine.json")
    with pytest.raises(
        UserError, match=r"^missing/mine.json: the folder missing doesn't exist; make it, or name a file"
    ):
        path_of("missing/mine.json")
    (cwd / "folder").mkdir()
    with pytest.raises(
        UserError, match=r"^folder is a folder, not a ledger; name a file, for example folder/trials.json"
    ):
        path_of("folder")


def test_the_cache_is_the_named_one_or_the_platforms(cwd: Path, repository: Path):
    assert cache_folder(loaded(MEMTRIALS_CACHE="/tmp/mine")) == Path("/tmp/mine")
    assert cache_folder(loaded()).name == "memtrials"


def test_evaluation_is_found_in_the_checkout():
    root = checkout()
    assert root is not None
    assert evaluation() == root / "evaluation"
    assert (evaluation() / "systems" / "bm25.toml").is_file()


# Secrets


@given(st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=80))
def test_no_more_than_two_characters_of_a_secret_are_shown(secret: str):
    shown = masked(secret)
    assert f"({len(secret)} characters)" in shown
    visible = shown.removesuffix(f"({len(secret)} characters)").strip().removeprefix("…")
    assert visible == (secret[-2:] if len(secret) > 8 else "")


# doctor


def doctor(*arguments: str, **environment: str) -> Finished:
    return call_cli("doctor", *arguments, env=environment)


def row(finished: Finished, name: str) -> str:
    """The line about `name`, without spaces."""
    (found,) = (line for line in finished.out.splitlines() if line.startswith(f"{name} "))
    return re.sub(r"\s", "", found.removeprefix(name))


def test_doctor_without_settings_misses_nothing(cwd: Path, repository: Path):
    finished = doctor()
    assert (finished.code, finished.err) == (0, "")
    assert finished.out.endswith("nothing is missing\n")
    assert row(finished, "reader model") == row(finished, "judge model") == "offlinedefault"
    assert row(finished, "reader key") == "notset"
    assert row(finished, ".env") == "none"
    assert "(notmadeyet)default" in row(finished, "ledger")


def test_doctor_prints_values_and_their_sources(cwd: Path, repository: Path):
    env = write(cwd, f"JUDGE_MODEL=judge-m\nLLM_API_KEY={KEY}\nTRIALS_FILE=mine.json\n")
    finished = doctor(READER_MODEL="reader-m", READER_BASE_URL="http://[::1]:8080/v1")
    assert finished.code == 0
    assert row(finished, "reader model") == "reader-mREADER_MODEL(environment)"
    assert row(finished, "reader base URL") == "http://[::1]:8080/v1READER_BASE_URL(environment)"
    assert row(finished, "judge model").startswith("judge-mJUDGE_MODEL(")
    assert row(finished, "judge base URL") == "theprovider'sowndefault"
    assert row(finished, "judge key").startswith(f"…{KEY[-2:]}({len(KEY)}characters)LLM_API_KEY(")
    assert row(finished, ".env") == f"{env}read"
    assert row(finished, "ledger").startswith("mine.json(notmadeyet)TRIALS_FILE(")
    assert row(doctor("--trials", "other.json"), "ledger") == "other.json(notmadeyet)--trials"


def test_doctor_never_shows_a_key(cwd: Path, repository: Path):
    write(cwd, f"OPENAI_API_KEY={KEY}\nREADER_API_KEY=short\n")
    finished = doctor(JUDGE_API_KEY="another-secret-value", LLM_MODEL="m")
    for secret in (KEY, KEY[:6], "short", "another-secret-value", "another"):
        assert secret not in finished.out + finished.err
    assert row(finished, "judge key") == "…ue(20characters)JUDGE_API_KEY(environment)"
    assert row(finished, "reader key").startswith("(5characters)READER_API_KEY(")


def test_doctor_ends_with_2_when_a_key_is_missing(cwd: Path, repository: Path):
    finished = doctor(READER_MODEL="m", JUDGE_API_KEY=KEY)
    assert finished.code == 2
    assert "missing: reader m needs a key: READER_API_KEY, LLM_API_KEY or OPENAI_API_KEY\n" in finished.out
    assert "judge" not in finished.out.partition("missing:")[2]
    assert doctor(READER_MODEL="m", LLM_API_KEY=KEY).code == 0


def test_doctor_shows_paths_as_they_are(cwd: Path, repository: Path):
    """Brackets mean markup to what prints the table."""
    assert row(doctor("--trials", "[bold]x.json"), "ledger").startswith("[bold]x.json(")


def test_doctor_tells_a_folder_that_may_not_be_written(cwd: Path, repository: Path, monkeypatch: pytest.MonkeyPatch):
    (cwd / "mine").mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name != "mine")
    finished = doctor("--trials", "mine/trials.json")
    assert finished.code == 2
    assert finished.out.endswith("missing: mine can't be written\n")


def test_doctor_stops_at_a_malformed_env_file(cwd: Path, repository: Path):
    path = write(cwd, "oops\n")
    finished = doctor()
    assert (finished.code, finished.out) == (2, "")
    assert finished.err == (f"memtrials: {path}, line 1: not a `NAME=value` line; correct it or put `#` before it\n")


# TRIALS_FILE


def test_every_command_works_on_the_ledger_that_trials_file_names(built: Path, cwd: Path, repository: Path):
    named = call_cli("status", "--json", env={"TRIALS_FILE": str(built)})
    assert named == call_cli("status", "--json", "--trials", str(built))
    assert named.code == 0
    write(cwd, f"TRIALS_FILE={built}\n")
    assert call_cli("status", "--json") == named


def test_trials_in_a_missing_folder_ends_with_one_line(cwd: Path, repository: Path):
    finished = call_cli("status", env={"TRIALS_FILE": "missing/trials.json"})
    assert finished.code == 2
    assert finished.err.count("\n") == 1
    assert "the folder missing doesn't exist" in finished.err
