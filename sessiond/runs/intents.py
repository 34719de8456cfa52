"""What a spawn is about to write: a small file in the store while it writes, so that a crash leaves nothing behind.

Knows ids only. Not synced: it serves against the daemon's own death, which the kernel's memory survives.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from sessiond.attachments.service import AttachmentService
from sessiond.errors import SessiondError, StorageError
from sessiond.model.keys import AGENT_ID, UUID
from sessiond.store import dirfd, layout
from sessiond.store.store import SessionStore

log = structlog.get_logger("sessiond.runs")


class Intents:
    """Files `spawning/<child id>`, whose content is the agent id."""

    def __init__(self, store: SessionStore) -> None:
        self._root_fd = store.root_fd

    def begin(self, agent_id: str, child_id: str) -> None:
        """From here on, what lies under this id belongs to a spawn that may not come to be. StorageError."""
        try:
            with dirfd.closing(self._folder()) as folder:
                fd = dirfd.open_file(folder, child_id, os.O_WRONLY | os.O_CREAT)
                with os.fdopen(fd, "wb") as file:
                    file.write(agent_id.encode())
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else "input/output error"
            raise StorageError(f"the spawn could not be noted in the store: {reason}; nothing was made") from None

    def done(self, child_id: str) -> None:
        """The child is there, or everything of it is gone."""
        # A note that stays costs the next start a look, and nothing else.
        with contextlib.suppress(OSError), dirfd.closing(self._folder()) as folder:
            os.unlink(child_id, dir_fd=folder)

    def left(self) -> list[tuple[str, str]]:
        """`(agent id, child id)` of the spawns that a crash cut off."""
        found: list[tuple[str, str]] = []
        try:
            with dirfd.closing(self._folder()) as folder:
                for name in os.listdir(folder):
                    if UUID.fullmatch(name) is None:
                        continue
                    agent_id = _read(folder, name)
                    # An empty file: the crash came before anything else was written.
                    if AGENT_ID.fullmatch(agent_id):
                        found.append((agent_id, name))
                    else:
                        with contextlib.suppress(OSError):
                            os.unlink(name, dir_fd=folder)
        except OSError as error:
            log.warning("passed over", path=layout.SPAWNING, reason=error.strerror)
        return found

    async def undo(
        self, attachments: AttachmentService, workspace: Callable[[str], Path], *, exists: Callable[[str], bool]
    ) -> None:
        """Remove the attachments of spawns that a crash cut off before there was a child. A note stays where its
        attachments do: the next start tries again.
        """
        for agent_id, child_id in self.left():
            if not exists(f"agent:{agent_id}:subagent:{child_id}"):
                try:
                    report = await attachments.remove(workspace(agent_id), child_id)
                except SessiondError as error:
                    log.warning("attachments left", agent=agent_id, attachments_id=child_id, reason=error.message)
                    continue
                if not report.removed:
                    log.warning("attachments left", agent=agent_id, attachments_id=child_id, left=report.left[:5])
                    continue
            self.done(child_id)

    def _folder(self) -> int:
        return dirfd.open_path_dir(self._root_fd, (layout.SPAWNING,), create=True)


def _read(folder: int, name: str) -> str:
    """What stands in a note; nothing where it is none, but a link or the like."""
    try:
        with os.fdopen(dirfd.open_file(folder, name, os.O_RDONLY), "rb") as file:
            return file.read(128).decode("ascii", "replace")
    except OSError:
        return ""
