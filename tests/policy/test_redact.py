"""Attachment content is removed from recorded tool calls, in every shape in which programs record them."""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import time
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model.decoding_cost import MAX_VALUES
from sessiond.policy.redact import REDACTED, mask_value, redact_arguments, redact_spawn_calls, redact_spawn_raw
from sessiond.policy.secrets import MASK

SECRET = "the content of the file"
ITEM = {"name": "a.txt", "content": SECRET, "encoding": "utf8", "mimeType": "text/plain"}
RECEIPT = {"bytes": len(SECRET), "sha256": hashlib.sha256(SECRET.encode()).hexdigest()}
CLEAN = {**ITEM, "content": "__REDACTED__", **RECEIPT}
ARGUMENTS = {"task": "read it", "attachments": [ITEM]}


def call(arguments: Any, *, kind: str = "toolCall", name: str = "sessions_spawn", field: str = "arguments") -> Any:
    return {"role": "assistant", "content": [{"type": kind, "id": "c1", "name": name, field: arguments}]}


@check_each("kind", ["toolCall", "toolUse", "tool_use", "functionCall", "function_call"])
@check_each("field", ["arguments", "input", "args"])
def test_the_content_is_replaced_and_its_size_and_hash_are_added(kind: str, field: str) -> None:
    message = call(ARGUMENTS, kind=kind, field=field)
    before = copy.deepcopy(message)
    assert redact_spawn_calls(message) == call({"task": "read it", "attachments": [CLEAN]}, kind=kind, field=field)
    assert message == before


@check_each(
    "name",
    [
        " Sessions_Spawn ",
        "mcp__sessiond__sessions_spawn",
        "sessiond.sessions_spawn",
        "sessiond/sessions_spawn",
        "mcp_sessiond_sessions_spawn",
        "sessions-spawn",
    ],
)
def test_the_tool_is_recognised_under_every_prefix(name: str) -> None:
    assert redact_spawn_calls(call(ARGUMENTS, name=name)) == call(
        {"task": "read it", "attachments": [CLEAN]}, name=name
    )


def test_arguments_in_a_json_string_are_redacted_inside_it() -> None:
    redacted = redact_spawn_calls(call(json.dumps(ARGUMENTS)))
    assert json.loads(redacted["content"][0]["arguments"]) == {"task": "read it", "attachments": [CLEAN]}
    twice = redact_spawn_calls(call(json.dumps(json.dumps(ARGUMENTS))))
    assert SECRET not in json.dumps(twice)


def test_the_hash_is_that_of_the_file_that_would_be_written() -> None:
    raw = bytes(range(256))
    encoded = {"name": "b", "encoding": "base64", "content": base64.b64encode(raw).decode()}
    assert redact_arguments({"attachments": [encoded]}) == {
        "attachments": [
            {
                "name": "b",
                "encoding": "base64",
                "content": "__REDACTED__",
                "bytes": 256,
                "sha256": hashlib.sha256(raw).hexdigest(),
            }
        ]
    }
    wrong = redact_arguments({"attachments": [{**encoded, "content": "not base64!"}]})
    assert wrong["attachments"][0]["bytes"] == len("not base64!")
    over_cbor = redact_arguments({"attachments": [{"name": "b", "content": raw}]})
    assert over_cbor["attachments"][0]["sha256"] == hashlib.sha256(raw).hexdigest()


@check_each(
    "message",
    [
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "sessions_spawn", "arguments": json.dumps(ARGUMENTS)}}],
        },
        {"role": "model", "parts": [{"functionCall": {"name": "sessions_spawn", "args": ARGUMENTS}}]},
        call({"name": "sessions_spawn", "arguments": ARGUMENTS}, name="call_tool"),
        call(json.dumps({"name": "sessions_spawn", "arguments": ARGUMENTS}), name="call_tool"),
        call({"params": ARGUMENTS}),
        call({"params": json.dumps(ARGUMENTS)}),
        call({"attachments": json.dumps([ITEM])}),
        call({"attachments": SECRET}),
        call({"attachments": [SECRET]}),
        call({"attachments": [[ITEM]]}),
        call({"attachments": ITEM}),
        call({" Attachments": [{"Content": SECRET}]}),
        call({"attachments": [{"name": "a", "content": {"deep": [SECRET]}}]}),
        call('{"attachments": [{"content": "' + SECRET),
        call('{"\\u0061ttachments": [{"content": "' + SECRET),
        {"type": "message", "message": call(ARGUMENTS)},
    ],
    ids=range(16),
)
def test_the_content_is_removed_from_every_shape_of_call(message: dict[str, Any]) -> None:
    redacted = redact_spawn_calls(message)
    assert SECRET not in json.dumps(redacted)
    assert "__REDACTED__" in json.dumps(redacted)
    assert SECRET not in redact_spawn_raw(json.dumps(message).encode()).decode()


@check_each(
    "message",
    [
        {"role": "user", "content": "sessions_spawn with attachments, please"},
        call(ARGUMENTS, name="write"),
        call({"task": "no files"}),
        call({"task": '{"attachments": 1}', "attachments": []}),
        call(""),
        call("{}"),
        call(None),
        {"role": "toolResult", "toolName": "sessions_spawn", "content": [{"type": "text", "text": SECRET}]},
    ],
    ids=range(8),
)
def test_messages_without_a_spawn_call_are_unchanged(message: dict[str, Any]) -> None:
    assert redact_spawn_calls(message) == message
    raw = json.dumps(message, indent=1).encode()
    assert redact_spawn_raw(raw) == raw or message["content"][0]["arguments"]["attachments"] == []


def test_redacting_again_changes_nothing() -> None:
    once = redact_spawn_calls(call(ARGUMENTS))
    assert redact_spawn_calls(once) == once


def test_a_tool_name_written_with_escapes_is_recognised_in_raw_bytes() -> None:
    raw = json.dumps(call(ARGUMENTS)).replace("sessions_spawn", "sessions_sp\\u0061wn").encode()
    assert SECRET.encode() not in redact_spawn_raw(raw)


def test_bytes_that_are_not_json_are_unchanged() -> None:
    for raw in (b"sessions_spawn", b"\xffspawn", b'{"spawn":' * 100_000):
        assert redact_spawn_raw(raw) == raw


def test_attachments_nested_too_deeply_are_removed_as_a_whole() -> None:
    deep: Any = [ITEM]
    for _ in range(150):
        deep = [deep]
    assert SECRET not in json.dumps(redact_spawn_calls(call({"attachments": deep})))


def test_attachments_within_the_nesting_limit_keep_their_names() -> None:
    deep: Any = ITEM
    clean: Any = CLEAN
    for _ in range(45):
        deep, clean = [deep], [clean]
    assert redact_spawn_calls(call({"attachments": deep})) == call({"attachments": clean})


@pytest.mark.parametrize("forged", [{"sha256": "0" * 64}, {"sha256": RECEIPT["sha256"], "bytes": RECEIPT["bytes"]}])
def test_content_is_removed_even_if_a_hash_is_already_present(forged: dict[str, Any]) -> None:
    for item in ({**forged, **ITEM}, {**ITEM, **forged}):
        assert redact_spawn_calls(call({"attachments": [item]})) == call({"attachments": [CLEAN]})


def test_redacted_attachments_are_unchanged_and_a_bare_marker_gets_its_hash() -> None:
    redacted = call({"attachments": [CLEAN]})
    assert redact_spawn_calls(redacted) == redacted
    marker = CLEAN["content"]
    hashed = {"bytes": len(marker), "sha256": hashlib.sha256(marker.encode()).hexdigest()}
    said = redact_spawn_calls(call({"attachments": [{**ITEM, "content": marker}]}))
    assert said == call({"attachments": [{**CLEAN, **hashed}]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["name", "type", "arguments", "input", "attachments", "content", "task", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_what_has_no_spawn_call_is_returned_as_the_same_object(data: Any) -> None:
    assert redact_spawn_calls(data) is data


@given(message=st.dictionaries(st.sampled_from(["role", "content", "tool_calls"]), JSON), hidden=JSON)
def test_any_json_can_be_redacted_and_remains_json(message: dict[str, Any], hidden: Any) -> None:
    message = message | {"more": call({"attachments": [{"content": SECRET, "x": hidden}], "x": hidden})}
    redacted = redact_spawn_calls(message)
    assert SECRET.encode() not in msgspec.json.encode(redacted)
    assert redact_spawn_calls(redacted) == redacted


@check_each("costly", ["[" + "[]," * MAX_VALUES + "0]", "[" + ("9" * 4300 + ",") * 100 + "0]"])
def test_json_in_a_string_that_would_take_long_to_decode_is_redacted_and_masked_as_a_whole(costly: str) -> None:
    began = time.thread_time()
    spawn = {"role": "assistant", "content": [{"type": "toolCall", "name": "sessions_spawn", "arguments": costly}]}
    redacted = redact_spawn_calls(spawn)
    assert redacted["content"][0]["arguments"] == REDACTED
    masked = mask_value({"name": "else", "arguments": costly})
    assert masked == {"name": "else", "arguments": MASK}
    # Decoded, the first takes six seconds.
    assert time.thread_time() - began < 2
