"""The files below the root of a program: the packed ones as lines in memory, all others as they are.

Opens regular files for reading only, and follows no symlink. Does not know sessions.
"""

from __future__ import annotations

import os
import threading

from sessiond.sources import unpacking
from sessiond.sources.memory_files import MemoryFile, MemoryFiles
from sessiond.store import dirfd

# Inode, size and mtime of a packed file.
_State = tuple[int, int, int]


class UnpackedFiles:
    """The files below `root_fd`. Its methods may be called in any thread; they raise OSError."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._lock = threading.Lock()
        self._kept = MemoryFiles[_State]()

    def makes(self, place: str) -> bool:
        """Whether a file is unpacked, which takes a while if it was not just now."""
        return unpacking.is_packed(place)

    def open(self, place: str) -> int:
        """A descriptor of a file, which the caller closes."""
        if not unpacking.is_packed(place):
            return dirfd.open_below(self._root_fd, place)
        with self._lock:
            return os.dup(self._unpack(place).fd)

    def status(self, place: str) -> os.stat_result:
        """The status of a file as it is opened: a packed one has its unpacked size, its file's mtime, and no name."""
        if not unpacking.is_packed(place):
            return dirfd.status_below(self._root_fd, place)
        with self._lock:
            return os.fstat(self._unpack(place).fd)

    def close(self) -> None:
        """Forget what was unpacked."""
        with self._lock:
            self._kept.forget_all()

    def _unpack(self, place: str) -> MemoryFile[_State]:
        with dirfd.closing(dirfd.open_below(self._root_fd, place)) as fd:
            look = os.fstat(fd)
            state = look.st_ino, look.st_size, look.st_mtime_ns
            file = self._kept.find(place)
            if file is not None and file.mark == state:
                return file
            file = MemoryFile(place, state)
            try:
                for piece in unpacking.unpack(place, fd):
                    if file.size + len(piece) > unpacking.MOST_UNPACKED_BYTES:
                        raise unpacking.too_long()
                    file.append(piece)
                os.utime(file.fd, ns=(look.st_atime_ns, look.st_mtime_ns))
            except BaseException:
                file.close()
                self._kept.forget(place)
                raise
            self._kept.keep(place, file)
            return file
