"""Attached agents: connections that run an agent. A run is a request on one of them; its answer is the run's end.

Knows connections only as something that can be asked (`Connection`). Source: runs.md, "Runtimes", attached.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import trio

from sessiond.runs.runtime import Outcome, RunSink, RunSpec, Runtime


class ConnectionLost(Exception):
    """The connection ended before the answer came."""


class Refused(Exception):
    """The agent answered with an error; the message is its sentence."""


class Connection(Protocol):
    """One attached connection."""

    capabilities: frozenset[str]

    async def ask(self, method: str, params: dict[str, Any]) -> Any:
        """The answer to a request. ConnectionLost or Refused where there is none."""

    def meet(self, run_id: str, spec: RunSpec) -> None:
        """The connection lives this run from now on."""

    def part(self, run_id: str) -> None:
        """No longer."""


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    reply: str | None = None
    messages: list[msgspec.Raw] = []
    usage: dict[str, Any] | None = None
    model: str | None = None


class AttachedAgents:
    """Who is attached for which agent. `on_change` is called when that changes."""

    def __init__(self) -> None:
        self._connections: dict[str, list[Connection]] = {}
        self._sinks: dict[str, tuple[Connection, RunSink]] = {}
        self._turn = 0
        self.on_change: Callable[[], None] = _nothing

    def attach(self, agent_id: str, connection: Connection) -> None:
        """The connection runs this agent from now on. Several share its runs."""
        held = self._connections.setdefault(agent_id, [])
        if connection not in held:
            held.append(connection)
        self.on_change()

    def detach(self, connection: Connection) -> None:
        """The connection is gone."""
        for agent_id, held in list(self._connections.items()):
            if connection in held:
                held.remove(connection)
                if not held:
                    del self._connections[agent_id]

    def counts(self) -> dict[str, int]:
        """How many connections each agent has."""
        return {agent_id: len(held) for agent_id, held in self._connections.items()}

    def runtime(self, agent_id: str) -> Runtime | None:
        """The runtime of an agent; None while nobody is attached for it."""
        return _AttachedRuntime(self, agent_id) if agent_id in self._connections else None

    def pick(self, agent_id: str) -> Connection | None:
        """The connection with the fewest runs; of equals the next in turn."""
        held = self._connections.get(agent_id)
        if not held:
            return None
        busy = [sum(owner is connection for owner, _ in self._sinks.values()) for connection in held]
        self._turn += 1
        order = sorted(range(len(held)), key=lambda place: (busy[place], (place - self._turn) % len(held)))
        return held[order[0]]

    def living(self, run_id: str) -> Connection | None:
        """The connection that lives a run just now."""
        found = self._sinks.get(run_id)
        return found[0] if found is not None else None

    def sink(self, run_id: str, connection: Connection) -> RunSink | None:
        """Where a run's events go; None where this connection does not live that run."""
        found = self._sinks.get(run_id)
        return found[1] if found is not None and found[0] is connection else None

    async def live(self, connection: Connection, spec: RunSpec, sink: RunSink) -> Outcome:
        """One turn on one connection."""
        self._sinks[spec.run_id] = (connection, sink)
        connection.meet(spec.run_id, spec)
        try:
            answer = await connection.ask("run.start", await started(spec))
            return await _outcome(answer, sink)
        except ConnectionLost:
            return Outcome(error=f"agent {spec.agent_id} lost its connection during the run")
        except Refused as error:
            return Outcome(error=str(error))
        finally:
            connection.part(spec.run_id)
            del self._sinks[spec.run_id]


class _AttachedRuntime:
    def __init__(self, agents: AttachedAgents, agent_id: str) -> None:
        self._agents, self._agent_id = agents, agent_id

    async def run(self, spec: RunSpec, sink: RunSink) -> Outcome:
        connection = self._agents.pick(self._agent_id)
        if connection is None:
            return Outcome(error=f"agent {self._agent_id} left before the run began")
        return await self._agents.live(connection, spec, sink)


async def started(spec: RunSpec) -> dict[str, Any]:
    """The params of `run.start`. Source: shapes.md."""
    token = None
    if spec.token_file is not None:
        token = (await trio.Path(spec.token_file).read_text(encoding="ascii")).strip()
    params: dict[str, Any] = {
        "runId": spec.run_id,
        "sessionKey": spec.session_key,
        "sessionId": spec.session_id,
        "step": spec.step,
        "turn": spec.turn,
        "maxTurns": spec.max_turns,
        "message": spec.message,
        "context": spec.context,
        "provenance": spec.provenance,
        "thinking": spec.thinking,
        "model": spec.model,
        "attachments": spec.attachments,
        "deadline": spec.deadline_ms,
        "token": token,
    }
    return {name: value for name, value in params.items() if value is not None}


async def _outcome(answer: Any, sink: RunSink) -> Outcome:
    try:
        said = msgspec.convert(answer if answer is not None else {}, _Answer)
    except msgspec.ValidationError as error:
        return Outcome(error=f"the agent's answer to run.start cannot be used: {error}")
    for message in said.messages:
        await sink.message(message)
    return Outcome(reply=said.reply, usage=said.usage, model=said.model)


def _nothing() -> None:
    pass
