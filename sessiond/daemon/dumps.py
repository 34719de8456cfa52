"""No image of the daemon's memory is ever written: the signing key is in it, and what was said in every session."""

from __future__ import annotations

import contextlib
import ctypes
import resource

_PR_SET_DUMPABLE = 4


def forbid_dumps() -> None:
    """No core file of this process from now on, and no debugger of the same user looks into it.

    What is executed is dumpable again; of the limit only the soft one goes, so that agents may raise their own.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    # The limit does not hold where a program takes the dumps (core_pattern with a pipe).
    with contextlib.suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
