"""What is decoded of any params before the method is known takes no longer for long ones."""

from __future__ import annotations

import time
from functools import partial

import msgspec
import pytest
from support.rows import check_each

from sessiond.errors import InvalidParams, LimitExceeded
from sessiond.rpc.bounds import ParamsDecoder
from sessiond.rpc.params import MAX_META_BYTES, cancelled_id, decode_params, read_meta


class Nothing(msgspec.Struct):
    pass


class Number(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 1


def test_positional_params_are_refused_however_long_and_an_empty_array_is_none() -> None:
    decoder = ParamsDecoder(Nothing)
    for array in (b"[]", b"[ ]", b"[%b]" % (b" " * 5000)):
        assert decode_params(decoder, msgspec.Raw(array)) == Nothing()
    for array in (b"[1]", b"[1e999]", b"[[]]", b"[%b1]" % (b"0.1," * 250_000)):
        for read in (partial(decode_params, decoder), read_meta, cancelled_id):
            with pytest.raises(InvalidParams, match="send an object"):
                read(msgspec.Raw(array))


def test_meta_up_to_its_limit_is_taken() -> None:
    text = b'"%b"' % (b"x" * (MAX_META_BYTES - len(b'{"runId":""}')))
    params = msgspec.Raw(b'{"_meta":{"runId":%b},"a":1}' % text)
    assert read_meta(params) == {"runId": text[1:-1].decode()}
    assert decode_params(ParamsDecoder(Number), params, has_meta=True) == Number(1)
    with pytest.raises(LimitExceeded, match=f"the limit is {MAX_META_BYTES}"):
        read_meta(msgspec.Raw(b'{"_meta":{"runId":%b }}' % text))


@check_each(
    ("params", "sentence"),
    [
        (b'{"_meta":3}', r"`\$\._meta` is an object\."),
        (b'{"_meta":null}', r"`\$\._meta` is an object\."),
        (b'{"_meta":{"n":1e999}}', r"`\$\._meta` cannot be read: .*out of range"),
        (b'{"_meta":{"runId":%b}}' % (b"9" * 5000), r"`\$\._meta` cannot be read: "),
    ],
)
def test_meta_that_cannot_be_read_is_said_to_be_so(params: bytes, sentence: str) -> None:
    with pytest.raises(InvalidParams, match=sentence):
        read_meta(msgspec.Raw(params))


@check_each("members", [b',"x":1', b',"a":1', b',"_meta":{}'])
def test_params_with_meta_and_very_many_members_take_no_longer(members: bytes) -> None:
    """As a table of raw values 250,000 names take a third of a second."""
    names = b"".join(b',"%d":1' % number for number in range(250_000)) if b"x" in members else members * 250_000
    params, decoder = msgspec.Raw(b'{"_meta":{}%b}' % names), ParamsDecoder(Number)
    began = time.thread_time()
    assert read_meta(params) == {}
    if b"x" in members:
        with pytest.raises(InvalidParams, match=r"`\$\.0`: there is no such parameter"):
            decode_params(decoder, params, has_meta=True)
    else:
        assert decode_params(decoder, params, has_meta=True) == Number(1)
    assert time.thread_time() - began < 0.15
