"""Stand-ins for what the rooms of the link stand between: a daemon that accepts and ends runs, and a server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sessiond.client.errors import ConnectionLost, RpcError
from sessiond.client.wire import INTERNAL, Event
from sessiond.link.failures import BusError


class StandInDaemon:
    """Both doors of an executor: `sessions_send` and `sessions_spawn` of a peer, and what the owner asks.

    Each command is accepted once by its idempotency key. `ends[run]` is the answer of `agent.wait`; `faults` are raised
    first, in order.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        self.runs: dict[str, str] = {}
        self.ends: dict[str, dict[str, Any]] = {}
        self.faults: list[Exception] = []
        self.on_change: Callable[[Event], object] = lambda event: None
        self.is_open = asyncio.Event()
        self.is_open.set()
        self.accepted = asyncio.Event()

    async def current_link(self) -> None:
        await self.is_open.wait()

    async def call(self, first: Any, second: Any = None, third: Any = None, /, **more: Any) -> Any:
        if not isinstance(first, str):  # a machine of the configuration
            return self._accept(first.name, second, third)
        return self._owner(first, {**(second or {}), **more})

    def _accept(self, peer: str, method: str, params: dict[str, Any]) -> Any:
        self.asked.append((peer, method, params))
        if self.faults:
            raise self.faults.pop(0)
        run = self.runs.setdefault(params["idempotencyKey"], f"run-{len(self.runs)}")
        self.accepted.set()
        if method == "sessions_spawn":
            return {"runId": run, "childSessionKey": f"agent:{params['agentId']}:subagent:{run}"}
        return {"runId": run, "sessionKey": params.get("sessionKey") or f"labelled:{params['label']}"}

    def _owner(self, method: str, params: dict[str, Any]) -> Any:
        if method == "agent.wait":
            if params["runId"] not in self.ends:
                return {"runId": params["runId"], "status": "running", "sessionKey": "?"}
            return {"runId": params["runId"], **self.ends[params["runId"]]}
        self.asked.append(("owner", method, params))
        return {}

    def end(self, command: str, key: str, **end: Any) -> None:
        """End the run of a command, and tell of it."""
        self.ends[self.runs[command]] = {"sessionKey": key, **end}
        self.on_change(Event("sessions.changed", {"sessionKey": key, "phase": "end"}))


class StandInServer:
    """Keeps what is handed to it; for `refusals` times it cannot be reached."""

    def __init__(self, refusals: int = 0) -> None:
        self.refusals = refusals
        self.kept: list[tuple[str, str, bytes]] = []
        self.came = asyncio.Event()
        self.on_message: Callable[[str, str, bytes], object] = lambda peer, identity, body: None

    async def send(self, peer: str, identity: str, body: bytes) -> None:
        await asyncio.sleep(0)
        if self.refusals:
            self.refusals -= 1
            raise BusError("unreachable", "the server is away")
        self.kept.append((peer, identity, body))
        self.came.set()
        self.on_message(peer, identity, body)

    async def wait_for(self, count: int) -> None:
        while len(self.kept) < count:
            self.came.clear()
            await self.came.wait()


def refusal(slug: str, message: str = "no", **data: Any) -> RpcError:
    return RpcError(INTERNAL, slug, message, data)


def lost() -> ConnectionLost:
    return ConnectionLost("the connection to sessiond ended")


async def settle() -> None:
    """Let every task go on until it waits for something else."""
    for _ in range(50):
        await asyncio.sleep(0)


def run_until(work: Callable[[], Awaitable[None]], patience_s: float = 30.0) -> None:
    """Run a test's body under asyncio, which the tests' own loop is not."""

    async def limited() -> None:
        async with asyncio.timeout(patience_s):
            await work()

    asyncio.run(limited())


async def until(condition: Callable[[], object]) -> None:
    """Let the tasks go on until it is so; threads have their part in it, which nothing announces."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.001)
