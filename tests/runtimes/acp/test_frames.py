"""Lines and frames of agents, whatever they write."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model.decoding_cost import is_too_deep
from sessiond.runtimes.acp import frames
from sessiond.runtimes.acp.frames import AgentNotification, AgentRequest, AgentResponse, FrameTooLong, LineSplitter

PARSED: list[tuple[Any, Any]] = [
    ({"id": 0, "method": "m", "params": {"a": 1}}, AgentRequest(0, "m", {"a": 1})),
    ({"id": "x", "method": "m"}, AgentRequest("x", "m", {})),
    ({"id": None, "method": "m", "params": [1]}, AgentRequest(None, "m", {})),
    ({"id": 1.5, "method": "m"}, None),
    ({"id": True, "method": "m"}, None),
    ({"method": "m", "params": {"b": None}}, AgentNotification("m", {"b": None})),
    ({"id": 3, "result": None}, AgentResponse(3)),
    ({"id": 3}, AgentResponse(3)),
    ({"id": 3, "result": {"x": 1}, "error": None}, AgentResponse(3, {"x": 1})),
    ({"id": "3", "result": {}}, None),
    ({"id": False, "result": {}}, None),
    ({"id": 3, "error": {"code": -32000, "message": "no"}}, AgentResponse(3, code=-32000, message="no")),
    (
        {"id": 3, "error": {"code": 1, "message": "Internal error", "data": {"details": "why"}}},
        AgentResponse(3, code=1, message="Internal error: why"),
    ),
    (
        {"id": 3, "error": {"code": 1, "message": "Internal error", "data": "the key expired"}},
        AgentResponse(3, code=1, message="Internal error: the key expired"),
    ),
    ({"id": 3, "error": {"code": 1, "message": ["x"], "data": 7}}, AgentResponse(3, code=1)),
    ({"id": 3, "error": "bad"}, AgentResponse(3, code=-32603, message="bad")),
    ({"id": 3, "error": {"code": "x"}}, AgentResponse(3, code=-32603)),
    ([], None),
    ({}, None),
    (7, None),
]


@check_each(("value", "expected"), PARSED)
def test_a_frame_is_read_as_what_it_is(value: Any, expected: Any) -> None:
    assert frames.parse_frame(json.dumps(value).encode()) == expected


def test_a_text_cut_within_an_emoji_is_read() -> None:
    frame = frames.parse_frame(b'{"method": "m", "params": {"t": "\\ud83d"}}')
    assert frame == AgentNotification("m", {"t": "\ufffd"})


def test_what_is_nested_too_deeply_to_be_stored_is_left_out() -> None:
    """The frame itself is kept: the agent may wait for the answer to it."""
    for levels in (90, 200, 800):
        frame = frames.parse_frame(b'{"id": 1, "method": "m", "params": {"u": %s1%s}}' % (b"[" * levels, b"]" * levels))
        assert isinstance(frame, AgentRequest)
        assert is_too_deep(msgspec.json.encode({"a": [{"b": [frame.params]}]})) is False
        assert (b"(left out" in msgspec.json.encode(frame.params)) == (levels > 100)


def test_what_is_sent_is_one_line_each() -> None:
    lines = [
        frames.encode_request(0, "m", {"text": "a\nb"}),
        frames.encode_notification("n", {}),
        frames.encode_result("x", {"y": 1}),
        frames.encode_error(None, -32601, "no"),
    ]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)
    assert msgspec.json.decode(lines[3]) == {"jsonrpc": "2.0", "id": None, "error": {"code": -32601, "message": "no"}}


@given(st.lists(st.binary(max_size=30).filter(lambda one: b"\n" not in one), max_size=8), st.data())
def test_lines_are_the_same_however_they_arrive(lines: list[bytes], data: st.DataObject) -> None:
    whole = b"\n".join(lines)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    splitter, found = LineSplitter(1000), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        found += splitter.feed(whole[start:end])
    found += splitter.end()
    assert found == (lines if lines and lines[-1] else lines[:-1])


@given(st.binary(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["id", "method", "params", "result", "error", "code", "message", "data"]), inner),
    max_leaves=10,
).map(lambda value: json.dumps(value).encode()))  # fmt: skip
def test_any_line_is_a_frame_or_none(line: bytes) -> None:
    frame = frames.parse_frame(line)
    assert frame is None or isinstance(frame, AgentRequest | AgentNotification | AgentResponse)
    assert isinstance(frames.sample_of(line), str)


def test_a_line_up_to_the_limit_is_taken_and_one_over_it_is_not() -> None:
    splitter = LineSplitter(10)
    assert splitter.feed(b"x" * 10) == []
    assert splitter.feed(b"\n" + b"y" * 10 + b"\n") == [b"x" * 10, b"y" * 10]
    with pytest.raises(FrameTooLong):
        splitter.feed(b"z" * 11)
