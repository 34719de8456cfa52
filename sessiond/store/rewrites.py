"""Find transcripts that another program truncated or rewrote in place, and the number of lost messages.

Only the index knows how many messages there were. Knows files and entries. Does not know how `doctor` reports them.
"""

from __future__ import annotations

import os

import msgspec

from sessiond.clock import iso_ms
from sessiond.errors import pluralize
from sessiond.model.entry import Entry
from sessiond.store import dirfd, folding, reading
from sessiond.store.inventory import StoredName
from sessiond.store.reading import TranscriptReading

# How far a file's modification time may be behind the clock, because the kernel updates it once per tick. So a message
# written right before may have a timestamp of its own that is later than the file's.
_TICK_MS = 20


class Rewrite(msgspec.Struct, frozen=True):
    """A transcript that was rewritten, last at `moment_ms`, and had at most `had_messages` messages before. Messages
    with a time up to `earlier_ms` are from before the rewrite.
    """

    had_messages: int
    moment_ms: int

    @property
    def earlier_ms(self) -> int:
        return self.moment_ms + _TICK_MS

    def describe_loss(self, found: TranscriptReading) -> str | None:
        """How many of the messages are missing, in words; None where all are back."""
        if found.earlier >= self.had_messages:
            return None
        there = f"{pluralize(self.had_messages, 'message')} {'was' if self.had_messages == 1 else 'were'} there"
        when = iso_ms(self.moment_ms)
        return f"cut off or written anew in place at {when}: {there}, and {found.earlier} of them now"


def rewrite_of(root_fd: int, thing: StoredName, known: Entry | None) -> Rewrite | None:
    """The rewrite of a transcript according to its entry (of the daemon or of the index); None where it only grew."""
    if known is None:
        return None
    facts = known.file
    try:
        with dirfd.closing(reading.open_stored(root_fd, thing)) as fd:
            status = os.fstat(fd)
            if not folding.holds(fd, facts, status):
                facts = folding.begin_anew(known, rewritten_at=status.st_mtime_ns // 1_000_000).file
    except OSError:
        return None
    return Rewrite(facts.had_messages, facts.rewritten_at) if facts.had_messages else None
