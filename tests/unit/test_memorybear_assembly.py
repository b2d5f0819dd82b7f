"""What a reader is shown of a MemoryBear service's items, and what is written to it."""

from typing import Any

import pytest

from memtrials.benchmarks.timeline import Session, Turn
from memtrials.errors import UserError
from memtrials.settings import Settings
from memtrials.systems.memorybear import blank_turns, fetch_configuration, messages_of
from memtrials.systems.memorybear.assembly import Picked, labelled, memory
from memtrials.systems.memorybear.assembly import document_of as document

FETCH = {"search_switch": "", "read_path": "", "k": 0, "candidates": 0, "skip_summary": False}
FETCH |= {"rerank": False, "rerank_model": ""}


def item(content: Any = "", description: Any = None, score: float = 0.5) -> dict[str, Any]:
    return {"content": content, "score": score, "data": {"description": description}}


def configured(asked: dict[str, Any] | None = None, **environment: str) -> dict[str, Any]:
    return fetch_configuration({**FETCH, **(asked or {})}, Settings((("environment", environment),)))


# One store


def test_blocks_are_contents_with_their_details():
    items = [
        item(" <statement>A</statement>\n"),
        item("<entity>B</entity>", "[2023-04-10T17:15:00Z] moved；[2023-05-01T08:00:00Z] married "),
        item("  ", " "),
        item("", "only details"),
        item(None, None),
    ]
    assert memory(items) == (
        "<statement>A</statement>\n\n"
        "<entity>B</entity>\nDETAILS:\n[2023-04-10T17:15:00Z] moved\n[2023-05-01T08:00:00Z] married\n\n"
        "DETAILS:\nonly details"
    )


def test_no_items_and_items_without_text_are_no_memory():
    assert memory([]) == memory([item(), item(" \n ")]) == ""


def test_an_item_without_data_is_its_content():
    assert memory([{"content": "plain", "data": None}, {"content": "bare"}]) == "plain\n\nbare"


# A store for each speaker


def test_a_labelled_store_holds_the_answer_and_then_each_description_once():
    picked = Picked((), [item("x", "[2023-01-01] one"), item("y", "[2023-01-01] one"), item("z", "two；three")])
    block = labelled("caroline", picked, " The user paints. User Ann said: the User interface. A user. ")
    head, about, *rest = block.split("\n")
    assert head == "================= MEMORY STORE: Caroline ================="
    assert about.startswith("(")
    assert about.endswith(")")
    assert "\n".join(rest) == (
        "Caroline paints. Caroline Ann said: Caroline interface. A user.\n\n"
        "Entity details (with timestamps):\n- [2023-01-01] one\n- two；three"
    )


def test_reranked_the_contents_of_what_was_chosen_stand_in_place_of_the_answer():
    picked = Picked([item("profile", score=1)], [item("first", "dated"), item(" ")], reranked=True)
    assert labelled("Mel", picked, "everything").split("\n")[2:] == [
        "profile",
        "",
        "first",
        "",
        "Entity details (with timestamps):",
        "- dated",
    ]


def test_an_empty_labelled_store_says_none():
    assert labelled("Mel", Picked((), ()), " ").endswith(")\n(none)")


def test_a_name_with_a_backslash_stands_as_it_is():
    assert "\\1 paints" in labelled("\\1", Picked((), ()), "the user paints")


def test_a_reranker_is_shown_the_bare_content():
    assert document({"content": "<a>text</a>", "data": {"content": " text "}}) == "text"
    assert document({"content": " <a>text</a> ", "data": {"content": " "}}) == "<a>text</a>"
    assert document({"content": " c "}) == "c"


# What is written

TALK = Session(
    (
        Turn("user", "I paint.", None, "Caroline"),
        Turn("assistant", "  ", None, "Melanie"),
        Turn("assistant", "So do I.", None, "Melanie"),
    ),
    "1:56 pm on 8 May, 2023",
)


def test_each_speakers_store_has_that_speaker_as_user_and_names_in_the_text():
    at = "2023-05-08T13:56:00Z"
    assert messages_of(TALK, "Melanie") == [
        {"role": "assistant", "content": "Caroline: I paint.", "dialog_at": at},
        {"role": "user", "content": "Melanie: So do I.", "dialog_at": at},
    ]
    assert [m["role"] for m in messages_of(TALK, "Caroline")] == ["user", "assistant"]


def test_without_an_owner_roles_and_texts_are_as_in_the_data():
    own = Session((Turn("user", "Hello", "2024/03/02 (Sat) 08:40"),), "2024/03/01 (Fri) 08:40")
    assert messages_of(own, None) == [{"role": "user", "content": "Hello", "dialog_at": "2024-03-02T08:40:00Z"}]


def test_blank_turns_are_counted_and_a_time_that_cannot_be_read_is_an_error():
    assert blank_turns(TALK) == 1
    for time in (None, "last week"):
        with pytest.raises(UserError, match="needs the time of every session"):
            blank_turns(Session((Turn("user", "Hello"),), time))


# How it is asked


def test_without_settings_it_is_a_quick_search_without_a_limit():
    assert configured() == {
        "search_switch": "2",
        "read_path": "/v1/memory/read/sync",
        "skip_summary": False,
        "rerank": False,
    }


def test_empty_variables_are_unset():
    names = ("MEMORY_SEARCH_SWITCH", "SEARCH_SWITCH", "TOP_K_LIMIT", "RERANK_ENABLED", "RERANK_TOP_N", "RERANK_MODEL")
    assert configured(**dict.fromkeys(names, "")) == configured()


def test_variables_of_both_pipelines_are_read():
    assert configured(MEMORY_SEARCH_SWITCH="1", SEARCH_SWITCH="0")["search_switch"] == "1"
    assert configured(SEARCH_SWITCH="0", MEM_SKIP_SUMMARY="yes") == {
        **configured(),
        "search_switch": "0",
        "skip_summary": True,
    }
    assert configured(MEM_SERVICE_URL="http://h:1/v1/memory/read/internal")["read_path"] == "/v1/memory/read/internal"
    assert configured(TOP_K_LIMIT="50")["k"] == 50


def test_with_reranking_the_limit_is_of_candidates():
    found = configured(RERANK_ENABLED="1", TOP_K_LIMIT="50", RERANK_TOP_N="7")
    assert (found["rerank"], found["k"], found["candidates"]) == (True, 7, 50)
    assert found["rerank_model"] == "gte-rerank-v2"
    assert configured({"rerank": True, "k": 3})["k"] == 3
    assert configured({"rerank": True})["k"] == 10


def test_what_was_asked_for_wins_over_the_environment():
    assert configured({"search_switch": "4", "k": 5}, MEMORY_SEARCH_SWITCH="1", TOP_K_LIMIT="50") == {
        **configured(),
        "search_switch": "4",
        "k": 5,
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [("SEARCH_SWITCH", "9"), ("TOP_K_LIMIT", "0"), ("TOP_K_LIMIT", "many"), ("MEMORY_READ_PATH", "v1/read")],
)
def test_a_value_that_cannot_be_is_named(name: str, value: str):
    with pytest.raises(UserError, match=value):
        configured(**{name: value})
