"""JSON-RPC as CBOR items on the link's side: bytes stay bytes, however they are cut on the way."""

from __future__ import annotations

import json
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.client.errors import ClientError, RpcError
from sessiond.client.wire import CallResponse, DaemonRequest, Event, notification, refusal
from sessiond.link.cbor_wire import MAX_ANSWER_BYTES, CborWire

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.text(), VALUES, max_size=4), max_size=6), st.data())
def test_answers_are_decoded_however_the_bytes_are_cut(results: list[Any], data: st.DataObject) -> None:
    stream = b"".join(cbor2.dumps({"jsonrpc": "2.0", "id": 1, "result": result}) for result in results)
    wire, seen = CborWire(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        seen += wire.feed(stream[:size])
        stream = stream[size:]
    assert [(one.id, one.result) for one in seen if isinstance(one, CallResponse)] == [(1, one) for one in results]


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_a_client_error(data: bytes) -> None:
    try:
        messages = CborWire().feed(data)
    except ClientError:
        return
    assert all(isinstance(message, Event | DaemonRequest | CallResponse) for message in messages)


def test_what_goes_out_is_the_same_message_as_an_item() -> None:
    wire = CborWire()
    lines = [notification("$/cancelRequest", {"id": 1}), refusal(3, RpcError(-32800, "cancelled", "off"))]
    assert [cbor2.loads(wire.outgoing(line)) for line in lines] == [json.loads(line) for line in lines]
    assert [wire.request("ping", {"a": "ü\n"}) for _ in range(2)] == [
        (number, cbor2.dumps({"jsonrpc": "2.0", "id": number, "method": "ping", "params": {"a": "ü\n"}}))
        for number in (1, 2)
    ]


def test_an_answer_over_the_limit_ends_the_connection_before_its_bytes_have_come() -> None:
    begin = b"\xa1" + cbor2.dumps("result") + b"\x5a"
    most = MAX_ANSWER_BYTES - len(begin) - 4
    assert CborWire().feed(begin + most.to_bytes(4, "big")) == []
    with pytest.raises(ClientError, match="at most"):
        CborWire().feed(begin + (most + 1).to_bytes(4, "big"))
