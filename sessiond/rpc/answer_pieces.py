"""Long answers in pieces, so that the event loop is never blocked: encoding 15 MB in one go took 70 ms.

Knows JSON text and how to transcode it to CBOR; knows no connection. Raw JSON read from a file is not copied.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

import msgspec

from sessiond.model.lax import decode_any
from sessiond.rpc.codecs import Codec, cbor_head, cbor_pieces
from sessiond.rpc.messages import RequestId, encode_result

# Copying or sending PIECE_BYTES takes 0.1 ms, and so does encoding them. Transcoding ENCODE_BYTES to CBOR takes 1 ms.
PIECE_BYTES, ENCODE_BYTES = 64 * 1024, 16 * 1024
# What is sent as it is: as much as a socket takes at once.
_SENT_BYTES = 256 * 1024
# Encoding so many takes 30 us.
SHORT_BYTES = 128 * 1024
# Few enough that they may be large.
_TRIED_AT_ONCE = 8
# Three bytes are four characters of base64: pieces that are a multiple of three need no padding.
_BASE64_BYTES = 48 * 1024
# A placeholder for each long field while the text around it is encoded. It is random: no content can contain it.
_MARK = secrets.token_hex(16)
_MARK_JSON = f'"{_MARK}"'.encode()

Piece = bytes | memoryview
Turn = Callable[[], Awaitable[None]]
_encode = msgspec.json.Encoder().encode


class EncodedList:
    """A list in `pieces`: (number of items, their JSON text with commas in between, without brackets)."""

    __slots__ = ("pieces",)

    def __init__(self) -> None:
        self.pieces: list[tuple[int, Piece]] = []

    @property
    def size(self) -> int:
        """The length of its JSON."""
        return 1 + sum(len(piece) + 1 for _, piece in self.pieces)

    def json(self) -> Iterator[Piece]:
        for place, (_, piece) in enumerate(self.pieces):
            yield b"," if place else b"["
            yield piece
        yield b"]"

    def cbor(self) -> Iterator[Piece]:
        import cbor2

        yield cbor_head(0x80, sum(count for count, _ in self.pieces))
        for count, piece in self.pieces:
            if count == 1:
                yield from cbor_pieces(piece)
            else:
                values = cbor2.dumps(decode_any(b"".join((b"[", piece, b"]"))))
                yield values[len(cbor_head(0x80, count)) :]


class EncodedBytes:
    """A byte string: base64 in JSON, and itself in CBOR."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data

    @property
    def size(self) -> int:
        """The length of its JSON."""
        return 2 + 4 * ((len(self.data) + 2) // 3)

    def json(self) -> Iterator[Piece]:
        view = memoryview(self.data)
        yield b'"'
        for start in range(0, len(view), _BASE64_BYTES):
            yield memoryview(_encode(view[start : start + _BASE64_BYTES]))[1:-1]
        yield b'"'

    def cbor(self) -> Iterator[Piece]:
        yield cbor_head(0x40, len(self.data))
        yield self.data


class AnswerText:
    """One answer: the JSON text `around` the long `fields` (one piece more than fields). `size` is that of its JSON."""

    __slots__ = ("around", "fields", "size")

    def __init__(self, around: list[bytes], fields: list[EncodedList | EncodedBytes]) -> None:
        self.around, self.fields = around, fields
        self.size = sum(map(len, around)) + sum(field.size for field in fields)

    def json(self) -> Iterator[Piece]:
        """The whole text, in order."""
        yield self.around[0]
        for field, after in zip(self.fields, self.around[1:], strict=True):
            yield from field.json()
            yield after

    def cbor(self) -> Iterator[Piece]:
        """The same answer in CBOR."""
        import cbor2

        skeleton = cbor2.dumps(decode_any(_MARK_JSON.join(self.around)))
        first, *rest = skeleton.split(cbor2.dumps(_MARK))
        yield first
        for field, after in zip(self.fields, rest, strict=True):
            yield from field.cbor()
            yield after


# A list is the answer to a batch request.
Answer = bytes | AnswerText | list[bytes | AnswerText]


def json_length(answer: Answer) -> int:
    """The length of the answer as JSON, in bytes."""
    if isinstance(answer, list):
        return 1 + sum(json_length(one) + 1 for one in answer)
    return answer.size if isinstance(answer, AnswerText) else len(answer)


def frame_pieces(answer: Answer, codec: Codec) -> Iterator[Piece]:
    """The frame of an answer in this codec; each piece takes a few milliseconds at most."""
    if codec.name == "cbor":
        return _regroup(_cbor(answer), ENCODE_BYTES)
    return _regroup(_json(answer), PIECE_BYTES)


async def encode_in_pieces(request_id: RequestId, result: Any, turn: Turn) -> bytes | AnswerText:
    """As `encode_result`, for a struct with long lists, or byte strings, which stay such in CBOR. Awaits `turn` between
    the pieces, so that other tasks run.
    """
    names = getattr(result, "__struct_fields__", ())
    long = {
        name: value
        for name in names
        if type(value := getattr(result, name)) is bytes or (type(value) is list and value)
    }
    if (short := _encode_short(long)) is not None:
        return encode_result(request_id, msgspec.structs.replace(result, **short) if short else result)
    fields: dict[str, EncodedList | EncodedBytes] = {}
    size = 0
    for name, value in long.items():
        if isinstance(value, bytes):
            fields[name] = EncodedBytes(value)
            continue
        items = fields[name] = EncodedList()
        for count, piece in _list_pieces(value):
            items.pieces.append((count, piece))
            size += len(piece)
            if size >= PIECE_BYTES:  # a turn takes as long as encoding a page of history
                size = 0
                await turn()
    marked = msgspec.structs.replace(result, **{name: msgspec.Raw(_MARK_JSON) for name in fields})
    return AnswerText(encode_result(request_id, marked).split(_MARK_JSON), list(fields.values()))


def _encode_short(long: dict[str, bytes | list[Any]]) -> dict[str, msgspec.Raw] | None:
    """The fields that had to be encoded to know how long they are; None unless all can be encoded in one go, as those
    of most pages of history: a fifth of the time of pieces. Byte strings cannot.
    """
    encoded: dict[str, msgspec.Raw] = {}
    size = 0
    for name, value in long.items():
        if isinstance(value, bytes):
            return None
        if isinstance(value[0], msgspec.Raw):
            size += sum(map(len, value))
            continue
        texts: list[bytes] = []
        for start in range(0, len(value), _TRIED_AT_ONCE):
            text = _encode(value[start : start + _TRIED_AT_ONCE])
            texts.append(text[1:-1])
            size += len(text)
            if size > SHORT_BYTES:
                return None
        encoded[name] = msgspec.Raw(b"[%b]" % b",".join(texts))
    return encoded if size <= SHORT_BYTES else None


def _list_pieces(values: list[Any]) -> Iterator[tuple[int, Piece]]:
    group: list[Piece] = []
    size = 0
    for value in values:
        text = memoryview(value) if isinstance(value, msgspec.Raw) else _encode(value)
        if group and size + len(text) > ENCODE_BYTES:
            yield len(group), _join(group)
            group, size = [], 0
        group.append(text)
        size += len(text)
    yield len(group), _join(group)


def _join(group: list[Piece]) -> Piece:
    return group[0] if len(group) == 1 else b",".join(group)


def _json(answer: Answer) -> Iterator[Piece]:
    if isinstance(answer, list):
        for place, one in enumerate(answer):
            yield b"," if place else b"["
            yield from one.json() if isinstance(one, AnswerText) else (one,)
        yield b"]\n"
    else:
        yield from answer.json() if isinstance(answer, AnswerText) else (answer,)
        yield b"\n"


def _cbor(answer: Answer) -> Iterator[Piece]:
    if isinstance(answer, list):
        yield cbor_head(0x80, len(answer))
    for one in answer if isinstance(answer, list) else (answer,):
        yield from one.cbor() if isinstance(one, AnswerText) else cbor_pieces(one)


def _regroup(pieces: Iterable[Piece], most: int) -> Iterator[Piece]:
    """The same bytes: small pieces joined up to `most` bytes, long ones cut."""
    group: list[Piece] = []
    size = 0
    for piece in pieces:
        if size + len(piece) <= most:
            group.append(piece)
            size += len(piece)
            continue
        if group:
            yield b"".join(group)
            group, size = [], 0
        if len(piece) <= most:
            group, size = [piece], len(piece)
        else:
            view = memoryview(piece)
            for start in range(0, len(view), _SENT_BYTES):
                yield view[start : start + _SENT_BYTES]
    if group:
        yield b"".join(group)
