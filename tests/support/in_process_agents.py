"""Programs attached to the daemon inside a test: agents and channel adapters that do what the test says.

Each is a connection of its own, with a task that answers what the daemon asks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec
import trio
from support.in_process import Connection, InProcessDaemon, Refused
from support.patience import PATIENCE_S

from sessiond.model.caller import OWNER, Caller

Act = Callable[["Program", dict[str, Any]], Awaitable[Any]]


class Program:
    """A connection that calls and answers at the same time. `turns` are the `run.start` it got."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.turns: list[dict[str, Any]] = []
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.called_off: list[Any] = []
        self.events: list[dict[str, Any]] = []
        self.got = trio.Event()
        self.gate = trio.Event()
        self._writing = trio.Lock()
        self._answers: dict[int, tuple[trio.Event, list[dict[str, Any]]]] = {}

    async def call(self, method: str, /, **params: Any) -> Any:
        """The result of a request. Refused where it is an error."""
        async with self._writing:
            request_id = await self.connection.send(method, **params)
        arrived, box = self._answers.setdefault(request_id, (trio.Event(), []))
        await arrived.wait()
        del self._answers[request_id]
        if "error" in box[0]:
            raise Refused(box[0]["error"])
        return box[0]["result"]

    async def failure(self, method: str, /, **params: Any) -> dict[str, Any]:
        """The error of a request that has to fail."""
        try:
            result = await self.call(method, **params)
        except Refused as refused:
            error: dict[str, Any] = refused.args[0]
            return error
        raise AssertionError(result)

    async def notify(self, method: str, /, **params: Any) -> None:
        """Tell the daemon something that it does not answer."""
        await self._write({"jsonrpc": "2.0", "method": method, "params": params})

    async def serve(self, act: Act) -> None:
        """Answer what is asked with `act`, until the connection ends."""
        async with trio.open_nursery() as nursery:
            scopes: dict[Any, trio.CancelScope] = {}
            while True:
                try:
                    message = await self.connection.receive()
                except trio.ClosedResourceError:
                    return  # the test has closed it
                if "method" not in message:
                    arrived, box = self._answers.setdefault(message["id"], (trio.Event(), []))
                    box.append(message)
                    arrived.set()
                elif message["method"] == "$/cancelRequest":
                    self.called_off.append(message["params"]["id"])
                    scopes[message["params"]["id"]].cancel()
                elif "id" in message:
                    scope = scopes[message["id"]] = trio.CancelScope()
                    nursery.start_soon(self._respond, message, act, scope)
                else:
                    self.events.append(message)

    async def _respond(self, message: dict[str, Any], act: Act, scope: trio.CancelScope) -> None:
        self.asked.append((message["method"], message["params"]))
        if message["method"] == "run.start":
            self.turns.append(message["params"])
        self.got.set()
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        with scope:
            try:
                answer["result"] = await act(self, message["params"])
            except Refused as error:
                answer["error"] = {"code": -32000, "message": str(error)}
            await self._write(answer)

    async def _write(self, message: dict[str, Any]) -> None:
        async with self._writing:
            # Whoever has closed the connection meanwhile has nothing more to say.
            with suppress(trio.ClosedResourceError):
                await self.connection.write(msgspec.json.encode(message) + b"\n")


async def until(condition: Callable[[], object]) -> None:
    """Return when it is so; for what nothing in the test announces. Ten seconds are more than anything takes."""
    with trio.fail_after(PATIENCE_S):
        while not condition():  # noqa: ASYNC110
            await trio.sleep(0.005)


@asynccontextmanager
async def program(there: InProcessDaemon, act: Act, *, caller: Caller = OWNER) -> AsyncIterator[Program]:
    """A program at work; its connection ends with the block."""
    async with there.connect(caller) as connection:
        made = Program(connection)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.serve, act)
            yield made
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def agent(
    there: InProcessDaemon, agent_id: str, act: Act, *, capabilities: list[str] | None = None, caller: Caller = OWNER
) -> AsyncIterator[Program]:
    """A program attached as an agent. `act(program, params)` lives a run; its result is the answer."""
    async with program(there, act, caller=caller) as made:
        await made.call("agents.attach", agentId=agent_id, capabilities=capabilities or [])
        yield made


@asynccontextmanager
async def adapter(
    there: InProcessDaemon, channel: str, act: Act | None = None, **params: Any
) -> AsyncIterator[Program]:
    """A program attached as a channel's adapter; without `act` it acknowledges everything."""

    async def acknowledge(_: Program, __: dict[str, Any]) -> Any:
        return {}

    async with program(there, act or acknowledge) as made:
        await made.call("channels.attach", channel=channel, **params)
        yield made


def attached_agents_config(*agents: str, more: str = "") -> str:
    """A configuration of agents that are attached, beside `main`, which echoes."""
    lists = [f'[[agents.list]]\nid = "{name}"\nruntime = {{ type = "attached" }}\n' for name in agents]
    return f'{more}\n[[agents.list]]\nid = "main"\ndefault = true\nruntime = {{ type = "echo" }}\n' + "".join(lists)
