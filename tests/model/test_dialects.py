"""What holds for every dialect in the table: any line is either used or ignored, never an error, and every shortcut
gives the same result as parsing each line. A new dialect is tested as soon as it is in the table and has example lines
in `LINES`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.clock import iso_ms
from sessiond.model.dialects import DIALECTS, TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.message import text_of
from sessiond.model.message_list import messages_in
from sessiond.model.record import BadLine, Record, marker_record, message_heads, shown_stamps

_MESSAGE = {"role": "user", "content": "words"}
_HEAD = {"id": "a", "parentId": None, "timestamp": "2026-01-01T00:00:00.000Z"}
_USAGE = {"input": 1, "output": 2}
_RUN = {"runId": "r", "status": "accepted", "at": 1}
_STAMP = {"timestamp": "2026-01-01T00:00:00.000Z"}
_CLAUDE = {**_STAMP, "uuid": "u", "sessionId": "s", "cwd": "/", "isSidechain": False, "isMeta": False}
_TOOL_RESULT = {"type": "tool_result", "tool_use_id": "t", "content": "done", "is_error": False}
_CLAUDE_ANSWER = {
    "id": "m",
    "model": "claude",
    "content": [{"type": "text", "text": "words"}, {"type": "tool_use", "id": "t", "name": "Bash", "input": {"a": 1}}],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 1, "output_tokens": 2},
}
_TOKENS = {"input_tokens": 3, "cached_input_tokens": 1, "output_tokens": 2, "total_tokens": 5}
_TOKEN_INFO = {"total_token_usage": _TOKENS, "last_token_usage": _TOKENS}
_INPUT_TEXT = {"type": "input_text", "text": "words"}
_CODEX_META = {**_STAMP, "id": "s", "cwd": "/", "forked_from_id": "s0", "source": {"subagent": "review"}}

# Lines as the program writes them, by dialect.
LINES: dict[str, list[dict[str, Any]]] = {
    "v3": [
        {"type": "session", "version": 3, "id": "s", "cwd": "/"},
        {"type": "message", **_HEAD, "message": _MESSAGE},
        {"type": "message", **_HEAD, "message": {"role": "assistant", "content": "more", "usage": _USAGE}},
        {"type": "message", **_HEAD, "message": {"role": "system", "content": "its own prompt"}},
        {"type": "message", **_HEAD, "message": "no object"},
        {"type": "custom", **_HEAD, "customType": "sessiond/run", "data": _RUN},
        {"type": "model_change", **_HEAD, "modelId": "m"},
    ],
    "claude": [
        {"type": "user", **_CLAUDE, "message": _MESSAGE},
        {"type": "user", **_CLAUDE, "message": {"role": "user", "content": [_TOOL_RESULT, _TOOL_RESULT]}},
        {"type": "assistant", **_CLAUDE, "isSidechain": True, "agentId": "b", "message": _CLAUDE_ANSWER},
        {"type": "assistant", **_CLAUDE, "requestSessionId": "s0", "message": _CLAUDE_ANSWER},
        {"type": "attachment", **_CLAUDE, "attachment": {"type": "queued_command", "prompt": "more"}},
        {"type": "system", **_CLAUDE, "subtype": "compact_boundary"},
        {"type": "custom-title", "customTitle": "t"},
        {"type": "ai-title", "aiTitle": "t"},
        {"type": "agent-name", "agentName": "t"},
        {"type": "summary", "summary": "t", "leafUuid": "u"},
        {"type": "cost-state", "totalCostUSD": 0.25},
        {"type": "api-request", "params": {}},
        {"type": "dream", "sessionId": "s"},
    ],
    "codex": [
        {"type": "session_meta", **_STAMP, "payload": _CODEX_META},
        {"type": "turn_context", **_STAMP, "payload": {"cwd": "/", "model": "m"}},
        {"type": "response_item", **_STAMP, "payload": {"type": "message", "role": "user", "content": [_INPUT_TEXT]}},
        {"type": "response_item", **_STAMP, "payload": {"type": "reasoning", "id": "i", "summary": [_INPUT_TEXT]}},
        {"type": "response_item", **_STAMP, "payload": {"type": "function_call", "call_id": "c", "arguments": "{}"}},
        {"type": "response_item", **_STAMP, "payload": {"type": "function_call_output", "call_id": "c", "output": "o"}},
        {"type": "event_msg", **_STAMP, "payload": {"type": "token_count", "info": _TOKEN_INFO}},
        {"type": "event_msg", **_STAMP, "payload": {"type": "thread_name_updated", "thread_name": "t"}},
        {"type": "token_usage_record", **_STAMP, "payload": {"usage": _TOKENS, "response_id": "r"}},
        {"type": "compacted", **_STAMP, "payload": {"message": "m"}},
        {"type": "message", "role": "assistant", "id": "i", "content": [_INPUT_TEXT]},
        {"id": "s", **_STAMP, "instructions": None},
        {"record_type": "state"},
        {"type": "dream", **_STAMP, "payload": {}},
    ],
    "pi": [
        {"type": "session", "version": 3, "id": "s", "cwd": "/", "parentSession": "/s/1_x.jsonl"},
        {"type": "message", **_HEAD, "message": _MESSAGE},
        {"type": "message", **_HEAD, "message": {"role": "assistant", "content": "more", "usage": _USAGE}},
        {"type": "message", **_HEAD, "message": {"role": "system", "content": "its own prompt"}},
        {"type": "session_info", **_HEAD, "name": "title"},
        {"type": "model_change", **_HEAD, "modelId": "m"},
        {"type": "compaction", **_HEAD, "summary": "s", "usage": _USAGE},
        {"type": "branch_summary", **_HEAD, "fromId": "x", "summary": "s"},
        {"type": "dream", **_HEAD},
    ],
    "gemini": [
        {"sessionId": "s", "projectHash": "h", "startTime": "2026-01-01T00:00:00.000Z", "directories": ["/w"]},
        {"id": "u", "type": "user", "timestamp": _HEAD["timestamp"], "content": [{"text": "words"}]},
        {"id": "g", "type": "gemini", "content": "", "thoughts": [{"subject": "s", "description": "d"}]},
        {
            "id": "g",
            "type": "gemini",
            "content": [{"text": "x", "thought": True}, {"functionCall": {"id": "c", "name": "n", "args": {"a": 1}}}],
            "tokens": {"input": 9, "output": 2, "cached": 1, "total": 11},
            "toolCalls": [{"id": "c", "name": "n", "args": {"a": 1}, "status": "success", "result": "done"}],
        },
        {"id": "r", "type": "user", "content": [{"functionResponse": {"id": "c", "response": {"output": "done"}}}]},
        {"$set": {"summary": "about birds", "messages": [{"id": "v", "type": "user", "content": "more"}]}},
        {"$rewindTo": "u"},
        {"id": "e", "type": "error", "content": "failed"},
    ],
    "opencode": [
        {"seq": 0, "type": "session.created.1", "data": {"info": {"id": "s", "directory": "/w", "title": "birds"}}},
        {
            "seq": 1,
            "type": "message.updated.1",
            "data": {"info": {"id": "m", "role": "assistant", "tokens": {"input": 1, "output": 2}}},
        },
        {
            "seq": 2,
            "type": "message.part.updated.1",
            "role": "assistant",
            "data": {"part": {"id": "p", "messageID": "m", "type": "text", "text": "words"}},
        },
        {
            "seq": 3,
            "type": "message.part.updated.1",
            "role": "assistant",
            "data": {
                "part": {
                    "id": "q",
                    "messageID": "m",
                    "type": "tool",
                    "callID": "c",
                    "tool": "ls",
                    "state": {"status": "completed", "input": {"a": 1}, "output": "done"},
                }
            },
        },
        {"seq": 4, "type": "message.removed.1", "data": {"messageID": "m"}},
    ],
}
LINES["machine"] = LINES["v3"]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def lines_of(draw: st.DrawFn, name: str) -> bytes:
    """A line as the program writes it, or with anything at all in some of its fields."""
    line = dict(draw(st.sampled_from(LINES[name])))
    for field in draw(st.sets(st.sampled_from(sorted(line)))):
        line[field] = draw(json_values)
    return json.dumps(line, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass")


def parse_or_none(dialect: TranscriptDialect, line: bytes) -> Record | None:
    try:
        return dialect.parse(line)
    except BadLine:
        return None


def test_every_dialect_has_example_lines_in_this_file() -> None:
    assert {name: dialect.name for name, dialect in DIALECTS.items()} == {name: name for name in LINES}


@pytest.mark.parametrize("name", DIALECTS)
@given(data=st.data())
def test_any_line_is_folded_or_ignored_without_an_error(name: str, data: st.DataObject) -> None:
    dialect, entry = DIALECTS[name], Entry(session_id="s")
    for offset, line in enumerate(data.draw(st.lists(lines_of(name) | st.binary(max_size=40), max_size=5))):
        record = parse_or_none(dialect, line)
        dialect.text_in(line)
        if record is not None:
            dialect.ineffective_reason(entry, record)
            entry = dialect.fold(entry, record, offset, 1)


@pytest.mark.parametrize("name", DIALECTS)
@given(data=st.data())
def test_every_shortcut_agrees_with_parsing_each_line(name: str, data: st.DataObject) -> None:
    dialect = DIALECTS[name]
    found = [(line, parse_or_none(dialect, line)) for line in data.draw(st.lists(lines_of(name), max_size=5))]
    records = [(line, record) for line, record in found if record is not None]
    block = b"".join(line + b"\n" for line, _ in records)
    assert dialect.count_messages(block) in (None, sum(record.message is not None for _, record in records))
    opened = dialect.decode_block(block)
    assert len(opened) in (0, len(records))
    heads = message_heads(opened)
    if heads is None:
        opened, heads = [], []  # only parsing can tell
    for one, head, (line, record) in zip(opened, heads, records, strict=False):
        marker = marker_record(one, line)
        assert (head is not None) == (record.message is not None)
        assert (marker is not None) == (record.marker is not None)
        if head is not None:
            role = head.role if type(head.role) is str else None
            assert (role, bytes(one.message)) == (record.role, record.message)
    messages = [(one, head) for one, head in zip(opened, heads, strict=True) if head is not None]
    times = [record.timestamp_ms for _, record in records if record.message is not None]
    if opened:
        assert shown_stamps(messages) == [iso_ms(time) if time is not None else None for time in times]
    for line, record in records:
        if record.message is not None:
            texts = [text_of(one.message, "\n") for one in messages_in(record) if one.message is not None]
            assert dialect.text_in(line) == "\n".join(texts)


@check_each("name", DIALECTS)
def test_every_line_with_usage_contains_the_dialects_usage_sign(name: str) -> None:
    dialect = DIALECTS[name]
    with_usage = 0
    for value in LINES[name]:
        line = json.dumps(value).encode()
        record = parse_or_none(dialect, line)
        before = Entry(session_id="s")
        if record is not None and dialect.fold(before, record, 1, 1).input_tokens:
            with_usage += 1
            assert dialect.usage_sign in line
    assert with_usage
