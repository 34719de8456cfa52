"""Find old archived transcripts and remove them for good. Live sessions are never touched.

Visibility and confirmation are the caller's. Source: store.md, "Retention".
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator

import msgspec

from sessiond.errors import StorageError, pluralize, reason_of
from sessiond.store import dirfd, folding
from sessiond.store.catalog import Folder, Session
from sessiond.store.store import SessionStore


class PrunableTranscript(msgspec.Struct, frozen=True):
    """An archived transcript that may be removed. `age_ms` is the time since the last write to it."""

    session: Session
    age_ms: int


def find_old(sessions: Iterable[Session], older_than_ms: int, now_ms: int) -> list[PrunableTranscript]:
    """The archived transcripts older than that, the oldest first."""
    found: list[PrunableTranscript] = []
    for session in sessions:
        # A superseded transcript that could not be moved to the archive is not removed.
        if not session.folder.archived:
            continue
        entry = session.entry
        age_ms = now_ms - max(entry.updated_at, entry.file.mtime_ns // 1_000_000)
        if age_ms > older_than_ms:
            found.append(PrunableTranscript(session, age_ms))
    return sorted(found, key=lambda one: -one.age_ms)


class Removal:
    """Removes transcripts for good. When `steps` is exhausted, `removed` and `kept` (with reasons) hold the result."""

    def __init__(self, chosen: Iterable[PrunableTranscript]) -> None:
        self._chosen = list(chosen)
        self.removed: list[Session] = []
        self.kept: list[tuple[Session, str]] = []

    def steps(self) -> Iterator[None]:
        """Remove the transcripts; runs in worker threads."""
        folders: dict[int, Folder] = {}
        for one in self._chosen:
            session = one.session
            reason = _refusal(session)
            if reason is None:
                try:
                    os.unlink(session.file_name, dir_fd=session.folder.fd)
                except OSError as error:
                    reason = reason_of(error)
            if reason is None:
                folders[session.folder.fd] = session.folder
                self.removed.append(session)
            else:
                self.kept.append((session, reason))
            yield
        for fd in folders:
            try:
                dirfd.fsync_dir(fd)
            except OSError as error:
                reason = reason_of(error)
                removed = pluralize(len(self.removed), "transcript")
                raise StorageError(
                    f"removed {removed}, but the folder could not be synced: {reason}; after a power cut what was"
                    " removed may be back. Check the disk, then prune again",
                    removed=len(self.removed),
                    reason=reason,
                ) from None


def _refusal(session: Session) -> str | None:
    """Why the file must not be removed; None if it may: it has to be unchanged since it was selected."""
    if session.entry.runs:
        return "a run in it has no end"
    try:
        status = os.stat(session.file_name, dir_fd=session.folder.fd, follow_symlinks=False)
    except OSError as error:
        return reason_of(error)
    if not stat.S_ISREG(status.st_mode):
        return "not a regular file"
    if not folding.is_current(session.entry.file, status, session.dialect):
        return "it was written to since it was last read"
    return None


def forget(store: SessionStore, removed: Iterable[Session]) -> None:
    """Remove the sessions from the catalog."""
    for session in removed:
        store.catalog.remove(session)
        session.folder.dirty = True
