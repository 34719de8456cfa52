"""Decode the params of a request into the method's struct, with errors that name the field.

Knows no method.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from sessiond.errors import InvalidParams, InvalidRequest, LimitExceeded, ParseError
from sessiond.model.lax import decode_any, decoder_of
from sessiond.rpc.bounds import ParamsDecoder
from sessiond.rpc.messages import ABSENT, RequestId
from sessiond.rpc.param_errors import refusal_of

_NO_PARAMS = b"{}"


def decode_params(decoder: ParamsDecoder, params: Raw) -> Any:
    """`params` as the method's struct.

    Absent, `null` and `[]` are no params. Raises InvalidParams, whose data names the field the way msgspec does:
    `$.attachments[0].name`.
    """
    try:
        decoded = decoder.decode_wire(_as_object(params))
        return decoder.bind(decoded) if decoder.has_bounds else decoded
    except msgspec.ValidationError as error:
        raise refusal_of(error, decoder.wire, memoryview(_as_object(params))) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The params were left raw with the envelope, so malformed JSON inside them is found here.
        raise ParseError(f"The params are not JSON: {error}.") from None


_SHORT_BYTES = 1024
# It names a run and a token. It is decoded on the event loop, before anything is known of the method.
MAX_META_BYTES = 64 * 1024
_decode_meta = decoder_of(dict[str, Any]).decode


def take_meta(params: Raw) -> tuple[Raw, dict[str, Any] | None]:
    """`params` without `_meta`, and the `_meta` object, None where there is none."""
    try:
        members = msgspec.json.decode(_as_object(params), type=dict[str, Raw])
        meta = members.pop("_meta", None)
        if meta is None:
            return params, None
        if len(meta) > MAX_META_BYTES:
            raise LimitExceeded(
                f"`$._meta` is {len(meta)} bytes long, the limit is {MAX_META_BYTES}.",
                limit="$._meta",
                value=MAX_META_BYTES,
            )
        return Raw(msgspec.json.encode(members)), _decode_meta(meta)
    except msgspec.ValidationError:
        raise InvalidParams("`$._meta` is an object.", field="$._meta") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"The params are not JSON: {error}.") from None


class _Cancel(msgspec.Struct):
    id: RequestId


_cancel_decoder = ParamsDecoder(_Cancel)


def cancelled_id(params: Raw) -> RequestId:
    """The id in the params of `$/cancelRequest`."""
    cancel: _Cancel = decode_params(_cancel_decoder, params)
    return cancel.id


def _as_object(params: Raw) -> bytes | Raw:
    if params is ABSENT:
        return _NO_PARAMS
    match memoryview(params)[0]:
        case 0x7B:  # {
            return params
        # A long array is not empty; decoding all of it takes a second of the event loop.
        case 0x5B if len(params) <= _SHORT_BYTES and not decode_any(params):  # [
            return _NO_PARAMS
        case 0x5B:
            raise InvalidParams("Params go by name: send an object.", field="$")
        case 0x6E:  # null
            return _NO_PARAMS
        case _:
            raise InvalidRequest("Params are an object.")
