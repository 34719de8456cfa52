"""The dialect of Codex: what is a message, what is not, and what a line says of its session.

Lines of real versions are in tests/model/test_golden_sources.py; here are the forms that no scene made.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.rows import check_each

from sessiond.model.dialects import DIALECTS
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.line_facts import GIVEN, LineFacts
from sessiond.model.record import BadLine, Record
from sessiond.model.source_facts import SourceFacts
from sessiond.model.usage import Usage

CODEX = DIALECTS["codex"]
STAMP = "2026-01-01T00:00:00.000Z"
STAMP_MS = 1767225600000
TEXT = {"type": "text", "text": "words"}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,aGk="}


def line(kind: str, payload: Any, **fields: Any) -> bytes:
    return json.dumps({"timestamp": STAMP, "type": kind, "payload": payload, **fields}).encode()


def item(kind: str, **fields: Any) -> Record:
    return CODEX.parse(line("response_item", {"type": kind, **fields}))


def said(role: str, *texts: str, kinds: list[str] | None = None) -> Record:
    content = [{"type": "input_text", "text": text} for text in texts]
    more = {"internal_chat_message_metadata_passthrough": {"content_item_kinds": kinds}} if kinds is not None else {}
    return item("message", id="i", role=role, content=content, **more)


def body(record: Record) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(record.message or b"null")
    return decoded


def blocks(record: Record) -> Any:
    return body(record)["content"] if record.message is not None else None


def test_a_typed_message_is_shown():
    record = said("user", "words")
    assert body(record) == {"role": "user", "content": [TEXT], "timestamp": STAMP_MS}
    assert (record.type, record.id, record.role, record.timestamp_ms) == ("response_item", "i", "user", STAMP_MS)
    assert (record.is_typed, record.message_id, record.facts) == (True, None, None)


@check_each(
    "text",
    [
        "<environment_context>\n  <cwd>/w</cwd>\n</environment_context>",
        "<user_instructions>\n\nbe brief\n</user_instructions>",
        "# AGENTS.md instructions for /w\n\n<INSTRUCTIONS>x</INSTRUCTIONS>",
        "<turn_aborted>\nThe user interrupted\n</turn_aborted>",
        "<permissions instructions>x</permissions instructions>",
        " \n<skill>\nx</skill>",
        "",
        "  ",
    ],
)
def test_what_the_program_adds_in_the_users_name_is_no_message(text: str):
    assert said("user", text).message is None
    assert said("developer", text).message is None
    assert blocks(said("user", text, "words")) == [TEXT]


@check_each("role", ["developer", "system", "tool", ""])
def test_other_roles_are_no_messages(role: str):
    assert said(role, "words").message is None


def test_newer_versions_say_which_part_a_person_typed():
    context = "environments.environment_context"
    assert said("user", "words", kinds=[context]).message is None
    assert blocks(said("user", "added", "words", kinds=["hooks.additional_context", "user.text"])) == [TEXT]
    assert blocks(said("user", "words", "more", kinds=["user.text"])) == [TEXT]
    # What a person typed is shown, whatever it looks like.
    assert blocks(said("user", "<skill> is a word", kinds=["user.text"])) is not None
    assert blocks(said("assistant", "words", kinds=["unknown"])) == [TEXT]


def test_pictures_are_blocks_and_the_words_around_them_are_left_out():
    content = [
        {"type": "input_text", "text": '<image name=[Image #1] path="dot.png">'},
        PICTURE,
        {"type": "input_text", "text": "</image>"},
        {"type": "input_text", "text": "words"},
        {"type": "input_image", "image_url": "https://example.org/dot.png"},
        {"type": "input_image", "image_url": {"url": 7}},
        {"type": "new"},
        7,
    ]
    record = item("message", role="user", content=content)
    assert blocks(record) == [{"type": "image", "data": "aGk=", "mimeType": "image/png"}, TEXT]


@check_each(
    ("fields", "thinking"),
    [
        ({"summary": [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]}, "a\n\nb"),
        ({"summary": [], "content": [{"type": "reasoning_text", "text": "c"}]}, "c"),
        ({"summary": [{"type": "summary_text", "text": "a"}], "content": [{"type": "x", "text": "c"}]}, "a"),
        ({"summary": [], "encrypted_content": "gAAAA"}, None),
        ({"summary": 7, "content": None}, None),
        ({}, None),
    ],
)
def test_thinking_is_the_summary_of_it(fields: dict[str, Any], thinking: str | None):
    expected = [{"type": "thinking", "thinking": thinking}] if thinking else None
    assert blocks(item("reasoning", **fields)) == expected


@check_each(
    ("kind", "fields", "call"),
    [
        ("function_call", {"name": "exec", "call_id": "c", "arguments": '{"cmd": "ls"}'}, ("c", "exec", {"cmd": "ls"})),
        ("function_call", {"name": "exec", "call_id": "c", "arguments": "{}"}, ("c", "exec", {})),
        ("function_call", {"name": "exec", "call_id": "c", "arguments": ""}, ("c", "exec", {})),
        ("function_call", {"name": "exec", "call_id": "c", "arguments": "ls"}, ("c", "exec", {"input": "ls"})),
        ("function_call", {"name": "exec", "call_id": "c", "arguments": "[1]"}, ("c", "exec", {"input": "[1]"})),
        ("function_call", {"name": "exec", "id": "f", "arguments": {"a": 1}}, ("f", "exec", {"a": 1})),
        ("function_call", {}, ("", "function", {})),
        (
            "custom_tool_call",
            {"name": "apply_patch", "call_id": "c", "input": "*** x"},
            ("c", "apply_patch", {"input": "*** x"}),
        ),
        (
            "local_shell_call",
            {"call_id": "c", "action": {"type": "exec", "command": ["ls"]}},
            ("c", "local_shell", {"type": "exec", "command": ["ls"]}),
        ),
        (
            "web_search_call",
            {"id": "ws", "status": "completed", "action": {"type": "search", "query": "birds"}},
            ("ws", "web_search", {"type": "search", "query": "birds"}),
        ),
        ("tool_search_call", {"call_id": "c", "arguments": {"query": "x"}}, ("c", "tool_search", {"query": "x"})),
    ],
)
def test_calls_of_tools_are_messages_of_the_assistant(kind: str, fields: dict[str, Any], call: Any):
    record = item(kind, **fields)
    assert blocks(record) == [{"type": "toolCall", "id": call[0], "name": call[1], "arguments": call[2]}]
    assert (record.role, body(record)["stopReason"]) == ("assistant", "toolUse")


def test_arguments_are_passed_on_as_they_were_written_on_one_line():
    given = '{\n  "n": 123456789012345678901234567890,\r\n "text": "a\\nb"}'
    record = item("function_call", name="x", call_id="c", arguments=given)
    assert record.message is not None and b"\n" not in record.message and b"\r" not in record.message
    assert b"123456789012345678901234567890" in record.message
    assert blocks(record)[0]["arguments"]["text"] == "a\nb"
    deep = '{"a":' * 200 + "1" + "}" * 200
    assert blocks(item("function_call", name="x", call_id="c", arguments=deep))[0]["arguments"] == {"input": deep}


@check_each(
    ("output", "content", "is_error"),
    [
        ("printed", ["printed"], False),
        ("Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 0\nOutput:\nx", None, False),
        ("Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 2\nOutput:\nx", None, True),
        ('{"output":"one\\n","metadata":{"exit_code":0,"duration_seconds":0.0}}', ["one\n"], False),
        ('{"output":"gone","metadata":{"exit_code":127}}', ["gone"], True),
        ('{"output":"killed","metadata":{"exit_code":-9}}', ["killed"], True),
        ('{"output":"odd","metadata":7}', ["odd"], False),
        ('{"metadata":"but not ours"}', None, False),
        ({"content": "failed", "success": False}, ["failed"], True),
        ({"content": "fine", "success": True}, ["fine"], False),
        ([{"type": "input_text", "text": "words"}], ["words"], False),
        ([], [], False),
        (None, [], False),
        (7, [], False),
    ],
)
def test_outputs_of_tools_are_results(output: Any, content: list[str] | None, is_error: bool):
    for kind in ("function_call_output", "custom_tool_call_output"):
        record = item(kind, call_id="c", output=output)
        texts = [output] if content is None else content
        assert body(record) == {
            "role": "toolResult",
            "toolCallId": "c",
            "toolName": "",
            "content": [{"type": "text", "text": text} for text in texts],
            "isError": is_error,
            "timestamp": STAMP_MS,
        }
    assert record.role == "toolResult"


def test_a_picture_is_a_result_too():
    assert blocks(item("function_call_output", call_id="c", output=[PICTURE])) == [
        {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    ]


def test_of_the_two_logs_only_the_items_are_messages():
    for event in (
        {"type": "user_message", "message": "words"},
        {"type": "agent_message", "message": "words"},
        {"type": "agent_reasoning", "text": "words"},
        {"type": "item_completed", "item": {"type": "AgentMessage", "content": [{"type": "Text", "text": "words"}]}},
        {"type": "turn_aborted", "reason": "interrupted"},
        {"type": "brand_new"},
    ):
        record = CODEX.parse(line("event_msg", event))
        assert (record.message, record.facts, record.marker) == (None, None, None)


def test_a_compaction_is_a_marker_and_what_the_model_wrote_for_it_is_no_message():
    assert CODEX.parse(line("compacted", {"message": "m", "replacement_history": []})).marker == "compaction"
    summary = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "summary"}]}
    assert CODEX.parse(line("response_item", summary, metadata={"compaction_output": True})).message is None
    assert CODEX.parse(line("response_item", summary, metadata={"compaction_output": False})).message is not None


def test_the_first_line_says_what_the_session_is():
    meta = {
        "id": "s1",
        "timestamp": "2025-12-31T23:59:59.000Z",
        "cwd": "/w",
        "model_provider": "openai",
        "forked_from_id": "s0",
        "parent_thread_id": "p",
        "source": "exec",
    }
    assert CODEX.parse(line("session_meta", meta)).facts == LineFacts(
        native_id="s1",
        cwd="/w",
        created_ms=STAMP_MS - 1000,
        provider="openai",
        forked_from="s0",
        spawned_by="p",
    )


@check_each(
    ("source", "parent"),
    [
        ({"subagent": {"thread_spawn": {"parent_thread_id": "p", "depth": 1}}}, "p"),
        ({"subagent": {"thread_spawn": None}}, None),
        ({"subagent": "review"}, None),
        ("exec", None),
        (None, None),
        (7, None),
    ],
)
def test_older_versions_name_the_parent_in_the_source(source: Any, parent: str | None):
    facts = CODEX.parse(line("session_meta", {"id": "s", "source": source})).facts
    assert facts is not None and facts.spawned_by == parent


def test_of_a_fork_that_copied_its_parent_the_first_line_counts():
    entry = begin_foreign(SourceFacts(name="codex"), "s1")
    own = {"id": "s1", "cwd": "/own", "forked_from_id": "s0", "timestamp": "2026-02-01T00:00:00Z"}
    copied = {"id": "s0", "cwd": "/copied", "forked_from_id": "older", "timestamp": STAMP, "parent_thread_id": None}
    for offset, meta in enumerate((own, copied)):
        entry = CODEX.fold(entry, CODEX.parse(line("session_meta", meta)), offset, 1)
    assert entry.source is not None
    assert (entry.cwd, entry.source.forked_from, entry.session_id) == ("/own", "s0", "s1")
    assert entry.created_at == 1769904000000


def test_turns_name_the_model_and_events_the_title():
    turn = CODEX.parse(line("turn_context", {"cwd": "/w", "model": "gpt-x"}))
    assert turn.facts == LineFacts(cwd="/w", model="gpt-x")
    named = CODEX.parse(line("event_msg", {"type": "thread_name_updated", "thread_name": "birds"}))
    assert named.facts == LineFacts(title="birds", title_rank=GIVEN)


TOKENS = {"input_tokens": 100, "cached_input_tokens": 40, "output_tokens": 7, "total_tokens": 107}


def counted(total: int, last: dict[str, Any] = TOKENS) -> bytes:
    info = {"total_token_usage": {"total_tokens": total}, "last_token_usage": last}
    return line("event_msg", {"type": "token_count", "info": info})


def recorded(response: str) -> bytes:
    return line("token_usage_record", {"usage": TOKENS, "response_id": response})


NONE_USED = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 6155}


@check_each(
    ("lines", "responses"),
    [
        ([recorded("r1"), recorded("r2")], 2),
        ([recorded("r1"), counted(107), counted(107), recorded("r2"), counted(214)], 2),
        ([counted(107), counted(107), counted(214), counted(214, NONE_USED), counted(321)], 3),
        # Continued by a newer version, which writes both.
        ([counted(107), counted(107), recorded("r2"), counted(214), recorded("r3"), counted(321)], 3),
        ([line("event_msg", {"type": "token_count", "info": None})], 0),
        ([line("event_msg", {"type": "token_count", "info": {"total_token_usage": 7}})], 0),
        ([line("token_usage_record", {"usage": None, "response_id": "r"})], 0),
    ],
)
def test_each_response_is_counted_once_in_files_of_all_versions(lines: list[bytes], responses: int):
    entry = begin_foreign(SourceFacts(name="codex"), "s")
    for offset, each in enumerate(lines):
        entry = CODEX.fold(entry, CODEX.parse(each), offset, 1)
    sums = (entry.input_tokens or 0, entry.output_tokens or 0, entry.cache_read or 0)
    assert sums == (60 * responses, 7 * responses, 40 * responses)


def test_usage_without_what_came_from_the_cache():
    facts = CODEX.parse(recorded("r1")).facts
    assert facts is not None
    assert (facts.usage, facts.usage_id, facts.usage_may_repeat) == (Usage(60, 7, 40, 0, 107), "r1", False)


@check_each(
    ("text", "facts"),
    [
        ({"id": "s", "timestamp": STAMP, "instructions": None}, LineFacts(native_id="s")),
        ({"record_type": "state"}, None),
        ({"type": None}, LineFacts(unknown_type="")),
        ({}, LineFacts(unknown_type="")),
        ({"type": "dream", "payload": {}}, LineFacts(unknown_type="dream")),
        ({"type": "dream"}, LineFacts(unknown_type="dream")),
        ({"type": "world_state", "payload": {}}, None),
        ({"type": "response_item", "payload": {"type": "dream"}}, LineFacts(unknown_type="response_item/dream")),
        ({"type": "response_item", "payload": {"type": "ghost_snapshot"}}, None),
        ({"type": "response_item", "payload": 7}, None),
    ],
)
def test_other_lines_say_nothing_or_are_counted_as_unknown(text: dict[str, Any], facts: LineFacts | None):
    record = CODEX.parse(json.dumps(text).encode())
    assert (record.message, record.facts) == (None, facts)


def test_lines_of_the_first_versions_are_the_items_themselves():
    call = {"type": "function_call", "name": "shell", "call_id": "c", "arguments": "{}"}
    assert CODEX.parse(json.dumps(call).encode()).role == "assistant"
    spoken = {
        "type": "message",
        "id": None,
        "role": "user",
        "content": [{"type": "input_text", "text": "\ud83d words"}],
    }
    record = CODEX.parse(json.dumps(spoken).encode())
    assert (record.role, record.id, record.timestamp_ms, record.is_typed) == ("user", None, None, True)
    assert body(record) == {"role": "user", "content": [{"type": "text", "text": "\ufffd words"}]}


@check_each(
    ("bad", "reason"),
    [
        (b"", "not an object"),
        (b"[]", "not an object"),
        (b'{"type":"response_item","payl', "torn or not JSON"),
        (b"\0", "NUL bytes"),
    ],
)
def test_a_line_that_is_no_object_says_why(bad: bytes, reason: str):
    with pytest.raises(BadLine) as raised:
        CODEX.parse(bad)
    assert raised.value.reason == reason
