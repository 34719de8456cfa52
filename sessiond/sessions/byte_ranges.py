"""Ranges of the bytes of one of our transcripts, as they stand in its file, from any byte on.

For whoever keeps exact copies elsewhere. A place is kept as a cursor, `bytes:<offset>-<tag>`: the tag is a keyed hash
of the session, its file, when the file was last found rewritten, and the bytes right before the offset. So it says
whether what is before it is what it was, also within a line. Knows the store. Does not know who asks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal

import msgspec

from sessiond.errors import InvalidParams, StorageError
from sessiond.store import dirfd, folding
from sessiond.store.catalog import Session
from sessiond.store.cursor import stale_cursor_error
from sessiond.store.folder import Folder
from sessiond.store.store import SessionStore

_SHAPE = re.compile(r"bytes:(0|[1-9][0-9]{0,17})-([0-9a-f]{24})")
# So many bytes before a place are compared: one more page of memory costs nothing beside a range of many, and records
# have their ids and times in them.
CHECKED = 4096

NotRead = Literal["stale", "busy"]


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
    plan = _Plan(store, session, cursor, max_bytes, at)
    try:
        found: ByteRange = await store.read(session, plan.read)
        return found
    except _Changed:
        store.read_new(session)
        if cursor is not None:
            raise stale_cursor_error("$.cursor") from None
        raise StorageError(
            f"the transcript of {session.key} was replaced a moment ago and is not read yet; try again"
        ) from None


async def read_beginnings(
    store: SessionStore, wanted: Sequence[tuple[Session, str | None]], max_bytes: int
) -> list[ByteRange | NotRead]:
    """At most the first `max_bytes` of each transcript, all read in one thread; `stale` for a cursor that is none, or
    before which the file is not what it was, `busy` for a file that cannot be read just now.
    """

    def plan_for(session: Session, cursor: str | None) -> _Plan | None:
        try:
            return _Plan(store, session, cursor, max_bytes, 0)
        except InvalidParams:
            return None

    plans = [(plan_for(*one), one[0].folder, one[0].file_name) for one in wanted]

    def read(plan: _Plan | None, folder: Folder, name: str) -> ByteRange | NotRead:
        if plan is None:
            return "stale"
        try:
            with dirfd.closing(store.committer.files.retry_with_room(lambda: folder.open_file(name))) as fd:
                return plan.read(fd)
        except InvalidParams:
            return "stale"
        except _Changed:
            return "busy" if plan.tag is None else "stale"
        except OSError:
            return "busy"

    found: list[ByteRange | NotRead] = await store.run_sync(lambda: [read(*plan) for plan in plans])
    for (session, _), one in zip(wanted, found, strict=True):
        if isinstance(one, str):
            store.read_new(session)
    return found


class _Plan:
    """What to read of a transcript, as of now. `read` is for a thread: InvalidParams for a stale cursor, _Changed."""

    __slots__ = ("_at", "_known", "_max_bytes", "_session_id", "_sign", "facts", "tag")

    def __init__(
        self, store: SessionStore, session: Session, cursor: str | None, max_bytes: int, at: int | None
    ) -> None:
        self._known = 0
        self.tag: str | None = None
        if cursor is not None:
            self._known, self.tag = _parse(cursor)
        self.facts, self._sign, self._session_id = session.entry.file, store.sign, session.session_id
        self._at = self._known if at is None else min(at, self.facts.folded_to)
        self._max_bytes = max_bytes

    def read(self, fd: int) -> ByteRange:
        begin, facts = self._at, self.facts
        end = max(begin, min(facts.folded_to, begin + self._max_bytes))
        first = max(0, begin - CHECKED)
        # One read: what is compared and what is answered are of one moment.
        found = os.pread(fd, end - first, first)
        before = found[: begin - first]
        if begin != self._known:
            before = os.pread(fd, min(self._known, CHECKED), max(0, self._known - CHECKED))
        if self.tag is not None and (len(found) < end - first or self.tag != self._place(self._known, before)):
            raise stale_cursor_error("$.cursor")
        if not folding.continues(fd, facts, os.fstat(fd)):
            raise _Changed
        checked = found[max(0, len(found) - CHECKED) :]
        text = f"bytes:{end}-{self._place(end, checked)}"
        return ByteRange(begin, end, max(end, facts.folded_to), text, found[begin - first :])

    def _place(self, offset: int, before: bytes) -> str:
        seen, facts = blake2b(before, digest_size=16).hexdigest(), self.facts
        return self._sign(f"bytes\0{self._session_id}\0{facts.inode}\0{facts.rewritten_at}\0{offset}\0{seen}")


def _parse(text: str) -> tuple[int, str]:
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise InvalidParams(
            "$.cursor is not a cursor of this method; use `cursor` of an earlier answer as it is, or none",
            field="$.cursor",
            code="cursor_invalid",
        )
    return int(shape[1]), shape[2]
