"""The folder in which an agent works, made when it is needed. Knows paths; writes nothing into the folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from sessiond.errors import StorageError
from sessiond.store import dirfd, layout


@lru_cache(maxsize=256)  # asked for in every run
def default_workspace(store: Path, agent_id: str) -> Path:
    """Where an agent works whose configuration names no folder."""
    return store / layout.AGENTS / agent_id / "workspace"


def make_workspace(agent_id: str, folder: Path, store: Path, *, sync: Callable[[int], None] = dirfd.fsync_dir) -> None:
    """Create the folder and missing parents, for the owner alone; their names are on disk when this returns.
    StorageError if that fails.

    `sync` is called with the descriptor of a folder that has a new name in it.

    The store's `agents/` itself is never created here: it would hide that the store was removed or moved away.
    """
    agents = store / layout.AGENTS
    try:
        path = agents
        if not folder.is_relative_to(agents):
            path = next(one for one in (folder, *folder.parents) if one.is_dir())
        for part in folder.relative_to(path).parts:
            path = path / part
            _make_folder(path, sync)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        # The error does not name the path: no path outside the store leaves the daemon. The configuration has it.
        raise StorageError(
            f"the workspace of agent {agent_id} cannot be made: {reason}; something else stands where the folder"
            " belongs, or it may not be written there. Put that right, then send again"
        ) from None


def _make_folder(path: Path, sync: Callable[[int], None]) -> None:
    """Create a folder where it is missing. Its name is synced, or a power cut could take the files of an accepted
    message with the workspace in which they are.
    """
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        if path.is_dir():
            return
        raise
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            sync(fd)
        finally:
            os.close(fd)
    except OSError:
        # Or the next attempt would find it, and take its name for synced.
        path.rmdir()
        raise
