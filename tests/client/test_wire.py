from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.client.errors import ClientError, RpcError
from sessiond.client.wire import (
    CallResponse,
    DaemonRequest,
    Event,
    JsonRpcWire,
    answer,
    decode,
    encode,
    notification,
    refusal,
)

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=6), st.data())
def test_messages_are_decoded_however_the_bytes_are_cut(all_params: list[Any], data: st.DataObject) -> None:
    stream = b"".join(notification("m", params) for params in all_params)
    wire = JsonRpcWire()
    seen = []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        seen += wire.feed(stream[:size])
        stream = stream[size:]
    assert seen == [Event("m", params) for params in all_params]


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_a_client_error(data: bytes) -> None:
    try:
        messages = JsonRpcWire().feed(data + b"\n")
    except ClientError:
        return
    assert all(isinstance(message, Event | DaemonRequest | CallResponse) for message in messages)


@given(JSON)
def test_any_json_decodes_to_a_message_or_a_client_error(value: Any) -> None:
    try:
        decode(json.dumps(value).encode())
    except ClientError:
        assert not isinstance(value, dict)


def test_nesting_beyond_the_parser_is_a_client_error() -> None:
    with pytest.raises(ClientError):
        decode(b'{"method":' + b"[" * 200_000)


def test_an_error_response_carries_code_slug_message_and_data() -> None:
    error = {"code": -32602, "message": "no", "data": {"type": "invalid_params", "code": "attachments_invalid_name"}}
    response = decode(json.dumps({"jsonrpc": "2.0", "id": 7, "error": error}).encode())
    assert isinstance(response, CallResponse) and response.error is not None
    assert (response.id, response.result) == (7, None)
    assert (response.error.code, response.error.slug, response.error.message, response.error.reason) == (
        -32602,
        "invalid_params",
        "no",
        "attachments_invalid_name",
    )


def test_a_request_is_one_line_of_json_rpc() -> None:
    wire = JsonRpcWire()
    lines = [
        wire.request("ping", {"a": "ü\n"})[1],
        wire.request("ping", {})[1],
        answer("x", {"reply": "y"}),
        refusal(3, RpcError(-32800, "cancelled", "off")),
        encode({"text": "\ud800"}),
    ]
    assert lines[0] == '{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"ü\\n"}}\n'.encode()
    assert [json.loads(line) for line in lines[1:]] == [
        {"jsonrpc": "2.0", "id": 2, "method": "ping", "params": {}},
        {"jsonrpc": "2.0", "id": "x", "result": {"reply": "y"}},
        {"jsonrpc": "2.0", "id": 3, "error": {"code": -32800, "message": "off", "data": {"type": "cancelled"}}},
        {"text": "\ud800"},
    ]
