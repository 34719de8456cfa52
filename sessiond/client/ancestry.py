"""Find the run that this process belongs to, from the environments of its ancestor processes in /proc.

Agent programs pass only part of their environment to tool servers and shells: one strips every variable with TOKEN or
KEY in its name, another passes a fixed list. The environment of the program itself is still in /proc.
"""

from __future__ import annotations

import os
from functools import lru_cache

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

# The processes of a run are few levels deep; this is only a bound.
MAX_LEVELS = 64
TOKEN_FILE = "SESSIOND_TOKEN_FILE"  # noqa: S105  # the name of a variable
RUN_ID = "SESSIOND_RUN_ID"
SOCKET = "SESSIOND_SOCKET"


def run_environment() -> Mapping[str, str]:
    """The environment from which to read SESSIOND_SOCKET and SESSIOND_TOKEN_FILE: that of this process, or that of the
    nearest ancestor with a token of a run. A token in its own environment, or a socket outside of a run, prevails.
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
                # The program name in parentheses may contain anything; the parent is the second field behind it.
                pid = int(file.read().rpartition(b")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            return None  # a process of another user, or one that has ended: there is no run above it
    return None


def _variables(block: bytes) -> dict[str, str]:
    pairs = (entry.partition(b"=") for entry in block.split(b"\0") if entry.startswith(b"SESSIOND_"))
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
