"""Lines of an append that cannot be read for want of memory."""

from __future__ import annotations

from collections.abc import Iterator


class ScarceLines(list[bytes]):
    """Lines that raise MemoryError when they are read, once `lacking` is set."""

    lacking = False

    def __iter__(self) -> Iterator[bytes]:
        if self.lacking:
            raise MemoryError
        return super().__iter__()
