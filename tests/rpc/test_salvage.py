"""Answers of a client that are not valid messages."""

from __future__ import annotations

import json

import cbor2
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.rpc.salvage import SalvagedAnswer, salvage

ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["id", "method", "result", "x"]), inner)
    ),
    max_leaves=12,
)


@check_each(
    ("frame", "found"),
    [
        (rb'{"id":3,"result":"cut \ud83d"}', [SalvagedAnswer(3, '{"id": 3, "result": "cut \ufffd"}'.encode())]),
        (
            rb'{"id":3,"result":"\ude00 \ud83d\ude00"}',
            [SalvagedAnswer(3, '{"id": 3, "result": "\ufffd \U0001f600"}'.encode())],
        ),
        (rb'{"id":3,"result":"\\ud83d"}', [SalvagedAnswer(3, rb'{"id": 3, "result": "\\ud83d"}')]),
        (b'{"id":3,"result":NaN}', [SalvagedAnswer(3)]),
        (b'{"id":3,"result":-Infinity}', [SalvagedAnswer(3)]),
        (
            b'[{"id":1,"result":NaN},{"id":2,"result":1}]',
            [SalvagedAnswer(1), SalvagedAnswer(2, b'{"id": 2, "result": 1}')],
        ),
        (b'{"id":3,"result":"cut off', [SalvagedAnswer(3)]),
        (b'{"jsonrpc":"2.0","result":{"id":9},}, "id": 3}', [SalvagedAnswer(3)]),
        (b'{"result":{"id":9},}', []),
        (b'[{"jsonrpc":"2.0","id":3,"result":{"reply"}}]', [SalvagedAnswer(3)]),
        (b'[{"id": 4,"result":"' + b"x" * 300_000 + b'",NaN}]', [SalvagedAnswer(4)]),
        (b'[{"id":4,"error":"' + b"x" * 40_000 + rb'\ud83d"}]', [SalvagedAnswer(4)]),
        (b'[{"result":"' + b"x" * 40_000 + rb'\ud83d","id":1},{"method":"m","id":2}]', []),
        (b'{"id":null,"result":{"x":NaN,"id":9}}', []),
        (b'{"params":{"x":NaN},"method":"m","id":9}', []),
        (b'{"id":3,"result":' + b"[" * 100_000 + b"}", [SalvagedAnswer(3)]),
        (b'{"id":3,"result":"' + b"x" * 300_000 + b'",NaN}', [SalvagedAnswer(3)]),
        (b'{"result":"' + b"x" * 300_000 + b'",NaN,"id": 4}', [SalvagedAnswer(4)]),
        (b'{"id":3,"method":"m","params":NaN}', []),
        (b'{"id":3,"params":{"x":NaN,},"method":"m"}', []),
        (b'{"id":3,"params":{"x":NaN},"Method":"m"}', []),
        (b'{"error":{"code":1,"message":"' + b"x" * 40_000 + rb'\ud83d"},"id":3,"jsonrpc":"2.0"}', None),
        (b'{"jsonrpc":"2.0","id":3,"params":"' + b"x" * 40_000 + rb'\ud83d","method":"m"}', []),
        (b'{"id":3,"jsonrpc":"2.0","result":{"method":"m","x":NaN,},}', [SalvagedAnswer(3)]),
        (b'{"method":"m","id":3,"params":' + b"x" * 300_000, []),
        (b'{"id":true,"result":NaN}', []),
        (b'{"id":"3","result":NaN}', []),
        (b"\xff\xfe", []),
        (b"", []),
    ],
)
def test_malformed_json_answers_are_salvaged(frame: bytes, found: list[SalvagedAnswer]) -> None:
    if found is None:  # long text, repaired
        found = [SalvagedAnswer(3, frame.replace(rb"\ud83d", rb"\ufffd"))]
    assert salvage(frame, "json") == found


@check_each(
    ("value", "found"),
    [
        ({"id": 3, "result": float("nan")}, [SalvagedAnswer(3)]),
        ({"id": 3, "result": b"bytes"}, [SalvagedAnswer(3)]),
        ({"id": 3, "result": {1: 2}}, [SalvagedAnswer(3, b'{"id": 3, "result": {"1": 2}}')]),
        ({"id": 3, "method": "m", "params": float("inf")}, []),
        (3, []),
    ],
)
def test_malformed_cbor_answers_are_salvaged(value: object, found: list[SalvagedAnswer]) -> None:
    assert salvage(cbor2.dumps(value), "cbor") == found


def test_cbor_text_that_is_not_utf8_is_salvaged() -> None:
    frame = cbor2.dumps({"id": 3, "result": "xyz"}).replace(b"xyz", b"x\xffz")
    assert salvage(frame, "cbor") == [SalvagedAnswer(3, '{"id": 3, "result": "x\ufffdz"}'.encode())]


@given(st.binary() | ANY.map(lambda value: json.dumps(value).encode()))
def test_salvaging_any_bytes_never_raises(frame: bytes) -> None:
    for codec in ("json", "cbor"):
        for answer in salvage(frame, codec):
            assert type(answer.request_id) is int
            assert answer.text is None or json.loads(answer.text)["id"] == answer.request_id


@check_each("request_id", [0, 23, 24, 255, 256, 65_536, 2**32])
@check_each("is_last", [False, True])
def test_of_a_long_answer_the_id_is_found_at_its_edges(request_id: int, *, is_last: bool) -> None:
    long = "x" * 40_000
    answer = {"jsonrpc": "2.0", "result": long, "id": request_id}
    if not is_last:
        answer = {"id": request_id, "jsonrpc": "2.0", "result": long}
    for codec, frame in (("json", json.dumps(answer).encode()), ("cbor", cbor2.dumps(answer))):
        # A long text is not decoded on the event loop, even where it could be repaired.
        assert salvage(frame.replace(b"x" * 9, b"\xff" * 9), codec) == [SalvagedAnswer(request_id)]
    request = {"method": "ping", **answer}
    assert salvage(json.dumps(request).encode(), "json") == salvage(cbor2.dumps(request), "cbor") == []


@check_each(
    ("value", "found"),
    [
        ({"result": {"x": "They bid\nhigh"}, "id": 77}, [SalvagedAnswer(77)]),
        ({"jsonrpc": "2.0", "result": {"id": 3, "x": "forbid\n"}, "id": 77}, [SalvagedAnswer(77)]),
        ({"error": {"id": 3}, "id": -1}, []),
        ({"id": None, "result": {"x": 1, "id": 5}}, []),
        ({"result": {"x": 1, "id": 5}}, []),
        ({"jsonrpc": "2.0", "result": {"x": 1, "id": 5}}, []),
        ({"params": {"id": 5}, "method": "ping", "id": 7}, []),
        ({"result": "", "jsonrpc": "2.0", "id": 6}, [SalvagedAnswer(6)]),
        ({"error": {"id": 3}, "id": 6, "jsonrpc": "2.0"}, [SalvagedAnswer(6)]),
        ({"id": 9, "params": {}, "method": "ping"}, []),
        ({"id": 8, "result": "fmethod"}, [SalvagedAnswer(8)]),
    ],
)
def test_of_a_long_cbor_answer_its_own_id_alone_is_taken(value: dict[str, object], found: list[SalvagedAnswer]) -> None:
    for name in ("result", "error"):
        if isinstance(value.get(name), dict):
            value = {**value, name: {"long": "y" * 40_000, **value[name]}}
    if "params" in value or value.get("result") == "fmethod":
        value = {**value, "x": "y" * 40_000}
    if value.get("result") == "":
        value["result"] = "y" * 40_000
    for frame in (cbor2.dumps(value), cbor2.dumps(cbor2.CBORTag(55799, value))):
        assert salvage(frame, "cbor") == found


@check_each(("size", "is_mended"), [(200 * 1024, True), (300 * 1024, False)])
def test_a_long_answer_with_cut_text_is_repaired_up_to_a_size(size: int, *, is_mended: bool) -> None:
    frame = b'{"jsonrpc":"2.0","id":3,"result":"' + b"x" * size + rb"\ud83d" + b'"}'
    text = frame.replace(rb"\ud83d", rb"\ufffd") if is_mended else None
    assert salvage(frame, "json") == [SalvagedAnswer(3, text)]
