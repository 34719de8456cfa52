"""Forbid core dumps of the daemon: its memory holds the signing key and messages of every session."""

from __future__ import annotations

import contextlib
import ctypes
import resource

_PR_SET_DUMPABLE = 4


def forbid_dumps() -> None:
    """Forbid core files of this process, and debuggers of the same user from attaching to it.

    Programs that it executes are dumpable again. Only the soft limit is lowered, so that agents can raise theirs.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    # The kernel ignores the limit if core dumps are piped to a program (core_pattern).
    with contextlib.suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
