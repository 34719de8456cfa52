"""How the C library keeps memory, as far as that is ours to say. Linux with glibc; elsewhere nothing is changed."""

from __future__ import annotations

import ctypes
import gc

# Of <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# A large message is given back to the system when it is done with. Left alone the threshold grows to 32 MiB with the
# first of them, and 2.6 GB stayed once they had been in use.
_LARGE_BYTES = 256 * 1024
# An arena a thread is 64 MiB of addresses each, of which little is ever given back.
_ARENAS = 2


def give_back_what_is_freed() -> None:
    """Let freed memory go back to the system, instead of being kept for the next time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
    mallopt(_M_ARENA_MAX, _ARENAS)


def keep_what_is_there() -> None:
    """What the program has once it has started lives as long as it does: nobody looks through it for garbage again.

    That took 25 to 70 ms of the event loop whenever many requests came at once.
    """
    gc.freeze()
