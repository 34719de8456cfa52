"""What a search has found so far: the newest matches, each message once, however many files have a copy of it.

Reads no files. What is kept does not grow with the number of matches.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import NamedTuple

import msgspec

from sessiond.model.keys import machine_of
from sessiond.model.record import Record
from sessiond.store.catalog import Session
from sessiond.trigrams.marks import NumberedLine

# Of matches with the same time so many more are kept: one of them may be a copy whose original comes later.
_MOST_TIED = 1000
# Below this number of known copies it is not worth looking for those that can be dropped.
_COPIES_KEPT = 500

# A place in the order of matches: `(-time, key, -offset, -number, session id)`, the least first. `(-time,)` stands
# before every match of that time.
Place = tuple[int] | tuple[int, str, int, int, str]


class Match(msgspec.Struct, frozen=True):
    """One message, which begins at `offset` of its file and ends at `end`. `masked`: parts of its text are masked.

    `listed` is its number in the list of messages, where lines change one, else 0. `hit` is where the line begins in
    which the text was found. `counted` is that line or one before it of which is known how many messages stand before.
    `check` is `transcript.checksum` behind the message.
    """

    session: Session
    offset: int
    end: int
    hit: int
    timestamp: int
    role: str
    snippet: str
    masked: bool
    check: int
    listed: int = 0
    counted: NumberedLine | None = None

    @property
    def place(self) -> tuple[int, str, int, int, str]:
        """Its place in the order: newest first, of one time by key, of one key the last in its file first."""
        session = self.session
        return -self.timestamp, session.key, -self.offset, -self.listed, session.session_id


class MessageIdentity(NamedTuple):
    """What a message and its copies in other files have in common.

    Ids are not enough: those of pi are short, and proxies of a service may count them from 1.
    """

    id: str
    timestamp_ms: int
    text: int


class _KeptMatch(NamedTuple):
    place: tuple[int, str, int, int, str]
    match: Match


def identity_of(record: Record, text: str) -> MessageIdentity | None:
    """The identity of a message with this text; None if nothing tells it from others like it."""
    if record.shown_id is None or record.timestamp_ms is None:
        return None
    return MessageIdentity(record.shown_id, record.timestamp_ms, hash((record.role, text)))


def seniority(session: Session) -> tuple[bool, int, str, str]:
    """Of several sessions with a message, the one for which this is the least is shown. What another machine says of
    its age hides nothing that is kept here.
    """
    return machine_of(session.key) is not None, session.entry.created_at, session.key, session.session_id


class NewestMatches:
    """The first matches behind the place `after`, in order; at most one more than the limit, which says that there are
    more.

    A copy has the time of its original. So the copies of messages are known whose time is that of a match that is kept,
    or of `after`; and the original is kept, or comes before `after`, or is further down.
    """

    def __init__(self, limit: int, after: Place | None = None) -> None:
        self._limit, self._after = limit, after
        self._kept: list[_KeptMatch] = []
        self._seniors: dict[MessageIdentity, Match] = {}
        self._copies_allowed = _COPIES_KEPT

    def takes(self, timestamp: int) -> bool:
        """Whether a match of this time can be among them."""
        if self._after is not None and -timestamp < self._after[0]:
            return False
        return len(self._kept) < self._most or timestamp >= self._oldest_ms

    def is_complete(self, bound: int) -> bool:
        """Whether there are enough matches, all newer than `bound`."""
        return len(self._kept) > self._limit and -self._kept[self._limit].place[0] > bound

    def add(self, match: Match, identity: MessageIdentity | None) -> None:
        """Add a match, once; of a message and its copies the one in the senior session."""
        if not self.takes(match.timestamp):
            return
        if identity is not None:
            known = self._seniors.get(identity)
            if known is not None:
                if seniority(known.session) <= seniority(match.session):
                    return
                self._drop(known)
            self._seniors[identity] = match
            self._forget_copies()
        place = match.place
        if self._after is not None and place <= self._after:
            return
        at = bisect_left(self._kept, place, key=_place_of)
        if at < len(self._kept) and self._kept[at].place == place:
            return
        insort(self._kept, _KeptMatch(place, match), key=_place_of)
        self._trim()

    def newest_first(self) -> list[Match]:
        """The matches in order; one more than the limit if there are more."""
        return [kept.match for kept in self._kept[: self._limit + 1]]

    @property
    def _most(self) -> int:
        """How many matches are wanted: one more than the limit, and as many as may still turn out to be copies of
        messages before `after`.
        """
        if self._after is None:
            return self._limit + 1
        doubtful = bisect_right(self._kept, self._after[0], key=lambda kept: kept.place[0])
        return self._limit + 1 + min(doubtful, _MOST_TIED)

    @property
    def _oldest_ms(self) -> int:
        return -self._kept[self._most - 1].place[0]

    def _drop(self, match: Match) -> None:
        place = match.place
        at = bisect_left(self._kept, place, key=_place_of)
        if at < len(self._kept) and self._kept[at].place == place:
            del self._kept[at]

    def _trim(self) -> None:
        kept, most = self._kept, self._most
        while len(kept) > most and (kept[-1].place[0] > kept[most - 1].place[0] or len(kept) > most + _MOST_TIED):
            kept.pop()

    def _forget_copies(self) -> None:
        if len(self._seniors) <= self._copies_allowed or len(self._kept) < self._most:
            return
        oldest = self._oldest_ms
        self._seniors = {one: match for one, match in self._seniors.items() if one.timestamp_ms >= oldest}
        self._copies_allowed = 2 * len(self._seniors) + _COPIES_KEPT


def _place_of(kept: _KeptMatch) -> tuple[int, str, int, int, str]:
    return kept.place
