"""Attached agents: connections that run an agent. A run is a request on one of them; its answer is the run's end.

Knows connections only as something that can be asked (`Connection`). Source: runs.md, "attached".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import trio

from sessiond.errors import InvalidParams, LimitExceeded, SessiondError
from sessiond.runtimes.message_check import check_message
from sessiond.runtimes.runtime import AgentAway, RunOutcome, RunSink, RunSpec, Runtime

# Messages that an agent sent and the disk has not taken yet. An agent that goes beyond it is not waited for.
MAX_UNWRITTEN_BYTES = 64 * 1024 * 1024
# An agent that has not taken a steering message by then is interrupted instead.
STEER_S = 10.0


class AgentConnectionLost(Exception):
    """The connection ended before the answer came."""


class NotReached(AgentConnectionLost):
    """The connection ended before the agent read the request: it knows nothing of it."""


class RefusedByAgent(Exception):
    """The other side answered with an error; the message is its sentence."""


class Connection(Protocol):
    """One attached connection."""

    capabilities: frozenset[str]

    async def ask(self, method: str, params: dict[str, Any], result_type: Any = Any) -> Any:
        """The answer to a request. ConnectionLost or Refused where there is none. Cancelled, it calls that off."""

    def live_run(self, run_id: str, spec: RunSpec) -> None:
        """The connection lives this run from now on."""

    def part(self, run_id: str) -> None:
        """No longer."""


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to `run.start`. Source: protocol.md, "What the daemon asks"."""

    reply: str | None = None
    messages: list[msgspec.Raw] = []
    usage: dict[str, Any] | None = None
    model: str | None = None


class Turn:
    """One run on one connection. What the agent appends meanwhile is written in the order in which it came."""

    def __init__(self, connection: Connection, sink: RunSink) -> None:
        self.connection, self.sink = connection, sink
        self.failure: SessiondError | None = None
        self._unwritten = 0
        self._put, self._take = trio.open_memory_channel[msgspec.Raw](math.inf)

    def append(self, message: msgspec.Raw) -> None:
        """Have the message written behind those before it. LimitExceeded where far too much waits for the disk."""
        if self._unwritten > MAX_UNWRITTEN_BYTES:
            raise LimitExceeded(
                f"more than {MAX_UNWRITTEN_BYTES} bytes of this run's messages wait to be written; send slower",
                value=MAX_UNWRITTEN_BYTES,
            )
        self._unwritten += len(message)
        self._put.send_nowait(message)

    def close(self) -> None:
        """No more messages come."""
        self._put.close()

    async def write(self, scope: trio.CancelScope) -> None:
        """Write until closed. A message that cannot be stored ends the turn: `failure`, and `scope` cancelled."""
        async for message in self._take:
            try:
                await self.sink.message(message)
            except SessiondError as error:
                self.failure = error
                scope.cancel()
                return
            self._unwritten -= len(message)


class AttachedAgents:
    """Who is attached for which agent. `on_change` is called when somebody came or left."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._connections: dict[str, list[Connection]] = {}
        self._turns: dict[str, Turn] = {}
        # Agents that somebody has been attached for: their messages wait for somebody to come back.
        self._seen: set[str] = set()
        self._last = 0

    def attach(self, agent_id: str, connection: Connection) -> None:
        """The connection runs this agent from now on. Several share its runs."""
        self._seen.add(agent_id)
        held = self._connections.setdefault(agent_id, [])
        if connection not in held:
            held.append(connection)
        self._on_change()

    def detach(self, connection: Connection) -> None:
        """The connection is gone."""
        for agent_id, held in list(self._connections.items()):
            if connection in held:
                held.remove(connection)
                if not held:
                    del self._connections[agent_id]
        self._on_change()

    def counts(self) -> dict[str, int]:
        """How many connections each agent has."""
        return {agent_id: len(held) for agent_id, held in self._connections.items()}

    def was_here(self, agent_id: str) -> bool:
        """Whether somebody was attached for the agent since the configuration was read."""
        return agent_id in self._seen

    def forget(self, agent_ids: set[str]) -> None:
        """These were taken out of the configuration: whoever is not attached now is not waited for."""
        self._seen -= agent_ids - self._connections.keys()

    def runtime(self, agent_id: str) -> Runtime | None:
        """The runtime of an agent; None while nobody is attached for it."""
        return _AttachedRuntime(self, agent_id) if agent_id in self._connections else None

    def pick(self, agent_id: str) -> Connection | None:
        """The connection with the fewest runs; of equals the next in turn."""
        held = self._connections.get(agent_id)
        if not held:
            return None
        busy = [sum(turn.connection is one for turn in self._turns.values()) for one in held]
        self._last += 1
        return held[min(range(len(held)), key=lambda place: (busy[place], (place - self._last) % len(held)))]

    def turn(self, run_id: str, connection: Connection | None) -> Turn | None:
        """The run that this connection lives just now; None where it does not live it."""
        found = self._turns.get(run_id)
        return found if found is not None and found.connection is connection else None

    def can_steer(self, run_id: str) -> bool:
        """Whether the run is lived just now by an agent that said it can be steered."""
        turn = self._turns.get(run_id)
        return turn is not None and "steer" in turn.connection.capabilities

    async def steer(self, run_id: str, text: str) -> bool:
        """Hand a message to the agent in the middle of its run; whether it took it."""
        turn = self._turns.get(run_id)
        if turn is None:
            return False
        with trio.move_on_after(STEER_S):
            try:
                await turn.connection.ask("run.steer", {"runId": run_id, "message": text})
                return True
            except (AgentConnectionLost, RefusedByAgent):
                return False
        return False

    async def live(self, connection: Connection, spec: RunSpec, sink: RunSink) -> RunOutcome:
        """One turn on one connection."""
        turn = self._turns[spec.run_id] = Turn(connection, sink)
        connection.live_run(spec.run_id, spec)
        answer: _Answer | RunOutcome | AgentAway | None = None
        try:
            params = await run_start_params(spec)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(turn.write, nursery.cancel_scope)
                answer = await _ask(connection, spec.agent_id, params)
                turn.close()
            if turn.failure is not None:
                raise turn.failure
            assert answer is not None
            if isinstance(answer, AgentAway):
                raise answer
            return answer if isinstance(answer, RunOutcome) else await _outcome(answer, sink)
        finally:
            connection.part(spec.run_id)
            del self._turns[spec.run_id]


class _AttachedRuntime:
    def __init__(self, agents: AttachedAgents, agent_id: str) -> None:
        self._agents, self._agent_id = agents, agent_id

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        connection = self._agents.pick(self._agent_id)
        if connection is None:
            raise AgentAway
        try:
            return await self._agents.live(connection, spec, sink)
        except AgentAway:
            # It is broken, and says so itself only when everything in it has ended.
            self._agents.detach(connection)
            raise


async def run_start_params(spec: RunSpec) -> dict[str, Any]:
    """The params of `run.start`. Source: protocol.md, "What the daemon asks"."""
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


async def _ask(connection: Connection, agent_id: str, params: dict[str, Any]) -> _Answer | RunOutcome | AgentAway:
    try:
        answer: _Answer | None = await connection.ask("run.start", params, _Answer | None)
        return answer or _Answer()
    except NotReached:
        return AgentAway()  # as a value: what is raised in a nursery is wrapped
    except AgentConnectionLost:
        return RunOutcome(error=f"agent {agent_id} lost its connection during the run")
    except RefusedByAgent as error:
        return RunOutcome(error=str(error))


async def _outcome(answer: _Answer, sink: RunSink) -> RunOutcome:
    try:
        messages = [check_message(raw, f"$.messages[{index}]") for index, raw in enumerate(answer.messages)]
    except InvalidParams as error:
        return RunOutcome(error=f"the agent's answer to run.start cannot be used: {error.message}")
    for message in messages:
        await sink.message(message)
    return RunOutcome(reply=answer.reply, usage=answer.usage, model=answer.model)
