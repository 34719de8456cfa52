"""The dialect of Gemini CLI, over files that Gemini CLI 0.61.0 wrote and lines of older versions."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from msgspec.structs import replace
from support.rows import check_each
from support.source_files import describe_message, fold_lines, golden_lines

from sessiond.model.dialects import DIALECTS
from sessiond.model.dialects.gemini import parse
from sessiond.model.entry import Entry
from sessiond.model.message_list import ListState, apply_line, messages_in
from sessiond.model.record import BadLine, Record
from sessiond.model.source_facts import FoundFacts

GEMINI = DIALECTS["gemini"]
TOOL_TURN = [
    "user: please RUN echo forty-two",
    """assistant: (I shall run it.) | run_shell_command{"command":"echo forty-two","description":"run it"}""",
    "toolResult: <untrusted_context>\nOutput: forty-two\nProcess Group PGID: ",
    "assistant: The command printed: forty-two",
]
AT = "2026-11-22T15:00:00.000Z"


def shown_after(lines: list[bytes]) -> list[str]:
    """The list of messages after the lines, as a reader has it."""
    state, shown = ListState(), list[str]()
    for line in lines:
        state, change = apply_line(state, parse(line))
        del shown[change.kept :]
        for number, record in change.placed:
            shown[number - 1 : number] = [describe_message(record.message)[:100]]
    assert state.count == len(shown)
    return [text.split("PGID: ")[0] + "PGID: " if "PGID: " in text else text for text in shown]


def line(**fields: Any) -> bytes:
    return json.dumps({"timestamp": AT, **fields}).encode()


def user(message_id: str, text: str) -> bytes:
    return line(id=message_id, type="user", content=[{"text": text}])


def answer(message_id: str, text: str, **fields: Any) -> bytes:
    return line(id=message_id, type="gemini", content=text, **fields)


def change(**fields: Any) -> bytes:
    return json.dumps({"$set": fields}).encode()


def messages_of(record: Record) -> list[str]:
    return [describe_message(one.message) for one in messages_in(record)]


@check_each(
    ("name", "shown"),
    [
        ("tool", TOOL_TURN),
        ("resumed", [*TOOL_TURN, "user: and again", "assistant: Answer 2 to: and again"]),
        (
            "compressed",
            [
                "user: 1 to: {}",
                "assistant: Got it. Thanks for the additional context!",
                "user: and again",
                "assistant: Answer 2 to: and again",
            ],
        ),
    ],
)
def test_the_messages_in_files_of_the_real_program(name, shown):
    lines = golden_lines(f"gemini/{name}.jsonl")
    assert shown_after(lines) == shown
    entry, _ = fold_lines(GEMINI, lines)
    assert entry.message_count == len(shown)


def test_the_entry_of_a_session_that_the_program_wrote():
    lines = golden_lines("gemini/resumed.jsonl")
    entry, _ = fold_lines(GEMINI, lines, FoundFacts(cwd="/workspace"))
    source = entry.source
    assert source is not None and (source.title, source.unknown) == ("please RUN echo forty-two", {})
    assert (entry.model, entry.cwd) == ("gemini-2.5-pro", "/workspace")
    # Three answers, one of them written twice: 100 tokens each, of which 40 are cached.
    assert (entry.input_tokens, entry.cache_read, entry.output_tokens, entry.total_tokens) == (180, 120, 21, 107)
    facts = parse(lines[0]).facts
    assert facts is not None and facts.native_id == json.loads(lines[0])["sessionId"]
    assert entry.created_at == facts.created_ms and entry.updated_at > entry.created_at


def test_a_sub_agent_has_its_folder_and_its_parent_no_title_of_its_prompt():
    child = golden_lines("gemini/subagent.jsonl")
    parent_id = json.loads(golden_lines("gemini/delegating.jsonl")[0])["sessionId"]
    entry, _ = fold_lines(GEMINI, child, FoundFacts(parent=parent_id))
    assert (entry.spawned_by, entry.cwd) == (f"gemini:{parent_id}", "/workspace")
    assert entry.source is not None and entry.source.title is None
    assert shown_after(child)[:4] == TOOL_TURN


def test_a_resume_that_writes_the_whole_list_again_changes_nothing():
    lines = golden_lines("gemini/resumed.jsonl")
    (again,) = [place for place, one in enumerate(lines) if len(parse(one).more) > 3]
    assert shown_after(lines[:again]) == shown_after(lines[: again + 1])


def test_a_rewind_and_a_rollback_drop_what_comes_behind():
    lines = [user("a", "one"), answer("b", "two"), user("c", "three"), answer("d", "four")]
    assert shown_after([*lines, b'{"$rewindTo":"c"}', user("e", "five")]) == [
        "user: one",
        "assistant: two",
        "user: five",
    ]
    assert shown_after([*lines, b'{"$rewindTo":"unknown"}']) == []
    kept = [json.loads(one) for one in lines[:2]]
    assert shown_after([*lines, change(messages=kept)]) == ["user: one", "assistant: two"]
    assert shown_after([*lines, change(messages=[], lastUpdated=AT)])[-1] == "assistant: four"


def test_results_of_older_versions_stand_only_beside_their_calls():
    calls = [
        {"id": "1", "name": "ls", "args": {}, "status": "success", "result": "a file"},
        {"id": "2", "name": "cat", "args": {}, "status": "error", "result": [{"text": "no file"}]},
        {"id": "3", "name": "cat", "args": {}, "status": "executing", "result": None},
    ]
    record = parse(answer("x", "Looking.", toolCalls=calls))
    assert messages_of(record) == [
        "assistant: Looking. | ls{} | cat{} | cat{}",
        "toolResult: a file",
        "toolResult: no file",
    ]
    errors = [json.loads(one.message or b"")["isError"] for one in record.more]
    assert errors == [False, True]


def test_several_results_in_one_line_are_several_messages_and_no_one_typed_them():
    responses = [
        {"functionResponse": {"id": "1", "name": "ls", "response": {"output": "a"}}},
        {"functionResponse": {"id": "2", "name": "ls", "response": {"error": "b"}}},
        {"functionResponse": {"id": "3", "name": "ls", "response": {"other": 1}}},
    ]
    record = parse(line(id="r", type="user", content=responses))
    assert messages_of(record) == ["toolResult: a", "toolResult: b", 'toolResult: {"other": 1}']
    assert not any(one.is_typed for one in messages_in(record))


@check_each(
    ("fields", "shown", "is_typed"),
    [
        ({"content": "typed"}, ["user: typed"], True),
        ({"content": "/compress"}, ["user: /compress"], False),
        ({"content": "<session_context>\nday"}, [], False),
        ({"content": "<hook_context>x"}, [], False),
        ({"content": [{"text": "@a long file"}], "displayContent": [{"text": "@a"}]}, ["user: @a"], True),
        ({"content": {"text": "one part"}}, ["user: one part"], True),
        ({"content": [{"inlineData": {"mimeType": "image/png", "data": "AA=="}}]}, ["user: <image>"], False),
        ({"content": []}, [], False),
        ({"content": 5}, [], False),
    ],
)
def test_what_a_person_typed(fields, shown, is_typed):
    record = parse(line(id="u", type="user", **fields))
    assert (messages_of(record), record.is_typed) == (shown, is_typed)


@check_each(
    ("tokens", "counted"),
    [
        ({"input": 100, "output": 7, "cached": 40, "thoughts": 3, "tool": 2, "total": 112}, (60, 12, 40, 112)),
        ({"input": 100, "output": 7, "cached": 0, "thoughts": 3, "total": 0}, (100, 10, 0, 110)),
        ({"input": 5, "output": 0, "cached": 9, "total": 5}, (0, 0, 5, 5)),
        ({"input": -1, "output": "x", "cached": None, "total": 1e300}, None),
        (None, None),
    ],
)
def test_tokens(tokens, counted):
    facts = parse(answer("x", "text", tokens=tokens)).facts
    usage = facts.usage if facts is not None else None
    assert (usage and (usage.input, usage.output, usage.cache_read, usage.total_tokens)) == counted


def test_facts_of_metadata_and_unknown_types():
    entry, _ = fold_lines(GEMINI, [change(summary="About birds"), user("u", "words"), line(id="x", type="dream")])
    assert entry.source is not None
    assert (entry.source.title, entry.source.unknown, entry.message_count) == ("About birds", {"dream": 1}, 1)
    for known in ({"id": "i", "type": "info", "content": "x"}, {"id": "e", "type": "error", "content": "x"}):
        assert parse(line(**known)).facts is None
    for bad in (b"[]", b"{", b"", b"\x00", b'{"id":"\xff"}'):
        with pytest.raises(BadLine):
            parse(bad)


def test_a_list_of_many_messages_takes_time_in_proportion_to_its_length():
    def seconds(count: int) -> float:
        entry = Entry(session_id="s")
        records = [parse(user(str(number), "text")) for number in range(count)]
        begin = time.process_time()
        for place, record in enumerate(records):
            entry = GEMINI.fold(entry, record, place, 1)
        assert entry.message_count == count
        return time.process_time() - begin

    seconds(100)
    # Sixteen times the messages; a hundred times the time would be the square.
    assert seconds(16_000) < 100 * max(seconds(1_000), 0.005)


@check_each(
    "line",
    [
        b'{"$set":{"lastUpdated":"2026-11-22T15:46:22.494Z"}}',
        b'{"$set":{"lastUpdated":""}}',
        b'{"$set":{"lastUpdated":"x\\"}}',
        b'{"$set":{"lastUpdated":"2026"},"id":"a"}',
        b'{"$set":{"lastUpdated":"2026","summary":"said"}}',
    ],
)
def test_a_line_that_is_only_noted_is_read_as_every_other(line: bytes) -> None:
    # The same with a space in it is read the long way.
    slow = line.replace(b":{", b": {", 1)
    try:
        expected = parse(slow)
    except BadLine as bad:
        with pytest.raises(BadLine, match=bad.reason):
            parse(line)
        return
    assert replace(parse(line), raw=b"") == replace(expected, raw=b"")
