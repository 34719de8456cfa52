"""Watch folders through inotify(7). Knows the kernel's event format. Sleeps in the kernel: nothing runs while idle."""

from __future__ import annotations

import ctypes
import errno
import math
import os
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

import trio

from sessiond.events.watch_backend import (
    Backend,
    NameChanged,
    NameGone,
    Rescan,
    WatchEvent,
    WatchUnavailable,
    is_below,
    merge_events,
)

# <linux/inotify.h>
IN_MODIFY = 0x2
IN_MOVED_FROM = 0x40
IN_MOVED_TO = 0x80
IN_CREATE = 0x100
IN_DELETE = 0x200
IN_DELETE_SELF = 0x400
IN_MOVE_SELF = 0x800
IN_Q_OVERFLOW = 0x4000
IN_IGNORED = 0x8000
IN_ONLYDIR = 0x0100_0000
IN_DONT_FOLLOW = 0x0200_0000
IN_EXCL_UNLINK = 0x0400_0000
IN_ISDIR = 0x4000_0000

# Not IN_CLOSE_WRITE: every open and close for writing would be an event, those of the daemon included.
# IN_EXCL_UNLINK: no events for files that are open but have no name any more.
_MASK = (
    IN_MODIFY | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF | IN_MOVE_SELF
    | IN_ONLYDIR | IN_DONT_FOLLOW | IN_EXCL_UNLINK
)  # fmt: skip
_HEADER = struct.Struct("=iIII")
# Room for 240 events with names of maximum length. A read returns what is there and does not wait for more.
_READ_BYTES = 64 * 1024
# The first event is read at once. Those right behind it are read together: while the daemon itself writes a thousand
# times a second, each of its own writes would wake the event loop, and the kernel joins events that are the same.
_GATHER_S = 0.002
# The same where the daemon's own writes were all that a read has told: its commits see what others do meanwhile.
_REST_S = 0.01
_LIMITS = frozenset({errno.ENOSYS, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.ENOMEM})


class KernelEvent(NamedTuple):
    """One `struct inotify_event`, its name without the padding."""

    watch: int
    mask: int
    name: bytes


def parse(data: bytes) -> Iterator[KernelEvent]:
    """The events in the bytes of one read from an inotify descriptor, of the same ones the last.

    The kernel never splits an event. It joins two that are the same only if no other one is in between.
    """
    offset, last = 0, dict[bytes, None]()
    while offset + _HEADER.size <= len(data):
        end = offset + _HEADER.size + _HEADER.unpack_from(data, offset)[3]
        event = data[offset:end]
        last.pop(event, None)
        last[event] = None
        offset = end
    for event in last:
        watch, mask, _cookie, _size = _HEADER.unpack_from(event)
        yield KernelEvent(watch, mask, event[_HEADER.size :].partition(b"\0")[0])


class InotifyBackend:
    """Watches folders with inotify. A watch follows the inode, so the watch of a folder that was moved is removed."""

    name: Backend = "inotify"

    def __init__(self) -> None:
        """Raises WatchUnavailable where there is no inotify, or no instance left (fs.inotify.max_user_instances)."""
        self._fd = _call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._next_read = -math.inf
        self._directories: dict[int, str] = {}
        self._watches: dict[str, int] = {}

    def add(self, directory: str, *, names_only: bool = False) -> None:
        """As `WatchBackend.add`. With `names_only` writes to the files in it are not reported."""
        mask = _MASK & ~IN_MODIFY if names_only else _MASK
        try:
            watch = _call("inotify_add_watch", self._fd, os.fsencode(directory), mask)
        except OSError as error:
            error.filename = directory
            raise
        # Another folder under a known path, or a known folder under another path: the newest call counts.
        if self._watches.get(directory, watch) != watch:
            self.remove(directory)
        self._watches.pop(self._directories.get(watch, directory), None)
        self._directories[watch] = directory
        self._watches[directory] = watch

    def remove(self, directory: str) -> None:
        watch = self._watches.pop(directory, None)
        if watch is None:
            return
        del self._directories[watch]
        # EINVAL: the folder was removed and the watch with it; the kernel's event for that is still queued.
        _call("inotify_rm_watch", self._fd, watch, ignore=errno.EINVAL)

    async def next_batch(self) -> list[WatchEvent]:
        pause_s = self._next_read - trio.current_time()
        if pause_s > 0:
            await trio.sleep(pause_s)
        else:
            await self._wait_readable()
        while True:
            if self._fd < 0:
                raise trio.ClosedResourceError
            try:
                data = os.read(self._fd, _READ_BYTES)
            except BlockingIOError:
                await self._wait_readable()
                continue
            self._next_read = trio.current_time() + _GATHER_S
            if events := merge_events(self._translate(data)):
                return events
            await self._wait_readable()

    def rest(self) -> None:
        self._next_read += _REST_S - _GATHER_S

    async def _wait_readable(self) -> None:
        if self._fd < 0:
            await trio.lowlevel.checkpoint()
        else:
            await trio.lowlevel.wait_readable(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            trio.lowlevel.notify_closing(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _translate(self, data: bytes) -> Iterator[WatchEvent]:
        for watch, mask, raw_name in parse(data):
            if mask & IN_Q_OVERFLOW:
                yield Rescan("overflow")
                continue
            directory = self._directories.get(watch)
            if directory is None:
                continue  # removed while this was in the queue
            name = os.fsdecode(raw_name)
            if mask & (IN_IGNORED | IN_MOVE_SELF):
                # IN_IGNORED comes after a removal as well as after an unmount.
                yield from self._give_up(directory)
            elif mask & (IN_MOVED_FROM | IN_DELETE):
                yield NameGone(directory, name)
                if mask & IN_ISDIR:
                    yield from self._give_up(os.path.join(directory, name))
            elif mask & (IN_MODIFY | IN_CREATE | IN_MOVED_TO):
                yield NameChanged(directory, name, folder=bool(mask & IN_ISDIR))

    def _give_up(self, directory: str) -> Iterator[WatchEvent]:
        """Remove the watches of a folder and of those below it, whose paths are no longer valid."""
        for path in [path for path in self._watches if is_below(path, directory)]:
            self.remove(path)
            yield NameGone(path)


@cache
def _libc() -> Any:
    return ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: int | bytes, ignore: int = 0) -> int:
    """Call the C library. A result of -1 raises OSError, or WatchUnavailable at a limit of the kernel."""
    implementation = getattr(_libc(), function, None)
    if implementation is None:
        raise WatchUnavailable(errno.ENOSYS, "the C library has no inotify")
    result: int = implementation(*arguments)
    code = ctypes.get_errno() if result < 0 else 0
    if code in _LIMITS:
        raise WatchUnavailable(code, os.strerror(code))
    if code and code != ignore:
        raise OSError(code, os.strerror(code))
    return result
