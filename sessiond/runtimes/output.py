"""Parse the output of an agent program. Sans-io: bytes in, events out.

Knows text and transcript lines. Does not know processes, presets or where the events go.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import msgspec

from sessiond.errors import LimitExceeded
from sessiond.model.decoding_cost import find_long_excess
from sessiond.model.lax import decode_any
from sessiond.runtimes.runtime import ToolPhase

# Reserved for the envelope of a record (type, ids, timestamps, provenance): a reply has to leave this much free of
# limits.maxRecordBytes.
ENVELOPE_BYTES = 1024
# How much of a malformed line is quoted in an error.
_SAMPLE_BYTES = 200
_SPARE_DEPTH = 100
_PHASES = ("start", "update", "end")
# Keys of a tool event that are not passed on as extra: those with a field of their own, and names of parameters of
# RunSink.tool, with which they would collide.
_TOOL_KEYS = frozenset(("type", "phase", "toolCallId", "name", "tool_call_id", "self"))


class Delta(msgspec.Struct, frozen=True):
    """Live text of the reply."""

    text: str


class ThoughtDelta(msgspec.Struct, frozen=True):
    """Live text of what the agent thinks."""

    text: str


class Tool(msgspec.Struct, frozen=True):
    """A live tool event."""

    phase: ToolPhase
    tool_call_id: str
    name: str
    extra: dict[str, Any] = {}


class MessageOutput(msgspec.Struct, frozen=True):
    """A message for the transcript. `raw` is the line that it came in, where that is the message itself."""

    message: dict[str, Any]
    raw: bytes | None = None


class CustomOutput(msgspec.Struct, frozen=True):
    """Something that is no message, kept as a `custom` record."""

    custom_type: str
    data: Any


class NativeSession(msgspec.Struct, frozen=True):
    """The program's own session id."""

    session_id: str


class Ended(msgspec.Struct, frozen=True):
    """What the program says at the end of the turn. Fields that it did not set are None.

    `usage` replaces the sum over the messages; `reply` is used if no message had text.
    """

    error: str | None = None
    reply: str | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None


Event = Delta | ThoughtDelta | Tool | MessageOutput | CustomOutput | NativeSession | Ended


class LineParser(Protocol):
    """Parses a sequence of JSON objects. Never raises, whatever they contain."""

    def line(self, item: dict[str, Any], raw: bytes) -> Iterable[Event]:
        """The events of one line."""

    def end(self) -> Iterable[Event]:
        """The events that were held back until the end of the output."""


class Output(Protocol):
    """A parser of stdout. `feed` and `end` raise LimitExceeded for output over limits.maxRecordBytes."""

    bad_lines: int
    tail: str
    # Bytes of a line that has not ended yet.
    held_bytes: int

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events of one more piece of output."""

    def end(self) -> Iterator[Event]:
        """The events at the end of the output."""


def _limit_exceeded(what: str, limit: int) -> LimitExceeded:
    return LimitExceeded(
        f"{what} is over limits.maxRecordBytes ({limit} bytes)", limit="limits.maxRecordBytes", value=limit
    )


class TextOutput:
    """stdout is the reply, without its trailing newlines. The deltas add up to the reply.

    Source: runs.md, "exec". Bytes that are no UTF-8 become U+FFFD.
    """

    def __init__(self, max_bytes: int) -> None:
        self.bad_lines = self.held_bytes = 0
        self.tail = ""
        self._max_bytes = max_bytes
        self._bytes = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._parts: list[str] = []
        self._newlines = ""

    def feed(self, data: bytes) -> Iterator[Event]:
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            raise _limit_exceeded("the reply", self._max_bytes)
        yield from self._text(self._decoder.decode(data))

    def end(self) -> Iterator[Event]:
        yield from self._text(self._decoder.decode(b"", final=True))
        reply = "".join(self._parts)
        # JSON escapes can make a record six times as long as its text, so check the encoded form.
        if len(msgspec.json.encode(reply)) + ENVELOPE_BYTES > self._max_bytes:
            raise _limit_exceeded("the reply", self._max_bytes)
        self.tail = reply[-_SAMPLE_BYTES * 4 :]
        yield Ended(reply=reply)

    def _text(self, text: str) -> Iterator[Event]:
        # Hold newlines back until other text follows: trailing newlines are not part of the reply.
        text = self._newlines + text
        kept = text.rstrip("\r\n")
        self._newlines = text[len(kept) :]
        if kept:
            self._parts.append(kept)
            yield Delta(kept)


class LinesOutput:
    """stdout is JSON Lines, passed to a parser. Lines that are no JSON objects, or cost too much to decode, are counted
    and left out.
    """

    def __init__(self, parser: LineParser, max_bytes: int) -> None:
        self.bad_lines = 0
        self.tail = ""
        self._parser = parser
        self._max_bytes = max_bytes
        self._rest: list[bytes] = []
        self.held_bytes = 0

    def feed(self, data: bytes) -> Iterator[Event]:
        *lines, rest = data.split(b"\n")
        for line in lines:
            self._keep(line)
            yield from self._line()
        self._keep(rest)

    def end(self) -> Iterator[Event]:
        yield from self._line()
        yield from self._parser.end()

    def _keep(self, piece: bytes) -> None:
        # Joined when the line is complete: appending to one bytes object would copy it at every read.
        self.held_bytes += len(piece)
        if self.held_bytes > self._max_bytes:
            raise _limit_exceeded("a line of output", self._max_bytes)
        if piece:
            self._rest.append(piece)

    def _line(self) -> Iterator[Event]:
        line = b"".join(self._rest).strip()
        self._rest, self.held_bytes = [], 0
        if not line:
            return
        excess = find_long_excess(line, ENVELOPE_BYTES)
        item = decode_object(line) if excess is None else None
        if item is None:
            self.bad_lines += 1
            reason = f"({excess.reason}) " if excess is not None else ""
            self.tail = reason + line[:_SAMPLE_BYTES].decode("utf-8", "replace")
            return
        yield from self._parser.line(item, line)


def decode_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object in `line`; None if it is not one, or so deeply nested that a record with it could not be encoded.

    A record nests the message some levels deeper. So a line with many brackets is decoded inside a hundred more, to
    leave a margin below the recursion limits of the encoder and of later readers.
    """
    depth = _SPARE_DEPTH if line.count(b"[") + line.count(b"{") > _SPARE_DEPTH else 0
    try:
        item = decode_any(b"[" * depth + line + b"]" * depth)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    for _ in range(depth):
        if len(item) != 1:
            # The line closed one of the added brackets.
            return None
        item = item[0]
    return item if isinstance(item, dict) else None


class TranscriptLines:
    """Each line is a transcript message or a live event. Source: runs.md, "exec".

    `{"role", "content", ...}` or `{"type": "message", "message": {...}}` is a message; `{"type": "delta", "text"}` and
    `{"type": "tool", "phase", "toolCallId", "name", ...}` are live. Any other object is kept as a `custom` record.
    """

    def line(self, item: dict[str, Any], raw: bytes) -> Iterator[Event]:
        kind = item.get("type")
        if "role" in item:
            yield to_message(item, raw) or CustomOutput("exec/message", item)
        elif kind == "message":
            inner = item.get("message")
            yield (to_message(inner) if isinstance(inner, dict) else None) or CustomOutput("exec/message", item)
        elif kind == "delta" and isinstance(item.get("text"), str):
            yield Delta(item["text"])
        elif kind == "tool":
            yield _tool(item) or CustomOutput("exec/tool", item)
        else:
            yield CustomOutput(f"exec/{kind}" if isinstance(kind, str) and kind else "exec/line", item)

    def end(self) -> Iterator[Event]:
        yield from ()


def _tool(item: dict[str, Any]) -> Tool | None:
    phase, call, name = item.get("phase"), item.get("toolCallId"), item.get("name")
    if phase not in _PHASES or not isinstance(call, str) or not isinstance(name, str):
        return None
    extra = {key: value for key, value in item.items() if key not in _TOOL_KEYS}
    return Tool(phase, call, name, extra)


def to_message(message: dict[str, Any], raw: bytes | None = None) -> MessageOutput | None:
    """`message` as an event; None if its role or content cannot be in a transcript.

    Its `provenance` is removed: only the daemon sets it. Source: runs.md, "sessions_send".
    """
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or not role:
        return None
    if role in ("user", "assistant", "toolResult") and not _is_content(content):
        return None
    if role == "toolResult" and not isinstance(message.get("toolCallId"), str):
        return None
    if "provenance" in message:
        message = {key: value for key, value in message.items() if key != "provenance"}
        raw = None
    return MessageOutput(message, raw)


def _is_content(content: Any) -> bool:
    if isinstance(content, list):
        return all(isinstance(block, dict) and isinstance(block.get("type"), str) for block in content)
    return isinstance(content, str)
