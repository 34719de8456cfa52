"""Cursors: a place in one transcript, as text that a client keeps and shows again.

`<offset>-<seq>-<tag>`: the byte offset behind a line, the number of messages up to there, and a keyed hash over both,
the session and the file. So a cursor of another session, a made-up one, and one from before the file was replaced are
told apart from a good one without reading the file. Knows no files.
"""

from __future__ import annotations

import re
from hashlib import blake2b

import msgspec

from sessiond.errors import InvalidParams

_SHAPE = re.compile(r"(0|[1-9][0-9]{0,17})-(0|[1-9][0-9]{0,17})-([0-9a-f]{12})")


class Position(msgspec.Struct, frozen=True, gc=False):
    """`offset` bytes and `seq` messages into a transcript."""

    offset: int
    seq: int


class Cursors:
    """Makes and reads cursors with the store's secret."""

    def __init__(self, secret: bytes) -> None:
        self._keyed = blake2b(key=secret[:64], digest_size=6)

    def _tag(self, session_id: str, inode: int, offset: int, seq: int) -> str:
        mac = self._keyed.copy()
        mac.update(f"{session_id}\0{inode}\0{offset}\0{seq}".encode())
        return mac.hexdigest()

    def text(self, session_id: str, inode: int, offset: int, seq: int) -> str:
        """The cursor for a place in that session's file."""
        return f"{offset}-{seq}-{self._tag(session_id, inode, offset, seq)}"

    def read(self, text: str, session_id: str, inode: int, size: int, *, field: str = "$.cursor") -> Position:
        """The place a cursor names. InvalidParams where it is not one of this session's file as it is now."""
        shape = _SHAPE.fullmatch(text)
        if shape is None:
            raise InvalidParams(
                f"{field} is not a cursor; use one from sessions_history or an event as it is",
                field=field,
                code="cursor_invalid",
            )
        offset, seq = int(shape[1]), int(shape[2])
        if shape[3] != self._tag(session_id, inode, offset, seq) or offset > size:
            raise stale(field)
        return Position(offset, seq)


def stale(field: str) -> InvalidParams:
    """What a caller is told of a cursor that names no place in the transcript any more."""
    return InvalidParams(
        f"{field} does not belong to this session's transcript as it is now (another session's, or from before it was"
        " reset or replaced); start again without a cursor",
        field=field,
        code="cursor_stale",
    )
