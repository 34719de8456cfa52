"""Take back lines of an append that a crash cut off: nobody was told that they are stored.

Knows sessions and their files. Does not know what the lines say.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from sessiond.errors import StorageError, reason_of
from sessiond.model.entry import Entry
from sessiond.store import dirfd, folding, transcript
from sessiond.store.adoption import is_own_key, keep_origin
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore


class StoredLine(NamedTuple):
    """A line of a transcript with its newline. Empty bytes: it is blank already, which the entry does not know yet."""

    offset: int
    data: bytes


async def take_back(store: SessionStore, session: Session, lines: Sequence[StoredLine]) -> None:
    """Blank the lines out, as after a failed append, and fold the file again: it never had them. StorageError.

    For recovery, when nobody follows the session yet.
    """
    async with store.committer.hold_exclusively(session):
        try:
            entry: Entry = await store.run_for_feed(_blank_out_and_fold, session, lines, store.record_limit)
        except OSError as error:
            raise StorageError(f"could not write to the transcript of {session.key}: {reason_of(error)}") from None
        if not is_own_key(entry.session_key, session.folder.agent_id):
            entry = replace(keep_origin(entry, session.entry), session_key=session.key)
        store.catalog.replace(session, entry)


def _blank_out_and_fold(session: Session, lines: Sequence[StoredLine], record_limit: int) -> Entry:
    with dirfd.closing(dirfd.open_file(session.folder.fd, session.file_name, os.O_RDWR | os.O_APPEND)) as fd:
        # From the end on, as in `transcript.blank_out`.
        for line in sorted(lines, reverse=True):
            if os.pread(fd, len(line.data), line.offset) == line.data:
                transcript.blank_out(fd, line.offset, len(line.data))
        os.fdatasync(fd)
        entry = folding.begin_anew(session.entry)
        return folding.advance_open(fd, entry, record_limit, dialect=session.dialect, collect=False).entry
