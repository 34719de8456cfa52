"""An executor of commands between a daemon and a server that stand in, on a ledger in a folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from support.link_stand_ins import StandInDaemon, StandInServer, run_until

from sessiond.client.retry import Backoff
from sessiond.config.link import PeerConfig
from sessiond.link import executor as room
from sessiond.link.command_ledger import CommandLedger
from sessiond.link.command_wire import CommandOrigin, MachineAnswer, MachineCommand, decode_answer, encode, split
from sessiond.link.executor import Executor
from sessiond.link.ledger_thread import LedgerThread

LAP = PeerConfig(name="lap", key="k" * 16, send=("agent:ops:*",), spawn=("ops",))
SEND = MachineCommand(
    method="send", target="agent:ops:main", message="hello", origin=CommandOrigin("agent:main:main", None, 2)
)


class ExecutorWorld:
    def __init__(self, folder: Path, peer: PeerConfig | None = LAP) -> None:
        self.folder, self.peer = folder, peer
        self.daemon, self.server = StandInDaemon(), StandInServer()
        self.changed = asyncio.Event()

    @asynccontextmanager
    async def executor(self) -> AsyncIterator[Executor]:
        """An executor that runs on the ledger in the folder, until the block ends."""
        ledger = LedgerThread(CommandLedger(self.folder), self.changed.set)
        made = Executor(
            ledger,
            self.daemon,
            self.daemon,
            name="mars",
            configured={} if self.peer is None else {"lap": self.peer},
            send=self.server.send,
            mask=lambda text: text.replace("sk-secret", "***"),
            wall_ms=lambda: 1,
        )
        self.daemon.on_change = made.note_event
        running = asyncio.create_task(made.run())
        try:
            yield made
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            ledger.close()

    async def answers(self, count: int) -> list[tuple[str, MachineAnswer]]:
        await self.server.wait_for(count)
        return [(identity, decode_answer(body)) for _, identity, body in self.server.kept]

    async def accepted(self) -> None:
        await self.daemon.accepted.wait()
        self.daemon.accepted.clear()


def run_world(folder: Path, monkeypatch: pytest.MonkeyPatch, body: Callable[[ExecutorWorld], Awaitable[None]]) -> None:
    """Run a body with a world whose pauses are short."""
    monkeypatch.setattr(room, "Backoff", lambda first_s, max_s: Backoff(0.001, 0.002))

    async def made() -> None:
        await body(ExecutorWorld(folder))

    run_until(made)


async def take(executor: Executor, command: MachineCommand, command_id: str = "c1", peer: str = "lap") -> None:
    parts = split(encode(command))
    for number, part in enumerate(parts):
        await executor.take(peer, command_id, number, len(parts), part)
