"""Files that the kernel syncs at once, so that one thread waits for all of them: Linux AIO, IOCB_CMD_FDSYNC.

A thread for each file has to get the interpreter lock when its file is synced: with 16 files that were five context
switches an append, and half a one this way. The kernel's workers do what fdatasync does. Sources: io_submit(2),
io_getevents(2), linux/aio_abi.h. Knows commits as descriptors and does not know threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, Self

from sessiond.store.begun_commit import BegunCommit


class _Numbers(NamedTuple):
    """The numbers of the system calls, which the C library does not wrap."""

    setup: int
    destroy: int
    getevents: int
    submit: int


# By the machine, for programs of 64 bits, all of which are little-endian.
_NUMBERS = {"x86_64": _Numbers(206, 207, 208, 209), "aarch64": _Numbers(0, 1, 4, 2), "riscv64": _Numbers(0, 1, 4, 2)}
_FDSYNC = 3
# struct iocb: data, key, rw_flags, opcode, priority, descriptor, buffer, length, offset, reserved, flags, eventfd.
_REQUEST = struct.Struct("<QIIHhIQQqQII")
# struct io_event: data, request, result, second result.
_EVENT = struct.Struct("<QQqq")
_TIME = struct.Struct("<qq")
# For how many the memory that the kernel fills is made.
MOST_AT_ONCE = 32
# The kernel's workers are for all programs: those that wait for files that hang are not to become many.
_MOST_SETS = 2


class KernelSyncs:
    """A set of commits that the kernel syncs together. For one thread at a time."""

    def __init__(self, context: int, numbers: _Numbers) -> None:
        self._context, self._numbers = context, numbers
        self._requests = ctypes.create_string_buffer(_REQUEST.size * MOST_AT_ONCE)
        first = ctypes.addressof(self._requests)
        self._places = (ctypes.c_void_p * MOST_AT_ONCE)(*range(first, first + len(self._requests.raw), _REQUEST.size))
        self._events = ctypes.create_string_buffer(_EVENT.size * MOST_AT_ONCE)
        self._time = ctypes.create_string_buffer(_TIME.size)
        # Those that were given are None.
        self._commits: list[BegunCommit | None] = []
        # Of the commits, how many are not synced yet; of the events, how many were told, and which one is the next.
        self._left = self._told = self._next = 0
        # Whether the kernel tells no more: the commits are then synced one by one, and it is used no longer.
        self.is_broken = False

    @classmethod
    def open(cls) -> Self | None:
        """None where the kernel has no such syncs, or gives no more of them."""
        numbers = _NUMBERS.get(os.uname().machine) if sys.platform == "linux" and sys.maxsize > 2**32 else None
        if numbers is None:
            return None
        context = ctypes.c_ulong(0)
        if _call(numbers.setup, MOST_AT_ONCE, ctypes.addressof(context)) != 0:
            return None
        return cls(context.value, numbers)

    def close(self) -> None:
        """Give it back. Not before all is synced: the kernel would wait for that."""
        _call(self._numbers.destroy, self._context)

    @property
    def is_busy(self) -> bool:
        """Whether a commit is not synced, or was not given by `take_ended`."""
        return self._left > 0

    def begin(self, commits: Sequence[BegunCommit]) -> int:
        """Begin to sync `MOST_AT_ONCE` commits at most; how many of them, from the first on, the kernel has taken."""
        commits = commits[:MOST_AT_ONCE]
        for number, commit in enumerate(commits):
            fd = commit.unsynced_fd
            assert fd is not None
            place = number * _REQUEST.size
            _REQUEST.pack_into(self._requests, place, number, 0, 0, _FDSYNC, 0, fd, 0, 0, 0, 0, 0, 0)
        places = ctypes.addressof(self._places)
        self._left = max(0, _call(self._numbers.submit, self._context, len(commits), places))
        self._commits = [*commits[: self._left]]
        return self._left

    def wait(self, least: int, seconds: float | None) -> None:
        """Wait until so many more are synced, until the time is over, or until a signal arrives."""
        if self._next < self._told:
            return
        time = 0
        if seconds is not None:
            _TIME.pack_into(self._time, 0, int(seconds), int(seconds % 1 * 1e9))
            time = ctypes.addressof(self._time)
        events = ctypes.addressof(self._events)
        count = _call(self._numbers.getevents, self._context, least, MOST_AT_ONCE, events, time)
        self._told, self._next = max(0, count), 0
        if count < 0 and ctypes.get_errno() != errno.EINTR:
            self.is_broken = True  # as where a filter of system calls lets the others pass

    def take_ended(self) -> Iterator[BegunCommit]:
        """Those that `wait` waited for. Each was told whether it is on disk, and is given once."""
        while self._next < self._told:
            number, _, result, _ = _EVENT.unpack_from(self._events, self._next * _EVENT.size)
            commit = self._commits[number]
            assert commit is not None
            commit.note_synced(OSError(-result, os.strerror(-result)) if result < 0 else None)
            self._next += 1
            yield self._give(number, commit)
        if self.is_broken:
            for number, left in enumerate(self._commits):
                if left is not None:
                    left.sync()
                    yield self._give(number, left)

    def _give(self, number: int, commit: BegunCommit) -> BegunCommit:
        self._commits[number] = None
        self._left -= 1
        return commit


# Gives None where there are no more.
OpenSyncs = Callable[[], KernelSyncs | None]


class SyncsPool:
    """Sets that are used again and again, two at most. For any thread."""

    def __init__(self, open_one: OpenSyncs) -> None:
        self._free: list[KernelSyncs] = []
        self._unopened = [open_one] * _MOST_SETS
        self._is_closed = False

    @property
    def has_one(self) -> bool:
        """Whether `take` may give one."""
        return bool(self._free or self._unopened)

    def take(self) -> KernelSyncs | None:
        """One that is not busy, for the caller alone until it gives it back."""
        with suppress(IndexError):
            return self._free.pop()
        with suppress(IndexError):
            return self._unopened.pop()()
        return None

    def give_back(self, syncs: KernelSyncs) -> None:
        """Give one back that is not busy any more."""
        if syncs.is_broken:
            self.close()
            return
        self._free.append(syncs)
        if self._is_closed:
            self.close()

    def close(self) -> None:
        """Give no more, and close those that are not busy, now or when they come back."""
        self._is_closed = True
        self._unopened.clear()
        with suppress(IndexError):
            while True:
                self._free.pop().close()


def _call(number: int, *arguments: int) -> int:
    """A system call; -1 where it failed."""
    result: int = _syscall()(number, *arguments, *[0] * (5 - len(arguments)))
    return result


@cache
def _syscall() -> Any:
    call = ctypes.CDLL(None, use_errno=True)["syscall"]
    call.argtypes, call.restype = [ctypes.c_long] * 6, ctypes.c_long
    return call
