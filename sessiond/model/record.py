"""Parse one transcript line, without changing its bytes.

Knows the record types (store.md, "Record types"). Does not know where a line stands in a file, nor what it
does to an entry.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sessiond.clock import are_iso_ms, iso_ms, parse_iso_ms
from sessiond.model import lax
from sessiond.model.decoding_cost import find_excess, has_more_values
from sessiond.model.lax import MAX_MS, decode_any, mend_surrogates, whole_ms
from sessiond.model.line_facts import LineFacts

ENTRY = "sessiond/entry"
RUN = "sessiond/run"
CONVERSATION = "sessiond/talk"
# The agent program's own session; a question of an agent, and its answer, also one of a policy to what was not asked.
NATIVE = "sessiond/native"
QUESTION = "sessiond/question"
ANSWER = "sessiond/answer"
# What a program in a terminal does with a session of its own.
HOOK = "sessiond/hook"
TOOL_ROLES = frozenset({"toolResult", "tool", "bashExecution"})
# The role under which pi stores its own prompt: it is part of no conversation and does not count as a message.
HIDDEN_ROLE = "system"

Marker = Literal["compaction", "rewind"]
# The types of records of pi that mark a place in the conversation: what came before was summed up, or left.
MARKERS: dict[str, Marker] = {"compaction": "compaction", "branch_summary": "rewind"}

# In these every field counts, and there are few: those with more values are bad lines. What is in one is decoded,
# merged and checked several times, on the event loop, which takes seconds for 250,000 members.
MAX_FACTS = 8192
_TYPES_OF_FACTS = frozenset({"session", "model_change", "thinking_level_change", "session_info"})
_CUSTOM_TYPES_OF_FACTS = frozenset({ENTRY, QUESTION, ANSWER, HOOK})

FINAL: frozenset[str] = frozenset({"ok", "error", "timeout", "aborted"})


class BadLine(Exception):
    """A line that is no record. `reason` is shown by `sessiond doctor`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


# Of fewer times each is parsed.
_SPLIT_STAMPS = 8
# msgspec takes no `Raw | None`; an empty Raw stands for a missing field.
_ABSENT = msgspec.Raw()


class _Slices(msgspec.Struct, frozen=True, rename="camel", gc=False):
    message: msgspec.Raw = _ABSENT
    data: msgspec.Raw = _ABSENT


# Other programs may write any type. What takes longer to decode is left to `parse`.
_Scalar = str | int | bool | None


class LineEnvelope(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The outer fields of a line."""

    type: _Scalar = None
    id: _Scalar = None
    timestamp: _Scalar = None
    custom_type: _Scalar = None
    message: msgspec.Raw = _ABSENT


class MessageHead(msgspec.Struct, frozen=True, gc=False):
    """The fields of a message by which a page is made."""

    role: _Scalar = None
    timestamp: _Scalar = None


class Record(msgspec.Struct, frozen=True, gc=False):
    """A parsed line. `raw` is the line without its newline; `message` and `data` are slices of it, as bytes.

    In the slices lone surrogates are replaced by U+FFFD, so that every decoder accepts them; their length is unchanged.
    `decoded` is the decoded message of an assistant, kept for its usage, None where it was not decoded.

    The others are of transcripts of other programs. There `message` is not a slice but our form of the message. Lines
    with the same `message_id` are parts of one message (None: the line is a whole one). `is_typed`: a person typed it.
    `marker` is what happened at this place of the conversation; a rewind drops the messages from that with the id
    `rewind_to` on, all without one. `hidden` is a message that is shown only on request.

    Only where a dialect `lists` its messages: `more` are further messages in the line; with `replaces` the messages of
    the line are the whole list. What `is_echo` is shown unless its message is in the list already, what `is_addition`
    has an effect only if it is. A record with a `part_key` is the newest form of that part of its message.
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
    message_id: str | None = None
    facts: LineFacts | None = None
    is_typed: bool = False
    marker: Marker | None = None
    rewind_to: str | None = None
    hidden: bytes | None = None
    more: tuple[Record, ...] = ()
    replaces: bool = False
    is_echo: bool = False
    part_key: str | None = None
    is_addition: bool = False

    @property
    def is_message(self) -> bool:
        """Whether the line counts as a message: type `message`, an object in `message`, not of the hidden role."""
        return self.message is not None

    @property
    def shown_id(self) -> str | None:
        """The id under which clients know the message: that of the message, else that of the line."""
        return self.message_id if self.message_id is not None else self.id

    def body(self) -> dict[str, Any]:
        """The whole line as a dict."""
        return lax.decode_dict(self.raw)


_decode_slices = msgspec.json.Decoder(_Slices).decode
_decode_block = msgspec.json.Decoder(LineEnvelope).decode_lines
_decode_head = msgspec.json.Decoder(MessageHead).decode
_encode = msgspec.json.Encoder().encode


def parse(line: bytes) -> Record:
    """The record in `line` (without newline). BadLine where it is no JSON object, or `find_excess` refuses it."""
    if (excess := find_excess(line)) is not None:
        raise BadLine(excess.reason)
    # Decoded as a whole, although little of it is used, so that later readers meet no number out of range and no lone
    # surrogate. It takes a microsecond, less than any search for them in the bytes.
    text = line
    try:
        body = decode_any(line)
    except (msgspec.DecodeError, ValueError, RecursionError):
        text = mend_surrogates(line)
        body = lax.decode(text) if text != line else None
        if body is None:
            raise BadLine(_bad_reason(line)) from None
    if type(body) is not dict:
        raise BadLine("not an object")
    kind, own_id, iso = body.get("type"), _text(body.get("id")), body.get("timestamp")
    if kind == "message":
        message = body.get("message")
        if type(message) is dict:
            stamp, role = _timestamp_ms(iso, message.get("timestamp")), _text(message.get("role"))
            slice_ = bytes(_decode_slices(text).message)
            if role == HIDDEN_ROLE:
                return Record("message", line, own_id, stamp, hidden=slice_)
            return Record(
                "message", line, own_id, stamp, role, slice_, decoded=message if role == "assistant" else None
            )
    elif kind == "custom":
        custom = _text(body.get("customType"))
        if custom in _CUSTOM_TYPES_OF_FACTS:
            _require_few_values(custom, line)
        if custom is not None:
            data = bytes(_decode_slices(text).data)
            return Record(
                type="custom", raw=line, id=own_id, timestamp_ms=_timestamp_ms(iso, None), custom_type=custom, data=data
            )
    kind = _text(kind) or ""
    if kind in _TYPES_OF_FACTS:
        _require_few_values(kind, line)
    return Record(kind, line, own_id, _timestamp_ms(iso, None), marker=MARKERS.get(kind))


def _require_few_values(kind: str | None, line: bytes) -> None:
    if has_more_values(line, MAX_FACTS):
        raise BadLine(f"a {kind} record of more than {MAX_FACTS} values")


def decode_block(block: bytes | memoryview) -> list[LineEnvelope]:
    """The outer fields of lines that were all parsed before, decoded together, with slices of the block.

    With `message_heads` a quarter of the time of `parse`. An empty list where some line is no JSON now, or has fields
    that only `parse` reads.
    """
    try:
        return _decode_block(block)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return []


def message_heads(envelopes: list[LineEnvelope]) -> list[MessageHead | None] | None:
    """Role and time of the message in each of these lines, None where it counts as none. None where only `parse` can
    tell.
    """
    try:
        return [
            head if one.type == "message" and (head := _decode_head(one.message)).role != HIDDEN_ROLE else None
            for one in envelopes
        ]
    except (msgspec.DecodeError, ValueError, RecursionError):
        return None


def _shown_stamp(envelope: LineEnvelope, head: MessageHead) -> str | None:
    stamp = _timestamp_ms(envelope.timestamp, head.timestamp)
    return iso_ms(stamp) if stamp is not None else None


def shown_stamps(messages: list[tuple[LineEnvelope, MessageHead]]) -> list[str | None]:
    """The times of such messages, as ISO 8601."""
    found: list[Any] = [envelope.timestamp for envelope, _ in messages]
    if are_iso_ms(found):
        return found
    if len(messages) < _SPLIT_STAMPS:
        return [_shown_stamp(*message) for message in messages]
    # Some are not as this program writes them: of the others it is found out for many at once nevertheless.
    middle = len(messages) // 2
    return shown_stamps(messages[:middle]) + shown_stamps(messages[middle:])


def marker_record(envelope: LineEnvelope, line: bytes) -> Record | None:
    """The record of one of these lines if it is a marker."""
    kind = envelope.type
    if type(kind) is not str or kind not in MARKERS:
        return None
    stamp = _timestamp_ms(envelope.timestamp, None)
    return Record(kind, line, _text(envelope.id), stamp, marker=MARKERS[kind])


def _timestamp_ms(iso: object, ms: object) -> int | None:
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


def _bad_reason(line: bytes) -> str:
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
    except ValueError:  # a lone surrogate in the id of another program
        return b"null"


# Of an id as JSON. Programs write 8 to 40.
MAX_PARENT_BYTES = 1024


class RecordDraft(msgspec.Struct, frozen=True, gc=False):
    """A record without its parent id, which is known only when it is written."""

    id: str
    head: bytes
    tail: bytes

    @property
    def max_bytes(self) -> int:
        """The maximum length of the line without its newline."""
        return len(self.head) + len(self.tail) + 17  # the daemon's ids are 16 characters in quotes; less the newline

    def line(self, parent_id: str | None, record_limit: int | None = None) -> bytes:
        """The line with the parent id, newline included.

        The id of another program's record may be of any length: where it is longer than MAX_PARENT_BYTES, or would make
        the line longer than `record_limit`, the line gets no parent id.
        """
        parent = _id_text(parent_id)
        line = b"".join((self.head, parent, self.tail))
        if len(parent) > MAX_PARENT_BYTES or (record_limit is not None and len(line) - 1 > record_limit):
            return b"".join((self.head, b"null", self.tail))
        return line


def message_draft(record_id: str, now_ms: int, message: msgspec.Raw | dict[str, Any]) -> RecordDraft:
    """A draft of a `message` record. A Raw message keeps its bytes, except that line breaks become spaces."""
    body = bytes(message).replace(b"\n", b" ") if isinstance(message, msgspec.Raw) else _encode(message)
    after = b',"timestamp":"%b","message":%b}\n' % (iso_ms(now_ms).encode(), body)
    return RecordDraft(record_id, b'{"type":"message","id":%b,"parentId":' % _encode(record_id), after)


def custom_draft(record_id: str, now_ms: int, custom_type: str, data: dict[str, Any] | msgspec.Raw) -> RecordDraft:
    """A draft of a `custom` record."""
    head = {"type": "custom", "customType": custom_type, "data": data, "id": record_id}
    return RecordDraft(
        id=record_id,
        head=_encode(head)[:-1] + b',"parentId":',
        tail=b',"timestamp":%b}\n' % _encode(iso_ms(now_ms)),
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
    attends: str | None = None,
) -> bytes:
    """The first line of a transcript, newline included. Source: store.md, "A transcript".

    Without a key it is a header as pi writes it, for a file that is adopted later.
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
    if attends is not None:
        header["attends"] = attends
    return _encode(header) + b"\n"
