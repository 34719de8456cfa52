"""The run that this process belongs to, as the environments of the processes above it tell.

Agent programs hand their tool servers and shells only a part of their own environment: one strips every variable whose
name holds TOKEN or KEY, another passes on a fixed few. What the daemon gave the program itself stands in /proc.
"""

from __future__ import annotations

import os
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# A run's own processes are few levels deep; this only bounds the walk.
MAX_LEVELS = 64
TOKEN_FILE = "SESSIOND_TOKEN_FILE"  # noqa: S105  # the name of a variable
RUN_ID = "SESSIOND_RUN_ID"
SOCKET = "SESSIOND_SOCKET"


def run_environment() -> Mapping[str, str]:
    """Where SESSIOND_SOCKET and SESSIOND_TOKEN_FILE are to be read: this process's environment, or that of the nearest
    process above it that the daemon gave a token. Who has one, or names a socket outside of a run, means it so.
    """
    own = os.environ
    if TOKEN_FILE in own or (SOCKET in own and RUN_ID not in own):
        return own
    return _nearest_run() or own


@lru_cache(maxsize=1)
def _nearest_run() -> Mapping[str, str] | None:
    pid = os.getppid()
    for _ in range(MAX_LEVELS):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                environ = _variables(file.read())
            if environ.get(TOKEN_FILE) and environ.get(RUN_ID):
                return environ
            with open(f"/proc/{pid}/stat", "rb") as file:
                # The name in parentheses may hold anything; the parent is the second field behind it.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None  # another user's process, or one that has ended: no run of ours is above it
    return None


def _variables(block: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in block.split(b"\0") if entry.startswith(b"SESSIOND_"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
