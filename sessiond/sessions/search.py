"""Search the messages of transcripts for a text, newest first, each once.

The caller passes in which sessions to search and how their texts may be shown. A match has to be in the masked text, so
that a search cannot reveal a masked secret. The index only says where it is worth looking: what it names is read and
judged as if there were none. Source: protocol.md, "The agents' tools".
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter

import msgspec

from sessiond.model.case import fold_case
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.lax import MAX_MS
from sessiond.model.message import text_of
from sessiond.model.record import TOOL_ROLES, BadLine, Record
from sessiond.sessions.found import Match, NewestMatches, Place, identity_of, seniority
from sessiond.sessions.prefilter import Prefilter
from sessiond.sessions.search_numbers import MatchNumbering
from sessiond.sessions.search_place import SearchPlace, Stretch, newest_time_of
from sessiond.store import blocks
from sessiond.store.catalog import Session
from sessiond.store.joining import is_whole_message, read_joined_backwards
from sessiond.store.listing import MessageListing
from sessiond.store.store import SessionStore
from sessiond.store.time_slicer import TimeSlicer
from sessiond.store.transcript import Line, checksum
from sessiond.trigrams.narrowing import NO_INDEX, NOT_NARROWED, Narrowed, SearchIndex

MAX_QUERY_CHARS = 512
_BEFORE, _AFTER = 60, 140
# How many lines are parsed, or sessions begun, in one step.
_A_STEP = 16


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """What to search for. `shown` masks a text as needed for the caller. `block` is how many bytes are read at once.

    `after` is the place of the last match of the page before. When `is_over` says so, the search ends with what is
    certain by then: all matches down to some time. It is asked only behind that place.
    """

    text: str
    limit: int
    role: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    shown: Callable[[str], str]
    block: int = blocks.BLOCK
    after: Place | None = None
    is_over: Callable[[], bool] | None = None


class Page(msgspec.Struct, frozen=True):
    """Matches in order, each with the cursor after it. `next_place` is where the next page begins, None if there is
    none. Where the search ended early, `progress` is how many bytes were looked at, and how many there are.
    """

    found: list[tuple[Match, str]]
    next_place: Place | None
    progress: tuple[int, int] | None = None

    @property
    def has_more(self) -> bool:
        return self.next_place is not None


class Search:
    """One search. Keeps the first matches so far, at most one more than the limit."""

    def __init__(
        self, store: SessionStore, sessions: Iterable[Session], query: Query, index: SearchIndex = NO_INDEX
    ) -> None:
        self._limit = store.record_limit
        self._query, self._index = query, index
        self._folded = fold_case(query.text)
        # A line break may stand between two lines of the file that are parts of one message.
        self._piece = max(self._folded.split("\n"), key=lambda piece: len(piece.strip()))
        self._prefilter = Prefilter(self._piece)
        self._earliest = query.since_ms if query.since_ms is not None else -1
        self._latest = query.until_ms if query.until_ms is not None else MAX_MS
        if query.after is not None:
            self._latest = min(self._latest, -query.after[0])
        self._found = NewestMatches(query.limit, query.after)
        self._sessions = list(sessions)
        self._narrowed: Narrowed = NOT_NARROWED
        self._originals: dict[str, Session] = {}
        # Those that are not begun yet, the newest last, each with the bound of its messages.
        self._waiting: list[tuple[int, Session]] = []
        # The transcripts being searched, ordered by the bound of their remaining messages.
        self._heap: list[tuple[int, int, SearchPlace]] = []
        self._ended_at: int | None = None
        # Where it ended early: how many bytes were looked at or need not be, and how many there are.
        self.progress: tuple[int, int] | None = None

    def steps(self) -> Iterator[None]:
        """Search everything, newest first. Each step blocks briefly; runs in worker threads."""
        self._narrowed = self._index.narrow(self._piece)
        yield
        self._waiting = [
            (newest_time_of(session, self._latest), session) for session in self._narrowed.leave_out(self._sessions)
        ]
        self._waiting.sort(key=itemgetter(0))
        yield
        while True:
            yield from self._begin_newest()
            if not self._heap or self._found.is_complete(-self._heap[0][0]) or self._ends_early(-self._heap[0][0]):
                return
            _, number, place = heapq.heappop(self._heap)
            yield from self._search_place(place)
            self._keep(number, place)
            yield

    def matches(self) -> list[Match]:
        """The matches in order; one more than the limit if there are more."""
        ended_at = self._ended_at
        return [match for match in self._found.newest_first() if ended_at is None or match.timestamp > ended_at]

    @property
    def has_more(self) -> bool:
        """Whether there are more matches than the limit."""
        return len(self.matches()) > self._query.limit

    @property
    def ended_at(self) -> int | None:
        """Where the search ended early: everything newer than this time was looked at."""
        return self._ended_at

    def _measure(self) -> tuple[int, int]:
        total = sum(session.entry.file.folded_to for session in self._sessions)
        left = sum(place.bytes_left for _, _, place in self._heap)
        left += sum(self._narrowed.bytes_of(session) for _, session in self._waiting)
        return max(0, total - left), total

    def _begin_newest(self) -> Iterator[None]:
        """Begin the transcripts that may have a newer message than those being searched."""
        waiting, heap = self._waiting, self._heap
        while waiting and (not heap or waiting[-1][0] >= -heap[0][0]):
            bound, session = waiting[-1]
            if bound < self._earliest:
                waiting.clear()
                return
            if self._found.is_complete(bound):
                return
            waiting.pop()
            place = SearchPlace(session, self._limit, self._latest)
            place.begin(self._narrowed.find_in(session), self._earliest, self._query.block)
            self._keep(len(waiting), place)
            if len(waiting) % _A_STEP == 0:
                yield

    def _keep(self, number: int, place: SearchPlace) -> None:
        if not place.is_done and place.bound >= self._earliest:
            heapq.heappush(self._heap, (-place.bound, number, place))

    def _ends_early(self, bound: int) -> bool:
        # Each page gets further than the one before, so that whoever asks on comes to the end.
        query = self._query
        if query.is_over is None or (query.after is not None and bound >= -query.after[0]) or not query.is_over():
            return False
        self._ended_at, self.progress = bound, self._measure()
        return True

    def _search_place(self, place: SearchPlace) -> Iterator[None]:
        if place.session.dialect.lists:
            yield from self._search_list(place)
            return
        with place.open_file() as fd:
            block = place.read(fd, self._query.block) if fd is not None else None
            if fd is None or block is None:
                place.give_up()
                return
            candidates = self._prefilter.candidates(block.data)
            if candidates and place.copied is None:
                yield from self._find_copied(place)
            for read, (begin, end) in enumerate(candidates):
                if end - begin <= self._limit:
                    self._examine(place, fd, block, begin, end)
                if read % _A_STEP == _A_STEP - 1:
                    yield
        place.pass_block(block)

    def _examine(self, place: SearchPlace, fd: int, block: blocks.Block, begin: int, end: int) -> None:
        dialect, offset = place.session.dialect, block.start + begin
        if dialect.joins and offset in place.seen:
            return
        line = block.data[begin:end]
        # Our own lines have a quicker way to their text than to parse them; others are parsed for it.
        if place.session.entry.source is None and self._piece not in fold_case(dialect.text_in(line)):
            return
        record = _parse(dialect, line)
        if record is None or record.message is None:
            return
        text = text_of(record.message, "\n")
        if self._piece not in fold_case(text):
            return
        found = Line(offset, offset + len(line) + 1, record)
        identity = record.message_id if dialect.joins and record.role not in TOOL_ROLES else None
        if identity is not None and not is_whole_message(
            block.data, begin, end, identity, record_limit=self._limit, dialect=dialect
        ):
            whole = _join(place, fd, found, self._limit)
            if whole is None or whole.record is None:
                return
            found, text = whole, text_of(whole.record.message or b"{}", "\n")
            place.seen = range(found.offset, found.end)
        self._judge(place, fd, found, text, hit=offset, stretch=place.next_stretch)

    def _search_list(self, place: SearchPlace) -> Iterator[None]:
        """Search a transcript whose lines change a list of messages: what the list is now."""
        dialect = place.session.dialect
        hits: list[int] = []
        with place.open_file() as fd:
            while not place.is_done:
                block = place.read(fd, self._query.block) if fd is not None else None
                if fd is None or block is None:
                    place.give_up()
                    return
                for begin, end in self._prefilter.candidates(block.data):
                    if end - begin <= self._limit and self._piece in fold_case(dialect.text_in(block.data[begin:end])):
                        hits.append(block.start + begin)
                place.pass_block(block)
                yield
            if fd is not None and hits:
                yield from self._judge_list(place, fd, sorted(hits))

    def _judge_list(self, place: SearchPlace, fd: int, hits: list[int]) -> Iterator[None]:
        listing = MessageListing(fd, place.stop, self._limit, place.session.dialect, in_steps=True)
        yield from listing.steps(place.stop)
        for number in range(len(listing.messages), 0, -1):
            message = listing.messages[number - 1]
            at = bisect_left(hits, message.offset)
            if at == len(hits) or hits[at] >= message.end:
                continue
            line = listing.read(number)
            if line.record is not None:
                text = text_of(line.record.message or b"{}", "\n")
                self._judge(place, fd, line, text, hit=hits[at], listed=number)
            yield

    def _judge(
        self,
        place: SearchPlace,
        fd: int,
        line: Line,
        text: str,
        *,
        hit: int,
        stretch: Stretch | None = None,
        listed: int = 0,
    ) -> None:
        """Add the message in `line`, which has this text, if it is one that is looked for."""
        record, query = line.record, self._query
        assert record is not None
        stamp = record.timestamp_ms if record.timestamp_ms is not None else place.floor
        is_in_time = self._earliest <= stamp <= self._latest
        if not is_in_time or (query.role is not None and record.role != query.role) or not self._found.takes(stamp):
            return
        if self._folded not in fold_case(text):
            return
        shown = query.shown(text)
        at = fold_case(shown).find(self._folded)
        identity = identity_of(record, shown) if at >= 0 else None
        if at < 0 or (identity is not None and place.copied and (identity.id, identity.text) in place.copied):
            return
        match = Match(
            session=place.session,
            offset=line.offset,
            end=line.end,
            hit=hit,
            timestamp=stamp,
            role=record.role or "other",
            snippet=_snippet(shown, at, len(query.text)),
            masked=shown != text,
            check=checksum(fd, line.end),
            listed=listed,
            counted=stretch.find_numbered(hit) if stretch is not None else None,
        )
        self._found.add(match, identity)

    def _find_copied(self, place: SearchPlace) -> Iterator[None]:
        """Find the messages that a fork has from its original, where the program gives copies new times.

        Only of those that fit the search, so that few are kept.
        """
        place.copied = set()
        original = self._original_of(place.session)
        if original is None:
            return
        back = SearchPlace(original, self._limit, MAX_MS)
        back.begin(self._narrowed.find_in(original), -1)
        with back.open_file() as fd:
            while fd is not None and not back.is_done:
                block = back.read(fd, self._query.block)
                if block is None:
                    return
                for read, (begin, end) in enumerate(self._prefilter.candidates(block.data)):
                    if end - begin <= self._limit:
                        place.copied |= self._identities_in(original.dialect, block.data[begin:end])
                    if read % _A_STEP == _A_STEP - 1:
                        yield
                back.pass_block(block)
                yield

    def _original_of(self, fork: Session) -> Session | None:
        """The searched session of which it is a copy with new times."""
        source = fork.entry.source
        if not fork.dialect.dates_copies or source is None or source.forked_from is None:
            return None
        if not self._originals:
            self._originals = {session.key: session for session in self._sessions if session.dialect.dates_copies}
        original = self._originals.get(f"{source.name}:{source.forked_from}")
        # What says of itself that it is older than its original is no fork, and two may name each other.
        return original if original is not None and seniority(original) < seniority(fork) else None

    def _identities_in(self, dialect: TranscriptDialect, line: bytes) -> set[tuple[str, int]]:
        text = dialect.text_in(line)
        record = _parse(dialect, line) if self._folded in fold_case(text) else None
        identity = identity_of(record, self._query.shown(text)) if record is not None else None
        return {(identity.id, identity.text)} if identity is not None else set()


async def search(
    store: SessionStore,
    time_slicer: TimeSlicer,
    sessions: Iterable[Session],
    query: Query,
    index: SearchIndex = NO_INDEX,
) -> Page:
    """The first matches: by time, newest first, then by key, then by offset, the last first."""
    looking = Search(store, sessions, query, index)
    numbered: list[tuple[Match, int | None]] = []

    def steps() -> Iterator[None]:
        yield from looking.steps()
        shown = looking.matches()[: query.limit]
        numbering = MatchNumbering(store.record_limit, shown, query.block)
        yield from numbering.steps()
        numbered.extend((match, numbering.number_of(match)) for match in shown)

    await time_slicer.run(steps())
    located = [
        (match, store.cursor(match.session, match.end, number, match.check))
        for match, number in numbered
        if number is not None
    ]
    if looking.has_more:
        return Page(located, numbered[-1][0].place)
    if looking.ended_at is not None:
        return Page(located, (-looking.ended_at,), looking.progress)
    return Page(located, None)


def _join(place: SearchPlace, fd: int, line: Line, record_limit: int) -> Line | None:
    """The whole message of which a line is a part. None if the file is shorter now."""
    lines = read_joined_backwards(fd, line.end, record_limit, dialect=place.session.dialect, stop=place.stop)
    for found in lines:
        record = found.record
        if record is not None and record.message is not None and record.role not in TOOL_ROLES:
            return found
    return None


def _parse(dialect: TranscriptDialect, line: bytes) -> Record | None:
    try:
        return dialect.parse(line)
    except BadLine:
        return None


def _snippet(text: str, at: int, length: int) -> str:
    """The text around a match, on one line."""
    begin, end = max(0, at - _BEFORE), min(len(text), at + length + _AFTER)
    piece = " ".join(text[begin:end].split())
    return ("…" if begin > 0 else "") + piece + ("…" if end < len(text) else "")
