"""Every refusal of sessions_spawn with its sentence and code; of several, the first in the documented order wins."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from msgspec.structs import replace
from support.rows import check_each

from sessiond.errors import Forbidden, InvalidParams, SessiondError, Unsupported
from sessiond.policy.spawn import (
    THINKING_LEVELS,
    SpawnFacts,
    SpawnPlan,
    SpawnRequest,
    allowed_agents,
    check,
    check_runtime,
    child_scopes,
    is_sandboxed,
    spawn_depth,
    target_agent,
)

FACTS = SpawnFacts(
    requester_agent="main",
    requester_depth=0,
    max_spawn_depth=1,
    children_running=0,
    max_children=5,
    configured_agents=("main", "ops", "web"),
)

# In the documented order: the request, the conditions, and how it is refused.
REFUSALS = [
    ({"agent_id": "../x"}, {}, InvalidParams, "agent_id_invalid", "$.agentId is no agent id: '../x'"),
    ({"mode": "session"}, {}, InvalidParams, "mode_requires_thread", 'mode="session" needs thread=true'),
    ({"resume_session_id": "s-1"}, {}, InvalidParams, "resume_requires_acp", 'needs the runtime "acp"'),
    ({}, {"requester_depth": 1}, Forbidden, "spawn_depth_exceeded", "not allowed at depth 1"),
    ({}, {"children_running": 5}, Forbidden, "spawn_children_exceeded", "has 5 children running"),
    ({"agent_id": "ops"}, {}, Forbidden, "agent_not_allowed", "agent ops is not allowed"),
    ({}, {"requester_sandboxed": True}, Forbidden, "sandbox_inheritance", "agent main runs without a sandbox"),
    ({"sandbox": "require"}, {}, Forbidden, "sandbox_required", 'sandbox="require" needs an agent with a sandbox'),
    ({"model": "m3"}, {"models": ("m1", "m2")}, InvalidParams, "model_unknown", "not a known model: 'm3'"),
    ({"thinking": "huge"}, {}, InvalidParams, "thinking_invalid", "not a thinking level: 'huge'"),
    ({"thread": True}, {}, Unsupported, "thread_unsupported", "needs an attached channel with threads"),
]


def refusal(request: dict[str, object], facts: dict[str, object]) -> SessiondError:
    with pytest.raises(SessiondError) as caught:
        check(replace(SpawnRequest(), **request), replace(FACTS, **facts))
    return caught.value


@check_each(("request_", "facts", "kind", "code", "sentence"), REFUSALS, ids=[row[3] for row in REFUSALS])
def test_each_refusal_has_its_kind_code_and_sentence(
    request_: dict[str, object], facts: dict[str, object], kind: type, code: str, sentence: str
) -> None:
    error = refusal(request_, facts)
    assert (type(error), error.code) == (kind, code)
    assert sentence in error.message


def test_of_two_refusals_the_first_in_the_documented_order_wins() -> None:
    tried = 0
    for first, second in itertools.combinations(REFUSALS, 2):
        if set(first[0]) & set(second[0]) or {first[3], second[3]} == {"mode_requires_thread", "thread_unsupported"}:
            continue
        assert refusal(first[0] | second[0], first[1] | second[1]).code == first[3]
        tried += 1
    assert tried > 40


def test_a_request_with_every_fault_gets_the_first_refusal() -> None:
    asked: dict[str, object] = {}
    holds: dict[str, object] = {}
    for request, facts, _, _, _ in reversed(REFUSALS):
        asked |= request
        holds |= facts
    assert refusal(asked, holds).code == "agent_id_invalid"


def test_a_minimal_spawn_gets_the_defaults() -> None:
    assert check(SpawnRequest(), FACTS) == SpawnPlan(
        agent_id="main", mode="run", cleanup="keep", model=None, thinking=None
    )


def test_a_full_spawn_passes_every_check() -> None:
    request = SpawnRequest(
        agent_id=" OPS ", mode="run", thread=True, cleanup="delete", sandbox="require", model="m1", thinking=" High "
    )
    facts = replace(
        FACTS,
        requester_depth=4,
        max_spawn_depth=5,
        children_running=4,
        allow_agents=("ops",),
        requester_sandboxed=True,
        child_sandboxed=True,
        models=("m1",),
        threads=True,
    )
    assert check(request, facts) == SpawnPlan(agent_id="ops", mode="run", cleanup="delete", model="m1", thinking="high")


def test_a_spawn_with_thread_is_a_session_that_is_kept() -> None:
    plan = check(SpawnRequest(thread=True, cleanup="delete"), replace(FACTS, threads=True))
    assert (plan.mode, plan.cleanup) == ("session", "keep")


def test_values_at_a_limit_are_accepted_and_beyond_it_refused() -> None:
    deep = replace(FACTS, max_spawn_depth=3)
    assert check(SpawnRequest(), replace(deep, requester_depth=2, children_running=4))
    assert refusal({}, {"max_spawn_depth": 3, "requester_depth": 3}).data == {
        "depth": 3,
        "limit": "agents.defaults.subagents.maxSpawnDepth",
        "value": 3,
    }
    assert refusal({}, {"children_running": 6}).data == {
        "children": 6,
        "limit": "agents.defaults.subagents.maxChildrenPerAgent",
        "value": 5,
    }


@check_each(
    "agent_id",
    [
        "",
        " ",
        "a b",
        "a/",
        "/b",
        "a/b/c",
        "a b/c",
        "..",
        "-a",
        "_a",
        "ä",
        "a\n",
        "a\0",
        "a" * 65,
        "a:b",
        "*",
        "a" * 5000,
    ],
)
def test_malformed_agent_ids_are_refused(agent_id: str) -> None:
    if agent_id == "a\n":
        assert target_agent(SpawnRequest(agent_id=agent_id), "main", None) == "a"
        return
    with pytest.raises(InvalidParams) as caught:
        target_agent(SpawnRequest(agent_id=agent_id), "main", None)
    assert caught.value.code == "agent_id_invalid"
    assert len(caught.value.message) < 250


def test_agent_ids_at_the_limits_of_their_grammar_are_accepted() -> None:
    assert target_agent(SpawnRequest(agent_id="a" * 64), "main", None) == "a" * 64
    assert target_agent(SpawnRequest(agent_id="0_-"), "main", None) == "0_-"
    assert target_agent(SpawnRequest(), "main", "web") == "main"
    assert target_agent(SpawnRequest(runtime="acp"), "main", "web") == "web"
    assert target_agent(SpawnRequest(runtime="acp"), "main", None) == "main"


@check_each(
    ("allow", "agents"),
    [
        ((), ("main",)),
        (("ops",), ("main", "ops")),
        ((" OPS ",), ("main", "ops")),
        (("*",), ("main", "ops", "web")),
        (("ghost",), ("main",)),
        (("o*",), ("main",)),
    ],
)
def test_agents_are_allowed_by_name_or_by_a_wildcard(allow: tuple[str, ...], agents: tuple[str, ...]) -> None:
    assert allowed_agents("main", allow, ("main", "ops", "web")) == agents


def test_an_unconfigured_agent_is_refused_like_one_that_is_not_allowed() -> None:
    missing = refusal({"agent_id": "ghost"}, {"allow_agents": ("ops",)})
    denied = refusal({"agent_id": "web"}, {"allow_agents": ("ops",)})
    assert missing.message.replace("ghost", "web") == denied.message
    assert (missing.code, missing.data) == (denied.code, denied.data)


@check_each(
    ("allow", "told"),
    [
        ((), 'which may spawn main; to allow it, write in the [[agents.list]] entry of main: {Agents = ["ghost"]}'),
        (
            ("ops",),
            'which may spawn main, ops; to allow it, write in the [[agents.list]] entry of main: {Agents = ["ops",'
            ' "ghost"]}',
        ),
        (("*",), "which may spawn main, ops, web; no agent ghost is configured"),
        (("ghost",), "which may spawn main; no agent ghost is configured"),
    ],
)
def test_the_refusal_of_an_agent_shows_the_configuration_line_that_allows_it(allow: tuple[str, ...], told: str) -> None:
    told = told.replace("{", "subagents = { allow").replace("}", " }, then: sessiond config reload")
    message = refusal({"agent_id": "ghost"}, {"allow_agents": allow}).message
    assert message == f"agent ghost is not allowed for sessions_spawn by agent main, {told}"


def test_sandboxed_and_unsandboxed_requesters_may_spawn_a_sandboxed_child() -> None:
    assert check(SpawnRequest(sandbox="require"), replace(FACTS, child_sandboxed=True))
    assert check(SpawnRequest(), replace(FACTS, child_sandboxed=True, requester_sandboxed=True))


@check_each("level", THINKING_LEVELS)
def test_every_documented_thinking_level_is_accepted(level: str) -> None:
    assert check(SpawnRequest(thinking=level.upper()), FACTS).thinking == level


def test_without_a_model_list_every_model_but_a_blank_one_is_accepted() -> None:
    assert check(SpawnRequest(model="any/thing"), FACTS).model == "any/thing"
    assert refusal({"model": " "}, {}).code == "model_unknown"


SPEAKING = {"acp_agents": ("web",), "allow_agents": ("*",)}


@check_each(
    ("request_", "facts", "agent", "sentence"),
    [
        ({}, {}, "main", 'no agent here has the runtime type "acp" (sessiond agents detect finds programs for one)'),
        ({"agent_id": "web"}, {"allow_agents": ("*",)}, "web", "no agent here has"),
        # One that the requester may not start is not named.
        ({}, {"acp_agents": ("web",)}, "main", "no agent here has"),
        (
            {},
            SPEAKING,
            "main",
            "no agent is named: set agentId, or acp.defaultAgent in the configuration, to one of web",
        ),
        # Its own agent is not meant unless it is named.
        ({}, {"acp_agents": ("main",)}, "main", "no agent is named"),
        ({"agent_id": "ops"}, SPEAKING, "ops", 'agent ops has not the runtime type "acp"; name one that has it in'),
        ({"agent_id": "ops"}, SPEAKING | {"acp_default": "web"}, "ops", "agent ops has not"),
        ({"agent_id": "main"}, {"acp_agents": ("main",)}, "main", None),
        ({"agent_id": "web"}, SPEAKING, "web", None),
        ({}, SPEAKING | {"acp_default": "web"}, "web", None),
        ({"resume_session_id": "s-1"}, SPEAKING | {"acp_default": "web"}, "web", None),
    ],
)
def test_acp_needs_an_agent_of_that_type(
    request_: dict[str, Any], facts: dict[str, Any], agent: str, sentence: str | None
) -> None:
    request, known = SpawnRequest(runtime="acp", **request_), replace(FACTS, **facts)
    assert check(request, known).agent_id == agent
    with pytest.raises(Unsupported) as caught:
        check_runtime(request, known, agent, with_attachments=True)
    assert caught.value.code == "attachments_unsupported"
    if sentence is None:
        check_runtime(request, known, agent, with_attachments=False)
        return
    with pytest.raises(Unsupported) as caught:
        check_runtime(request, known, agent, with_attachments=False)
    assert caught.value.code == "acp_unsupported"
    assert sentence in caught.value.message and caught.value.message.endswith('; or use runtime="subagent"')


def test_another_runtime_takes_any_agent_and_attachments() -> None:
    check_runtime(SpawnRequest(), FACTS, "main", with_attachments=True)
    assert check(SpawnRequest(), replace(FACTS, acp_default="web")).agent_id == "main"


def test_depth_is_read_from_the_entry_or_else_counted_up_the_tree() -> None:
    spawners = {"agent:a:subagent:2": "agent:a:subagent:1", "agent:a:subagent:1": "agent:a:main"}
    assert spawn_depth("agent:a:main", {}.get, spawners.get) == 0
    assert spawn_depth("agent:a:subagent:2", {}.get, spawners.get) == 2
    assert spawn_depth("agent:a:subagent:2", {"agent:a:subagent:1": 3}.get, spawners.get) == 4
    assert spawn_depth("agent:a:subagent:lost", {}.get, {}.get) == 1


def test_a_cycle_of_spawners_has_a_finite_depth() -> None:
    circle = {"agent:a:1": "agent:a:2", "agent:a:2": "agent:a:1"}
    assert spawn_depth("agent:a:1", {}.get, circle.get) == 2


def test_subagents_get_only_the_session_tools_that_are_allowed() -> None:
    assert child_scopes(()) == frozenset()
    assert child_scopes(("bash", "sessions_list", " Sessions_Send ")) == {"list", "send"}
    assert child_scopes(("*",)) == {"list", "read", "send", "spawn"}


def test_the_sandbox_mode_decides_which_sessions_are_sandboxed() -> None:
    modes = ("off", "non-main", "all")
    assert [is_sandboxed(mode, is_main=True) for mode in modes] == [False, False, True]
    assert [is_sandboxed(mode, is_main=False) for mode in modes] == [False, True, True]
