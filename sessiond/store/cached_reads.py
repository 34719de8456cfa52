"""Reads of what the page cache has, which never wait for a disk. Knows a descriptor and offsets."""

from __future__ import annotations

import os

# Linux 4.14 and newer; other systems have no such reads.
_NOWAIT = getattr(os, "RWF_NOWAIT", None)


class NotCached(Exception):
    """It is not all in the page cache, or it is too much to be read at once."""


class CachedReads:
    """Reads a file as `os.pread`, at most `most` bytes together. Raises NotCached.

    A file system that cannot tell what is cached, and a file that is shorter by now, raise it too.
    """

    def __init__(self, fd: int, most: int) -> None:
        self._fd, self._left = fd, most

    def pread(self, size: int, offset: int) -> bytes:
        self._left -= size
        if _NOWAIT is None or self._left < 0:
            raise NotCached
        buffer = bytearray(size)
        try:
            got = os.preadv(self._fd, [buffer], offset, _NOWAIT)
        except OSError:
            raise NotCached from None
        if got < size:
            raise NotCached
        return bytes(buffer)
