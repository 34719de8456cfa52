"""Join lines that are parts of one message, in either direction. Only for dialects that say so (`joins`).

Which lines belong together is decided by `model.foreign_fold`, from the file alone, so that both directions agree: the
number of a message is that of its first part, tool results may lie between its parts, and each part makes the message
longer. Synchronous. Knows lines and offsets. Does not know sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec
from msgspec.structs import replace

from sessiond.model import lax
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.foreign_fold import MAX_SPAN_BYTES, is_later_part, open_after
from sessiond.model.record import TOOL_ROLES, Record
from sessiond.model.source_facts import OpenMessage
from sessiond.store import transcript
from sessiond.store.transcript import Line

# While the beginning of a message is looked for, so many bytes of lines are kept; others are read a second time.
_MAX_HELD_BYTES = 16 * 2**20
# So many lines on either side are looked at to see that a message has one line only.
_LOOKED_AT = 8
# What a record takes besides its text.
_RECORD_BYTES = 800

_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode


class JoinedParts:
    """The parts of one message so far."""

    __slots__ = ("_contents", "_fields", "_last")

    def __init__(self) -> None:
        self._contents: list[bytes] = []
        self._fields: dict[str, msgspec.Raw] = {}
        self._last: Record | None = None

    def add(self, record: Record) -> None:
        """Add the next part: its content goes behind that of the others, its other fields replace theirs."""
        fields = _fields_of(record.message or b"")
        content = _inner_content(fields.get("content"))
        if content:
            self._contents.append(content)
        self._fields |= fields
        self._last = record

    def record(self) -> Record:
        """The message as one record, with the time of its last part."""
        last = self._last
        assert last is not None
        content = msgspec.Raw(b"[%b]" % b",".join(self._contents))
        return replace(last, message=_encode({**self._fields, "content": content}))


class ForwardJoiner:
    """Gives each line of a message as the message so far, for lines that are read in their order.

    `place` and `count` say where reading begins and how many messages stand before. `opened` is the message that is
    open there; where it is not known, it is looked for in the file when a line may belong to it.
    """

    def __init__(
        self,
        fd: int,
        record_limit: int,
        dialect: TranscriptDialect,
        *,
        place: int,
        count: int,
        opened: OpenMessage | None = None,
        is_known: bool,
    ) -> None:
        self._fd, self._limit, self._dialect = fd, record_limit, dialect
        self._start = None if is_known else (place, count)
        self._opened, self._parts = opened, None if opened is not None else JoinedParts()
        self.count = count

    def join(self, line: Line) -> tuple[Line, int]:
        """The line with the whole message so far, and the message's number if the line is a later part of it, else 0.

        `count` is then the number of messages up to the line's end.
        """
        record = line.record
        if record is None or record.message is None:
            return line, 0
        if record.role in TOOL_ROLES:
            self.count += 1
            return line, 0
        if self._start is not None:
            if record.message_id is not None:
                self._opened = find_open_message(self._fd, *self._start, self._limit, self._dialect)
                self._parts = None
            self._start = None
        before = self._opened
        self._opened = open_after(before, record, line.offset, self.count)
        if before is None or not is_later_part(before, record, line.offset):
            self.count += 1
            self._parts = JoinedParts()
            if self._opened is not None:
                self._parts.add(record)
            return line, 0
        parts = self._parts if self._parts is not None else self._read_parts(before, line.offset)
        parts.add(record)
        self._parts = parts
        return Line(line.offset, line.end, parts.record()), before.seq

    def _read_parts(self, opened: OpenMessage, end: int) -> JoinedParts:
        parts = JoinedParts()
        for line in transcript.read_lines(self._fd, opened.begin, self._limit, dialect=self._dialect, stop=end):
            record = line.record
            if record is not None and _is_joinable(record) and record.message_id == opened.id:
                parts.add(record)
        return parts


def is_whole_message(
    data: bytes, begin: int, end: int, message_id: str, *, record_limit: int, dialect: TranscriptDialect
) -> bool:
    """Whether the line from `begin` to `end` of `data` (whole lines) is all of the message of that id, as a few lines
    around it tell. False where they do not tell.
    """
    around = _lines_before(data, begin), _lines_behind(data, end)
    return all(_is_closed(lines, message_id, record_limit, dialect) for lines in around)


def _is_closed(lines: Iterator[bytes], message_id: str, record_limit: int, dialect: TranscriptDialect) -> bool:
    """Whether one of the next lines is a part of another message, and none before it is a part of this one."""
    for line in islice(lines, _LOOKED_AT):
        made = transcript.line_of(0, line, 0, record_limit, dialect)
        if made is not None and made.record is not None and _is_joinable(made.record):
            return made.record.message_id != message_id
    return False


def _lines_before(data: bytes, end: int) -> Iterator[bytes]:
    while end > 0:
        begin = data.rfind(b"\n", 0, end - 1) + 1
        yield data[begin : end - 1]
        end = begin


def _lines_behind(data: bytes, end: int) -> Iterator[bytes]:
    while (begin := end + 1) < len(data):
        end = data.find(b"\n", begin)
        end = end if end >= 0 else len(data)
        yield data[begin:end]


def find_open_message(
    fd: int, end: int, count: int, record_limit: int, dialect: TranscriptDialect
) -> OpenMessage | None:
    """The message to which lines from `end` on may belong; `count` messages stand before `end`."""
    run: _Run | None = None
    for line in transcript.read_backwards(fd, end, record_limit, dialect=dialect):
        if run is not None and run.covers(line):
            run.hold(line)
            continue
        if run is not None:
            break
        if end - line.offset > MAX_SPAN_BYTES:
            return None
        if line.record is not None and _is_joinable(line.record):
            if line.record.message_id is None:
                return None
            run = _Run(line.record.message_id)
            run.hold(line)
    if run is None:
        return None
    opened, behind = None, 0
    for line in reversed(run.held):
        record = line.record
        if record is None or record.message is None:
            continue
        is_new = not is_later_part(opened, record, line.offset)
        opened = open_after(opened, record, line.offset, behind)
        behind += is_new
    if opened is None:
        return None
    # The run does not have the tool results between its newest part and `end`.
    lines = transcript.read_lines(fd, run.held[0].end, record_limit, dialect=dialect, stop=end)
    later = sum(line.record is not None and line.record.message is not None for line in lines)
    return replace(opened, seq=count - later - behind + opened.seq)


def read_joined_backwards(
    fd: int, end: int, record_limit: int, *, dialect: TranscriptDialect, stop: int, block: int = transcript.BLOCK
) -> Iterator[Line]:
    """As `transcript.read_backwards`, with each message as one line where its first part stands.

    Parts between `end` and `stop` of a message that begins before `end` belong to it. The end of a joined line is that
    of the last part before another message, so that no message before it has a higher number.
    """
    run: _Run | None = None
    ahead = (end, stop) if stop > end else None
    for line in transcript.read_backwards(fd, end, record_limit, dialect=dialect, block=block):
        if run is not None and run.covers(line):
            run.hold(line)
            continue
        if run is not None:
            yield from run.messages(fd, record_limit, dialect, ahead)
            run, ahead = None, None
        record = line.record
        if record is None or not _is_joinable(record):
            yield line
        elif record.message_id is None:
            ahead = None
            yield line
        else:
            run = _Run(record.message_id)
            run.hold(line)
    if run is not None:
        yield from run.messages(fd, record_limit, dialect, ahead)


class _Run:
    """Lines read backwards, from the last part with a message id on to before its first one. `held` is newest first."""

    def __init__(self, message_id: str) -> None:
        self._id = message_id
        self._first = 0
        self._held_bytes = 0
        self._bare = Record("", b"")
        self.held: list[Line] = []

    def covers(self, line: Line) -> bool:
        """Whether a line before the others can stand between parts of the message, or be one."""
        record = line.record
        closes = record is not None and _is_joinable(record) and record.message_id != self._id
        return not closes and self._first - line.offset <= MAX_SPAN_BYTES

    def hold(self, line: Line) -> None:
        """Add the next older line."""
        record = line.record
        if record is not None:
            self._held_bytes += line.end - line.offset + _RECORD_BYTES
            if self._held_bytes > _MAX_HELD_BYTES:
                self._bare = _without_text(record, self._bare)
                line = Line(line.offset, line.end, self._bare)
            if _is_joinable(record):
                self._first = line.offset
        self.held.append(line)

    def messages(
        self, fd: int, record_limit: int, dialect: TranscriptDialect, ahead: tuple[int, int] | None
    ) -> Iterator[Line]:
        """The held lines, newest first, with the parts joined."""
        if len(self.held) == 1 and ahead is None:
            yield _restore(fd, self.held[0], dialect)
            return
        groups, parts = self._group(fd, record_limit, dialect, ahead)
        for line in self.held:
            group = groups.get(line.offset)
            if group is not None:
                yield group.line(fd, dialect)
            elif line.offset not in parts:
                yield _restore(fd, line, dialect)

    def _group(
        self, fd: int, record_limit: int, dialect: TranscriptDialect, ahead: tuple[int, int] | None
    ) -> tuple[dict[int, _Group], set[int]]:
        groups: dict[int, _Group] = {}
        parts: set[int] = set()
        group, opened = None, None
        for line in self._lines_and_ahead(fd, record_limit, dialect, ahead):
            record = line.record
            if record is None or record.message is None:
                continue
            if record.role in TOOL_ROLES:
                if group is not None:
                    group.is_interrupted = True
                continue
            is_later = is_later_part(opened, record, line.offset)
            if line.offset > self.held[0].offset and not is_later:
                break  # behind what was asked for begins another message
            opened = open_after(opened, record, line.offset, 0)
            if group is not None and is_later:
                group.add(line)
                parts.add(line.offset)
            else:
                group = groups[line.offset] = _Group(line)
        return groups, parts

    def _lines_and_ahead(
        self, fd: int, record_limit: int, dialect: TranscriptDialect, ahead: tuple[int, int] | None
    ) -> Iterator[Line]:
        yield from reversed(self.held)
        if ahead is None:
            return
        begin = self.held[0].end
        stop = min(ahead[1], begin + MAX_SPAN_BYTES + record_limit)
        yield from transcript.read_lines(fd, begin, record_limit, dialect=dialect, stop=stop)


class _Group:
    """The lines of one message, in their order."""

    def __init__(self, first: Line) -> None:
        self._lines = [first]
        self._end = first.end
        self.is_interrupted = False

    def add(self, line: Line) -> None:
        """Add the next part."""
        self._lines.append(line)
        if not self.is_interrupted:
            self._end = line.end

    def line(self, fd: int, dialect: TranscriptDialect) -> Line:
        """The message as one line."""
        first = _restore(fd, self._lines[0], dialect)
        if len(self._lines) == 1:
            return first
        joined = JoinedParts()
        for line in self._lines:
            record = _restore(fd, line, dialect).record
            if record is not None:
                joined.add(record)
        return Line(first.offset, self._end, joined.record())


def _is_joinable(record: Record) -> bool:
    return record.message is not None and record.role not in TOOL_ROLES


def _fields_of(message: bytes) -> dict[str, msgspec.Raw]:
    try:
        return _decode_fields(message)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return {}


def _inner_content(content: msgspec.Raw | None) -> bytes:
    """The blocks of a content, as they stand between the brackets."""
    raw = bytes(content).strip() if content is not None else b""
    if raw.startswith(b"["):
        return raw[1:-1].strip()
    text = lax.decode(raw) if raw else None
    return _encode({"type": "text", "text": text}) if isinstance(text, str) else b""


def _without_text(record: Record, like: Record) -> Record:
    """The record as far as joining needs it: `like` if that is the same, so that most lines share one."""
    message = b"{}" if record.message is not None else None
    if (record.role, message, record.message_id) == (like.role, like.message, like.message_id):
        return like
    return Record("", b"", role=record.role, message=message, message_id=record.message_id)


def _restore(fd: int, line: Line, dialect: TranscriptDialect) -> Line:
    """The line with the text that was not held."""
    if line.record is None or line.record.raw:
        return line
    size = line.end - line.offset
    lines = transcript.read_lines(fd, line.offset, size, dialect=dialect, stop=line.end)
    return next(lines, line)
