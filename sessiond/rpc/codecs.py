"""JSON and CBOR at the edge of a connection. Inside, every message is JSON text; CBOR is transcoded in both directions.

Knows no JSON-RPC. Transcoding avoids a second decoder for every params type; CBOR is worth its cost for binary content
only anyway (200 rows: 0.05 ms in msgspec JSON, 0.5 ms in cbor2). cbor2 is imported for the first CBOR client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from math import isfinite
from typing import Any, Literal, NoReturn, Protocol

import msgspec

from sessiond.errors import InvalidRequest, LimitExceeded, ParseError, SessiondError, no_memory, reason_of_reader
from sessiond.model.decoding_cost import MAX_VALUES, find_long_excess
from sessiond.model.lax import decode_any
from sessiond.rpc.pace import Pace
from sessiond.tasks import run_in_thread

CodecName = Literal["json", "cbor"]

SELF_DESCRIBED = b"\xd9\xd9\xf7"  # tag 55799, RFC 8949 section 3.4.6: "this is CBOR", and nothing else
# Every tag that cbor2 interprets. All are refused here, and some would be dangerous (35 compiles a regular expression,
# 2 and 3 make integers of any size, 28 and 29 make cyclic values).
_CBOR2_TAGS = (0, 1, 2, 3, 4, 5, 25, 28, 29, 30, 35, 36, 37, 52, 54, 100, 256, 258, 260, 261, 1004, 43000, 55799)


class Codec(Protocol):
    """How the messages of a connection look on the wire."""

    name: CodecName
    # From these sizes on `to_json` runs in a worker thread, and `from_json` works in pieces.
    slow_bytes: float
    slow_answer_bytes: float

    def to_json(self, frame: bytes) -> bytes:
        """JSON text of an incoming frame. Raises ParseError, InvalidRequest or LimitExceeded."""
        ...

    def from_json(self, text: bytes) -> bytes:
        """The outgoing frame for JSON text, with the end-of-frame bytes that the codec needs on a stream."""
        ...


class JsonCodec:
    """JSON text; a newline ends a frame."""

    name: CodecName = "json"
    slow_bytes: float = MAX_VALUES
    # Handing so much to the kernel takes 0.2 ms: less than the task that does it piece by piece.
    slow_answer_bytes: float = 256 * 1024

    def to_json(self, frame: bytes) -> bytes:
        if (excess := find_long_excess(frame)) is not None:
            raise LimitExceeded(
                f"A message has at most {excess.most} {excess.what}.", limit=excess.limit, value=excess.most
            )
        return frame

    def from_json(self, text: bytes) -> bytes:
        return text + b"\n"


class CborCodec:
    """CBOR items with the same content; an incoming byte string becomes base64."""

    name: CodecName = "cbor"
    slow_bytes: float = 16 * 1024
    slow_answer_bytes: float = 16 * 1024

    def to_json(self, frame: bytes) -> bytes:
        import cbor2

        try:
            value = cbor2.loads(
                frame.removeprefix(SELF_DESCRIBED),
                tag_hook=_refuse_tag,
                semantic_decoders=_refused_tags(),
                allow_duplicate_keys=False,
                strict_hashable_types=True,
            )
        except cbor2.CBORDecodeError as error:
            raise _refusal(error.__cause__ or error) from None
        for envelope in value if isinstance(value, list) else (value,):
            _check_envelope(envelope)
        try:
            return msgspec.json.encode(_to_json_value(value))
        except (OverflowError, ValueError, TypeError) as error:
            raise InvalidRequest(f"The message holds what JSON has not: {reason_of_reader(error)}.") from None

    def from_json(self, text: bytes) -> bytes:
        import cbor2

        return cbor2.dumps(decode_any(text))


def decode_leniently(frame: bytes) -> Any:
    """The value of a refused CBOR frame, with U+FFFD for invalid UTF-8. ValueError where it cannot be decoded."""
    import cbor2

    try:
        return cbor2.loads(
            frame.removeprefix(SELF_DESCRIBED),
            tag_hook=_refuse_tag,
            semantic_decoders=_refused_tags(),
            str_errors="replace",
        )
    except cbor2.CBORDecodeError as error:
        raise ValueError(str(error)) from None


JSON = JsonCodec()
CBOR = CborCodec()


async def to_json(codec: Codec, frame: bytes) -> bytes:
    """As `codec.to_json`; a long frame is decoded in a worker thread."""
    if len(frame) < codec.slow_bytes:
        return codec.to_json(frame)
    try:
        return await run_in_thread(codec.to_json, frame)
    except OSError as error:
        raise no_memory(error) from None


async def from_json(codec: Codec, text: bytes, pace: Pace) -> bytes:
    """As `codec.from_json`; a long frame is made in pieces, with a turn of `pace` in between."""
    if codec is JSON or len(text) < codec.slow_answer_bytes:
        return codec.from_json(text)
    frame = bytearray()
    turn_at = _CBOR_PIECE_BYTES
    for piece in cbor_pieces(text):
        frame += piece
        if len(frame) >= turn_at:
            turn_at = len(frame) + _CBOR_PIECE_BYTES
            await pace.turn()
    return bytes(frame)


_CBOR_PIECE_BYTES = 16 * 1024


def cbor_pieces(text: bytes | memoryview | msgspec.Raw) -> Iterator[bytes]:
    """The CBOR of a JSON text in pieces that take a millisecond each, except long strings, which are one piece."""
    import cbor2

    size, first = len(memoryview(text)), memoryview(text)[0]
    if size > _CBOR_PIECE_BYTES and first == ord("{"):
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        yield cbor_head(0xA0, len(members))
        for name, value in members.items():
            yield cbor2.dumps(name)
            yield from cbor_pieces(value)
    elif size > _CBOR_PIECE_BYTES and first == ord("["):
        items = msgspec.json.decode(text, type=list[msgspec.Raw])
        yield cbor_head(0x80, len(items))
        for item in items:
            yield from cbor_pieces(item)
    else:
        yield cbor2.dumps(decode_any(text))


def cbor_head(major: int, count: int) -> bytes:
    """The shortest head of a map or an array with `count` entries (RFC 8949, section 3)."""
    for width, info in ((0, count), (1, 24), (2, 25), (4, 26)):
        if count < (24 if width == 0 else 1 << 8 * width):
            return bytes([major | info]) + (count.to_bytes(width, "big") if width else b"")
    return bytes([major | 27]) + count.to_bytes(8, "big")


def _refusal(reason: BaseException) -> SessiondError:
    """What a client is told. A new error: one whose traceback has the frame it is raised in would keep the message, in
    a circle that the garbage collector finds some thousand objects later.
    """
    if isinstance(reason, InvalidRequest):
        return InvalidRequest(reason.message)
    return ParseError(f"The message is not the CBOR that is taken here: {reason_of_reader(reason)}.")


def _check_envelope(value: Any) -> None:
    """Refuse byte strings in the envelope: transcoded to base64 they would pass for text."""
    for name in ("jsonrpc", "id", "method"):
        if isinstance(value, dict) and isinstance(value.get(name), bytes):
            raise InvalidRequest(f"`{name}` of a message is no byte string.")


def _to_json_value(value: Any) -> Any:
    """`value` in the types of JSON; InvalidRequest for what JSON cannot express. The framing has bounded the depth.

    A map whose `content` is a byte string gets `encoding: "base64"`, whatever it had before, so that an attachment sent
    as bytes is decoded to the same bytes. Source: runs.md, "Attachments".
    """
    match value:
        case dict():
            for key in value:
                if not isinstance(key, str):
                    raise InvalidRequest("The message has a map key that is no text string.")
            plain = {key: _to_json_value(item) for key, item in value.items()}
            if isinstance(value.get("content"), bytes):
                plain["encoding"] = "base64"
            return plain
        case list():
            return [_to_json_value(item) for item in value]
        case bytes():
            return value  # msgspec encodes it as base64, five times as fast as binascii
        case float() if not isfinite(value):
            raise InvalidRequest("The message holds a number that is not finite.")
        case None | bool() | int() | float() | str():
            return value
        case _:
            what = "undefined" if type(value).__name__ == "UndefinedType" else "a simple value of CBOR"
            raise InvalidRequest(f"The message holds a value that JSON has not: {what}.")


def _tag_error(number: int) -> InvalidRequest:
    return InvalidRequest(f"The CBOR tag {number} means nothing here; only 55799 before a message is taken.")


def _refuse_tag(tag: Any, _immutable: bool) -> NoReturn:
    raise _tag_error(tag.tag)


@cache
def _refused_tags() -> dict[int, Callable[[Any, bool], NoReturn]]:
    def refusal(number: int) -> Callable[[Any, bool], NoReturn]:
        def refuse(_value: Any, _immutable: bool) -> NoReturn:
            raise _tag_error(number)

        return refuse

    return {number: refusal(number) for number in _CBOR2_TAGS}
