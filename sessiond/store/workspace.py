"""The folder in which an agent works, made when it is needed. Knows paths; writes nothing into the folder."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from sessiond.errors import StorageError
from sessiond.store import dirfd, layout


@lru_cache(maxsize=256)  # asked for in every run
def default_workspace(store: Path, agent_id: str) -> Path:
    """Where an agent works whose configuration names no folder."""
    return store / layout.AGENTS / agent_id / "workspace"


def make_workspace(agent_id: str, folder: Path, store: Path) -> None:
    """Create the folder and missing parents, for the owner alone. StorageError if that fails.

    The store's `agents/` itself is never created here: it would hide that the store was removed or moved away.
    """
    agents = store / layout.AGENTS
    try:
        if not folder.is_relative_to(agents):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        path = agents
        for part in folder.relative_to(agents).parts:
            parent, path = path, path / part
            with suppress(FileExistsError):
                path.mkdir(mode=0o700)
                _sync_names(parent)
        if not path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        # The error does not name the path: no path outside the store leaves the daemon. The configuration has it.
        raise StorageError(
            f"the workspace of agent {agent_id} cannot be made: {reason}; something else stands where the folder"
            " belongs, or it may not be written there. Put that right, then send again"
        ) from None


def _sync_names(folder: Path) -> None:
    """Or a power cut could take the files of an accepted message with the workspace in which they are."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        dirfd.fsync_dir(fd)
    finally:
        os.close(fd)
