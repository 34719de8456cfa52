import base64
import json
from contextlib import suppress

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.errors import InvalidRequest, LimitExceeded, ParseError, SessiondError
from sessiond.model.decoding_cost import MAX_VALUES
from sessiond.rpc.codecs import CBOR, JSON, cbor_head

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def refusal(frame: bytes) -> str:
    with pytest.raises(SessiondError) as caught:
        CBOR.to_json(frame)
    return caught.value.slug


@given(PLAIN)
def test_any_json_value_survives_cbor(value):
    assert json.loads(CBOR.to_json(cbor2.dumps(value))) == value
    assert cbor2.loads(CBOR.from_json(json.dumps(value).encode())) == value


def test_json_is_passed_on_unchanged_and_ends_with_a_newline():
    assert (JSON.to_json(b'{"a": 1}'), JSON.from_json(b"{}")) == (b'{"a": 1}', b"{}\n")


def test_a_message_with_the_self_described_tag_is_accepted():
    assert CBOR.to_json(bytes.fromhex("d9d9f7a1616101")) == b'{"a":1}'
    assert refusal(bytes.fromhex("d9d9f7d9d9f7a0")) == "invalid_request"
    assert refusal(bytes.fromhex("a16161d9d9f7a0")) == "invalid_request"


def test_all_other_tags_are_refused():
    for number in [*range(600), 1004, 1040, *range(42990, 43010), 55798, 55799, 55800, 2**32, 2**64 - 1]:
        for inner in ("a", 1, [], [1, 2], {}, b"a"):
            assert refusal(cbor2.dumps({"a": cbor2.CBORTag(number, inner)})) == "invalid_request", number


def test_a_byte_string_becomes_base64():
    assert json.loads(CBOR.to_json(cbor2.dumps({"a": b"\x00\xff"}))) == {"a": "AP8="}


@check_each("said", [{}, {"encoding": "utf8"}, {"encoding": "base64"}])
def test_content_given_as_bytes_is_marked_as_base64(said):
    value = {"attachments": [{"name": "a", "content": b"\x00" * 1000, **said}]}
    assert json.loads(CBOR.to_json(cbor2.dumps(value))) == {
        "attachments": [{"name": "a", "content": base64.b64encode(b"\x00" * 1000).decode(), "encoding": "base64"}]
    }
    assert json.loads(CBOR.to_json(cbor2.dumps({"content": "text"}))) == {"content": "text"}


@check_each(
    ("frame", "slug"),
    [
        ("a2616101616102", "parse_error"),  # a key twice
        ("bf616101616102ff", "parse_error"),
        ("a10101", "parse_error"),  # a number as key
        ("a1416101", "invalid_request"),  # bytes as key
        ("a16161f7", "invalid_request"),  # undefined
        ("a16161f850", "invalid_request"),  # a simple value
        ("a16161f97e00", "invalid_request"),  # NaN
        ("a16161f97c00", "invalid_request"),  # infinity
        ("a1616161ff", "parse_error"),  # no UTF-8
        ("a1616163eda080", "parse_error"),  # a surrogate
        ("a16161", "parse_error"),  # cut short
        ("", "parse_error"),
    ],
)
def test_cbor_that_json_cannot_express_is_refused(frame, slug):
    assert refusal(bytes.fromhex(frame)) == slug


@given(st.binary(max_size=100))
def test_any_frame_becomes_json_or_is_refused(frame):
    with suppress(ParseError, InvalidRequest):
        json.loads(CBOR.to_json(frame))


def test_cbor2_is_imported_by_the_first_cbor_message_only(tmp_path):
    import subprocess
    import sys

    code = (
        "import sys, sessiond.rpc.peer, sessiond.rpc.dispatch, sessiond.transports.framed as f\n"
        "assert 'cbor2' not in sys.modules\n"
        "from sessiond.rpc.codecs import CBOR; CBOR.from_json(b'{}')\n"
        "assert 'cbor2' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@check_each("member", ["id", "method", "jsonrpc"])
@check_each("batch", [False, True])
def test_a_byte_string_is_refused_as_id_or_method(member, batch):
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"id": b"fine here"}}
    assert b"ZmluZSBoZXJl" in CBOR.to_json(cbor2.dumps([ping] if batch else ping))
    bad = {**ping, member: b"ping"}
    with pytest.raises(InvalidRequest):
        CBOR.to_json(cbor2.dumps([ping, bad] if batch else bad))


def test_json_of_too_many_values_is_refused_before_it_is_decoded():
    most = b"[" + b"1," * (MAX_VALUES - 1) + b"1]"
    assert JSON.to_json(most) is most
    with pytest.raises(LimitExceeded):
        JSON.to_json(most[:-1] + b",1]")


@check_each("count", [0, 1, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32])
def test_heads_have_their_shortest_form(count):
    assert cbor_head(0x00, count) == cbor2.dumps(count)
