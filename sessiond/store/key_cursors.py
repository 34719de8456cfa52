"""Make cursors for the transcripts of a key, and find out to which session a cursor belongs and whether it is valid.

Knows the catalog, and reads the few bytes of a file before an offset. Does not know callers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from sessiond.store import cursor as cursor_text
from sessiond.store import dirfd, layout, transcript
from sessiond.store.catalog import Catalog, Session
from sessiond.store.cursor import Cursors, Position
from sessiond.store.refusals import read_error


class CursorPlaces:
    """Makes cursors for the sessions of a catalog, and finds the places of cursors."""

    def __init__(self, secret: bytes, catalog: Catalog) -> None:
        self._cursors = Cursors(secret)
        self._catalog = catalog

    def sign(self, text: str) -> str:
        """A keyed hash of a text: cursors of another kind are signed with it."""
        return self._cursors.sign(text)

    def cursor(self, session: Session, offset: int, seq: int, check: int | None = None) -> str:
        """The cursor for `offset`, the end of a line. `check` is `transcript.checksum` there, read if it is None."""
        facts = session.entry.file
        if check is None and offset in (0, facts.folded_to):
            check = facts.check if offset else 0
        if check is None:
            try:
                _, check = _check_before(session, offset)
            except OSError:
                check = 0  # the cursor is then refused as stale when it is used
        return self._cursors.text(session.session_id, facts.inode, check, Position(offset, seq))

    def cursors(self, session: Session, places: Iterable[tuple[int, int, int]]) -> list[str]:
        """The cursors for ends of lines: `(offset, seq, check)` each, as `cursor` takes them."""
        return self._cursors.texts(session.session_id, session.entry.file.inode, places)

    def position(self, session: Session, text: str) -> Position:
        """The position of a cursor. InvalidParams where it is another session's, or the file was rewritten since."""
        found = cursor_text.parse(text, field="$.cursor")
        if not self._belongs_to(found, session) or not self._is_still_valid(found, session):
            raise cursor_text.stale_cursor_error("$.cursor")
        return found.position

    def locate(self, session: Session, text: str, field: str = "$.cursor") -> tuple[Session, Position | None]:
        """The session of the key, current or earlier, to which a cursor belongs, and the position; None where the file
        was rewritten since. InvalidParams where it belongs to no session of the key.
        """
        if text == cursor_text.START:
            return self._catalog.by_key.get(session.key, session), Position(0, 0)
        found = cursor_text.parse(text, field=field)
        live = self._catalog.by_key.get(session.key, session)
        for candidate in (live, *reversed(self._catalog.older(session.key))):
            if self._belongs_to(found, candidate):
                return candidate, found.position if self._is_still_valid(found, candidate) else None
        raise cursor_text.stale_cursor_error(field)

    def _belongs_to(self, cursor: cursor_text.Cursor, session: Session) -> bool:
        return self._cursors.belongs_to(cursor, session.session_id) or self._cursors.is_from_release_0_1(
            cursor, session.session_id, session.entry.file.inode
        )

    def _is_still_valid(self, cursor: cursor_text.Cursor, session: Session) -> bool:
        facts = session.entry.file
        if cursor.offset > facts.folded_to:
            return False
        if cursor.offset == facts.folded_to and cursor.mark:
            return cursor_text.matches_file(cursor, facts.inode, facts.check)
        try:
            starts_line, check = _check_before(session, cursor.offset)
        except OSError as error:
            raise read_error(error, session) from None
        return starts_line and (not cursor.mark or cursor_text.matches_file(cursor, facts.inode, check))


def _check_before(session: Session, offset: int) -> tuple[bool, int]:
    """Whether a line begins at the offset, and the checksum there. Takes 20 us, on the event loop."""
    with dirfd.closing(_open(session)) as fd:
        return transcript.is_line_start(fd, offset), transcript.checksum(fd, offset)


def _open(session: Session) -> int:
    folder_fd, name = session.folder.fd, session.file_name
    try:
        return session.folder.open_file(name)
    except FileNotFoundError:
        if session.folder.archived or session.folder.source is not None:
            raise
        # A reset is moving it to the archive; `session.folder` changes only when the move is on disk.
        with dirfd.closing(dirfd.open_dir(folder_fd, layout.ARCHIVE)) as archive_fd:
            return dirfd.open_file(archive_fd, name, os.O_RDONLY)
