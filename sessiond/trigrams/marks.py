"""Lines of a block whose place among the messages is known, kept as a short text beside the block. Sans-io.

Else a search parses all lines from the beginning of a block to each match, to give that its number.
"""

from __future__ import annotations

from typing import NamedTuple

# Lines are marked that begin so far behind the last one: of short lines some are counted from there.
SPACING_BYTES = 512


class NumberedLine(NamedTuple):
    """A line at `offset`, before which stand so many messages. It is of the message `number`; 0: that is not known."""

    offset: int
    messages_before: int
    number: int = 0


class MarkWriter:
    """The marks of one block, which begins at `begin`."""

    def __init__(self, begin: NumberedLine) -> None:
        self._words: list[str] = []
        self._last = begin

    def add(self, line: NumberedLine) -> None:
        """Mark a line of a message, if it is the first one, or not too close to the last that was marked."""
        last = self._last
        if self._words and line.offset - last.offset < SPACING_BYTES:
            return
        word = f"{line.offset - last.offset}:{line.messages_before - last.messages_before}"
        behind = line.messages_before + 1 - line.number
        self._words.append(f"{word}:{behind}" if behind else word)
        self._last = line

    @property
    def text(self) -> str:
        """The marks so far."""
        return " ".join(self._words)


def find_mark(marks: str, begin: NumberedLine, offset: int) -> NumberedLine:
    """The last marked line up to the one at `offset`, in a block that begins at `begin`. What cannot be read of the
    marks counts for nothing.
    """
    at, before, number = begin
    for word in marks.split():
        distance, _, counts = word.partition(":")
        more, _, behind = counts.partition(":")
        try:
            next_at, next_before = at + int(distance), before + int(more)
            next_number = next_before + 1 - int(behind or 0)
        except ValueError:
            break
        if next_at > offset:
            break
        at, before, number = next_at, next_before, next_number
    return NumberedLine(at, before, number)
