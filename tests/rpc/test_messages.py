import json
import time
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.errors import NotFound
from sessiond.rpc.messages import (
    ABSENT,
    MessageError,
    encode_call,
    encode_failure,
    encode_result,
    find_id,
    parse,
    split_batch,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def refusal(message: bytes, max_nesting: int = 64) -> tuple[str, object]:
    with pytest.raises(MessageError) as caught:
        parse(message, max_nesting)
    return caught.value.error.slug, caught.value.request_id


def depth(value: object) -> int:
    match value:
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
        case list():
            return 1 + max(map(depth, value), default=0)
        case _:
            return 0


def test_a_request_keeps_its_params_as_bytes():
    envelope = parse(b'{"jsonrpc":"2.0","id":"a","method":"ping","params":{"x": 1}}', 64)
    assert (envelope.id, envelope.method, bytes(envelope.params)) == ("a", "ping", b'{"x": 1}')


def test_a_null_id_differs_from_a_missing_id():
    assert parse(b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 64).id is None
    assert parse(b'{"jsonrpc":"2.0","method":"ping"}', 64).id is msgspec.UNSET


@check_each("request_id", [0, -1, 2**63, 10**30, 1.5, "", "a", "\u2028"])
def test_an_id_is_returned_unchanged(request_id):
    envelope = parse(json.dumps({"jsonrpc": "2.0", "id": request_id, "method": "ping"}).encode(), 64)
    assert json.loads(encode_result(envelope.id, {})) == {"jsonrpc": "2.0", "id": request_id, "result": {}}


@check_each(
    ("message", "expected"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"m","params":{}}', 7),
        (b'{ "method" : "m" , "jsonrpc":"2.0", "id" : "a" , "params":{}}', "a"),
        (b'{"jsonrpc":"2.0","method":"m","params":{"id":1},"id":7}', 7),
        (b'{"jsonrpc":"2.0","method":"m","params":{"id":1}, "id": "b" }', "b"),
        (b'{"jsonrpc":"2.0","method":"m","params":{"id":1}}', None),
        (b'{"jsonrpc":"2.0","method":"m","params":{"id":1},"x":"\\"id\\":2"}', None),
        (b'{"params":{"id":1},"id":2,"method":"m","jsonrpc":"2.0"}', None),
        (b'{"jsonrpc":"2.0","id":01,"params":{}}', None),
        (b'{"jsonrpc":"2.0","id":null,"params":{}}', None),
        (b"", None),
        (b'{"id":' + b"7" * 600 + b"}", None),
    ],
)
def test_the_id_of_a_long_request_is_found_before_and_behind_its_params(message, expected):
    assert find_id(message) == expected


@given(
    st.permutations(["jsonrpc", "method", "id", "params"]),
    st.integers(0, 2**70) | st.text() | JSON,
    st.dictionaries(st.sampled_from(["id", "a", ""]), JSON | st.just({"id": 3})),
    st.sampled_from(["x", '","id":4}', '{"id":5', '"id":6}']) | st.text(),
    st.sampled_from([None, 1]),
)
def test_no_other_id_is_found_than_that_of_the_request(order, request_id, params, method, indent):
    members = {"jsonrpc": "2.0", "method": method, "id": request_id, "params": {**params, method: method}}
    text = json.dumps({name: members[name] for name in order}, indent=indent).encode()
    found = find_id(text)
    assert found is None or (type(found), found) == (type(request_id), request_id)


@given(st.binary())
def test_looking_for_an_id_never_fails(message):
    find_id(message)
    find_id(b'{"id":' + message)
    find_id(message + b',"id":1}')


@check_each(
    ("message", "expected"),
    [
        (b"", ("parse_error", None)),
        (b"{", ("parse_error", None)),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"', ("parse_error", None)),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping"}}', ("parse_error", None)),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\xff"}}', ("parse_error", 1)),
        (b'{"jsonrpc":1,"x":', ("parse_error", None)),
        (b"nonsense", ("parse_error", None)),
        (b"1", ("invalid_request", None)),
        (b'"ping"', ("invalid_request", None)),
        (b"{}", ("invalid_request", None)),
        (b'{"id":7,"method":"ping"}', ("invalid_request", 7)),
        (b'{"jsonrpc":"1.0","id":7,"method":"ping"}', ("invalid_request", 7)),
        (b'{"jsonrpc":2.0,"id":7,"method":"ping"}', ("invalid_request", 7)),
        (b'{"jsonrpc":"2.0","id":7,"method":1}', ("invalid_request", 7)),
        (b'{"jsonrpc":"2.0","method":1,"params":"bar"}', ("invalid_request", None)),
        (b'{"jsonrpc":"2.0","id":{},"method":"ping"}', ("invalid_request", None)),
        (b'{"jsonrpc":"2.0","id":true,"method":"ping"}', ("invalid_request", None)),
        (b'{"jsonrpc":"2.0","id":7}', ("invalid_request", 7)),
        (b'{"jsonrpc":"2.0","id":7,"result":1,"error":{}}', ("invalid_request", 7)),
        (b'{"jsonrpc":"2.0","result":1}', ("invalid_request", None)),
        (b"[" * 100_000, ("invalid_request", None)),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":' + b'{"a":' * 100_000, ("invalid_request", None)),
        (b'{"jsonrpc":1,"id":1,"params":' + b"[" * 100_000, ("invalid_request", None)),
    ],
)
def test_an_invalid_message_is_refused_with_its_code_and_id(message, expected):
    assert refusal(message) == expected


def test_nesting_is_allowed_up_to_the_limit_and_not_beyond():
    def nested(levels):
        return b'{"jsonrpc":"2.0","id":3,"method":"m","params":' + b"[" * levels + b"]" * levels + b"}"

    assert bytes(parse(nested(63), 64).params) == b"[" * 63 + b"]" * 63
    assert refusal(nested(64)) == ("invalid_request", 3)


def test_brackets_in_strings_do_not_count_as_nesting():
    text = '[{"\\' * 1000
    message = json.dumps({"jsonrpc": "2.0", "method": "m", "params": {"a": text, "b": [[text]], text: "\\"}}).encode()
    assert parse(message, 4).method == "m"
    assert refusal(message, 3) == ("invalid_request", None)


@given(JSON, st.integers(1, 6))
def test_nesting_is_measured_as_a_parser_measures_it(value, limit):
    # With forty brackets more in strings, so that a mere count of brackets cannot decide.
    message = {"jsonrpc": "2.0", "method": "m", "params": [value], "more": [[]] * 40}
    encoded = json.dumps(message).encode()
    if depth(message) <= limit:
        assert parse(encoded, limit).method == "m"
    else:
        assert refusal(encoded, limit) == ("invalid_request", None)


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_arbitrary_bytes_are_a_message_or_a_refusal(data):
    for read in (lambda: parse(data, 64), lambda: split_batch(data, 64)):
        with suppress(MessageError):
            read()


def test_a_batch_is_split_into_its_members():
    assert split_batch(b'[{"a": 1} , 1,[ ]]', 3) == [b'{"a": 1}', b"1", b"[ ]"]


@check_each(
    ("message", "slug"),
    [
        (b"[]", "invalid_request"),
        (b"[1", "parse_error"),
        (b"[1,]", "parse_error"),
        (b"[1,2,3,4]", "limit_exceeded"),
        (b"[" * 100_000, "invalid_request"),
    ],
)
def test_an_invalid_batch_is_refused(message, slug):
    with pytest.raises(MessageError) as caught:
        split_batch(message, 3)
    assert (caught.value.error.slug, caught.value.request_id) == (slug, None)


@check_each(
    ("message", "request_id"),
    [
        (b'{"jsonrpc":"2.0","id":7,"method":"x","params":{"text":"\xed\xa0\x80"}}', 7),
        (b'{"jsonrpc":"2.0","method":"\xed\xa0\x80","id":"seven"}', "seven"),
        (b'{"jsonrpc":"2.0","id":7,"method":"\\ud800"}', 7),
        (b'{"jsonrpc":"2.0","id":"\\ud800","method":"x"}', None),
        (b'{"jsonrpc":"2.0","id":8,"method":"x","params":{"a":"\\ud800","b":"\\\\ud800"}}', 8),
        (b'{"jsonrpc":"2.0","id":7,"method":"\xff"', None),
    ],
)
def test_a_lone_surrogate_is_refused_with_the_id_where_it_can_be_read(message, request_id):
    with pytest.raises(MessageError) as caught:
        parse(message, 64)
    assert (caught.value.error.slug, caught.value.request_id) == ("parse_error", request_id)


def test_encoded_answers_and_calls_are_json_rpc():
    assert json.loads(encode_failure(None, NotFound("No."))) == {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": -32002, "message": "No.", "data": {"type": "not_found"}},
    }
    assert json.loads(encode_call("e", msgspec.Raw(b'{"a":1}'))) == {
        "jsonrpc": "2.0",
        "method": "e",
        "params": {"a": 1},
    }
    assert json.loads(encode_call("e", {}, 0)) == {"jsonrpc": "2.0", "method": "e", "params": {}, "id": 0}


def test_answers_and_requests_are_told_apart():
    envelope = parse(b'{"jsonrpc":"2.0","id":4,"result":null}', 64)
    assert (envelope.method, envelope.id, bytes(envelope.result), envelope.error is ABSENT) == (
        msgspec.UNSET,
        4,
        b"null",
        True,
    )


def test_an_id_that_is_named_again_and_again_is_read_once():
    number = b'"id":1.7976931348623157e308'
    message = b'{"jsonrpc":"2.0","method":"ping",%b}' % b",".join([number] * 20_000)
    began = time.thread_time()
    assert parse(message, 100).id == 1.7976931348623157e308
    assert time.thread_time() - began < 0.1  # reading all of them takes 0.2 s and more
