"""A page of history: what is asked for, and of each message what is shown of it and where it ends.

Does not read files, or know sessions or callers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from sessiond.store.transcript import Line

# Where a page is likely to be longer it is not read at once: its beginning would be read twice.
_SHORT_BYTES = 192 * 1024


class MessageColumns(msgspec.Struct, frozen=True):
    """Messages, a list for each of their fields: their number in the session, the id and the time under which they are
    shown, the end of their line, and `transcript.checksum` there.
    """

    data: list[msgspec.Raw] = []
    seqs: list[int] = []
    ids: list[str | None] = []
    stamps: list[str | None] = []
    ends: list[int] = []
    checks: list[int] = []

    def reverse(self) -> None:
        for column in (self.data, self.seqs, self.ids, self.stamps, self.ends, self.checks):
            column.reverse()


class ShownMarker(NamedTuple):
    """A marker with the number of messages before it, and `transcript.checksum` behind its line."""

    line: Line
    seq: int
    check: int


class ShownPage(msgspec.Struct, frozen=True):
    """Messages, oldest first. The others are as in `paging.MessagePage`; `start_check` is the checksum at `start`."""

    messages: MessageColumns
    start: int = 0
    start_seq: int = 0
    start_check: int = 0
    has_more: bool = False
    skipped: int = 0
    noted: list[tuple[Line, int]] = []
    markers: list[ShownMarker] = []


class PageRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is asked for: the newest `limit` messages before `end`, before which stand `end_seq`; without those of some
    roles. With `noted` also custom records of that type. `shorten` makes what is shown of one over `max_bytes`. The
    others are as `paging.page_backwards` takes them.
    """

    end: int
    end_seq: int
    limit: int
    max_bytes: int
    shorten: Callable[[bytes], bytes] = bytes
    without: frozenset[str] = frozenset()
    noted: str | None = None
    with_hidden: bool = False

    @property
    def is_short(self) -> bool:
        """Whether the page is probably read quickly, if its messages are as long as all are on average."""
        share = min(1.0, self.limit / max(1, self.end_seq))
        return self.noted is None and not self.with_hidden and self.end * share <= _SHORT_BYTES
