"""Parse and encode the JSON-RPC 2.0 envelope. Knows JSON text; knows no methods, codecs or sockets.

`params` and `result` stay raw JSON (`msgspec.Raw`), so that they are decoded once, by whoever knows their type.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from sessiond.errors import InvalidRequest, LimitExceeded, ParseError, SessiondError, reason_of_reader
from sessiond.rpc.errors import ErrorObject, error_object

RequestId = int | str | float | None

ABSENT = Raw(b"")  # the value of a member that is missing; compare with `is`


class Envelope(msgspec.Struct):
    """One incoming message: a request (method and id), a notification (method) or an answer (id, no method)."""

    jsonrpc: Literal["2.0"]
    method: str | UnsetType = UNSET
    id: RequestId | UnsetType = UNSET
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT


class _WireEnvelope(msgspec.Struct):
    """The same with an id that is not decoded: in a message with 250,000 ids that takes seconds."""

    jsonrpc: Literal["2.0"]
    method: str | UnsetType = UNSET
    id: Raw = ABSENT
    params: Raw = ABSENT
    result: Raw = ABSENT
    error: Raw = ABSENT


class MessageError(Exception):
    """A message that is refused, and the id to answer with (None where none could be read)."""

    def __init__(self, error: SessiondError, request_id: RequestId = None) -> None:
        super().__init__(error.message)
        self.error = error
        self.request_id = request_id


class _Result(msgspec.Struct, tag_field="jsonrpc", tag="2.0"):
    id: RequestId
    result: Any


class _Failure(msgspec.Struct, tag_field="jsonrpc", tag="2.0"):
    id: RequestId
    error: ErrorObject


class _Call(msgspec.Struct, tag_field="jsonrpc", tag="2.0"):
    method: str
    params: Any
    id: RequestId | UnsetType = UNSET


_decode_envelope = msgspec.json.Decoder(_WireEnvelope).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_id = msgspec.json.Decoder(RequestId).decode
_encode = msgspec.json.Encoder().encode


def parse(message: bytes, max_nesting: int) -> Envelope:
    """The envelope of one JSON object.

    Raises `MessageError`: not JSON (-32700), not a JSON-RPC 2.0 message or nested too deeply (-32600).
    """
    try:
        if not message.isascii():
            message.decode()  # msgspec does not check the UTF-8 of members that stay raw
        wire = _decode_envelope(message)
        own_id = UNSET if wire.id is ABSENT else _decode_id(wire.id)
        envelope = Envelope(wire.jsonrpc, wire.method, own_id, wire.params, wire.result, wire.error)
    except msgspec.ValidationError as error:
        raise _invalid_request_error(message, str(error)) from None
    except RecursionError:
        raise MessageError(_too_deep(max_nesting)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _parse_error(message, error) from None
    if _is_deeper(message, max_nesting):
        request_id = None if envelope.id is UNSET else envelope.id
        raise MessageError(_too_deep(max_nesting), request_id)
    if envelope.method is UNSET and (envelope.id is UNSET or (envelope.result is ABSENT) == (envelope.error is ABSENT)):
        raise MessageError(
            InvalidRequest("A message needs a `method`, or an `id` and either `result` or `error`."),
            None if envelope.id is UNSET else envelope.id,
        )
    return envelope


def find_id(message: bytes) -> RequestId:
    """The id of a long request that cannot be parsed now, None where it stands neither first nor last in it.

    Before `params` or behind it, nothing else of the message has to be read. In well-formed JSON what is found is the
    member of the request itself: no string can have its quotes, and the last brace closes the whole.
    """
    found = _FIRST_ID.match(message[:_EDGE_BYTES]) or _LAST_ID.search(message[-_EDGE_BYTES:])
    return None if found is None else _id_of_members({"id": Raw(found[1])})


_EDGE_BYTES = 512
_ID = rb'"id"\s*+:\s*+(\d++|"[^"\\]*+")\s*+'
_FIRST_ID = re.compile(rb'\{\s*+(?:"(?:jsonrpc|method)"\s*+:\s*+"[^"\\]*+"\s*+,\s*+)*+' + _ID + rb"[,}]")
_LAST_ID = re.compile(rb"[,{]\s*+" + _ID + rb"\}\Z")


def split_batch(message: bytes, max_batch: int) -> list[bytes]:
    """The members of a batch, each as JSON text. Raises `MessageError`."""
    try:
        items = _decode_items(message)
    except msgspec.ValidationError as error:
        raise MessageError(InvalidRequest(f"This is no batch: {error}.")) from None
    except RecursionError:
        raise MessageError(InvalidRequest("The batch is nested too deeply.")) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MessageError(ParseError(f"The batch is not JSON: {reason_of_reader(error)}.")) from None
    if not items:
        raise MessageError(InvalidRequest("The batch is empty."))
    if len(items) > max_batch:
        raise MessageError(
            LimitExceeded(f"A batch holds at most {max_batch} messages.", limit="batch", value=max_batch)
        )
    return [bytes(item) for item in items]


def encode_result(request_id: RequestId, result: Any) -> bytes:
    """A successful answer as JSON text. Raises TypeError or ValueError where `result` is not JSON."""
    return _encode(_Result(request_id, result))


def encode_failure(request_id: RequestId, error: SessiondError) -> bytes:
    """An error answer as JSON text."""
    return _encode(_Failure(request_id, error_object(error)))


def encode_call(method: str, params: Any, request_id: RequestId | UnsetType = UNSET) -> bytes:
    """A notification, or with an id a request, as JSON text. `params`: struct, dict, or `Raw` JSON of an object."""
    return _encode(_Call(method, params, request_id))


def _invalid_request_error(message: bytes, reason: str) -> MessageError:
    """The error for JSON that is no JSON-RPC 2.0 envelope, with the id where it can be read."""
    try:
        members = _decode_members(message)
    except RecursionError:
        return MessageError(InvalidRequest("The message is nested too deeply."))
    except (msgspec.DecodeError, UnicodeDecodeError):
        # Either no object, or malformed behind the member that msgspec refused first.
        if _is_json(message):
            return MessageError(InvalidRequest(f"A message is an object or a batch of objects: {reason}."))
        return MessageError(ParseError("The message is not JSON."))
    return MessageError(InvalidRequest(f"This is no JSON-RPC 2.0 message: {reason}."), _id_of_members(members))


def _parse_error(message: bytes, error: Exception) -> MessageError:
    """The error for a message that is not JSON, with its id if it can be read, since the client waits for an answer.

    The id can be read where the only defects are lone surrogates or invalid UTF-8: programs write them when they cut a
    text within an emoji.
    """
    reason, request_id = reason_of_reader(error), None
    if len(message) <= _MAX_MENDED_BYTES:
        mended = _SURROGATE_ESCAPES.sub(rb"\1\\ufffd", message).decode(errors="replace")
        try:
            request_id = _id_of_members(_decode_members(mended))
        except (msgspec.DecodeError, RecursionError):
            pass
        else:
            if not isinstance(error, UnicodeError):
                reason = "it has half of a surrogate pair"
    if isinstance(request_id, str) and "\ufffd" in request_id:
        request_id = None
    return MessageError(ParseError(f"The message is not JSON: {reason}."), request_id)


# The id of a larger message is not looked for: this size takes 2 ms on the event loop.
_MAX_MENDED_BYTES = 64 * 1024
# Replaces whole surrogate pairs too, which matters only inside an id.
_SURROGATE_ESCAPES = re.compile(rb"(?<!\\)((?:\\\\)*)\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


def _id_of_members(members: dict[str, Raw]) -> RequestId:
    try:
        return _decode_id(members["id"]) if "id" in members else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_json(message: bytes) -> bool:
    try:
        msgspec.json.decode(message, type=Raw)
    except RecursionError:
        return True  # nested too deeply to check; well-formed as far as it was read
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True


def _too_deep(max_nesting: int) -> InvalidRequest:
    return InvalidRequest(
        f"The message is nested deeper than {max_nesting} levels.", limit="limits.maxNesting", value=max_nesting
    )


def _is_deeper(message: bytes, max_nesting: int) -> bool:
    """Whether well-formed JSON is nested deeper than `max_nesting`.

    Counting the opening brackets decides nearly every message. For the others the depth is summed up in C; the codec
    has limited the number of brackets.
    """
    if message.count(b"{") + message.count(b"[") <= max_nesting:
        return False
    brackets = _outside_strings(message).translate(None, _NOT_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets))) > max_nesting


_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _outside_strings(message: bytes) -> bytes:
    # Once escapes are removed, every second part between quotes is a string. Escaped backslashes are removed first, or
    # the second backslash of `\\"` would be taken for the escape of the quote.
    if b"\\" in message:
        message = message.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b"".join(message.split(b'"')[::2])
