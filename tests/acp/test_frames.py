"""Any line on standard input: it is a frame, or refused as JSON-RPC says."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.acp import frames, server
from sessiond.acp.frames import BadFrame, EditorAnswer, EditorNotice, EditorRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)
FIELDS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("jsonrpc", "id", "method", "params", "result", "error"), JSON)
)


@given(st.binary() | JSON.map(json.dumps).map(str.encode) | FIELDS.map(json.dumps).map(str.encode))
def test_any_line_is_a_frame_or_refused(line: bytes) -> None:
    try:
        found = frames.parse(line)
    except BadFrame as refused:
        sent = refused.answer
    else:
        assert isinstance(found, EditorRequest | EditorNotice | EditorAnswer)
        return
    answer = json.loads(sent)
    assert set(answer) == {"jsonrpc", "id", "error"}
    assert set(answer["error"]) == {"code", "message"}
    assert sent.count(b"\n") == 1


@check_each(
    ("line", "code", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"meth', -32700, None),
        (b"\xff\xfe{}", -32700, None),
        ('{"id":1,"method":"a"}'.encode("utf-16"), -32700, None),
        (b"nothing", -32700, None),
        (b'{"id":1,"method":"a","params":{"x":NaN}}', -32700, None),
        (b'{"id":' + b"9" * 5000 + b',"method":"a"}', -32700, None),
        (b"[" * 100_000, -32700, None),
        (b'[{"jsonrpc":"2.0","id":1,"method":"initialize"}]', -32600, None),
        (b"[]", -32600, None),
        (b"3", -32600, None),
        (b'{"id":1.5,"method":"a"}', -32600, None),
        (b'{"id":true,"method":"a"}', -32600, None),
        (b'{"id":{},"method":"a"}', -32600, None),
        (b'{"id":5}', -32600, 5),
        (b'{"id":0,"method":3}', -32600, 0),
        (b'{"id":"x","result":1,"error":{}}', -32600, "x"),
        (b'{"id":1,"id":2,"method":"a"}', -32600, None),
        (b'{"id":1,"method":"a","params":{"sessionId":"x","sessionId":"y"}}', -32600, None),
        (b'{"id":3,"method":"a","params":[1]}', -32602, 3),
    ],
)
def test_a_line_that_is_no_frame_is_refused(line: bytes, code: int, request_id: Any) -> None:
    with pytest.raises(BadFrame) as refused:
        frames.parse(line)
    answer = json.loads(refused.value.answer)
    assert (answer["error"]["code"], answer["id"]) == (code, request_id)


@check_each(
    ("line", "request_id"),
    [
        (b'{"id":0,"method":"a"}', 0),
        (b'{"id":null,"method":"a","params":null}', None),
        (b'{"id":"\xc3\xa9","method":"a"}', "é"),
        (b' {"id":-4,"method":"a","params":{}} \r\n', -4),
    ],
)
def test_ids_from_0_null_and_text_are_ids(line: bytes, request_id: Any) -> None:
    found = frames.parse(line)
    assert isinstance(found, EditorRequest)
    assert (found.id, found.method, found.params) == (request_id, "a", {})


MOST_BYTES = 8 * frames.HEAD_BYTES


def lines_and_refusals(data: bytes) -> tuple[list[bytes], list[dict[str, Any]]]:
    refused: list[bytes] = []
    lines = list(server.read_lines(io.BytesIO(data), refused.append, MOST_BYTES))
    return lines, [json.loads(line) for line in refused]


def padded(head: bytes, tail: bytes, size: int) -> bytes:
    return head + b"x" * (size - len(head) - len(tail)) + tail


@check_each(
    ("head", "tail", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":41,"method":"session/prompt","params":{"a":"', b'"}}\n', 41),
        (b'{"jsonrpc": "2.0", "method": "session/prompt", "id": "p1", "params": "', b'"}\n', "p1"),
        (b'{"method":"session/prompt","params":{"id":3,"a":"', b'"},"jsonrpc":"2.0","id":7}\n', 7),
        (b'{"method":"session/prompt","params":{"a":"', b'","b":{"x":1,"id":7}}}\n', None),
        (b'{"method":"session/prompt","params":{"id":3,"a":"', b'"}}\n', None),
        (b"", b"\n", None),
        (b"", b"", None),
    ],
)
def test_a_line_over_the_limit_is_refused_with_the_id_of_its_request(head: bytes, tail: bytes, request_id: Any) -> None:
    whole = b'{"id":1,"method":"a"}\n'
    for size in (MOST_BYTES + 1, 2 * MOST_BYTES + 5):
        lines, [refused] = lines_and_refusals(padded(head, tail, size) + (whole if tail else b""))
        assert lines == ([whole] if tail else [])
        assert (refused["id"], refused["error"]["code"]) == (request_id, -32600)


def test_a_line_at_the_limit_is_read_and_the_last_one_needs_no_end() -> None:
    line = padded(b'{"id":1,"method":"', b'"}\n', MOST_BYTES)
    assert lines_and_refusals(line + b'\n \n{"id":2,"meth') == ([line, b'{"id":2,"meth'], [])
