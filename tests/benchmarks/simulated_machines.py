"""Many machines without daemons: real keys, envelopes and connections, in one thread of this process.

Each exports a few short sessions, tells of them in rows when it is asked, answers signs of life, and appends when it is
told to. Nothing is exported to them.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import Coroutine, Sequence
from typing import Any, Self

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from support.nats_server import NatsServer

from sessiond.link.envelope import Envelopes, PeerMessage, read_fields
from sessiond.link.identity import Identity, PublicIdentity
from sessiond.link.presence import until_next
from sessiond.link.ranges import COPY, ROWS, CopyRequest, RangeFields, RowFields, RowsFields, make_generation
from sessiond.link.subjects import REPLY, REQUEST, Kind, ask_subject, stream_subject

_WHEN = "2026-01-01T00:00:00.000Z"


class SimulatedMachine:
    """One of them. `real` is the name of the machine that it is linked with."""

    def __init__(self, name: str, identity: Identity, real: str, key: PublicIdentity, sessions: int) -> None:
        self.name, self.real = name, real
        self._envelopes = Envelopes(name, identity, {real: key})
        self._generation = make_generation("", time.time_ns() // 1_000_000, 0)
        self._counter = time.time_ns() // 1_000_000
        self._client: Client
        self.transcripts: dict[str, bytes] = {}
        for number in range(sessions):
            session = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{name}/{number}"))
            header = {"type": "session", "version": 3, "id": session, "timestamp": _WHEN, "cwd": "/tmp"}
            self.transcripts[session] = _line({**header, "sessionKey": f"agent:main:dashboard:{number}"})

    async def connect(self, url: str) -> None:
        self._client = await nats.connect(url, inbox_prefix=f"_INBOX.{self.name}")
        await self._client.subscribe(ask_subject(self.name, self.real), cb=self._answer)

    async def leave(self) -> None:
        await self._client.close()

    async def send_rows(self) -> None:
        self._counter += 1
        rows = tuple(
            RowFields(
                session=session,
                agent="main",
                generation=self._generation,
                key=f"agent:main:dashboard:{number}",
                size=len(content),
                updated_at=time.time_ns() // 1_000_000,
                head=len(content) if len(content) < 2048 else 0,
            )
            for number, (session, content) in enumerate(self.transcripts.items())
        )
        heads = b"".join(content for content in self.transcripts.values() if len(content) < 2048)
        await self._send("row", "rows", RowsFields(counter=self._counter, rows=rows), heads)

    async def append(self, text: str) -> None:
        """A message in its first session."""
        session, before = next(iter(self.transcripts.items()))
        message = {"role": "user", "content": text}
        record = {"type": "message", "id": uuid.uuid4().hex[:8], "parentId": None, "timestamp": _WHEN}
        self.transcripts[session] = before + _line({**record, "message": message})
        await self._send_range("rec", session, len(before))

    async def _send_range(self, kind: Kind, session: str, begin: int) -> None:
        content = self.transcripts[session]
        fields = RangeFields(agent="main", generation=self._generation, begin=begin, to=len(content), size=len(content))
        await self._send(kind, session, fields, content[begin:])

    async def _send(self, kind: Kind, identity: str, fields: object, payload: bytes) -> None:
        data = self._envelopes.pack(self.real, kind, identity, fields, payload)
        await self._client.jetstream().publish(stream_subject(self.name, self.real, kind, identity), data)

    async def _answer(self, question: Msg) -> None:
        asked = self._envelopes.open(question.data, REQUEST)
        assert isinstance(asked, PeerMessage), asked
        await question.respond(self._envelopes.pack(self.real, REPLY, asked.id, {}))
        match asked.id.partition(":")[0]:
            case name if name == ROWS:
                await self.send_rows()
            case name if name == COPY:
                wanted = read_fields(asked, CopyRequest)
                assert isinstance(wanted, CopyRequest), wanted
                await self._send_range("ask", wanted.session, wanted.have)

    async def look(self) -> None:
        """Ask for a sign of life, as each link does now and then."""
        data = self._envelopes.pack(self.real, REQUEST, f"ping:{time.time_ns()}")
        await self._client.request(ask_subject(self.real, self.name), data, timeout=5)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode() + b"\n"


class MachineCrowd:
    """All of them, connected while the block runs. With `interval_s` each asks for signs of life so often."""

    def __init__(
        self, server: NatsServer, keys: dict[str, Identity], real: str, key: PublicIdentity, sessions: int
    ) -> None:
        self._server = server
        self.machines: Sequence[SimulatedMachine] = [
            SimulatedMachine(name, identity, real, key, sessions) for name, identity in keys.items()
        ]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._looking: list[asyncio.Task[None]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self._connect())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._leave())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, doing: Coroutine[Any, Any, Any]) -> Any:
        """Its result, when it is done in the thread of the crowd."""
        return asyncio.run_coroutine_threadsafe(doing, self._loop).result(60)

    def look_each(self, interval_s: float) -> None:
        """From now on each asks for signs of life, when links do."""

        async def look(machine: SimulatedMachine) -> None:
            while True:
                await asyncio.sleep(until_next(time.time(), interval_s))
                await machine.look()

        async def begin() -> None:
            self._looking += [asyncio.create_task(look(machine)) for machine in self.machines]

        self.run(begin())

    async def _connect(self) -> None:
        await asyncio.gather(*(one.connect(self._server.url) for one in self.machines))

    async def _leave(self) -> None:
        for task in self._looking:
            task.cancel()
        await asyncio.gather(*self._looking, return_exceptions=True)
        await asyncio.gather(*(one.leave() for one in self.machines))
