"""Files in memory, by the place in a program's folder whose content they have: a few, the newest use last.

What they are put together from is gone when they are forgotten; then they are put together again. Not for several
threads at once.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")

# So many are kept, and so many bytes of them together; the one that was used last is kept whatever its size.
_MOST_KEPT = 16
_MOST_KEPT_BYTES = 16 * 2**20


class MemoryFile(Generic[T]):
    """One file. `mark` says up to what, or of what state of its origin, it has the content."""

    __slots__ = ("fd", "mark", "size")

    def __init__(self, name: str, mark: T) -> None:
        self.fd = os.memfd_create(name.rpartition("/")[2][:200], os.MFD_CLOEXEC)
        self.mark, self.size = mark, 0

    def append(self, data: bytes) -> None:
        """Write at its end. Raises OSError."""
        written = 0
        while written < len(data):
            written += os.pwrite(self.fd, data[written:], self.size + written)
        self.size += len(data)

    def close(self) -> None:
        """Close it; descriptors that others have of it stay valid."""
        os.close(self.fd)


class MemoryFiles(Generic[T]):
    """Those that are kept."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, MemoryFile[T]] = OrderedDict()

    def find(self, place: str) -> MemoryFile[T] | None:
        """The file of a place, which counts as used now."""
        file = self._kept.get(place)
        if file is not None:
            self._kept.move_to_end(place)
        return file

    def keep(self, place: str, file: MemoryFile[T]) -> None:
        """Keep a file, which may have grown, as the one that was used last. Others may be forgotten for it."""
        if self._kept.get(place) is not file:
            self.forget(place)
            self._kept[place] = file
        self._kept.move_to_end(place)
        while len(self._kept) > 1 and (
            len(self._kept) > _MOST_KEPT or sum(one.size for one in self._kept.values()) > _MOST_KEPT_BYTES
        ):
            self.forget(next(iter(self._kept)))

    def forget(self, place: str) -> None:
        """Close the file of a place, if there is one."""
        file = self._kept.pop(place, None)
        if file is not None:
            file.close()

    def forget_all(self) -> None:
        """Close all of them."""
        for place in list(self._kept):
            self.forget(place)
