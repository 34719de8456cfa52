"""What one machine gets of our sessions: new bytes as they are appended, rows, and parts that it asks for.

Everything is a range of a generation, so that nothing has to arrive, and nothing harms that arrives twice. Asks for all
bytes again whether the session is exported, by the label and the folder that came with them. Knows one peer.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import structlog

from sessiond.client.errors import ClientError, RpcError
from sessiond.client.retry import Backoff
from sessiond.link.failures import BusError
from sessiond.link.own_sessions import OwnSessions, SessionFacts
from sessiond.link.peer_places import PeerPlaces
from sessiond.link.peer_rows import PeerRows, ReadingHeads
from sessiond.link.range_answer import READ_AT_ONCE, RangeAnswer
from sessiond.link.range_sender import RangeSender
from sessiond.link.ranges import (
    ANSWER_BYTES,
    OVERLAP_BYTES,
    RANGE_BYTES,
    CopyRequest,
    Promise,
    RangeFields,
    RowsRequest,
)
from sessiond.link.sent_places import SentPlace
from sessiond.link.subjects import Kind, token_of
from sessiond.link.transcript_bytes import FoundBytes, NoTranscript, OtherContent

log = structlog.get_logger("sessiond.link")

# What is further behind is not sent unasked: a machine that needs it asks, when it is there and has room.
_MOST_BEHIND = 1 << 20
_LAST_PIECE = 64 << 10
_MAX_REQUESTS = 1000
# A copy that differs gets a new generation, but not again and again.
_RENEW_AGAIN_S = 30.0
# When a transcript is looked at again that the daemon cannot read.
_UNREADABLE_S = 30.0

# All rows of ten thousand sessions take the daemon and the link a second. A peer that asks for them again and again has
# them a tenth of the time.
_ROWS_REST, _MAX_ROWS_REST_S = 9, 30.0

Reading = Callable[[str, str | None, int | None, int], Awaitable[FoundBytes]]


class _Withheld(Exception):
    """The session is not exported (any more)."""


class PeerFeed:
    """`exports(facts)` says whether the peer gets the session. `read(session, cursor, at, most)` is `read_bytes`,
    and `read_heads` of that module.
    """

    def __init__(
        self,
        peer: str,
        sessions: OwnSessions,
        places: PeerPlaces,
        *,
        courier: RangeSender,
        read: Reading,
        read_heads: ReadingHeads,
        exports: Callable[[SessionFacts], bool],
        wall_ms: Callable[[], int],
        overlap_bytes: int = OVERLAP_BYTES,
    ) -> None:
        self.peer = peer
        self._sessions, self._places, self._courier = sessions, places, courier
        self._read, self._exports = read, exports
        self._overlap_bytes = overlap_bytes
        self._dirty: dict[str, None] = {}
        self._rows_again_at = 0.0
        self._rows = PeerRows(
            peer,
            sessions,
            places,
            courier=courier,
            read_heads=read_heads,
            exports=exports,
            mark=self.mark,
            wall_ms=wall_ms,
        )
        self._requests: dict[str, CopyRequest] = {}
        self._has_work, self._is_asked = asyncio.Event(), asyncio.Event()
        self._retries: list[asyncio.Event] = []
        self._unsure: set[str] = set()  # published, perhaps: the peer may have more than is known
        self._renewed_at: dict[str, float] = {}
        self._unreadable: dict[str, str] = {}  # why, as it was said
        self._told = ""

    # What others tell.

    def mark(self, session: str) -> None:
        """It may have more bytes, or be exported no longer."""
        self._dirty[session] = None
        self._has_work.set()

    def review(self) -> None:
        """Look at all sessions: after the list was read, or rules or marks have changed."""
        places = self._places.all
        for session, facts in self._sessions.all.items():
            place = places.get(session)
            if not self._exports(facts):
                continue
            if place is None or place.is_gone:
                self._rows.want(session, head=True)
            elif place.seen != facts.cursor or not facts.cursor:
                self._rows.want(session)
                self.mark(session)
        for session, place in places.items():
            facts_now = self._sessions.find(session)
            if not place.is_gone and (facts_now is None or not self._exports(facts_now)):
                self._rows.want(session)
        self._has_work.set()

    def take_request(self, request: CopyRequest) -> Promise:
        facts = self._sessions.find(request.session)
        if facts is None or not self._exports(facts):
            if request.session in self._places.all:
                self._rows.want(request.session)
                self._has_work.set()
            return Promise(gone=True)
        if len(self._requests) >= _MAX_REQUESTS and request.session not in self._requests:
            return Promise(busy=True)
        self._requests[request.session] = request
        self._is_asked.set()
        return Promise()

    def take_rows_request(self, request: RowsRequest) -> Promise:
        self._rows.begin_after(request.counter)
        if asyncio.get_running_loop().time() < self._rows_again_at:
            return Promise(busy=True)
        for session, facts in self._sessions.all.items():
            if self._exports(facts):
                self._rows.want(session, head=request.heads)
        for session in self._places.all:
            facts_now = self._sessions.find(session)
            if facts_now is None or not self._exports(facts_now):
                self._rows.want(session)
        self._has_work.set()
        return Promise()

    # What it does.

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._work(self._has_work, self._publish_next))
            tasks.create_task(self._work(self._is_asked, self._answer_next))

    async def _work(self, wake: asyncio.Event, do_next: Callable[[], Awaitable[bool]]) -> None:
        """Do what there is to do; after an error the same again, a while later."""
        backoff, retry = Backoff(0.05, 15.0), asyncio.Event()
        self._retries.append(retry)
        while True:
            await wake.wait()
            wake.clear()
            retry.clear()  # not after an error: what was waited for may have come during the attempt
            try:
                while await do_next():
                    backoff.reset()
                    self._told = ""
            except (BusError, ClientError) as error:
                wake.set()
                self._tell(str(error))
                with suppress(TimeoutError):
                    async with asyncio.timeout(backoff.next_s()):
                        await retry.wait()

    def retry_now(self) -> None:
        """The server or the daemon is back."""
        for retry in self._retries:
            retry.set()

    def _tell(self, trouble: str) -> None:
        if trouble != self._told:
            self._told = trouble
            log.warning("sessions wait to be sent", machine=self.peer, reason=trouble)

    async def _publish_next(self) -> bool:
        if self._rows:
            await self._send_rows()
            return True
        session = next(iter(self._dirty), None)
        if session is None:
            return False
        del self._dirty[session]
        try:
            await self._publish_new(session)
        except BaseException as error:
            if not self._is_of_one(session, error):
                self._dirty[session] = None
                raise
            asyncio.get_running_loop().call_later(_UNREADABLE_S, self.mark, session)
        else:
            self._unreadable.pop(session, None)
        return True

    def _is_of_one(self, session: str, error: BaseException) -> bool:
        """Whether the error is about this transcript alone, so that the others need not wait for it."""
        if not isinstance(error, RpcError) or error.slug != "storage":
            return False
        if self._unreadable.get(session) != error.message:
            self._unreadable[session] = error.message
            log.warning("a session waits to be sent", machine=self.peer, session=session, reason=error.message)
        return True

    async def _send_rows(self) -> None:
        """All that are due. While they are being sent, and for a while, the peer need not ask for them."""
        loop = asyncio.get_running_loop()
        began, self._rows_again_at = loop.time(), math.inf
        try:
            await self._rows.send_all()
        except BaseException:
            self._rows_again_at = 0.0
            raise
        now = loop.time()
        self._rows_again_at = now + min(_ROWS_REST * (now - began), _MAX_ROWS_REST_S)

    async def _publish_new(self, session: str) -> None:
        place = self._place(session)
        if place is None:
            return
        try:
            found = await self._read_for(session, place, max(0, place.to - self._overlap_bytes))
            if found.size - place.to > _MOST_BEHIND:
                # The last piece shows the peer how much it has to ask for.
                found = await self._read_for(session, place, found.size - _LAST_PIECE)
        except OtherContent:
            self._renew(session, place)
            return
        except _Withheld:
            return
        if found.to > place.to or place.cursor is None:
            try:
                await self._send("rec", session, place, found)
            except BaseException:
                self._unsure.add(session)
                raise
            self._places.advance(session, place, found)
        if session in self._unsure:
            # What was not acknowledged may have arrived, and the transcript may be shorter by now.
            self._unsure.discard(session)
            self._rows.want(session)
        if found.to < found.size:
            self.mark(session)
        else:
            self._places.note_seen(self._sessions.find(session), found)

    async def _send(self, kind: Kind, session: str, place: SentPlace, found: FoundBytes) -> None:
        fields = RangeFields(
            agent=place.agent, generation=place.generation, begin=found.begin, to=found.to, size=found.size
        )
        # What was asked for has no id: the server would swallow what it has had lately. A digest: no header is sealed.
        what = f"{self.peer}:{session}:{place.generation}:{found.begin}:{found.to}"
        msg_id = token_of(what) if kind == "rec" else None
        await self._courier.send(self.peer, kind, session, fields, found.data, msg_id=msg_id)

    async def _read_for(self, session: str, place: SentPlace, at: int, most: int = RANGE_BYTES) -> FoundBytes:
        """Bytes of the generation of `place`, if the session as of these bytes is exported. They may be sent.

        OtherContent, also where there is another generation by now; _Withheld.
        """
        found = cursor = None
        while found is None or self._places.all[session].cursor != cursor:  # something else was read meanwhile
            now = self._places.all[session]
            if now.generation != place.generation:
                raise OtherContent
            cursor = now.cursor
            try:
                found = await self._read(session, cursor, at, most)
            except NoTranscript:
                self._sessions.note_missing(session)
                raise _Withheld from None
        facts = self._sessions.note_facts(session, found.label, found.cwd)
        if facts is None or not self._exports(facts):
            self._rows.want(session)
            self._has_work.set()
            raise _Withheld
        self._places.anchor(session, place, found)
        return found

    # Places.

    def _place(self, session: str) -> SentPlace | None:
        """The place of a session that is exported, a new one if it has none; None where it is not exported."""
        facts = self._sessions.find(session)
        if facts is not None and self._exports(facts):
            return self._places.place_of(facts)
        if self._places.is_told(session):
            self._rows.want(session)
            self._has_work.set()
        return None

    def _renew(self, session: str, seen: SentPlace, after: str = "") -> SentPlace:
        place = self._places.renew(session, seen, after)
        self.mark(session)
        return place

    # Parts that the peer asks for.

    async def _answer_next(self) -> bool:
        session = next(iter(self._requests), None)
        if session is None:
            return False
        request = self._requests.pop(session)
        try:
            await self._answer(request)
        except BaseException as error:
            if not self._is_of_one(session, error):  # else the peer asks again
                self._requests.setdefault(session, request)
                raise
        return True

    async def _answer(self, request: CopyRequest) -> None:
        session, now = request.session, asyncio.get_running_loop().time()
        place = self._place(session)
        if place is None:
            return
        wrong = request.wrong and now - self._renewed_at.get(session, -_RENEW_AGAIN_S) >= _RENEW_AGAIN_S
        if request.generation > place.generation or (wrong and request.generation == place.generation):
            self._renewed_at[session] = now
            place = self._renew(session, place, request.generation)
        at = request.have if request.generation == place.generation and place.cursor is not None else 0
        while True:
            end = at + ANSWER_BYTES
            # What was never published moves the cursor, and what was read meanwhile is read again.
            is_published = self._places.all[session].to >= end
            answer = RangeAnswer(
                partial(self._read_part, session, place),
                partial(self._send_part, session, place),
                overlap_bytes=self._overlap_bytes,
                read_at_once=READ_AT_ONCE if is_published else 1,
            )
            try:
                await answer.send_between(at, end)
                return
            except OtherContent:  # or the peer has more than there is
                place, at = self._renew(session, place), 0

    async def _read_part(self, session: str, place: SentPlace, at: int) -> FoundBytes | None:
        """A range that may be sent; None where the session is not exported (any more)."""
        try:
            return await self._read_for(session, place, at)
        except _Withheld:
            return None

    async def _send_part(self, session: str, place: SentPlace, found: FoundBytes) -> None:
        await self._send("ask", session, place, found)
        self._places.advance(session, place, found)
