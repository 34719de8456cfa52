"""Search the messages of transcripts for a text, newest first, each once. There is no full-text index.

The caller passes in which sessions to search and how their texts may be shown. A match has to be in the masked text, so
that a search cannot reveal a masked secret. Source: protocol.md, "The agents' tools".
"""

from __future__ import annotations

import heapq
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import msgspec

from sessiond.model.case import fold_case
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.message import text_of
from sessiond.model.message_list import messages_in
from sessiond.model.record import BadLine, Record
from sessiond.sessions.found import Match, NewestMatches, identity_of, seniority
from sessiond.sessions.prefilter import Prefilter
from sessiond.store import blocks, dirfd
from sessiond.store.catalog import Session
from sessiond.store.joining import read_joined_backwards
from sessiond.store.listing import MessageListing
from sessiond.store.store import SessionStore
from sessiond.store.time_slicer import TimeSlicer

MAX_QUERY_CHARS = 512
_BEFORE, _AFTER = 60, 140
# Messages in a transcript are in order of time, except after the clock was set back; up to a day is allowed for that.
_SLACK_MS = 24 * 3600 * 1000
# How many lines are parsed in one step.
_LINES_A_STEP = 16


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What to search for. `shown` masks a text as needed for the caller. `block` is how many bytes are read at once."""

    text: str
    limit: int
    role: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    shown: Callable[[str], str]
    block: int = blocks.BLOCK


class _SearchPlace:
    """How far back one transcript was searched. No message before offset `end` is newer than `bound`.

    `copied` are the messages of a fork that its original has too, with other times; None where they are not known yet.
    """

    __slots__ = ("bound", "copied", "end", "inode", "session")

    def __init__(self, session: Session) -> None:
        self.session = session
        self.copied: set[tuple[str, int]] | None = None
        self.end = session.entry.file.folded_to
        self.inode = session.entry.file.inode
        self.bound = session.entry.updated_at


class Search:
    """One search. Keeps the newest matches so far, at most one more than the limit."""

    def __init__(self, store: SessionStore, sessions: Iterable[Session], query: Query) -> None:
        self._limit = store.record_limit
        self._query = query
        self._folded = fold_case(query.text)
        self._prefilter = Prefilter(self._folded)
        self._earliest = query.since_ms if query.since_ms is not None else -_SLACK_MS
        self._found = NewestMatches(query.limit)
        self._waiting = list(sessions)
        self._sessions = {session.key: session for session in self._waiting}
        # The transcripts being searched, ordered by the bound of their remaining messages.
        self._heap: list[tuple[int, int, _SearchPlace]] = []

    def steps(self) -> Iterator[None]:
        """Search everything, newest first. Each step blocks briefly; runs in worker threads."""
        self._waiting.sort(key=lambda session: session.entry.updated_at)
        yield
        while self._begin_next() or self._heap:
            bound, number, place = heapq.heappop(self._heap)
            if self._found.is_complete(-bound):
                return
            yield from self._search_place(place)
            if place.end > 0 and place.bound >= self._earliest - _SLACK_MS:
                heapq.heappush(self._heap, (-place.bound, number, place))
            yield

    def matches(self) -> list[Match]:
        """The matches, newest first; one more than the limit if there are more."""
        return self._found.newest_first()

    def _begin_next(self) -> bool:
        """Begin the most recently written transcript, unless one being searched may still have a newer message."""
        if not self._waiting:
            return False
        session = self._waiting[-1]
        newest = session.entry.updated_at
        if newest < self._earliest or (self._heap and -self._heap[0][0] > newest):
            return False
        self._waiting.pop()
        heapq.heappush(self._heap, (-newest, len(self._waiting), _SearchPlace(session)))
        return True

    def _search_place(self, place: _SearchPlace) -> Iterator[None]:
        block = _read(place, self._limit, self._query.block)
        if block is None:
            place.end = 0
            return
        candidates = self._prefilter.candidates(block.data)
        if candidates and place.copied is None:
            yield from self._find_copied(place)
        for read, (begin, end) in enumerate(candidates):
            if end - begin <= self._limit:
                self._examine(place, block.start + begin, block.data[begin:end])
            if read % _LINES_A_STEP == _LINES_A_STEP - 1:
                yield
        place.end = block.start
        if place.end > 0:
            place.bound = min(place.bound, _oldest(block, self._limit, place.bound, place.session.dialect))

    def _find_copied(self, place: _SearchPlace) -> Iterator[None]:
        """Find the messages that a fork has from its original, where the program gives copies new times.

        Only of those that fit the search, so that few are kept.
        """
        place.copied = set()
        original = self._original_of(place.session)
        if original is None:
            return
        back = _SearchPlace(original)
        while back.end > 0 and (block := _read(back, self._limit, self._query.block)) is not None:
            for read, (begin, end) in enumerate(self._prefilter.candidates(block.data)):
                if end - begin <= self._limit:
                    place.copied |= self._identities_in(original.dialect, block.data[begin:end])
                if read % _LINES_A_STEP == _LINES_A_STEP - 1:
                    yield
            back.end = block.start
            yield

    def _original_of(self, fork: Session) -> Session | None:
        """The searched session of which it is a copy with new times."""
        source = fork.entry.source
        if not fork.dialect.dates_copies or source is None or source.forked_from is None:
            return None
        original = self._sessions.get(f"{source.name}:{source.forked_from}")
        # What says of itself that it is older than its original is no fork, and two may name each other.
        return original if original is not None and seniority(original) < seniority(fork) else None

    def _identities_in(self, dialect: TranscriptDialect, line: bytes) -> set[tuple[str, int]]:
        text = dialect.text_in(line)
        if self._folded not in fold_case(text):
            return set()
        try:
            identity = identity_of(dialect.parse(line), self._query.shown(text))
        except BadLine:
            return set()
        return {(identity.id, identity.text)} if identity is not None else set()

    def _examine(self, place: _SearchPlace, offset: int, line: bytes) -> None:
        dialect = place.session.dialect
        text = dialect.text_in(line)
        if self._folded not in fold_case(text):
            return
        if dialect.lists:
            self._examine_listed(place, offset, line)
            return
        shown = self._query.shown(text)
        at = fold_case(shown).find(self._folded)
        if at < 0:
            return
        try:
            record = dialect.parse(line)
        except BadLine:
            return
        self._add_match(place, offset + len(line) + 1, record, shown, at, masked=shown != text)

    def _examine_listed(self, place: _SearchPlace, offset: int, line: bytes) -> None:
        """The first of the messages in the line that has the text."""
        try:
            record = place.session.dialect.parse(line)
        except BadLine:
            return
        for number, message in enumerate(messages_in(record)):
            text = text_of(message.message or b"{}", "\n")
            shown = self._query.shown(text)
            at = fold_case(shown).find(self._folded)
            if at >= 0 and self._is_wanted(message, message.timestamp_ms or place.bound):
                end = offset + len(line) + 1
                self._add_match(place, end, message, shown, at, masked=shown != text, number=number)
                return

    def _add_match(
        self, place: _SearchPlace, end: int, record: Record, shown: str, at: int, *, masked: bool, number: int = 0
    ) -> None:
        stamp = record.timestamp_ms if record.timestamp_ms is not None else place.bound
        if record.message is None or not self._is_wanted(record, stamp) or not self._found.takes(stamp):
            return
        identity = identity_of(record, shown)
        if identity is not None and place.copied and (identity.id, identity.text) in place.copied:
            return
        match = Match(
            session=place.session,
            end=end,
            timestamp=stamp,
            role=record.role or "other",
            snippet=_snippet(shown, at, len(self._query.text)),
            masked=masked,
            number_in_line=number,
        )
        self._found.add(match, record.message_id, identity)

    def _is_wanted(self, record: Record, stamp: int) -> bool:
        if self._query.role is not None and record.role != self._query.role:
            return False
        if self._query.until_ms is not None and stamp > self._query.until_ms:
            return False
        return self._query.since_ms is None or stamp >= self._query.since_ms


class MatchNumbering:
    """Finds the sequence numbers of the matches, by counting the messages from the end of each file back to them."""

    def __init__(self, store: SessionStore, matches: Iterable[Match], block: int) -> None:
        self._limit, self._block = store.record_limit, block
        self._wanted: dict[Session, list[Match]] = {}
        for match in matches:
            self._wanted.setdefault(match.session, []).append(match)
        # The current end of each session and the number of messages before it.
        self._ends = {session: (_SearchPlace(session), session.entry.message_count) for session in self._wanted}
        self.numbers: dict[tuple[Session, int], int] = {}

    def steps(self) -> Iterator[None]:
        """Count the messages; runs in worker threads."""
        for session, matches in self._wanted.items():
            place, seq = self._ends[session]
            if session.dialect.lists:
                self._find_listed(place, matches)
                yield
                continue
            if session.dialect.joins:
                yield from self._count_joined(place, seq, matches)
                continue
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

    def _find_listed(self, place: _SearchPlace, matches: list[Match]) -> None:
        """Matches in lines that the list of messages does not show any more get no number, and so are left out."""
        session = place.session
        try:
            fd = session.folder.open_file(session.file_name)
        except OSError:
            return
        with dirfd.closing(fd):
            if dirfd.inode_of(os.fstat(fd)) != place.inode:
                return
            listing = MessageListing(fd, place.end, self._limit, session.dialect)
            wanted = {(match.end, match.number_in_line) for match in matches}
            ends = sorted(end for end, place_in_line in wanted if not place_in_line)
            for number, message in enumerate(listing.messages, 1):
                if message.key is None:
                    if (message.end, message.place) in wanted:
                        self.numbers[session, message.end] = number
                    continue
                # A message in parts has all lines with its parts, between which other messages' lines may lie.
                for end in ends[bisect_right(ends, message.offset) : bisect_right(ends, message.end)]:
                    self.numbers.setdefault((session, end), number)

    def _count_joined(self, place: _SearchPlace, seq: int, matches: list[Match]) -> Iterator[None]:
        session, dialect = place.session, place.session.dialect
        waiting = sorted({match.end for match in matches})
        try:
            fd = session.folder.open_file(session.file_name)
        except OSError:
            return
        with dirfd.closing(fd):
            if dirfd.inode_of(os.fstat(fd)) != place.inode:
                return
            lines = read_joined_backwards(fd, place.end, self._limit, dialect=dialect, stop=place.end)
            for read, line in enumerate(lines):
                while waiting and waiting[-1] > line.offset:
                    self.numbers[session, waiting.pop()] = seq
                if not waiting:
                    return
                seq -= line.record is not None and line.record.message is not None
                if read % _LINES_A_STEP == _LINES_A_STEP - 1:
                    yield


async def search(
    store: SessionStore, time_slicer: TimeSlicer, sessions: Iterable[Session], query: Query
) -> tuple[list[tuple[Match, str]], bool]:
    """The newest matches, each with the cursor after it, and whether there are more.

    Ordered by the times of the messages. Matches in a file whose messages are not in order of time may come later than
    their time says.
    """
    looking = Search(store, sessions, query)
    await time_slicer.run(looking.steps())
    found = looking.matches()
    numbering = MatchNumbering(store, found[: query.limit], query.block)
    await time_slicer.run(numbering.steps())
    located = [
        (match, store.cursor(match.session, match.end, numbering.numbers[match.session, match.end]))
        for match in found[: query.limit]
        if (match.session, match.end) in numbering.numbers
    ]
    return located, len(found) > query.limit


def _read(place: _SearchPlace, record_limit: int, size: int) -> blocks.Block | None:
    """The block before the place. None if the session was reset, deleted or removed: its matches cannot be shown."""
    session = place.session
    return blocks.read_block_of_file(session.folder, session.file_name, place.inode, place.end, record_limit, size=size)


def _oldest(block: blocks.Block, record_limit: int, bound: int, dialect: TranscriptDialect) -> int:
    """The time of the first line in the block, which is the oldest; `bound` if it has none."""
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
