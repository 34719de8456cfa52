"""`agents.attach`: run an agent on this connection for as long as it is open. Source: runs.md, "attached"."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import trio

from sessiond.errors import Forbidden, NotFound, quote
from sessiond.methods.params import AgentIdText, Params, Result, says
from sessiond.methods.services import Context, Services
from sessiond.model.caller import SCOPES, Caller
from sessiond.model.keys import agent_of, main_key
from sessiond.policy.visibility import ACTIONS
from sessiond.rpc.method import Method
from sessiond.rpc.outgoing_requests import PeerNotReached, RemoteError
from sessiond.rpc.peer import Peer
from sessiond.rpc.sending import PeerGone
from sessiond.runtimes.attached import AgentConnectionLost, NotReached, RefusedByAgent
from sessiond.runtimes.runtime import RunSpec


class AgentsAttachParams(Params, frozen=True, kw_only=True):
    agent_id: Annotated[AgentIdText, says("The agent to run on this connection.")]
    capabilities: Annotated[
        list[Literal["steer"]], says("What the connection supports; `steer`: messages during a run.")
    ] = []


class AgentsAttachResult(Result, frozen=True, kw_only=True):
    agent_id: Annotated[str, says("The agent.")]
    attached: Annotated[bool, says("Always true.")]


async def ask(
    peer: Peer,
    method: str,
    params: dict[str, Any],
    *,
    result_type: Any = Any,
    timeout_s: float | None = None,
    withdraws: Callable[[], bool] | None = None,
) -> Any:
    """The client's answer. AgentConnectionLost or RefusedByAgent if none comes in time."""
    try:
        return await peer.request(method, params, timeout=timeout_s, result_type=result_type, withdraws=withdraws)
    except PeerNotReached:
        raise NotReached from None
    except PeerGone:
        raise AgentConnectionLost from None
    except RemoteError as error:
        raise RefusedByAgent(str(error)) from None
    except trio.TooSlowError:
        raise RefusedByAgent(f"no answer within {timeout_s:g} s") from None


class PeerConnection:
    """A peer as `runtimes/attached.py` uses it. A call with `_meta: {runId}` acts for that run, if executed here."""

    def __init__(self, peer: Peer, services: Services) -> None:
        self.peer = peer
        self.capabilities: frozenset[str] = frozenset()
        self._services = services
        self._callers: dict[str, Caller] = {}
        peer.meta_caller = self._caller_for

    async def ask(
        self,
        method: str,
        params: dict[str, Any],
        result_type: Any = Any,
        *,
        withdraws: Callable[[], bool] | None = None,
    ) -> Any:
        if self._services.tokens.is_dead(self.peer.caller):
            _detach(self._services, self.peer)
            raise RefusedByAgent("the agent's token has expired; it has to attach with a new one")
        if method == "run.start":
            # Checked for each run, because the connection may have presented another token since.
            try:
                _check_caller(self.peer.caller, agent_of(params["sessionKey"]), self._services)
            except Forbidden as error:
                _detach(self._services, self.peer)
                raise RefusedByAgent(f"the agent's connection may not run it any more: {error.message}") from None
        return await ask(self.peer, method, params, result_type=result_type, withdraws=withdraws)

    def begin_run(self, run_id: str, spec: RunSpec) -> None:
        # A run executed here has at most the scopes of the connection: attaching must not give a caller more scopes.
        held = frozenset(scope for scope in SCOPES if self.peer.caller.has(scope))
        self._services.tokens.restrict_run(run_id, held)
        self._callers[run_id] = Caller(
            kind="token",
            scopes=self._services.run_scopes(spec.session_key) & held,
            session_key=spec.session_key,
            agent_id=spec.agent_id,
            run_id=run_id,
            sandboxed=spec.sandboxed,
            is_machine=self._services.config.machine(spec.agent_id) is not None,
        )

    def end_run(self, run_id: str) -> None:
        self._callers.pop(run_id, None)
        self._services.tokens.restrict_run(run_id, None)

    def _caller_for(self, meta: Mapping[str, Any]) -> Caller:
        run_id = meta.get("runId")
        if run_id is None:
            return self.peer.caller
        caller = self._callers.get(run_id) if isinstance(run_id, str) else None
        if caller is None:
            raise Forbidden("`$._meta.runId` is no run that this connection lives just now.")
        return caller


def handle(ctx: Context, params: AgentsAttachParams) -> AgentsAttachResult:
    services, agent_id = ctx.services, params.agent_id
    _check_caller(ctx.caller, agent_id, services)
    if services.config.agent(agent_id) is None:
        # Sessions are only created for configured agents, so the connection would never get a run.
        raise NotFound(
            f'no agent {quote(agent_id)} in the configuration; add: [[agents.list]] with id = "{agent_id}" and'
            ' runtime = { type = "attached" }, then: sessiond config reload',
            code="agent_not_found",
        )
    peer = ctx.require_peer()
    connection = services.connections.get(peer)
    if connection is None:
        connection = services.connections[peer] = PeerConnection(peer, services)
        peer.on_close(lambda: _detach(services, peer))
    assert isinstance(connection, PeerConnection)
    connection.capabilities = frozenset(params.capabilities)
    services.attached.attach(agent_id, connection)
    return AgentsAttachResult(agent_id=agent_id, attached=True)


def _check_caller(caller: Caller, agent_id: str, services: Services) -> None:
    """Forbidden where the caller may not run this agent."""
    if services.config.machine(agent_id) is not None:
        # Whoever answers for a machine speaks for everybody on it.
        if not (services.sight_of(caller).unlimited and caller.has("admin")):
            raise Forbidden(f"{agent_id} is another machine: only the owner's `sessiond link` attaches for it")
        return
    if not _is_for(caller, agent_id, services) and not _administers(caller, agent_id, services):
        raise Forbidden(
            f"attaching for agent {agent_id} needs a token for that agent, or the scope `admin` and sight of all its"
            " sessions"
        )
    # The connection gets the token of every run of the agent. A sandboxed caller must not get one of a run outside.
    agent = services.config.agent(agent_id)
    if caller.sandboxed and (agent is None or agent.sandbox.mode != "all"):
        raise Forbidden(
            f"a sandboxed token attaches only where every run is sandboxed (sandbox.mode = 'all'), not for {agent_id}",
            code="sandbox_inheritance",
        )


def _administers(caller: Caller, agent_id: str, services: Services) -> bool:
    """Whether the caller administers all sessions of the agent: an attached connection gets the messages of all."""
    sights = [services.sight_of(caller, action) for action in ACTIONS]
    return caller.has("admin") and all(sight.reaches_agent(agent_id) for sight in sights)


def _is_for(caller: Caller, agent_id: str, services: Services) -> bool:
    """Whether the token is for the agent as a whole, not for one session of it.

    A token of a run, or of a sub-agent's or a group's session, must not take over the agent's other sessions. A token
    of the main session counts as one for the agent.
    """
    if caller.agent_id != agent_id or caller.run_id is not None:
        return False
    return caller.session_key in (None, main_key(agent_id, services.rules))


def _detach(services: Services, peer: Peer) -> None:
    connection = services.connections.pop(peer, None)
    if connection is not None:
        services.attached.detach(connection)


METHOD = Method(
    "agents.attach",
    None,
    AgentsAttachParams,
    AgentsAttachResult,
    handle,
    "Run an agent on this connection: its runs come as `run.start` requests.",
    streams=True,
)
