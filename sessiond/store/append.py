"""One append to a transcript: what to write, and what became of it. Knows lines and offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from sessiond.model.dialects import TranscriptDialect
from sessiond.store import transcript

# Lines of this size are parsed in the thread that wrote them: a dense one would hold up the event loop for 10 ms.
PARSED_AHEAD = 64 * 1024
# Returns the lines for the given parent id. Called in a worker thread, perhaps more than once.
Compose = Callable[[str | None], list[bytes]]


@dataclass(slots=True, eq=False)
class Append:
    """What to write; afterwards the place of each line (`found`) or `error`. `last_id` is the id of the last line."""

    compose: Compose
    last_id: str
    lines: list[bytes] = field(default_factory=list)
    found: list[tuple[int, int] | None] = field(default_factory=list)
    error: OSError | None = None

    @property
    def places(self) -> list[tuple[int, int]]:
        """Begin and end of each line, once they were verified."""
        return [place for place in self.found if place is not None]

    @property
    def is_missing(self) -> bool:
        return self.error is None and (not self.found or None in self.found)

    @property
    def longest_line(self) -> int:
        """The length of the longest line, once they are composed."""
        return max(map(len, self.lines), default=0)

    def long_lines(self, record_limit: int, dialect: TranscriptDialect) -> Iterator[transcript.Line]:
        """The lines that take long to parse, already parsed, for the feed."""
        if self.error is None:
            for (begin, end), line in zip(self.places, self.lines, strict=False):
                if end - begin >= PARSED_AHEAD:
                    made = transcript.line_of(begin, line[:-1], end, record_limit, dialect)
                    if made is not None:
                        yield made
