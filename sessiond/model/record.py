"""One transcript line: what its bytes say, without changing them.

Knows the record types (store.md, "Record types"). Does not know where a line stands in a file, nor what it
does to an entry.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.clock import iso_ms, parse_iso_ms
from sessiond.model import lax
from sessiond.model.lax import MAX_MS, is_deep, mend_surrogates, whole_ms

ENTRY = "sessiond/entry"
RUN = "sessiond/run"
TALK = "sessiond/talk"
TOOL_ROLES = frozenset({"toolResult", "tool", "bashExecution"})
# What a program keeps to itself: pi writes its own prompt as a message with this role. Nobody said it.
UNSAID = "system"

FINAL: frozenset[str] = frozenset({"ok", "error", "timeout", "aborted"})


class BadLine(Exception):
    """A line that is no record. `reason` is a few words for `sessiond doctor`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# msgspec takes no `Raw | None`; an empty Raw stands for a missing field.
_ABSENT = msgspec.Raw()


class _Slices(msgspec.Struct, frozen=True, rename="camel", gc=False):
    message: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT


class LineEnvelope(msgspec.Struct, frozen=True, gc=False):
    """The outer fields of a line."""

    # `object` where a stranger may have written anything: a wrong type in one field does not spoil the line.
    type: object = None
    id: object = None
    timestamp: object = None
    message: msgspec.Raw = _ABSENT


class _RecordHead(msgspec.Struct, frozen=True, gc=False):
    role: object = None
    timestamp: object = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A whole line. `raw` is the line without its newline; `message` and `data` are slices of it, as bytes.

    In the slices half characters stand as U+FFFD, so that every decoder takes them; they are as long as in the file.
    `decoded` is the message of an assistant, for its usage, where it was decoded anyway.
    """

    type: str
    raw: bytes
    id: str | None = None
    timestamp_ms: int | None = None
    role: str | None = None
    message: bytes | None = None
    custom_type: str | None = None
    data: bytes | None = None
    decoded: dict[str, Any] | None = None

    @property
    def is_message(self) -> bool:
        """Whether the line counts as a message: type `message` with an object in `message` that somebody said."""
        return self.message is not None

    def body(self) -> dict[str, Any]:
        """The whole line as a dict."""
        return lax.decode_dict(self.raw)


_decode = msgspec.json.Decoder().decode
_decode_slices = msgspec.json.Decoder(_Slices).decode
_decode_block = msgspec.json.Decoder(LineEnvelope).decode_lines
_decode_head = msgspec.json.Decoder(_RecordHead).decode
_encode = msgspec.json.Encoder().encode


def parse(line: bytes) -> Record:
    """The record in `line` (no newline). Raises BadLine where it is not an object or not JSON."""
    if is_deep(line):
        raise BadLine("nested too deeply")
    # All of it, though little is looked at: who reads the message later must not stumble over a number out of range
    # or half a character. It costs a microsecond, and no search for such things in the bytes is as quick.
    text = line
    try:
        body = _decode(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        text = mend_surrogates(line)
        body = lax.decode(text) if text != line else None
        if body is None:
            raise BadLine(_why_bad(line)) from None
    if type(body) is not dict:
        raise BadLine("not an object")
    kind, own_id, iso = body.get("type"), _text(body.get("id")), body.get("timestamp")
    if kind == "message":
        message = body.get("message")
        if type(message) is dict and message.get("role") != UNSAID:
            stamp, role = _stamp(iso, message.get("timestamp")), _text(message.get("role"))
            slice_ = bytes(_decode_slices(text).message)
            return Record(
                "message", line, own_id, stamp, role, slice_, decoded=message if role == "assistant" else None
            )
    elif kind == "custom":
        custom = _text(body.get("customType"))
        if custom is not None:
            data = bytes(_decode_slices(text).data)
            return Record(
                type="custom", raw=line, id=own_id, timestamp_ms=_stamp(iso, None), custom_type=custom, data=data
            )
    return Record(type=_text(kind) or "", raw=line, id=own_id, timestamp_ms=_stamp(iso, None))


def open_block(block: bytes) -> list[LineEnvelope]:
    """The outer fields of lines that were all found to be records before, decoded together; `message_in` goes on.

    Both together are half the work of `parse`. Nothing where some line is none now.
    """
    try:
        return _decode_block(block)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []


def message_in(envelope: LineEnvelope, line: bytes) -> Record | None:
    """The record of a message among them, None for a record of any other kind."""
    message = bytes(envelope.message) if envelope.type == "message" else b""
    if message[:1] != b"{":
        return None
    try:
        head = _decode_head(message)
    except (msgspec.DecodeError, ValueError):
        return None
    if head.role == UNSAID:
        return None
    stamp = _stamp(envelope.timestamp, head.timestamp)
    return Record("message", line, _text(envelope.id), stamp, _text(head.role), message)


def _stamp(iso: object, ms: object) -> int | None:
    stamp = parse_iso_ms(iso) if type(iso) is str else None
    return stamp if stamp is not None and 0 <= stamp < MAX_MS else whole_ms(ms)


def _text(value: object) -> str | None:
    return value if type(value) is str else None


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _why_bad(line: bytes) -> str:
    if b"\0" in line:
        return "NUL bytes"
    if not line.lstrip().startswith(b"{"):
        return "not an object"
    if not _is_utf8(line):
        return "not UTF-8"
    return "torn or not JSON"


def _id_text(record_id: str | None) -> bytes:
    try:
        return _encode(record_id)
    except ValueError:  # half a character, which others write into their ids
        return b"null"


class RecordDraft(msgspec.Struct, frozen=True, gc=False):
    """A record that waits for the id of the one before it: that is known when it is written and not sooner."""

    id: str
    before: bytes
    after: bytes

    @property
    def max_bytes(self) -> int:
        """The longest that the line can get, without its newline."""
        return len(self.before) + len(self.after) + 17  # an id is 16 characters in quotes; the newline does not count

    def line(self, parent_id: str | None, record_limit: int | None = None) -> bytes:
        """The line behind the record `parent_id`, newline included.

        A stranger's id may be as long as a record: where the line would be over the limit with it, it names none.
        """
        line = b"".join((self.before, _id_text(parent_id), self.after))
        if record_limit is not None and len(line) - 1 > record_limit:
            return b"".join((self.before, b"null", self.after))
        return line


def message_draft(record_id: str, now_ms: int, message: msgspec.Raw | dict[str, Any]) -> RecordDraft:
    """A `message` record. A Raw message keeps its bytes, except that line breaks between its tokens become spaces."""
    body = bytes(message).replace(b"\n", b" ") if isinstance(message, msgspec.Raw) else _encode(message)
    after = b',"timestamp":"%b","message":%b}\n' % (iso_ms(now_ms).encode(), body)
    return RecordDraft(record_id, b'{"type":"message","id":%b,"parentId":' % _encode(record_id), after)


def custom_draft(record_id: str, now_ms: int, custom_type: str, data: dict[str, Any]) -> RecordDraft:
    """A `custom` record."""
    head = {"type": "custom", "customType": custom_type, "data": data, "id": record_id}
    return RecordDraft(
        id=record_id,
        before=_encode(head)[:-1] + b',"parentId":',
        after=b',"timestamp":%b}\n' % _encode(iso_ms(now_ms)),
    )


def custom_line(record_id: str, parent_id: str | None, now_ms: int, custom_type: str, data: dict[str, Any]) -> bytes:
    """The bytes of a `custom` record, newline included."""
    return custom_draft(record_id, now_ms, custom_type, data).line(parent_id)


def header_line(
    session_id: str,
    session_key: str | None,
    agent_id: str,
    now_ms: int,
    *,
    cwd: str,
    spawned_by: str | None = None,
) -> bytes:
    """The first line of a transcript, newline included. Source: store.md, "A transcript".

    Without a key it is a header as pi writes it, of a file that waits for its adoption.
    """
    header: dict[str, Any] = {
        "type": "session",
        "version": 3,
        "id": session_id,
        "timestamp": iso_ms(now_ms),
        "cwd": cwd,
    }
    if session_key is not None:
        header |= {"sessionKey": session_key, "agentId": agent_id}
    if spawned_by is not None:
        header["spawnedBy"] = spawned_by
    return _encode(header) + b"\n"
