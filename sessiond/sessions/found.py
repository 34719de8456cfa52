"""What a search has found so far: the newest matches, each message once, however many lines and files repeat it.

Reads no files. What is kept does not grow with the number of matches.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import msgspec

from sessiond.model.record import Record
from sessiond.store.catalog import Session

# Below this number of parts it is not worth looking for those that can be dropped.
_PARTS_KEPT = 200


class Match(msgspec.Struct, frozen=True):
    """One message, which ends at offset `end` of the file. `masked`: parts of its text are masked.

    `number_in_line` tells messages in one line apart.
    """

    session: Session
    end: int
    timestamp: int
    role: str
    snippet: str
    masked: bool
    number_in_line: int = 0


class MessageIdentity(NamedTuple):
    """What a message and its copies in other files have in common.

    Ids are not enough: those of pi are short, and proxies of a service may count them from 1.
    """

    id: str
    timestamp_ms: int
    text: int


class _KeptMatch:
    """A match in the heap. Of two with the same time the one found first, which has the lower number, is the newer."""

    __slots__ = ("identity", "match", "number")

    def __init__(self, match: Match, number: int, identity: MessageIdentity | None) -> None:
        self.match, self.number, self.identity = match, number, identity

    def __lt__(self, other: _KeptMatch) -> bool:
        return self.order < other.order

    @property
    def order(self) -> tuple[int, int]:
        return self.match.timestamp, -self.number


def identity_of(record: Record, text: str) -> MessageIdentity | None:
    """The identity of a message with this text; None if nothing tells it from others like it."""
    if record.shown_id is None or record.timestamp_ms is None:
        return None
    return MessageIdentity(record.shown_id, record.timestamp_ms, hash((record.role, text)))


def seniority(session: Session) -> tuple[int, str]:
    """Of several sessions with a message, the one for which this is the least is shown."""
    return session.entry.created_at, session.key


class NewestMatches:
    """The newest matches, at most one more than the limit, which says that there are more.

    A copy has the time of its original. So while a match is kept its copies are known, and whatever is as old as a
    dropped match is not taken any more.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._heap: list[_KeptMatch] = []
        self._by_identity: dict[MessageIdentity, _KeptMatch] = {}
        self._count = 0
        # Parts of messages that were found, with their times: (session, message id).
        self._parts: dict[tuple[Session, str], int] = {}
        self._parts_allowed = _PARTS_KEPT

    def takes(self, timestamp: int) -> bool:
        """Whether a match of this time would be among the newest."""
        return len(self._heap) <= self._limit or timestamp >= self._heap[0].match.timestamp

    def is_complete(self, bound: int) -> bool:
        """Whether there are enough matches, all newer than `bound`."""
        return len(self._heap) > self._limit and self._heap[0].match.timestamp > bound

    def add(self, match: Match, message_id: str | None, identity: MessageIdentity | None) -> None:
        """Add a match. Of the parts of a message (with a `message_id`) in one session only the first counts."""
        if not self.takes(match.timestamp) or (message_id is not None and not self._is_first_part(match, message_id)):
            return
        known = self._by_identity.get(identity) if identity is not None else None
        if known is not None:
            if seniority(match.session) < seniority(known.match.session):
                known.match = match
            return
        self._count += 1
        kept = _KeptMatch(match, self._count, identity)
        heapq.heappush(self._heap, kept)
        if identity is not None:
            self._by_identity[identity] = kept
        if len(self._heap) > self._limit + 1:
            oldest = heapq.heappop(self._heap)
            if oldest.identity is not None:
                del self._by_identity[oldest.identity]

    def newest_first(self) -> list[Match]:
        """The matches; one more than the limit if there are more."""
        return [kept.match for kept in sorted(self._heap, reverse=True)]

    def _is_first_part(self, match: Match, message_id: str) -> bool:
        part = (match.session, message_id)
        if part in self._parts:
            return False
        self._parts[part] = match.timestamp
        if len(self._parts) > self._parts_allowed and len(self._heap) > self._limit:
            # The other parts of a message are older than that which was found first.
            oldest = self._heap[0].match.timestamp
            self._parts = {key: stamp for key, stamp in self._parts.items() if stamp >= oldest}
            self._parts_allowed = 2 * len(self._parts) + _PARTS_KEPT
        return True
