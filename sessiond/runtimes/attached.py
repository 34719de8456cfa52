"""Attached agents: connections that run an agent. A run is a request on one of them; its answer ends the run.

A resumable agent stands for another machine: a run whose connection was lost is asked for again under the same id, as
often as it takes, and the connection knows by that id what it has begun. Knows connections only through the protocol
`Connection`. Source: runs.md, "attached", "Machines".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

import msgspec
import trio

from sessiond.errors import InvalidParams, LimitExceeded, SessiondError, Unsupported
from sessiond.runtimes.message_check import check_message
from sessiond.runtimes.runtime import AgentAway, RunOutcome, RunSink, RunSpec, Runtime

# How much of an agent's messages may wait to be written to disk before further ones are refused.
MAX_UNWRITTEN_BYTES = 64 * 1024 * 1024
# An agent that has not acknowledged a steer in this time is interrupted instead.
STEER_S = 10.0


class AgentConnectionLost(Exception):
    """The connection was closed before the answer came."""


class NotReached(AgentConnectionLost):
    """The connection was closed before the agent read the request, so it cannot have started the run."""


class RefusedByAgent(Exception):
    """The agent answered with an error; the message is the error's."""


class Connection(Protocol):
    """One attached connection."""

    capabilities: frozenset[str]

    async def ask(
        self,
        method: str,
        params: dict[str, Any],
        result_type: Any = Any,
        *,
        withdraws: Callable[[], bool] | None = None,
    ) -> Any:
        """The answer to a request. AgentConnectionLost or RefusedByAgent. Cancelling it cancels the request, unless
        `withdraws()` says no.
        """

    def begin_run(self, run_id: str, spec: RunSpec) -> None:
        """Note that the connection executes this run now."""

    def end_run(self, run_id: str) -> None:
        """Note that it no longer does."""


class _Answer(msgspec.Struct, frozen=True, rename="camel"):
    """The answer to `run.start`. Source: protocol.md, "What the daemon asks"."""

    reply: str | None = None
    messages: list[msgspec.Raw] = []
    usage: dict[str, Any] | None = None
    model: str | None = None


class Turn:
    """One run on one connection. Messages that the agent appends meanwhile are written in the order they came."""

    def __init__(self, connection: Connection, sink: RunSink, *, resumable: bool) -> None:
        self.connection, self.sink, self._resumable = connection, sink, resumable
        self.failure: SessiondError | None = None
        self._unwritten = 0
        self._sending, self._receiving = trio.open_memory_channel[msgspec.Raw](math.inf)

    def append(self, message: msgspec.Raw) -> None:
        """Queue the message to be written. LimitExceeded if over MAX_UNWRITTEN_BYTES are queued. Unsupported for a
        resumable agent, whose run may be asked for again.
        """
        if self._resumable:
            raise Unsupported("what another machine says is the reply in its answer; a message might come twice")
        if self._unwritten > MAX_UNWRITTEN_BYTES:
            raise LimitExceeded(
                f"more than {MAX_UNWRITTEN_BYTES} bytes of this run's messages wait to be written; send slower",
                value=MAX_UNWRITTEN_BYTES,
            )
        self._unwritten += len(message)
        self._sending.send_nowait(message)

    def close(self) -> None:
        """Close the queue; `write` returns when it is empty."""
        self._sending.close()

    async def write(self, scope: trio.CancelScope) -> None:
        """Write the queued messages until `close`. If one cannot be stored, set `failure` and cancel `scope`."""
        async for message in self._receiving:
            try:
                await self.sink.message(message)
            except SessiondError as error:
                self.failure = error
                scope.cancel()
                return
            self._unwritten -= len(message)


class AttachedAgents:
    """The attached connections of each agent. `on_change` is called after each attach and detach.

    `is_resumable(agent_id)`: whether the agent stands for another machine.
    """

    def __init__(self, on_change: Callable[[], None], is_resumable: Callable[[str], bool]) -> None:
        self._on_change, self._is_resumable = on_change, is_resumable
        self._is_leaving = False
        self._connections: dict[str, list[Connection]] = {}
        self._turns: dict[str, Turn] = {}
        # How many turns each connection has: counting them would take longer than the rest of a start where a link has
        # thousands.
        self._busy: dict[Connection, int] = {}
        # Agents that had a connection: their runs wait for one to attach again.
        self._attached_before: set[str] = set()
        self._round = 0

    def attach(self, agent_id: str, connection: Connection) -> None:
        """Let the connection run this agent. Several connections of one agent share its runs."""
        self._attached_before.add(agent_id)
        held = self._connections.setdefault(agent_id, [])
        if connection not in held:
            held.append(connection)
        self._on_change()

    def detach(self, connection: Connection) -> None:
        """Remove a connection that has closed or is broken."""
        for agent_id, held in list(self._connections.items()):
            if connection in held:
                held.remove(connection)
                if not held:
                    del self._connections[agent_id]
        self._on_change()

    def counts(self) -> dict[str, int]:
        """How many connections each agent has."""
        return {agent_id: len(held) for agent_id, held in self._connections.items()}

    def was_attached(self, agent_id: str) -> bool:
        """Whether a connection has ever been attached for the agent, since `forget`."""
        return agent_id in self._attached_before

    def forget(self, agent_ids: set[str]) -> None:
        """Forget agents that were removed from the configuration, unless they are attached: do not wait for them."""
        self._attached_before -= agent_ids - self._connections.keys()

    def runtime(self, agent_id: str) -> Runtime | None:
        """The runtime of an agent; None while no connection is attached for it."""
        return _AttachedRuntime(self, agent_id) if agent_id in self._connections else None

    def pick(self, agent_id: str) -> Connection | None:
        """The connection with the fewest runs, round-robin among equals."""
        held = self._connections.get(agent_id)
        if not held:
            return None
        busy = [self._busy.get(one, 0) for one in held]
        self._round += 1
        return held[min(range(len(held)), key=lambda place: (busy[place], (place - self._round) % len(held)))]

    def turn(self, run_id: str, connection: Connection | None) -> Turn | None:
        """The turn of this run, if this connection executes it; else None."""
        found = self._turns.get(run_id)
        return found if found is not None and found.connection is connection else None

    def leave_open(self) -> None:
        """The daemon stops: the runs of resumable agents are not cancelled at their connections, but go on there."""
        self._is_leaving = True

    def can_steer(self, run_id: str) -> bool:
        """Whether the run is executed by a connection with the capability `steer`."""
        turn = self._turns.get(run_id)
        return turn is not None and "steer" in turn.connection.capabilities

    async def steer(self, run_id: str, text: str) -> bool:
        """Send a message to the agent during its run; whether the agent accepted it."""
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

    async def execute(self, connection: Connection, spec: RunSpec, sink: RunSink) -> RunOutcome:
        """Execute one turn on one connection."""
        resumable = self._is_resumable(spec.agent_id)
        turn = self._turns[spec.run_id] = Turn(connection, sink, resumable=resumable)
        self._busy[connection] = self._busy.get(connection, 0) + 1
        connection.begin_run(spec.run_id, spec)
        answer: _Answer | RunOutcome | AgentAway | None = None
        try:
            params = await run_start_params(spec)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(turn.write, nursery.cancel_scope)
                answer = await self._ask(connection, spec.agent_id, params, resumable=resumable)
                turn.close()
            if turn.failure is not None:
                raise turn.failure
            assert answer is not None
            if isinstance(answer, AgentAway):
                raise answer
            if isinstance(answer, RunOutcome):
                return answer
            if resumable and answer.messages:
                return RunOutcome(error=f"machine {spec.agent_id} answered with messages, which might come twice")
            return await _outcome(answer, sink)
        finally:
            connection.end_run(spec.run_id)
            del self._turns[spec.run_id]
            self._busy[connection] -= 1
            if not self._busy[connection]:
                del self._busy[connection]

    async def _ask(
        self, connection: Connection, agent_id: str, params: dict[str, Any], *, resumable: bool
    ) -> _Answer | RunOutcome | AgentAway:
        try:
            answer: _Answer | None = await connection.ask(
                "run.start", params, _Answer | None, withdraws=lambda: not (resumable and self._is_leaving)
            )
            return answer or _Answer()
        except NotReached:
            return AgentAway()  # returned, because a nursery would wrap a raised one in a group
        except AgentConnectionLost:
            return (
                AgentAway() if resumable else RunOutcome(error=f"agent {agent_id} lost its connection during the run")
            )
        except RefusedByAgent as error:
            return RunOutcome(error=str(error))


class _AttachedRuntime:
    def __init__(self, agents: AttachedAgents, agent_id: str) -> None:
        self._agents, self._agent_id = agents, agent_id

    async def run(self, spec: RunSpec, sink: RunSink) -> RunOutcome:
        connection = self._agents.pick(self._agent_id)
        if connection is None:
            raise AgentAway
        try:
            return await self._agents.execute(connection, spec, sink)
        except AgentAway:
            # The connection is broken, but is detached only after all its tasks have ended; pick no more runs for it.
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
        "target": spec.target,
        "workspace": str(spec.workspace) if spec.target is not None and spec.attachments is not None else None,
    }
    return {name: value for name, value in params.items() if value is not None}


async def _outcome(answer: _Answer, sink: RunSink) -> RunOutcome:
    try:
        messages = [check_message(raw, f"$.messages[{index}]") for index, raw in enumerate(answer.messages)]
    except InvalidParams as error:
        return RunOutcome(error=f"the agent's answer to run.start cannot be used: {error.message}")
    for message in messages:
        await sink.message(message)
    return RunOutcome(reply=answer.reply, usage=answer.usage, model=answer.model)
