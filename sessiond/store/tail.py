"""Split a growing transcript into lines. Knows bytes and offsets. Does not read files or parse JSON.

Sans-io: feed it what was read, in order, and it gives whole lines with the offset where each begins. A half line waits
for its end. A line over the limit is passed over without being kept, and given as None once its end is seen.
"""

from __future__ import annotations

from collections.abc import Iterator


class Tail:
    """`offset` is where the next byte fed will stand; `whole` is the offset behind the last whole line.

    `passed_to` resumes within a line over the limit: it begins at `offset` and was read up to `passed_to`, where the
    next byte fed stands. The attribute of that name is this position for the half line at the end, 0 if it is within
    the limit.
    """

    __slots__ = ("_half", "_skipping", "limit", "offset", "whole")

    def __init__(self, offset: int, limit: int, passed_to: int = 0) -> None:
        self.offset = passed_to or offset
        self.whole = offset
        self.limit = limit
        self._half: list[bytes] = []
        self._skipping = passed_to > 0

    @property
    def passed_to(self) -> int:
        """How far a half line over the limit was read at the end; 0 where there is none."""
        return self.offset if self._skipping else 0

    def skip_to(self, end: int) -> None:
        """A whole line, which begins at `offset`, is known: the next byte fed stands behind it, at `end`."""
        self.offset = self.whole = end

    def feed(self, chunk: bytes) -> Iterator[tuple[int, bytes | None]]:
        """`(offset, line without newline)` for every line that `chunk` completes; the line is None over the limit."""
        start = 0
        self.offset += len(chunk)
        base = self.offset - len(chunk)
        while (end := chunk.find(b"\n", start)) >= 0:
            begin = self.whole
            line: bytes | None
            if self._skipping:
                line = None
            elif self._half:
                self._half.append(chunk[start:end])
                line = b"".join(self._half)
            else:
                line = chunk[start:end]
            self._half.clear()
            self._skipping = False
            self.whole = base + end + 1
            yield begin, line if line is None or len(line) <= self.limit else None
            start = end + 1
        if start < len(chunk) and not self._skipping:
            self._half.append(chunk[start:])
            if self.offset - self.whole > self.limit:
                self._half.clear()
                self._skipping = True
