"""The spawn journal: notes in the store about attachments, written before their first byte is in a workspace.

A note `<id>` says that files are being written or removed; a note `<id>.<session id>` that they came with messages of
that session and are removed when it is archived. So all files in a workspace are claimed by a note or by a child's
record. A note is on disk when `begin` returns. It ends with a newline: one without is incomplete, and no file was
written after it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from sessiond.attachments.remove import FOLDERS
from sessiond.attachments.service import AttachmentService
from sessiond.errors import SessiondError, StorageError, reason_of
from sessiond.model import lax
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Spawn
from sessiond.model.keys import AGENT_ID, SESSION_ID, UUID
from sessiond.model.record import RUN
from sessiond.store import dirfd, layout, transcript
from sessiond.store.catalog import Session
from sessiond.store.dirfd import BadComponent
from sessiond.store.parallel_sync import sync_together
from sessiond.store.store import SessionStore

log = structlog.get_logger("sessiond.runs")

_REMOVING = "removing\n"


class SpawnJournal:
    """Files `spawning/<attachments id>`: in them the agent's id, and the session's where files come with a message."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def begin(self, agent_id: str, attachments_id: str, session_id: str = "", *, sync: bool = True) -> None:
        """Note that files with this id are about to be written or removed. StorageError.

        Without a `session_id` the id is also that of a child.
        """
        try:
            with dirfd.closing(self._folder()) as folder:
                fd = dirfd.open_file(folder, attachments_id, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                with dirfd.closing(fd):
                    dirfd.write_all(fd, f"{agent_id} {session_id}".strip().encode() + b"\n")
                    if sync:
                        sync_together((fd, folder))
        except OSError as error:
            sentence = f"the spawn could not be noted in the store: {reason_of(error)}; nothing was made"
            raise StorageError(sentence) from None

    def complete(self, attachments_id: str) -> None:
        """Remove the note: a record claims the files, or all of them are removed."""
        self._forget(attachments_id)

    def keep(self, attachments_id: str, session_id: str) -> None:
        """Change the note: the files belong to messages of that session."""
        # Not synced: after a power cut the first note is back, and the transcript tells whose files they are.
        with contextlib.suppress(OSError, BadComponent), dirfd.closing(self._folder()) as folder:
            dirfd.rename(folder, attachments_id, folder, f"{attachments_id}.{session_id}")

    def message_files(self, session_id: str | None = None) -> list[tuple[str, str]]:
        """`(attachments id, session id)` of the files that came with messages: all, or those of one session."""
        found = []
        for name in self._names():
            attachments_id, dot, its_session = name.partition(".")
            if dot and UUID.fullmatch(attachments_id) and SESSION_ID.fullmatch(its_session.lower()):
                found.append((attachments_id, its_session))
        return [pair for pair in found if session_id in (None, pair[1])]

    def begin_removal(self, attachments_id: str, session_id: str) -> bool:
        """Note that the files are about to be removed; whether an earlier removal was interrupted by a crash. If so,
        missing files were removed by it and not by somebody else.
        """
        name = f"{attachments_id}.{session_id}"
        if self._read(name).endswith(_REMOVING):
            return True
        # Not synced: after a power cut the removed files may be reported as missing, which does no harm.
        with contextlib.suppress(OSError, BadComponent), dirfd.closing(self._folder()) as folder:
            with dirfd.closing(dirfd.open_file(folder, name, os.O_WRONLY | os.O_APPEND)) as fd:
                dirfd.write_all(fd, _REMOVING.encode())
        return False

    def forget(self, attachments_id: str, session_id: str) -> None:
        """Remove the note of files that were removed."""
        self._forget(f"{attachments_id}.{session_id}")

    def has(self, attachments_id: str) -> bool:
        """Whether files with this id are being written or removed, or were at the time of a crash."""
        return attachments_id in self._names()

    def unfinished_notes(self) -> list[tuple[str, str, str]]:
        """`(agent id, attachments id, session id or "")` of the files that a crash left unfinished."""
        found: list[tuple[str, str, str]] = []
        for name in self._names():
            if UUID.fullmatch(name) is None:
                continue
            text, newline, _ = self._read(name).partition("\n")
            agent_id, _, session_id = text.partition(" ")
            # An incomplete note: the crash came before any file was written.
            if (
                newline
                and AGENT_ID.fullmatch(agent_id)
                and (not session_id or SESSION_ID.fullmatch(session_id.lower()))
            ):
                found.append((agent_id, name, session_id))
            else:
                self._forget(name)
        return found

    async def undo(self, attachments: AttachmentService, workspace: Callable[[str], Path]) -> None:
        """Remove files that a crash left without a record that claims them. If that fails the note stays, and the next
        start tries again.
        """
        for agent_id, attachments_id, session_id in await self._store.run_sync(self.unfinished_notes):
            try:
                if session_id:
                    if await self._is_claimed(session_id, attachments_id):
                        self.keep(attachments_id, session_id)
                        continue
                elif child := self._child_of(agent_id, attachments_id):
                    is_on_record = (child.entry.spawn or Spawn()).attachments_removed
                    if is_on_record or attachments.exists(workspace(agent_id), attachments_id):
                        self.complete(attachments_id)
                    # Else the crash came after the files were removed and before that was recorded: the note stays, so
                    # that the files do not count as missing when their removal is tried again.
                    continue
                report = await attachments.remove(workspace(agent_id), attachments_id)
            except SessiondError as error:
                log.warning("attachments left", agent=agent_id, attachments_id=attachments_id, reason=error.message)
                continue
            if report.left:
                log.warning("attachments left", agent=agent_id, attachments_id=attachments_id, left=report.left[:5])
                continue
            self.complete(attachments_id)

    def unclaimed_folders(self, agent_id: str, workspace: Path) -> list[str]:
        """The ids of folders of attachments in a workspace that no note and no child claims. Changes nothing."""
        try:
            found = {name for name in os.listdir(workspace.joinpath(*FOLDERS)) if UUID.fullmatch(name)}
        except OSError:
            return []
        claimed = {attachments_id for attachments_id, _ in self.message_files()}
        # Incomplete notes too: they may be being written.
        claimed |= {name for name in self._names() if UUID.fullmatch(name)}
        prefix = f"agent:{agent_id}:subagent:"
        for session in self._store.catalog.by_id.values():
            if session.key.startswith(prefix) and not (session.entry.spawn or Spawn()).attachments_removed:
                claimed.add(session.key.removeprefix(prefix))
        return sorted(found - claimed)

    def _child_of(self, agent_id: str, attachments_id: str) -> Session | None:
        """The child with these files, live or archived."""
        key, catalog = f"agent:{agent_id}:subagent:{attachments_id}", self._store.catalog
        return catalog.by_key.get(key) or next(reversed(catalog.older(key)), None)

    async def _is_claimed(self, session_id: str, attachments_id: str) -> bool:
        session = self._store.catalog.by_id.get(session_id)
        if session is None:
            raise StorageError("the session that they came to cannot be read")
        claimed: bool = await self._store.read(
            session, _claims, attachments_id, self._store.record_limit, session.dialect
        )
        return claimed

    def _folder(self) -> int:
        return dirfd.open_path_dir(self._store.root_fd, (layout.SPAWNING,), create=True)

    def _names(self) -> list[str]:
        try:
            with dirfd.closing(self._folder()) as folder:
                return os.listdir(folder)
        except OSError as error:
            log.warning("passed over", path=layout.SPAWNING, reason=error.strerror)
            return []

    def _forget(self, name: str) -> None:
        # A note that cannot be removed only makes the next start check it again.
        with contextlib.suppress(OSError), dirfd.closing(self._folder()) as folder:
            os.unlink(name, dir_fd=folder)

    def _read(self, name: str) -> str:
        """The content of a note; empty if it is not a regular file."""
        try:
            with dirfd.closing(self._folder()) as folder:
                file_fd = dirfd.open_file(folder, name, os.O_RDONLY)
                with os.fdopen(file_fd, "rb") as file:
                    return file.read(512).decode("ascii", "replace")
        except OSError:
            return ""


def _claims(fd: int, attachments_id: str, record_limit: int, dialect: TranscriptDialect) -> bool:
    """Whether the record of a run has these files."""
    for line in transcript.read_lines(fd, 0, record_limit, dialect=dialect):
        record = line.record
        if record is None or record.custom_type != RUN or record.data is None:
            continue
        request = lax.decode_dict(record.data).get("request")
        attachments = request.get("attachments") if isinstance(request, dict) else None
        relative = attachments.get("relDir") if isinstance(attachments, dict) else None
        if isinstance(relative, str) and relative.endswith(f"/{attachments_id}"):
            return True
    return False
