"""What is decoded of any params before the method is known takes no longer for long ones."""

from __future__ import annotations

import msgspec
import pytest

from sessiond.errors import InvalidParams, LimitExceeded
from sessiond.rpc.bounds import ParamsDecoder
from sessiond.rpc.params import MAX_META_BYTES, decode_params, take_meta


class Nothing(msgspec.Struct):
    pass


def test_positional_params_are_refused_however_long_and_an_empty_array_is_none() -> None:
    decoder = ParamsDecoder(Nothing)
    assert decode_params(decoder, msgspec.Raw(b"[ ]")) == Nothing()
    for array in (b"[1]", b"[%b1]" % (b"0.1," * 250_000)):
        with pytest.raises(InvalidParams, match="send an object"):
            decode_params(decoder, msgspec.Raw(array))


def test_meta_up_to_its_limit_is_taken() -> None:
    text = b'"%b"' % (b"x" * (MAX_META_BYTES - len(b'{"runId":""}')))
    params, meta = take_meta(msgspec.Raw(b'{"_meta":{"runId":%b},"a":1}' % text))
    assert (bytes(params), meta) == (b'{"a":1}', {"runId": text[1:-1].decode()})
    with pytest.raises(LimitExceeded, match=f"the limit is {MAX_META_BYTES}"):
        take_meta(msgspec.Raw(b'{"_meta":{"runId":%b }}' % text))
