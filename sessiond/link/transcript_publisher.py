"""What other machines get of this one's sessions: follows the daemon, and keeps a feed for each machine.

Only what a rule exports or the owner has marked ever leaves. Source: machines.md, "What is exported".
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import structlog

from sessiond.client.errors import ClientError
from sessiond.client.wire import Event
from sessiond.config.link import PeerConfig
from sessiond.errors import StorageError
from sessiond.link.envelope import PeerMessage, Refused, read_fields
from sessiond.link.failures import LinkError
from sessiond.link.own_sessions import OwnSessions, SessionFacts
from sessiond.link.owner_door import OwnerDoor
from sessiond.link.peer_feed import PeerFeed
from sessiond.link.peer_places import PeerPlaces
from sessiond.link.range_sender import RangeSender
from sessiond.link.ranges import OVERLAP_BYTES, SESSION, CopyRequest, Promise, RowsRequest
from sessiond.link.rules import is_exported
from sessiond.link.sent_places import SentPlaces
from sessiond.link.shares import SharesFile
from sessiond.link.transcript_bytes import FoundBytes, read_bytes, read_heads

log = structlog.get_logger("sessiond.link")

# How often the owner's marks are looked at besides (one call of stat), the newest page of the list is read, all of it.
LOOK_S, NEWEST_S, ALL_S = 5.0, 15.0, 600.0
# Places are stored together. What is lost in between is published again, and known over there.
_STORE_S = 0.05


class TranscriptPublisher:
    """`greet` is for each new connection to the daemon, which is subscribed to all sessions; `note_event` gets all
    events. `byte_door` is the daemon over a connection on which bytes are bytes. `drop` counts what peers asked and
    cannot be read.
    """

    def __init__(
        self,
        daemon: OwnerDoor,
        courier: RangeSender,
        places: SentPlaces,
        shares: SharesFile,
        peers: Mapping[str, PeerConfig],
        *,
        agents: AbstractSet[str],
        byte_door: OwnerDoor,
        drop: Callable[[Refused], object],
        wall_ms: Callable[[], int],
        overlap_bytes: int = OVERLAP_BYTES,
    ) -> None:
        self._daemon, self._byte_door, self._drop = daemon, byte_door, drop
        self._places, self._shares, self._agents = places, shares, agents
        self._sessions = OwnSessions(daemon, self._mark)
        self._listed = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "positions")
        self._feeds = {
            name: PeerFeed(
                name,
                self._sessions,
                PeerPlaces(name, places, wall_ms, lambda: random.getrandbits(16)),
                courier=courier,
                read=self._read,
                read_heads=lambda wanted: read_heads(daemon, wanted),
                exports=lambda facts, peer=peer: self._exports(facts, peer),  # type: ignore[misc]
                wall_ms=wall_ms,
                overlap_bytes=overlap_bytes,
            )
            for name, peer in peers.items()
        }
        self._due = asyncio.Event()  # a whole list
        self._told = ""

    def greet(self) -> None:
        """There is a new connection to the daemon: events may have been missed."""
        self._due.set()
        self.retry_now()

    def retry_now(self) -> None:
        """What was waited for may be there: the server, the daemon, a machine."""
        for feed in self._feeds.values():
            feed.retry_now()

    def note_event(self, event: Event) -> None:
        self._sessions.note_event(event)

    async def answer_copy(self, message: PeerMessage) -> tuple[object, bytes] | None:
        """The reply to the question for a part of a session."""
        asked = read_fields(message, CopyRequest)
        if isinstance(asked, Refused):
            self._drop(asked)
            return None
        if not self._listed.is_set():
            return Promise(busy=True), b""
        return self._feeds[message.sender].take_request(asked), b""

    async def answer_rows(self, message: PeerMessage) -> tuple[object, bytes] | None:
        """The reply to the question for all rows."""
        asked = read_fields(message, RowsRequest)
        if isinstance(asked, Refused):
            self._drop(asked)
            return None
        if not self._listed.is_set():
            return Promise(busy=True), b""
        return self._feeds[message.sender].take_rows_request(asked), b""

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._follow(tasks))
                tasks.create_task(self._keep_places())
        finally:
            self._thread.shutdown()
            self._store_places(self._places.take_unstored())

    async def _follow(self, tasks: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        newest_at = all_at = 0.0
        # The first connection makes a list due, as each does: begun before it, the list would be read twice.
        await self._daemon.current_link()
        while True:
            try:
                if self._due.is_set() or loop.time() >= all_at:
                    self._due.clear()
                    await self._sessions.list_all()
                    all_at, newest_at = loop.time() + ALL_S, loop.time() + NEWEST_S
                    self._review()
                    if not self._listed.is_set():
                        # Not before: what is not known would count as not exported.
                        self._listed.set()
                        for feed in self._feeds.values():
                            tasks.create_task(feed.run())
                elif loop.time() >= newest_at:
                    newest_at = loop.time() + NEWEST_S
                    await self._sessions.list_newest()
                if self._refresh_marks():
                    self._review()
            except ClientError as error:
                log.warning("the list of sessions was not read", reason=str(error))
                self._due.set()
                await asyncio.sleep(LOOK_S)
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._due.wait()

    def _refresh_marks(self) -> bool:
        try:
            is_news, self._told = self._shares.refresh(), ""
        except LinkError as error:
            if self._told != error.message:  # it is tried for each session
                self._told = error.message
                log.error("the marks of sessions are not read; the ones before count", reason=error.message)
            return False
        return is_news

    def _review(self) -> None:
        for feed in self._feeds.values():
            feed.review()

    def _mark(self, session: str) -> None:
        for feed in self._feeds.values():
            feed.mark(session)

    def _exports(self, facts: SessionFacts, peer: PeerConfig) -> bool:
        # An id of another form could not be a file's name over there.
        if SESSION.fullmatch(facts.session) is None:
            return False
        # Looked at before anything leaves: what is said after `unshare` must not.
        if self._refresh_marks():
            asyncio.get_running_loop().call_soon(self._review)
        return is_exported(facts.row, peer, self._shares.peers_of(facts.key), self._agents)

    async def _read(self, session: str, cursor: str | None, at: int | None, most: int) -> FoundBytes:
        return await read_bytes(self._byte_door, session, cursor, at, most)

    async def _keep_places(self) -> None:
        while True:
            await self._places.changed.wait()
            await asyncio.sleep(_STORE_S)
            rows = self._places.take_unstored()
            await asyncio.get_running_loop().run_in_executor(self._thread, self._store_places, rows)

    def _store_places(self, rows: list[tuple[object, ...]]) -> None:
        try:
            self._places.store(rows)
        except StorageError as error:
            log.error(
                "how far sessions were sent is not stored; after a restart they are sent again", reason=str(error)
            )
