"""Descriptors of transcripts that were written to just now, with what was seen of them then.

The next append to such a file saves opening it and reading its end. Knows descriptors and sessions; whether a file is
still the one of its name is compared by whoever writes.
"""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import NamedTuple, TypeVar

import trio

from sessiond.store.catalog import Session

# Sessions that are at work at the same time. More descriptors are of no use, and their number is limited.
MOST = 32
# Closing a removed file gives its space back, which took 115 ms for 500 MB: too long for the event loop.
_LARGE_BYTES = 4 * 1024 * 1024

T = TypeVar("T")


class KeptFile(NamedTuple):
    """An open transcript, and what was true of it after the last append."""

    fd: int
    inode: int
    size: int
    mtime_ns: int
    last_bytes: bytes

    def is_current(self, named: os.stat_result) -> bool:
        """Whether nobody has written since, and the name still means this file. `named` is the status of the name.

        The inode cannot have become another file's while it is open.
        """
        return (named.st_ino, named.st_size, named.st_mtime_ns) == (self.inode, self.size, self.mtime_ns)


class KeptFiles:
    """At most `MOST` open transcripts; the longest unused are closed. May be used from any thread."""

    def __init__(self) -> None:
        self._files: OrderedDict[Session, KeptFile] = OrderedDict()
        self._lock = Lock()
        self._closed = False

    def take(self, session: Session) -> KeptFile | None:
        """The session's file, which is the caller's from now on."""
        with self._lock:
            return self._files.pop(session, None)

    def keep(self, session: Session, file: KeptFile) -> None:
        """Take over an open file."""
        with self._lock:
            unused = [file] if self._closed else []
            if not self._closed:
                self._files[session] = file
                if len(self._files) > MOST:
                    unused.append(self._files.popitem(last=False)[1])
        for one in unused:
            _close(one)

    def has_another_end(self, session: Session, named: os.stat_result) -> bool:
        """Whether the file ends otherwise than the last append left it, although `named`, its status, is the same.

        It may be after a rewrite, because the clock of file systems ticks every few milliseconds.
        """
        with self._lock:
            file = self._files.get(session)
            if file is None or not file.is_current(named):
                return False
            try:
                return os.pread(file.fd, len(file.last_bytes), file.size - len(file.last_bytes)) != file.last_bytes
            except OSError:
                return True

    def forget(self, session: Session, *, unless_inode: int = 0) -> None:
        """Close the session's file, if there is one: a removed transcript takes up space as long as it is open.

        With `unless_inode` only where it is another file, which was replaced.
        """
        with self._lock:
            file = self._files.get(session)
            if file is None or file.inode == unless_inode:
                return
            del self._files[session]
        if file.size < _LARGE_BYTES:
            _close(file)
            return
        try:
            trio.lowlevel.start_thread_soon(partial(_close, file), _note_closed)
        except RuntimeError:  # there can be no more threads
            _close(file)

    def retry_with_room(self, function: Callable[[], T]) -> T:
        """The result of `function`, which opens a file or raises with nothing done.

        Where no descriptor is free the kept files are closed, since they only save time, and it is called once more.
        """
        try:
            return function()
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            with self._lock:
                files = [*self._files.values()]
                self._files.clear()
            if not files:
                raise
        for file in files:
            _close(file)
        return function()

    def close(self) -> None:
        """Close all, and whatever is still given back."""
        with self._lock:
            self._closed = True
            files = [*self._files.values()]
            self._files.clear()
        for file in files:
            _close(file)


def _note_closed(_closed: object) -> None:
    pass


def _close(file: KeptFile) -> None:
    # What it reports, as network file systems do, is no matter of whoever happens to close it: all was synced.
    with suppress(OSError):
        os.close(file.fd)
