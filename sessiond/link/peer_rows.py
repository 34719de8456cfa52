"""Which sessions one machine gets, told in rows: hundreds in a message, with the first lines of those that are new
to it.

Asks for each head again whether the session is exported, by the label and the folder that came with it. Knows one peer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Literal

import msgspec

from sessiond.link.own_sessions import OwnSessions, SessionFacts
from sessiond.link.peer_places import PeerPlaces
from sessiond.link.range_sender import RangeSender
from sessiond.link.ranges import MAX_KEY_CHARS, MAX_ROWS, RowFields, RowsFields
from sessiond.link.sent_places import SentPlace
from sessiond.link.transcript_bytes import FoundBytes

# Bytes of the rows of one message, and of one row without its head, about.
_ROWS_BYTES, _ROW_BYTES = 700_000, 500

ReadingHeads = Callable[
    [Sequence[tuple[str, str | None]]], Awaitable[list[FoundBytes | Literal["missing", "stale", "busy"]]]
]


class _MadeRow(msgspec.Struct, frozen=True):
    """A row, the bytes of its head, and what was read for it."""

    row: RowFields
    head: bytes
    place: SentPlace | None = None
    found: FoundBytes | None = None


class PeerRows:
    """`exports(facts)` says whether the peer gets the session, `mark(session)` has the feed look at it. `read_heads` is
    that of `transcript_bytes`.
    """

    def __init__(
        self,
        peer: str,
        sessions: OwnSessions,
        places: PeerPlaces,
        *,
        courier: RangeSender,
        read_heads: ReadingHeads,
        exports: Callable[[SessionFacts], bool],
        mark: Callable[[str], object],
        wall_ms: Callable[[], int],
    ) -> None:
        self._peer, self._sessions, self._places, self._courier = peer, sessions, places, courier
        self._read_heads, self._exports, self._mark, self._wall_ms = read_heads, exports, mark, wall_ms
        self._due: dict[str, bool] = {}  # session -> with its head
        self._counter = 0

    def __bool__(self) -> bool:
        """Whether there are rows to be sent."""
        return bool(self._due)

    def want(self, session: str, *, head: bool = False) -> None:
        """The peer shall get a row of the session, or be told that it is gone."""
        self._due[session] = head or self._due.get(session, False)

    def begin_after(self, counter: int) -> None:
        """Count on from here: the peer has seen this counter, also where this machine's clock was set back."""
        self._counter = max(self._counter, counter)

    async def send_all(self) -> None:
        """Send all that are due. Those that could not be sent are still due. BusError, ClientError."""
        chosen = self._choose()
        making = asyncio.create_task(self._make(chosen))
        try:
            while chosen:
                made = await making
                sending, chosen = chosen, self._choose()
                # The next heads are read while these rows are on their way.
                making = asyncio.create_task(self._make(chosen))
                try:
                    await self._send(made)
                except BaseException:
                    self._take_back(sending)
                    raise
        except BaseException:
            self._take_back(chosen)
            making.cancel()
            await asyncio.gather(making, return_exceptions=True)
            raise
        await making

    def _choose(self) -> dict[str, bool]:
        chosen = dict(zip(list(self._due)[:MAX_ROWS], list(self._due.values())[:MAX_ROWS], strict=True))
        for session in chosen:
            del self._due[session]
        return chosen

    def _take_back(self, chosen: dict[str, bool]) -> None:
        for session, head in chosen.items():
            self.want(session, head=head)

    async def _send(self, made: Sequence[_MadeRow]) -> None:
        begin = 0
        while begin < len(made):
            end, size = begin, 0
            while end < len(made) and size < _ROWS_BYTES:
                size += len(made[end].head) + _ROW_BYTES
                end += 1
            part, begin = made[begin:end], end
            self._counter = max(self._counter + 1, self._wall_ms())
            fields = RowsFields(counter=self._counter, rows=tuple(one.row for one in part))
            await self._courier.send(self._peer, "row", "rows", fields, b"".join(one.head for one in part))
            for one in part:
                self._note_sent(one)

    def _note_sent(self, made: _MadeRow) -> None:
        row, place, found = made.row, made.place, made.found
        if row.gone:
            self._places.end(row.session, row.generation)
            self._mark(row.session)  # it may be exported again by now
        elif place is not None and found is not None:
            self._places.advance(row.session, place, found)
            # One that is no longer than its head is with the peer.
            self._places.note_seen(self._sessions.find(row.session), found)

    async def _make(self, chosen: dict[str, bool]) -> list[_MadeRow]:
        """The rows of what there is something to say about."""
        made: list[_MadeRow] = []
        heads: list[tuple[SessionFacts, SentPlace]] = []
        for session, with_head in chosen.items():
            facts = self._sessions.find(session)
            if facts is None or not self._exports(facts):
                if (known := self._places.find(session)) is not None:
                    row = RowFields(session=session, agent=known.agent, generation=known.generation, gone=True)
                    made.append(_MadeRow(row, b""))
                continue
            place = self._places.place_of(facts)
            if with_head:
                heads.append((facts, place))
            else:
                made.append(_MadeRow(_row_of(facts, place, place.to), b""))
        if heads:
            found = await self._read_heads([(facts.session, place.cursor) for facts, place in heads])
            made += filter(None, (self._make_one(*one, got) for one, got in zip(heads, found, strict=True)))
        return made

    def _make_one(
        self, asked: SessionFacts, place: SentPlace, found: FoundBytes | Literal["missing", "stale", "busy"]
    ) -> _MadeRow | None:
        session = asked.session
        if found == "missing":
            self._sessions.note_missing(session)
            self.want(session)
            return None
        now = self._places.find(session)
        if now is None or (now.generation, now.cursor) != (place.generation, place.cursor):
            self.want(session, head=True)  # something else of it was read meanwhile
            return None
        if not isinstance(found, FoundBytes):
            # The feed gives it a new generation, or tries again.
            self._mark(session)
            return None
        facts = self._sessions.note_facts(session, found.label, found.cwd)
        if facts is None or not self._exports(facts):
            self.want(session)
            return None
        self._places.anchor(session, place, found)
        head = found.data[: found.data.rfind(b"\n") + 1]
        return _MadeRow(_row_of(facts, place, found.size, len(head)), head, place, found)


def _row_of(facts: SessionFacts, place: SentPlace, size: int, head: int = 0) -> RowFields:
    return RowFields(
        session=facts.session,
        agent=place.agent,
        generation=place.generation,
        key=facts.key[:MAX_KEY_CHARS].encode("utf-8", "replace").decode(),
        size=max(size, facts.size),
        updated_at=facts.updated_at,
        head=head,
    )
