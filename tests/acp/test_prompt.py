"""A prompt's content blocks as the text and the files of a message."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.acp.prompt import FILES_ONLY, MAX_MESSAGE_BYTES, BadPrompt, read_prompt

LINK = {"type": "resource_link", "name": "a.py", "uri": "file:///w/a.py"}
NOTES = {"type": "resource", "resource": {"uri": "file:///w/my%20notes.txt", "text": "one\ntwo"}}
IMAGE = {"type": "image", "mimeType": "image/png", "data": "AAAA"}
BLOB = {"type": "resource", "resource": {"uri": "file:///w/../~sheet 1.xls", "blob": "AAAA", "mimeType": "x/y"}}


def text(words: str) -> dict[str, str]:
    return {"type": "text", "text": words}


@check_each(
    ("blocks", "wanted", "names"),
    [
        ([text("hello")], "hello", []),
        ([text("one"), text("two")], "one\ntwo", []),
        ([text("look at "), LINK, text(", please")], "look at [@a.py](file:///w/a.py), please", []),
        ([text("("), LINK, LINK, text("it)")], "([@a.py](file:///w/a.py) [@a.py](file:///w/a.py) it)", []),
        ([text("look at"), LINK], "look at [@a.py](file:///w/a.py)", []),
        ([text("sum up"), NOTES], "sum up [@my notes.txt](file:///w/my%20notes.txt)\n\n"
            '<context ref="file:///w/my%20notes.txt">\none\ntwo\n</context>', []),
        ([IMAGE], FILES_ONLY, ["image-1.png"]),
        ([text(" "), IMAGE, IMAGE], FILES_ONLY, ["image-1.png", "image-2.png"]),
        ([BLOB], "[@~sheet 1.xls](file:///w/../~sheet 1.xls)", ["1-sheet-1.xls"]),
    ],
)  # fmt: skip
def test_the_message_of_a_prompt(blocks: list[Any], wanted: str, names: list[str]) -> None:
    message = read_prompt(blocks)
    assert message.text == wanted
    assert [file["name"] for file in message.attachments] == names


@check_each(
    ("blocks", "sentence"),
    [
        (None, "`prompt` is to be a list of content blocks"),
        ([], "the prompt is empty"),
        ([text(" \n")], "the prompt is empty"),
        ([{"type": "text"}], "`prompt[0].text` is missing or no text"),
        ([text("x"), {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}], "`prompt[1]` is no content block"),
        ([3], "`prompt[0]` is no content block that is taken here: they are text, image, resource_link and resource"),
        ([text("a\ud83d")], "`prompt[0].text` has half a character"),
        ([{"type": "resource"}], "`prompt[0].resource` is missing or no object"),
        ([{"type": "resource", "resource": {"uri": "x"}}], "`prompt[0].resource.blob` is missing or no text"),
        ([text("x" * (MAX_MESSAGE_BYTES + 1))], "the prompt is longer than 15 MiB; name files by links"),
        ([text("é" * (MAX_MESSAGE_BYTES // 2 + 1))], "the prompt is longer than 15 MiB; name files by links"),
    ],
)
def test_a_prompt_that_cannot_be_sent_is_refused(blocks: Any, sentence: str) -> None:
    with pytest.raises(BadPrompt) as refused:
        read_prompt(blocks)
    assert str(refused.value).startswith(sentence)


def test_a_prompt_at_the_limit_is_taken() -> None:
    assert len(read_prompt([text("x" * MAX_MESSAGE_BYTES)]).text) == MAX_MESSAGE_BYTES


VALUES = st.none() | st.text(max_size=5) | st.integers() | st.lists(st.integers(), max_size=2)
RESOURCE = st.dictionaries(st.sampled_from(["uri", "text", "blob", "mimeType"]), VALUES)
FIELD = st.sampled_from(["type", "text", "data", "mimeType", "uri", "name", "resource"])
KIND = st.sampled_from(["text", "image", "resource_link", "resource", "audio"])


@given(st.lists(st.builds(lambda kind, rest: {**rest, "type": kind}, KIND, st.dictionaries(FIELD, VALUES | RESOURCE))))
def test_any_blocks_are_a_message_or_refused(blocks: list[Any]) -> None:
    try:
        message = read_prompt(blocks)
    except BadPrompt:
        return
    assert message.text.strip()
    assert all(isinstance(value, str) for file in message.attachments for value in file.values())
