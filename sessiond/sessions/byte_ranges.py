"""Ranges of the bytes of one of our transcripts, as they stand in its file, from any byte on.

For whoever keeps exact copies elsewhere. A place is kept as a cursor, `bytes:<offset>-<tag>`: the tag is a keyed hash
of the session, its file, when the file was last found rewritten, and the bytes right before the offset. So it says
whether what is before it is what it was, also within a line. Knows the store. Does not know who asks.
"""

from __future__ import annotations

import os
import re
from hashlib import blake2b

import msgspec

from sessiond.errors import InvalidParams, StorageError
from sessiond.model.entry import FileFacts
from sessiond.store import folding
from sessiond.store.catalog import Session
from sessiond.store.cursor import stale_cursor_error
from sessiond.store.store import SessionStore

_SHAPE = re.compile(r"bytes:(0|[1-9][0-9]{0,17})-([0-9a-f]{24})")
# So many bytes before a place are compared: one more page of memory costs nothing beside a range of many, and records
# have their ids and times in them.
CHECKED = 4096


class ByteRange(msgspec.Struct, frozen=True):
    """The bytes from `begin` to `end`. `size`: so many bytes were folded. `cursor` is the place `end`."""

    begin: int
    end: int
    size: int
    cursor: str
    data: bytes


class _Changed(Exception):
    """The file is not the one that was folded."""


async def read_range(
    store: SessionStore, session: Session, cursor: str | None, max_bytes: int, at: int | None = None
) -> ByteRange:
    """At most `max_bytes` from a place on, None: from the start; nothing that was not folded yet. With `at` from that
    byte on, wherever the place is, or from the end where the file is shorter.

    InvalidParams for a cursor before which the file is not what it was; StorageError where the file cannot be read, or
    was changed a moment ago.
    """
    known, tag = _parse(cursor) if cursor is not None else (0, None)
    facts = session.entry.file
    begin = known if at is None else min(at, facts.folded_to)

    def read(fd: int) -> ByteRange:
        end = max(begin, min(facts.folded_to, begin + max_bytes))
        first = max(0, begin - CHECKED)
        # One read: what is compared and what is answered are of one moment.
        found = os.pread(fd, end - first, first)
        before = found[: begin - first]
        if begin != known:
            before = os.pread(fd, min(known, CHECKED), max(0, known - CHECKED))
        if tag is not None and (len(found) < end - first or tag != place(known, before)):
            raise stale_cursor_error("$.cursor")
        if not folding.continues(fd, facts, os.fstat(fd)):
            raise _Changed
        checked = found[max(0, len(found) - CHECKED) :]
        text = f"bytes:{end}-{place(end, checked)}"
        return ByteRange(begin, end, max(end, facts.folded_to), text, found[begin - first :])

    def place(offset: int, before: bytes) -> str:
        return _tag(store, session.session_id, facts, offset, before)

    try:
        found: ByteRange = await store.read(session, read)
        return found
    except _Changed:
        store.read_new(session)
        if cursor is not None:
            raise stale_cursor_error("$.cursor") from None
        raise StorageError(
            f"the transcript of {session.key} was replaced a moment ago and is not read yet; try again"
        ) from None


def _tag(store: SessionStore, session_id: str, facts: FileFacts, offset: int, before: bytes) -> str:
    seen = blake2b(before, digest_size=16).hexdigest()
    return store.sign(f"bytes\0{session_id}\0{facts.inode}\0{facts.rewritten_at}\0{offset}\0{seen}")


def _parse(text: str) -> tuple[int, str]:
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise InvalidParams(
            "$.cursor is not a cursor of this method; use `cursor` of an earlier answer as it is, or none",
            field="$.cursor",
            code="cursor_invalid",
        )
    return int(shape[1]), shape[2]
