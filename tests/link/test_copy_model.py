"""The publisher and the reader with a courier between them that loses, repeats and reorders: a copy is always a prefix
of what its original was at some time, and equal to it in the end.
"""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support.patience import PATIENCE_S

from sessiond.client.errors import RpcError
from sessiond.client.wire import Event
from sessiond.config.link import ExportRule, PeerConfig
from sessiond.link.copy_states import CopyStates
from sessiond.link.envelope import PeerMessage
from sessiond.link.failures import BusError
from sessiond.link.ranges import COPY
from sessiond.link.sent_places import SentPlaces
from sessiond.link.shares import SharesFile
from sessiond.link.transcript_bytes import FoundBytes
from sessiond.link.transcript_publisher import TranscriptPublisher
from sessiond.link.transcript_reader import TranscriptReader

# Ranges here are short, so that a transcript of a few bytes is several.
RANGE, OVERLAP = 11, 4
PEERS = {"mars": PeerConfig(name="mars", key="k" * 20, export=(ExportRule(agents=("ops",)),))}


class Originals:
    """The transcripts of a daemon, and its answers about them. `versions` is what each session ever was."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.versions: dict[str, set[bytes]] = {}
        self._inode: dict[str, int] = {}
        self.when_changed: Callable[[Event], object] = lambda event: None

    def write(self, session: str, content: bytes, *, is_other: bool) -> None:
        if session not in self.content or is_other:
            self._inode[session] = self._inode.get(session, 0) + 1
        self.content[session] = content
        self.versions.setdefault(session, set()).add(content)
        row = self._row(session)
        self.when_changed(Event("sessions.changed", {"sessionKey": row["key"], "phase": "patch", "row": row}))

    def delete(self, session: str) -> None:
        if self.content.pop(session, None) is not None:
            key = f"agent:ops:{session}"
            self.when_changed(Event("sessions.changed", {"sessionKey": key, "phase": "delete"}))

    def _row(self, session: str) -> dict[str, Any]:
        size = len(self.content[session])
        cursor = f"{size}-0-{self._check(session, size)}"
        key = f"agent:ops:{session}"
        return {"key": key, "sessionId": session, "source": "sessiond", "updatedAt": size, "cursor": cursor}

    def _check(self, session: str, offset: int) -> str:
        seen = self.content[session][max(0, offset - OVERLAP) : offset]
        return hashlib.sha256(b"%d %d %r" % (self._inode[session], offset, seen)).hexdigest()[:8]

    async def call(self, method: str, params: dict[str, Any] | None = None, /, **more: Any) -> Any:
        given_params = params or {}
        await asyncio.sleep(0)  # whatever else goes on may come between a question and its answer
        if method == "sessions_list":
            return {"sessions": [self._row(session) for session in self.content], "hasMore": False}
        if method == "sessions.heads":
            heads = [self._head(one, given_params["maxBytes"]) for one in given_params["sessions"]]
            return msgspec.json.decode(msgspec.json.encode({"heads": heads}), type=more["form"])
        assert (method, more) == ("sessions.bytes", {"form": FoundBytes})
        return self._bytes(given_params)

    def _head(self, wanted: dict[str, Any], most: int) -> dict[str, Any]:
        try:
            found = self._bytes({**wanted, "at": 0, "maxBytes": most})
        except RpcError as error:
            return {"status": "missing" if error.slug == "not_found" else "stale"}
        return {"status": "ok", "size": found.size, "cursor": found.cursor, "data": found.data}

    def _bytes(self, given_params: dict[str, Any]) -> FoundBytes:
        session = given_params["sessionId"]
        if session not in self.content:
            raise RpcError(-32002, "not_found", "no such session")
        content = self.content[session]
        begin = 0
        if "cursor" in given_params:
            offset, _, check = given_params["cursor"].partition(":")
            begin = int(offset)
            if begin > len(content) or check != self._check(session, begin):
                raise RpcError(-32602, "invalid_params", "stale", {"code": "cursor_stale"})
        begin = min(given_params.get("at", begin), len(content))
        data = content[begin : begin + min(given_params["maxBytes"], RANGE)]
        end = begin + len(data)
        return FoundBytes(begin, len(content), f"{end}:{self._check(session, end)}", data)

    async def current_link(self) -> object:
        return None


class LossyCourier:
    """What was sent lies in `wire` until the test delivers it. `refuse` is how the next sends fail."""

    def __init__(self) -> None:
        self.wire: list[tuple[str, PeerMessage]] = []
        self.takers: dict[str, Callable[[PeerMessage, Any], Awaitable[None]]] = {}
        self.refuse: list[str] = []
        self.is_honest = False

    async def send(
        self, peer: str, kind: Any, identity: str, fields: object = None, payload: bytes = b"", **more: Any
    ) -> bool:
        how = self.refuse.pop() if self.refuse and not self.is_honest else "stored"
        if how != "lost":
            encoded = msgspec.json.encode(fields)
            self.wire.append((kind, PeerMessage("lap", "mars", kind, identity, encoded, payload, False)))
        if how != "stored":
            raise BusError("timeout", "no answer")
        return True

    def consume(self, kind: Any, take: Any) -> None:
        self.takers[kind] = take

    def drop(self, refused: Any) -> None:
        raise AssertionError(refused)

    async def deliver(self, index: int) -> None:
        kind, message = self.wire[index]
        await self.takers[kind](message, self)

    async def ack(self) -> None: ...


class CopyWorld:
    """A publisher on lap and a reader on mars, each of which may be started anew."""

    def __init__(self, folder: Path) -> None:
        self.lap, self.mars = folder / "lap", folder / "mars"
        for store in (self.lap, self.mars):
            store.mkdir()
        self.originals, self.courier = Originals(), LossyCourier()
        self.clock = 1_000
        self.is_away = False
        self._running: dict[str, asyncio.Task[None]] = {}
        self._opened: dict[str, Any] = {}

    def now(self) -> int:
        self.clock += 1
        return self.clock

    async def start_publisher(self) -> None:
        await self._stop("publisher")
        places = self._opened["publisher"] = SentPlaces(self.lap)
        publisher = TranscriptPublisher(
            self.originals,
            self.courier,
            places,
            SharesFile(self.lap),
            PEERS,
            agents={"ops"},
            byte_door=self.originals,
            drop=self.courier.drop,
            wall_ms=self.now,
            overlap_bytes=OVERLAP,
        )
        self.originals.when_changed = publisher.note_event
        self.publisher = publisher
        publisher.greet()
        self._running["publisher"] = asyncio.create_task(publisher.run())

    async def start_reader(self) -> None:
        await self._stop("reader")
        states = self._opened["reader"] = CopyStates(self.mars)
        self.reader = TranscriptReader(
            self.mars,
            states,
            ["lap"],
            courier=self.courier,
            asks=lambda machine: self._ask,
            changed=list,
            wall_ms=self.now,
            free_bytes=0,
        )
        self._running["reader"] = asyncio.create_task(self.reader.run())

    async def _stop(self, which: str) -> None:
        task = self._running.pop(which, None)
        if task is not None:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            self._opened.pop(which).close()

    async def stop(self) -> None:
        for which in list(self._running):
            await self._stop(which)

    async def _ask(self, question: str, fields: Any) -> PeerMessage:
        if self.is_away:
            raise BusError("nobody", "lap is not there")
        asked = PeerMessage("mars", "lap", "req", question, msgspec.json.encode(fields), b"", False)
        answer = self.publisher.answer_copy if question == COPY else self.publisher.answer_rows
        said = await answer(asked)
        assert said is not None
        return PeerMessage("lap", "mars", "rep", question, msgspec.json.encode(said[0]), b"", False)

    def copies(self) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for path in (self.mars / "machines").rglob("[!.]*.jsonl"):
            with suppress(FileNotFoundError):  # the thread of the reader removes it
                found[path.stem] = path.read_bytes()
        return found

    def check(self) -> None:
        for session, copy in self.copies().items():
            versions = self.originals.versions[session]
            assert any(version.startswith(copy) for version in versions), (session, copy, versions)

    async def finish(self) -> None:
        """Nothing is lost any more, and all that was lost so far stays lost."""
        self.courier.is_honest, self.is_away = True, False
        await self.start_publisher()
        await self.start_reader()
        async with asyncio.timeout(PATIENCE_S):
            while self.copies() != self.originals.content:
                while self.courier.wire:
                    await self.courier.deliver(0)
                    del self.courier.wire[0]
                    self.check()
                await asyncio.sleep(0.001)


Step = tuple[str, int, int]
ACTIONS = (
    "grow",
    "cut",
    "replace",
    "delete",
    "deliver",
    "twice",
    "lose",
    "refuse",
    "away",
    "publisher",
    "reader",
    "wait",
)
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1000), st.integers(0, 1000)),
    max_size=30,
)


@given(steps=STEPS)
def test_a_copy_is_a_prefix_at_any_time_and_equal_in_the_end(steps: list[Step]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_play(CopyWorld(Path(folder)), steps))


async def _play(world: CopyWorld, steps: list[Step]) -> None:
    await world.start_publisher()
    await world.start_reader()
    try:
        for number, step in enumerate(steps):
            await _do(world, number, *step)
            await asyncio.sleep(0)
            world.check()
        await world.finish()
        assert world.copies() == world.originals.content
    finally:
        await world.stop()


def line(number: int, size: int) -> bytes:
    """A line unlike all others, also in any few bytes of it."""
    return hashlib.sha512(b"%d" % number).digest().replace(b"\n", b"")[: size % 60] + b"\n"


async def _do(world: CopyWorld, number: int, what: str, a: int, b: int) -> None:
    originals, wire = world.originals, world.courier.wire
    session = f"s{a % 3}"
    content = originals.content.get(session, b"")
    match what:
        case "grow":
            originals.write(session, content + line(number, b), is_other=False)
        case "cut":
            originals.write(session, content[: b % (len(content) + 1)], is_other=False)
        case "replace":
            originals.write(session, line(number, b), is_other=True)
        case "delete":
            originals.delete(session)
        case "deliver" | "twice" if wire:
            await world.courier.deliver(a % len(wire))
            if what == "deliver":
                del wire[a % len(wire)]
        case "lose" if wire:
            del wire[a % len(wire)]
        case "refuse":
            world.courier.refuse.append("lost" if a % 2 else "unanswered")
        case "away":
            world.is_away = not world.is_away
        case "publisher":
            await world.start_publisher()
        case "reader":
            await world.start_reader()
        case "wait":
            await asyncio.sleep(0.003)
