"""Settings of glibc's allocator (skipped with another C library) and of the garbage collector."""

from __future__ import annotations

import ctypes
import gc

# From <malloc.h>.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
# Larger allocations are returned to the system when freed. By default glibc raises this threshold up to 32 MiB after
# the first large message; then 2.6 GB stayed resident after they were freed.
_LARGE_BYTES = 256 * 1024
# So much at the end of the heap is kept: with less, a page of history gave back its buffers and got them again, each
# page of memory cleared anew by the system, which took a tenth of its time.
_SPARE_BYTES = 4 * _LARGE_BYTES
# A link passes on messages of half a MiB, each of which is copied a few times on its way.
_REUSED_BYTES, _KEPT_BYTES = 4 * 1024 * 1024, 16 * 1024 * 1024
# By default each thread gets an arena of its own, of which little is ever returned.
_ARENAS = 2
# After so many new objects the collector runs while the store is read; by default after 700.
_LOADING_THRESHOLD = 100_000
# ... and afterwards: more than what the requests in flight are made of. With fewer, each collection met these, which
# live on, and it took a thirtieth of an append.
_SERVING_THRESHOLD = 5_000


def return_freed_memory() -> None:
    """Return freed memory to the system instead of keeping it for later allocations."""
    _set_thresholds(_LARGE_BYTES, _SPARE_BYTES)


def reuse_freed_memory() -> None:
    """Keep a little of what is freed for later allocations, for a program through which long messages go: the system
    clears each page that it gives, which took an eighth of its time.
    """
    _set_thresholds(_REUSED_BYTES, _KEPT_BYTES)


def _set_thresholds(from_system: int, kept: int) -> None:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_M_MMAP_THRESHOLD, from_system)
    mallopt(_M_TRIM_THRESHOLD, kept)
    mallopt(_M_ARENA_MAX, _ARENAS)


def collect_rarely() -> None:
    """Seldom collect garbage until `freeze_gc`. Loading makes no cycles, and collections took a sixth of its time; but
    connections are served meanwhile, whose garbage must not pile up.
    """
    gc.set_threshold(_LOADING_THRESHOLD)


def freeze_gc() -> None:
    """Exempt all current objects from garbage collection; they live as long as the daemon. First that of the start
    is freed.

    Collecting them blocked the event loop for 25 to 70 ms whenever many requests came at once. What was imported before
    is not gone over once more: that takes 35 to 55 ms of the start, and finds some hundred objects.
    """
    gc.collect(1)
    gc.freeze()
    gc.set_threshold(_SERVING_THRESHOLD)
