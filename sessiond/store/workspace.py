"""The folder in which an agent works, made when it is needed. Knows paths; writes nothing into the folder."""

from __future__ import annotations

from pathlib import Path

from sessiond.errors import StorageError
from sessiond.store import layout


def default_workspace(store: Path, agent_id: str) -> Path:
    """Where an agent works whose configuration names no folder."""
    return store / layout.AGENTS / agent_id / "workspace"


def make_workspace(agent_id: str, folder: Path, store: Path) -> None:
    """Make the folder and what is missing above it, for the owner alone. StorageError where it cannot be.

    Below the store's `agents/` nothing is made above an agent's folder: a store that was removed must not come back,
    empty, because a run needed its workspace, for then nobody would find out that it is gone.
    """
    agents = store / layout.AGENTS
    try:
        if not folder.is_relative_to(agents):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return
        path = agents
        for part in folder.relative_to(agents).parts:
            path = path / part
            path.mkdir(mode=0o700, exist_ok=True)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no path"
        # Where it is, only the configuration tells: paths outside the store do not leave the daemon.
        raise StorageError(
            f"the workspace of agent {agent_id} cannot be made: {reason}; something else stands where the folder"
            " belongs, or it may not be written there. Put that right, then send again"
        ) from None
