"""Whether an agent can work in a folder that is not its workspace. Creates nothing."""

from __future__ import annotations

import os
from pathlib import Path

from sessiond.errors import Forbidden, InvalidParams, quote
from sessiond.tasks import run_in_thread


async def require_folder(cwd: str, *, agent_id: str, workspace: Path, sandboxed: bool, field: str) -> None:
    """Return if an agent can work in `cwd`.

    InvalidParams where there is no such folder; Forbidden where the agent's sandbox would not show it.
    """
    # In a thread: the folder may be on a file system that does not answer.
    there, shown = await run_in_thread(_look_at, cwd, workspace, abandon_on_cancel=True)
    if not there:
        text = f"`{field}`: there is no folder {quote(cwd)}; make it first."
        raise InvalidParams(text, field=field, code="cwd_missing")
    if sandboxed and not shown:
        raise Forbidden(
            f"agent {quote(agent_id)} runs in a sandbox, whose workspace does not hold {quote(cwd)}:"
            " an agent without a sandbox can work there",
            code="sandboxed",
        )


def _look_at(cwd: str, workspace: Path) -> tuple[bool, bool]:
    """Whether the folder is there, and whether it is in the workspace."""
    return os.path.isdir(cwd), Path(os.path.realpath(cwd)).is_relative_to(os.path.realpath(workspace))
