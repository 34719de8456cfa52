"""Decide whether a sessions_spawn is allowed: the checks in their documented order, on facts that the caller collected.

Looks nothing up and creates nothing. Attachments are checked elsewhere, after these checks.
Source: runs.md, "Order of the checks".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from sessiond.errors import Forbidden, InvalidParams, Unsupported, quote
from sessiond.model import keys
from sessiond.ranges import THINKING_LEVELS

Mode = Literal["run", "session"]
Cleanup = Literal["delete", "keep"]

MAX_MODEL_CHARS = 512
# The scope that each session tool needs.
TOOL_SCOPES = {
    "agents_list": "list",
    "sessions_list": "list",
    "sessions_history": "read",
    "sessions_search": "read",
    "sessions_send": "send",
    "sessions_spawn": "spawn",
}


class SpawnRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters that are checked, as the caller sent them."""

    agent_id: str | None = None
    runtime: Literal["subagent", "acp"] = "subagent"
    mode: Mode | None = None
    thread: bool = False
    cleanup: Cleanup | None = None
    sandbox: Literal["inherit", "require"] = "inherit"
    model: str | None = None
    thinking: str | None = None
    resume_session_id: str | None = None


class SpawnFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the requester and of the child's agent that the checks depend on.

    `allow_agents` are the ids that the requester's agent may spawn, `*` for any; its own id is always allowed.
    `children_running` counts the requester's children that have not ended. `threads`: an attached channel can bind the
    child to a thread. An empty `models` allows every model. `acp_agents` are the configured agents with `type = "acp"`,
    `acp_default` is `acp.defaultAgent`. `machines` are the agents that stand for other machines. `by_machine`: another
    machine asks. Then there are no agents of machines among them, not even its own: what it asks for is neither passed
    on nor sent back.
    """

    requester_agent: str
    requester_depth: int
    max_spawn_depth: int
    children_running: int
    max_children: int
    configured_agents: tuple[str, ...]
    allow_agents: tuple[str, ...] = ()
    requester_sandboxed: bool = False
    child_sandboxed: bool = False
    models: tuple[str, ...] = ()
    threads: bool = False
    acp_agents: tuple[str, ...] = ()
    acp_default: str | None = None
    machines: tuple[str, ...] = ()
    by_machine: bool = False


class SpawnPlan(msgspec.Struct, frozen=True, kw_only=True):
    """An allowed spawn, defaults filled in."""

    agent_id: str
    mode: Mode
    cleanup: Cleanup
    model: str | None
    thinking: str | None


def target_agent(request: SpawnRequest, requester_agent: str, acp_default: str | None) -> str:
    """The agent of the child. InvalidParams (`agent_id_invalid`). Comes first: the other checks depend on it."""
    agent_id = request.agent_id
    if agent_id is not None and "/" in agent_id:
        return _split(agent_id)[0]
    if agent_id is None:
        return acp_default if request.runtime == "acp" and acp_default is not None else requester_agent
    cleaned = agent_id.strip().lower()
    if not keys.AGENT_ID.fullmatch(cleaned):
        raise InvalidParams(
            f"$.agentId is no agent id: {_short(agent_id)}. "
            "Ids match [a-z0-9][a-z0-9_-]{0,63}; agents_list shows them",
            code="agent_id_invalid",
            field="$.agentId",
        )
    return cleaned


def target_elsewhere(request: SpawnRequest) -> str | None:
    """What a spawn on another machine asks for, `mars/ops`; None for one here. InvalidParams (`agent_id_invalid`)."""
    return "/".join(_split(request.agent_id)) if request.agent_id is not None and "/" in request.agent_id else None


def _split(agent_id: str) -> tuple[str, str]:
    """The machine and the agent in `mars/ops`."""
    machine, _, there = agent_id.strip().lower().partition("/")
    if not keys.AGENT_ID.fullmatch(machine) or not keys.AGENT_ID.fullmatch(there):
        raise InvalidParams(
            f"$.agentId is no agent id: {_short(agent_id)}. One on another machine is <machine>/<id>, like mars/ops",
            code="agent_id_invalid",
            field="$.agentId",
        )
    return machine, there


def check(request: SpawnRequest, facts: SpawnFacts) -> SpawnPlan:
    """The plan of a spawn, or the first refusal in the documents' order, with its own sentence and `code`."""
    agent_id = target_agent(request, facts.requester_agent, facts.acp_default)
    mode = request.mode or ("session" if request.thread else "run")
    if mode == "session" and not request.thread:
        raise InvalidParams(
            'mode="session" needs thread=true, so that the child stays bound to a thread',
            code="mode_requires_thread",
            field="$.mode",
        )
    if request.resume_session_id is not None and request.runtime != "acp":
        raise InvalidParams(
            '$.resumeSessionId needs the runtime "acp"; other agents have no sessions of their own to go on with',
            code="resume_requires_acp",
            field="$.resumeSessionId",
        )
    _check_numbers(facts)
    _check_agent(agent_id, facts)
    _check_machine(agent_id, request, facts)
    if request.resume_session_id is not None and facts.by_machine:
        raise Forbidden(
            "another machine goes on with no session of a program here; leave out resumeSessionId",
            code="agent_not_allowed",
        )
    _check_sandbox(request, facts, agent_id)
    _check_model(request.model, facts.models)
    thinking = None if request.thinking is None else check_thinking(request.thinking)
    if request.thread and not facts.threads:
        raise Unsupported(
            "thread=true needs an attached channel with threads, and none is attached to this session's channel",
            code="thread_unsupported",
        )
    # A session that is kept open for follow-ups cannot be deleted after its first announcement.
    cleanup = "keep" if mode == "session" else request.cleanup or "keep"
    return SpawnPlan(agent_id=agent_id, mode=mode, cleanup=cleanup, model=request.model, thinking=thinking)


def check_runtime(request: SpawnRequest, facts: SpawnFacts, agent_id: str, *, with_attachments: bool) -> None:
    """Refuse `runtime="acp"` with attachments or another agent: the last check, after the attachments' own.

    Unsupported (`attachments_unsupported`, `acp_unsupported`).
    """
    if request.runtime != "acp":
        return
    if with_attachments:
        raise Unsupported(
            'attachments are not supported with runtime="acp"; use runtime="subagent" or leave them out',
            code="attachments_unsupported",
        )
    is_named = request.agent_id is not None or facts.acp_default is not None
    if is_named and agent_id in facts.acp_agents:
        return
    allowed = allowed_agents(facts.requester_agent, facts.allow_agents, facts.configured_agents)
    speaking = [name for name in allowed if name in facts.acp_agents]
    if not speaking:
        what = 'no agent here has the runtime type "acp" (sessiond agents detect finds programs for one)'
    elif is_named:
        what = (
            f'agent {agent_id} has not the runtime type "acp"; name one that has it in agentId: {", ".join(speaking)}'
        )
    else:
        what = (
            f"no agent is named: set agentId, or acp.defaultAgent in the configuration, to one of {', '.join(speaking)}"
        )
    raise Unsupported(f'runtime="acp" is not possible: {what}; or use runtime="subagent"', code="acp_unsupported")


def _check_numbers(facts: SpawnFacts) -> None:
    if facts.requester_depth >= facts.max_spawn_depth:
        raise Forbidden(
            f"sessions_spawn is not allowed at depth {facts.requester_depth}; "
            f"agents.defaults.subagents.maxSpawnDepth is {facts.max_spawn_depth}",
            code="spawn_depth_exceeded",
            depth=facts.requester_depth,
            limit="agents.defaults.subagents.maxSpawnDepth",
            value=facts.max_spawn_depth,
        )
    if facts.children_running >= facts.max_children:
        raise Forbidden(
            f"this session has {facts.children_running} children running; "
            f"agents.defaults.subagents.maxChildrenPerAgent is {facts.max_children}",
            code="spawn_children_exceeded",
            children=facts.children_running,
            limit="agents.defaults.subagents.maxChildrenPerAgent",
            value=facts.max_children,
        )


def _check_agent(agent_id: str, facts: SpawnFacts) -> None:
    allowed = allowed_agents(facts.requester_agent, facts.allow_agents, facts.configured_agents)
    if agent_id in allowed:
        return
    if facts.by_machine:
        remedy = f'to allow it, write in the [[link.peers]] of {facts.requester_agent} there: spawn = ["{agent_id}"]'
    elif "*" in facts.allow_agents or agent_id in facts.allow_agents:
        remedy = f"no agent {agent_id} is configured"
    else:
        # The same answer for an agent that is not configured and one that is not allowed: a requester that may not
        # use an agent must not learn whether it exists.
        wanted = ", ".join(f'"{name}"' for name in (*facts.allow_agents, agent_id))
        remedy = (
            f"to allow it, write in the [[agents.list]] entry of {facts.requester_agent}:"
            f" subagents = {{ allowAgents = [{wanted}] }}, then: sessiond config reload"
        )
    raise Forbidden(
        f"agent {agent_id} is not allowed for sessions_spawn by agent {facts.requester_agent}, which may spawn"
        f" {', '.join(allowed) or 'none'}; {remedy}",
        code="agent_not_allowed",
    )


def allowed_agents(requester_agent: str, allow: tuple[str, ...], configured: tuple[str, ...]) -> tuple[str, ...]:
    """The configured agents that `requester_agent` may spawn, in the order of the configuration."""
    names = {name.strip().lower() for name in allow}
    return tuple(agent for agent in configured if agent == requester_agent or "*" in names or agent in names)


def _check_machine(agent_id: str, request: SpawnRequest, facts: SpawnFacts) -> None:
    """An agent on another machine is named with both, one here without."""
    elsewhere = target_elsewhere(request)
    if (elsewhere is not None) == (agent_id in facts.machines):
        return
    if elsewhere is None:
        what = f"{agent_id} is another machine: name the agent there, like {agent_id}/main"
    else:
        what = f"$.agentId: {agent_id} is an agent here and no other machine; write {agent_id} alone to spawn it"
    raise InvalidParams(what, code="agent_id_invalid", field="$.agentId")


def _check_sandbox(request: SpawnRequest, facts: SpawnFacts, agent_id: str) -> None:
    if facts.child_sandboxed:
        return
    if facts.requester_sandboxed:
        raise Forbidden(
            f"a sandboxed session cannot spawn an unsandboxed child; agent {agent_id} runs without a sandbox",
            code="sandbox_inheritance",
        )
    if request.sandbox == "require":
        raise Forbidden(
            f'sandbox="require" needs an agent with a sandbox; agent {agent_id} runs without one',
            code="sandbox_required",
        )


def check_model_length(model: str) -> None:
    """InvalidParams for a text that is too long for the name of a model. Each row shows it."""
    if len(model) > MAX_MODEL_CHARS:
        raise InvalidParams(f"`$.model` has {len(model)} characters, the limit is {MAX_MODEL_CHARS}.", field="$.model")


def _check_model(model: str | None, models: tuple[str, ...]) -> None:
    check_model_length(model or "")
    if model is not None and (not model.strip() or (models and model not in models)):
        raise InvalidParams(
            f"$.model is not a known model: {_short(model)}; models.allow lists them",
            code="model_unknown",
            field="$.model",
        )


def check_thinking(thinking: str, field: str = "$.thinking") -> str:
    """The level, trimmed and in lower case. InvalidParams (`thinking_invalid`) for an unknown one."""
    level = thinking.strip().lower()
    if level not in THINKING_LEVELS:
        raise InvalidParams(
            f"{field} is not a thinking level: {_short(thinking)}; use one of {', '.join(THINKING_LEVELS)}",
            code="thinking_invalid",
            field=field,
        )
    return level


def spawn_depth(key: str, depth_of: Callable[[str], int | None], spawner_of: Callable[[str], str | None]) -> int:
    """The depth of session `key` in its tree of spawned sessions; a session that nobody spawned has depth 0.

    `depth_of` gives the `spawnDepth` of an entry. Sessions of adopted stores may lack it, so the spawners are counted.
    """
    passed: set[str] = set()
    current = key
    while current not in passed:
        passed.add(current)
        known, spawner = depth_of(current), spawner_of(current)
        if known is not None:
            return known + len(passed) - 1
        if spawner is None:
            # The key says that it is a sub-agent, so it was spawned even if the store does not say by whom.
            return len(passed) - 1 + (1 if keys.is_subagent(current) else 0)
        current = spawner
    return len(passed)


def child_scopes(allow: tuple[str, ...]) -> frozenset[str]:
    """The scopes of a sub-agent's token: only those of the session tools in `tools.subagents.tools.allow`."""
    names = {name.strip().lower() for name in allow}
    if "*" in names:
        return frozenset(TOOL_SCOPES.values())
    return frozenset(scope for tool, scope in TOOL_SCOPES.items() if tool in names)


def is_sandboxed(mode: Literal["off", "non-main", "all"], *, is_main: bool) -> bool:
    """Whether a session runs in a sandbox, by its agent's `sandbox.mode`; `is_main` is that agent's main session."""
    return mode == "all" or (mode == "non-main" and not is_main)


def _short(text: str) -> str:
    """`text` quoted for an error sentence, cut to 80 characters."""
    return quote(text if len(text) <= 80 else text[:79] + "…")
