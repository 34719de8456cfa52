"""Cursors: a place in one transcript, as text that a client keeps and sends later.

`<offset>-<seq>-<mark><tag>`: the byte offset behind a line, the number of messages up to there, a checksum of the bytes
right before it, and a keyed hash over all of these and the session. So cursors of other sessions and forged ones are
recognized without reading the file, and those from before a rewrite of the file by reading the few bytes before the
offset. Knows no files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from sessiond.errors import InvalidParams

# A cursor of release 0.1 has twelve digits at the end: the tag without a mark.
_SHAPE = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})-((?:[0-9a-f]{8})?)([0-9a-f]{12})")
# The place before the first record of the key's current session, for clients that have had nothing.
START = "start"


class Position(msgspec.Struct, frozen=True, gc=False):
    """`offset` bytes and `seq` messages into a transcript."""

    offset: int
    seq: int


class Cursor(msgspec.Struct, frozen=True, gc=False):
    """A parsed cursor."""

    offset: int
    seq: int
    mark: str
    tag: str

    @property
    def position(self) -> Position:
        return Position(self.offset, self.seq)


class Cursors:
    """Makes and reads cursors with the store's secret."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = blake2b(key=secret[:64], digest_size=6)
        self._signing = blake2b(key=secret[:64], digest_size=12, person=b"signed text")
        # What `text` was asked for last, and its answer: appends that are committed together end at one place.
        self._last: tuple[object, str] = (None, "")

    def sign(self, text: str) -> str:
        """A keyed hash of a text that is no place in a transcript. UnicodeEncodeError for a lone surrogate in it."""
        mac = self._signing.copy()
        mac.update(text.encode())
        return mac.hexdigest()

    def text(self, session_id: str, inode: int, check: int, position: Position) -> str:
        """The cursor for a place in that session's file; `check` is `transcript.checksum` there."""
        asked = (session_id, inode, check, position.offset, position.seq)
        known, text = self._last
        if asked != known:
            [text] = self.texts(session_id, inode, [(position.offset, position.seq, check & 0xFFFFFFFF)])
            self._last = asked, text
        return text

    def texts(self, session_id: str, inode: int, places: Iterable[tuple[int, int, int]]) -> list[str]:
        """As `text`, for each of `(offset, seq, check)`, with checks of 32 bits."""
        folded = _fold_inode(inode)
        marked = [b"%d\0%d\0%08x" % (offset, seq, check ^ folded) for offset, seq, check in places]
        return self._add_tags(session_id, marked)

    def _add_tags(self, session_id: str, places: list[bytes]) -> list[str]:
        # In one loop, with the session hashed once and each number written once: a page of history has 200.
        keyed = self._keyed.copy()
        keyed.update(f"{session_id}\0".encode())
        copy = keyed.copy
        found = []
        for place in places:
            mac = copy()
            mac.update(place)
            found.append(place.decode() + mac.hexdigest())
        return "\n".join(found).replace("\0", "-").split("\n") if found else []

    def belongs_to(self, cursor: Cursor, session_id: str) -> bool:
        """Whether the cursor was made for this session, whatever its file contains now."""
        [text] = self._add_tags(session_id, [f"{cursor.offset}\0{cursor.seq}\0{cursor.mark}".encode()])
        return text.endswith(cursor.tag)

    def is_from_release_0_1(self, cursor: Cursor, session_id: str, inode: int) -> bool:
        """Whether release 0.1 made the cursor for this session's file. Inbox cursors may be years old."""
        mac = self._keyed.copy()
        mac.update(f"{session_id}\0{inode}\0{cursor.offset}\0{cursor.seq}".encode())
        return not cursor.mark and cursor.tag == mac.hexdigest()


def parse(text: str, *, field: str = "$.cursor") -> Cursor:
    """The parts of a cursor. InvalidParams where it has no cursor's shape."""
    shape = _SHAPE.fullmatch(text)
    if shape is None:
        raise InvalidParams(
            f"{field} is not a cursor; use one from sessions_history or an event as it is",
            field=field,
            code="cursor_invalid",
        )
    return Cursor(int(shape[1]), int(shape[2]), shape[3], shape[4])


def matches_file(cursor: Cursor, inode: int, check: int) -> bool:
    """Whether the file with this inode still has the same bytes before the cursor's offset."""
    return cursor.mark == _mark(inode, check)


def stale_cursor_error(field: str) -> InvalidParams:
    """The error for a cursor that is not a place in the transcript any more."""
    return InvalidParams(
        f"{field} does not belong to this session's transcript as it is now (another session's, or from before it was"
        " reset or replaced); start again without a cursor",
        field=field,
        code="cursor_stale",
    )


def _mark(inode: int, check: int) -> str:
    return f"{(check & 0xFFFFFFFF) ^ _fold_inode(inode):08x}"


def _fold_inode(inode: int) -> int:
    return (inode ^ (inode >> 32)) & 0xFFFFFFFF
