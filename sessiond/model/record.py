"""One transcript line: what its bytes say, without changing them.

Knows the record types of store.md. Does not know where a line stands in a file, nor what it does to an entry.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sessiond.clock import iso_ms, parse_iso_ms

ENTRY = "sessiond/entry"
RUN = "sessiond/run"
TOOL_ROLES = frozenset({"toolResult", "tool", "bashExecution"})

RunStatus = Literal["accepted", "running", "ok", "error", "timeout", "aborted"]
FINAL: frozenset[str] = frozenset({"ok", "error", "timeout", "aborted"})


class BadLine(Exception):
    """A line that is no record. `reason` is a few words for `sessiond doctor`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# msgspec takes no `Raw | None`; an empty Raw stands for a missing field.
_ABSENT = msgspec.Raw()


class _Envelope(msgspec.Struct, frozen=True, rename="camel", gc=False):
    # `object` where a stranger may have written anything: a wrong type in one field does not spoil the line.
    type: object = None
    id: object = None
    timestamp: object = None
    message: msgspec.Raw = _ABSENT
    custom_type: object = None
    data: msgspec.Raw = _ABSENT


class _MessageHead(msgspec.Struct, frozen=True, gc=False):
    role: object = None
    timestamp: object = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A whole line. `raw` is the line without its newline; `message` and `data` are slices of it, as bytes."""

    type: str
    raw: bytes
    id: str | None = None
    timestamp_ms: int | None = None
    role: str | None = None
    message: bytes | None = None
    custom_type: str | None = None
    data: bytes | None = None

    @property
    def is_message(self) -> bool:
        """Whether the line counts as a message: type `message` with an object in `message`."""
        return self.message is not None

    def body(self) -> dict[str, Any]:
        """The whole line as a dict."""
        decoded = msgspec.json.decode(self.raw)
        assert isinstance(decoded, dict)
        return decoded


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_head = msgspec.json.Decoder(_MessageHead).decode


def parse(line: bytes) -> Record:
    """The record in `line` (no newline). Raises BadLine where it is not an object or not JSON."""
    # msgspec passes over the bytes inside a Raw: what it does not look at is looked at here.
    if b"\0" in line or not (line.isascii() or _is_utf8(line)):
        raise BadLine(_why_bad(line))
    try:
        envelope = _decode_envelope(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadLine(_why_bad(line)) from None
    kind = envelope.type if isinstance(envelope.type, str) else ""
    stamp = parse_iso_ms(envelope.timestamp) if isinstance(envelope.timestamp, str) else None
    message, role = None, None
    if kind == "message":
        message = bytes(envelope.message)
        if message[:1] != b"{":
            message = None
        else:
            head = _decode_head(message)
            role = head.role if isinstance(head.role, str) else None
            if stamp is None and isinstance(head.timestamp, int) and not isinstance(head.timestamp, bool):
                stamp = head.timestamp
    custom = envelope.custom_type if kind == "custom" and isinstance(envelope.custom_type, str) else None
    return Record(
        type=kind,
        raw=line,
        id=envelope.id if isinstance(envelope.id, str) else None,
        timestamp_ms=stamp,
        role=role,
        message=message,
        custom_type=custom,
        data=bytes(envelope.data) if custom is not None else None,
    )


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


def message_line(record_id: str, parent_id: str | None, now_ms: int, message: msgspec.Raw | dict[str, Any]) -> bytes:
    """The bytes of a `message` record, newline included. A Raw message keeps its bytes."""
    return _line(
        {"type": "message", "id": record_id, "parentId": parent_id, "timestamp": iso_ms(now_ms), "message": message}
    )


def custom_line(record_id: str, parent_id: str | None, now_ms: int, custom_type: str, data: dict[str, Any]) -> bytes:
    """The bytes of a `custom` record, newline included."""
    return _line(
        {
            "type": "custom",
            "customType": custom_type,
            "data": data,
            "id": record_id,
            "parentId": parent_id,
            "timestamp": iso_ms(now_ms),
        }
    )


def header_line(
    session_id: str, session_key: str, agent_id: str, now_ms: int, *, cwd: str, spawned_by: str | None = None
) -> bytes:
    """The first line of a transcript, newline included. Source: store.md, "A transcript"."""
    header: dict[str, Any] = {
        "type": "session",
        "version": 3,
        "id": session_id,
        "timestamp": iso_ms(now_ms),
        "cwd": cwd,
        "sessionKey": session_key,
        "agentId": agent_id,
    }
    if spawned_by is not None:
        header["spawnedBy"] = spawned_by
    return _line(header)


def _line(record: dict[str, Any]) -> bytes:
    return msgspec.json.encode(record) + b"\n"
