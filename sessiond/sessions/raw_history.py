"""Pages of the lines of a transcript as they stand in its file, newest page first: every record, of any type.

Knows the store. Does not know who asks: visibility is checked before, redaction comes after.
"""

from __future__ import annotations

from functools import partial

import msgspec

from sessiond.clock import iso_ms
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.record import BadLine
from sessiond.sessions.history import History, MessagePosition, omit_large
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.cursor import stale_cursor_error
from sessiond.store.raw_lines import RawPage, raw_page_backwards
from sessiond.store.store import SessionStore

# What cursors of lines begin with. Their number is that of lines, not of messages, so they serve here only.
LINES = "lines:"


async def page(
    store: SessionStore, session: Session, *, limit: int, max_bytes: int, before: str | None = None
) -> History:
    """The newest `limit` lines of at most `max_bytes` together; with `before`, the newest before that cursor.

    `seq` is the number of the line in the file. The cursors are those of lines, except that a page from the end has the
    cursor from which the session is followed.
    """
    end, end_number = session.entry.file.folded_to, None
    cursor = store.cursor(session, end, session.entry.message_count)
    if before is not None:
        place = store.position(session, before.removeprefix(LINES))
        end, end_number = place.offset, place.seq if before.startswith(LINES) else None
        cursor = before

    def read(fd: int) -> tuple[RawPage, list[int]]:
        if not transcript.is_line_start(fd, end):
            raise stale_cursor_error("$.cursor")
        found = raw_page_backwards(
            fd,
            end,
            end_number,
            limit=limit,
            max_bytes=max_bytes,
            record_limit=store.record_limit,
            shorten=omit_large,
            describe=partial(_describe, session.dialect),
        )
        return found, [transcript.checksum(fd, line.end) for line in found.lines]

    got, checks = await store.read(session, read)
    return History(
        messages=[msgspec.Raw(line.data) for line in got.lines],
        positions=[
            MessagePosition(
                line.id, line.number, f"{LINES}{store.cursor(session, line.end, line.number, check)}", line.stamp
            )
            for line, check in zip(got.lines, checks, strict=True)
        ],
        has_more=got.has_more,
        next_cursor=f"{LINES}{store.cursor(session, got.start, got.start_number)}" if got.has_more else None,
        cursor=cursor,
        skipped=got.skipped,
        bytes=got.bytes,
    )


def _describe(dialect: TranscriptDialect, line: bytes) -> tuple[str | None, str | None]:
    """The id and the time of the record in a line."""
    try:
        record = dialect.parse(line)
    except BadLine:
        return None, None
    return record.id, iso_ms(record.timestamp_ms) if record.timestamp_ms is not None else None
