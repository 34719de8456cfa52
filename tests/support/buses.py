"""Buses of machines on one server, inside a test that runs under asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from nats.aio.client import Client
from support.nats_server import NatsServer
from support.patience import PATIENCE_S

from sessiond.link.bus import Arrival, Bus, BusState, open_bus
from sessiond.link.subjects import Kind


class Watched:
    """A bus, what it has told of its state, and what came for its machine."""

    def __init__(self, bus: Bus, states: list[BusState]) -> None:
        self.bus = bus
        self.states = states
        self.arrived: asyncio.Queue[Arrival] = asyncio.Queue()
        self.changed = asyncio.Event()

    def take(self, kind: Kind, *, acknowledge: bool = True) -> None:
        async def keep(arrival: Arrival) -> None:
            if acknowledge:
                await arrival.ack()
            self.arrived.put_nowait(arrival)

        self.bus.consume(kind, keep)

    async def next(self) -> Arrival:
        async with asyncio.timeout(PATIENCE_S):
            return await self.arrived.get()

    async def state(self, is_wanted: Callable[[BusState], bool]) -> BusState:
        """The state, once it is as wanted."""
        async with asyncio.timeout(PATIENCE_S):
            while not is_wanted(self.bus.state):
                self.changed.clear()
                await self.changed.wait()
        return self.bus.state


async def flush_whole(client: Client) -> None:
    """Return when the server has done what was asked of it before, and what it has said until then has come.

    The library's ping overtakes what waits to be sent; a second one does not, because the first takes it along.
    """
    await client.flush()
    await client.flush()


@asynccontextmanager
async def bus_of(server: NatsServer, machine: str, *kinds: Kind, connected: bool = True) -> AsyncIterator[Watched]:
    """A machine's bus, connected unless the server is away; it takes these kinds."""
    states: list[BusState] = []
    found: list[Watched] = []

    def note(state: BusState) -> None:
        states.append(state)
        for watched in found:
            watched.changed.set()

    async with open_bus(server.settings(machine), note) as bus:
        watched = Watched(bus, states)
        found.append(watched)
        for kind in kinds:
            watched.take(kind)
        if connected:
            await watched.state(lambda state: state.connected)
        yield watched
