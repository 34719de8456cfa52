"""`agents_list`: the agents a caller may spawn or send to, its own first."""

from __future__ import annotations

from typing import Annotated

from sessiond.methods.params import NoParams, Result, says
from sessiond.methods.services import Context
from sessiond.policy import spawn
from sessiond.rpc.method import Method
from sessiond.subagents.spawn import find_spawnable


class AgentInfo(Result, frozen=True, kw_only=True):
    id: Annotated[str, says("The agent's id.")]
    name: Annotated[str | None, says("Its name.")] = None
    machine: Annotated[bool | None, says("Whether it stands for another machine; absent where not.")] = None
    away_since: Annotated[
        int | None, says("Since when that machine is not reached, in milliseconds since 1970; absent while it is.")
    ] = None
    configured: Annotated[bool, says("Whether it is in the configuration.")]
    runtime: Annotated[str, says("What runs it: `echo`, `exec`, `attached` or `acp`.")]
    sandboxed: Annotated[bool, says("Whether some or all of its runs are in a sandbox.")]
    attached: Annotated[int, says("How many connections run it.")] = 0
    live_runs: Annotated[int, says("How many of its runs are executing.")] = 0


class AgentsListResult(Result, frozen=True, kw_only=True):
    requester: Annotated[str, says("The caller's agent.")]
    allow_any: Annotated[bool, says("Whether the caller's agent may spawn every configured agent.")]
    agents: Annotated[list[AgentInfo], says("The agents that the caller may spawn, its own first; the owner sees all.")]


def handle(ctx: Context, params: NoParams) -> AgentsListResult:  # noqa: ARG001
    services, config = ctx.services, ctx.services.config
    requester = ctx.caller.agent_id or config.default_agent()
    allow, configured = find_spawnable(config, requester, by_machine=ctx.caller.is_machine)
    # The owner sees all configured agents, other callers those that they may spawn.
    sees_all = ctx.caller.session_key is None and ctx.caller.agent_id is None
    ids = configured if sees_all else spawn.allowed_agents(requester, allow, configured)
    live = services.supervisor.live_by_agent()
    attached = services.attached.counts()
    agents: list[AgentInfo] = []
    for agent_id in sorted(set(ids), key=lambda name: (name != requester, name)):
        agent, is_machine = config.agent(agent_id), config.machine(agent_id) is not None
        agents.append(
            AgentInfo(
                id=agent_id,
                name=agent.name if agent is not None else None,
                machine=is_machine or None,
                away_since=services.store.machines.away_since(agent_id) if is_machine else None,
                configured=agent is not None,
                runtime=agent.runtime.type if agent is not None else "attached",
                sandboxed=agent is not None and agent.sandbox.mode != "off",
                attached=attached.get(agent_id, 0),
                live_runs=live.get(agent_id, 0),
            )
        )
    return AgentsListResult(requester=requester, allow_any="*" in allow, agents=agents)


METHOD = Method("agents_list", "list", NoParams, AgentsListResult, handle, "List agents, the caller's own first.")
