"""Decode the params of a request into the method's struct, with errors that name the field.

Knows no method.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw

from sessiond.errors import InvalidParams, InvalidRequest, LimitExceeded, ParseError, reason_of_reader
from sessiond.model.lax import decoder_of
from sessiond.rpc.bounds import META, ParamsDecoder
from sessiond.rpc.messages import ABSENT, RequestId
from sessiond.rpc.param_errors import refusal_of

_NO_PARAMS = b"{}"


def decode_params(decoder: ParamsDecoder, params: Raw, *, has_meta: bool = False) -> Any:
    """`params` as the method's struct, without `_meta` where they may have one.

    Absent, `null` and `[]` are no params. Raises InvalidParams, whose data names the field the way msgspec does:
    `$.attachments[0].name`.
    """
    text = _as_object(params)
    try:
        decoded = decoder.decode_wire(text, has_meta=has_meta)
        return decoder.bind(decoded) if decoder.has_bounds else decoded
    except msgspec.ValidationError as error:
        raise refusal_of(error, decoder.wire, memoryview(text)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The params were left raw with the envelope, so malformed JSON inside them is found here.
        raise ParseError(f"The params are not JSON: {error}.") from None


# It names a run and a token. It is decoded on the event loop, before anything is known of the method.
MAX_META_BYTES = 64 * 1024
_decode_meta: Callable[[Raw], dict[str, Any]] = decoder_of(dict[str, Any]).decode


class _MetaMember(msgspec.Struct):
    meta: Raw = msgspec.field(default=ABSENT, name=META)


_decode_meta_member = msgspec.json.Decoder(_MetaMember).decode


def read_meta(params: Raw) -> dict[str, Any] | None:
    """The `_meta` object of `params`, None where there is none."""
    try:
        meta = _decode_meta_member(_as_object(params)).meta
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"The params are not JSON: {error}.") from None
    if meta is ABSENT:
        return None
    if len(meta) > MAX_META_BYTES:
        raise LimitExceeded(
            f"`$._meta` is {len(meta)} bytes long, the limit is {MAX_META_BYTES}.",
            limit="$._meta",
            value=MAX_META_BYTES,
        )
    if not bytes(meta).startswith(b"{"):
        raise InvalidParams("`$._meta` is an object.", field="$._meta")
    try:
        return _decode_meta(meta)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidParams(f"`$._meta` cannot be read: {reason_of_reader(error)}.", field="$._meta") from None


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
        # Not decoded: a long array would take a second of the event loop.
        case 0x5B if not bytes(params)[1:-1].strip():  # [
            return _NO_PARAMS
        case 0x5B:
            raise InvalidParams("Params go by name: send an object.", field="$")
        case 0x6E:  # null
            return _NO_PARAMS
        case _:
            raise InvalidRequest("Params are an object.")
