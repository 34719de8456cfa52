"""Find where something was said, newest first, by looking through the transcripts. There is no index to keep up.

Knows the store and what counts as a match. Does not know who asks: which sessions to look through, and how their texts
may be shown, is handed in. What is matched is the text as it may be shown, so that nobody learns of a masked secret by
searching for it. Source: protocol.md, "The agents' tools".
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.record import BadLine, Record
from sessiond.sessions.prefilter import Prefilter, fold_case
from sessiond.store import blocks
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore
from sessiond.store.time_slicer import TimeSlicer

MAX_QUERY_CHARS = 512
_BEFORE, _AFTER = 60, 140
# Transcripts are in order of time, except where a clock was set back; by more than a day is another story.
_SLACK_MS = 24 * 3600 * 1000
# Lines read between two chances for others to run.
_LINES_A_STEP = 16


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What to look for. `shown` gives a text as the caller may read it. `block` is how much is read in one go."""

    text: str
    limit: int
    role: str | None = None
    since_ms: int | None = None
    shown: Callable[[str], str]
    block: int = blocks.BLOCK


class Match(msgspec.Struct, frozen=True):
    """One message, which ends at `end` of the session's file. `masked` says that its text was not shown as it is."""

    session: Session
    end: int
    timestamp: int
    role: str
    snippet: str
    masked: bool


class _SearchPlace:
    """How far back one transcript was looked through. Nothing before `end` is younger than `bound`."""

    __slots__ = ("bound", "end", "inode", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.end = session.entry.file.folded_to
        self.inode = session.entry.file.inode
        self.bound = session.entry.updated_at


class Search:
    """One search at work. `found` holds the newest matches so far, at most one more than asked for."""

    def __init__(self, store: SessionStore, sessions: Iterable[Session], query: Query) -> None:
        self._limit = store.record_limit
        self._query = query
        self._folded = fold_case(query.text)
        self._needle = Prefilter(self._folded)
        self._earliest = query.since_ms if query.since_ms is not None else -_SLACK_MS
        self._found: list[tuple[int, int, Match]] = []
        self._waiting = list(sessions)
        # Transcripts that were begun, by how young what is left of them may be.
        self._heap: list[tuple[int, int, _SearchPlace]] = []
        self._count = 0

    def steps(self) -> Iterator[None]:
        """Look through everything, newest first. Blocks a little between two steps; runs in worker threads."""
        self._waiting.sort(key=lambda session: session.entry.updated_at)
        yield
        while self._begin_next() or self._heap:
            bound, number, place = heapq.heappop(self._heap)
            if self._is_enough(-bound):
                return
            yield from self._search_place(place)
            if place.end > 0 and place.bound >= self._earliest - _SLACK_MS:
                heapq.heappush(self._heap, (-place.bound, number, place))
            yield

    def matches(self) -> list[Match]:
        """The matches, newest first; where there are more than asked for, one too many."""
        return [match for _, _, match in sorted(self._found, key=lambda item: item[:2], reverse=True)]

    def _begin_next(self) -> bool:
        """Begin the transcript that was written to last, unless what is left of another is younger."""
        if not self._waiting:
            return False
        session = self._waiting[-1]
        newest = session.entry.updated_at
        if newest < self._earliest or (self._heap and -self._heap[0][0] > newest):
            return False
        self._waiting.pop()
        heapq.heappush(self._heap, (-newest, len(self._waiting), _SearchPlace(session)))
        return True

    def _is_enough(self, bound: int) -> bool:
        return len(self._found) > self._query.limit and self._found[0][0] >= bound

    def _search_place(self, place: _SearchPlace) -> Iterator[None]:
        block = _read(place, self._limit, self._query.block)
        if block is None:
            place.end = 0
            return
        for read, (begin, end) in enumerate(self._needle.candidates(block.data)):
            if end - begin <= self._limit:
                self._examine(place, block.start + begin, block.data[begin:end])
            if read % _LINES_A_STEP == _LINES_A_STEP - 1:
                yield
        place.end = block.start
        if place.end > 0:
            place.bound = min(place.bound, _oldest(block, self._limit, place.bound, place.session.dialect))

    def _examine(self, place: _SearchPlace, offset: int, line: bytes) -> None:
        dialect = place.session.dialect
        text = dialect.text_in(line)
        if self._folded not in fold_case(text):
            return
        shown = self._query.shown(text)
        at = fold_case(shown).find(self._folded)
        if at < 0:
            return
        try:
            record = dialect.parse(line)
        except BadLine:
            return
        stamp = record.timestamp_ms if record.timestamp_ms is not None else place.bound
        if record.message is None or not self._is_wanted(record, stamp):
            return
        match = Match(
            session=place.session,
            end=offset + len(line) + 1,
            timestamp=stamp,
            role=record.role or "other",
            snippet=_snippet(shown, at, len(self._query.text)),
            masked=shown != text,
        )
        self._count += 1
        # Of two with the same time the one that was found first is the newer one.
        heapq.heappush(self._found, (stamp, -self._count, match))
        if len(self._found) > self._query.limit + 1:
            heapq.heappop(self._found)

    def _is_wanted(self, record: Record, stamp: int) -> bool:
        if self._query.role is not None and record.role != self._query.role:
            return False
        return self._query.since_ms is None or stamp >= self._query.since_ms


class MatchNumbering:
    """Counts which messages of their sessions the matches are, from the ends of the files back to them."""

    def __init__(self, store: SessionStore, matches: Iterable[Match], block: int) -> None:
        self._limit, self._block = store.record_limit, block
        self._wanted: dict[Session, list[Match]] = {}
        for match in matches:
            self._wanted.setdefault(match.session, []).append(match)
        # Taken where the search took its own ends: appends since then come after both.
        self._ends = {session: (_SearchPlace(session), session.entry.message_count) for session in self._wanted}
        self.numbers: dict[tuple[Session, int], int] = {}

    def steps(self) -> Iterator[None]:
        """Count; runs in worker threads."""
        for session, matches in self._wanted.items():
            place, seq = self._ends[session]
            count = partial(
                blocks.count_messages,
                record_limit=self._limit,
                clean=session.entry.corrupt_records == 0,
                dialect=session.dialect,
            )
            waiting = sorted({match.end for match in matches})
            while waiting and place.end > 0:
                block = _read(place, self._limit, self._block)
                if block is None:
                    break
                end = len(block.data)
                while waiting and waiting[-1] > block.start:
                    cut = waiting.pop() - block.start
                    seq -= count(block.data[cut:end])
                    self.numbers[session, cut + block.start] = seq
                    end = cut
                seq -= count(block.data[:end])
                place.end = block.start
                yield


async def search(
    store: SessionStore, slices: TimeSlicer, sessions: Iterable[Session], query: Query
) -> tuple[list[tuple[Match, str]], bool]:
    """The newest matches, each with the cursor behind it, and whether there are more.

    Newest first by the times of the messages; a file whose messages are not in the order of their times is looked
    through all the same, but may come a little late.
    """
    looking = Search(store, sessions, query)
    await slices.run(looking.steps())
    found = looking.matches()
    numbering = MatchNumbering(store, found[: query.limit], query.block)
    await slices.run(numbering.steps())
    located = [
        (match, store.cursor(match.session, match.end, numbering.numbers[match.session, match.end]))
        for match in found[: query.limit]
        if (match.session, match.end) in numbering.numbers
    ]
    return located, len(found) > query.limit


def _read(place: _SearchPlace, record_limit: int, size: int) -> blocks.Block | None:
    """The block before the place. None where the session was reset, deleted or removed: no match of it can be shown."""
    session = place.session
    return blocks.of_file(session.folder.fd, session.file_name, place.inode, place.end, record_limit, size=size)


def _oldest(block: blocks.Block, record_limit: int, bound: int, dialect: TranscriptDialect) -> int:
    """The time of the first line in the block, which is its oldest."""
    end = block.data.find(b"\n")
    if not 0 <= end <= record_limit:
        return bound
    try:
        stamp = dialect.parse(block.data[:end]).timestamp_ms
    except BadLine:
        return bound
    return stamp if stamp is not None else bound


def _snippet(text: str, at: int, length: int) -> str:
    """The text around a match, on one line."""
    begin, end = max(0, at - _BEFORE), min(len(text), at + length + _AFTER)
    piece = " ".join(text[begin:end].split())
    return ("…" if begin > 0 else "") + piece + ("…" if end < len(text) else "")
