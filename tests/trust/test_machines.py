"""What another machine may do here: what its rule says and no more, by every method, at once when that changes."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.in_process_agents import Program, agent
from support.linked_machines import OPEN, linked_config, linked_daemon, machine_connection, user_messages
from support.patience import PATIENCE_S
from support.sampling import pick

from sessiond.config.settings import parse
from sessiond.methods.table import METHODS
from sessiond.model.caller import SCOPES, Caller
from sessiond.model.machine_sender import MachineSender, machine_sender
from sessiond.model.record import ENTRY
from sessiond.store.store import Custom

OWN = "agent:mars:main"
CHILD = "agent:ops:subagent:of-mars"
PATTERN = "agent:ops:main"
HIDDEN = "agent:main:main"
ELSEWHERE = "agent:venus:venus/main"
KEYS = (OWN, CHILD, PATTERN, HIDDEN, ELSEWHERE)
# Patterns that match PATTERN, everything, and nothing that is there.
SENDS: tuple[tuple[str, ...], ...] = ((), ("agent:ops:m*",), ("*",), ("agent:other:*", "main"))
SPAWNS: tuple[tuple[str, ...], ...] = ((), ("ops",), ("*",), ("other",))
RESULT, NOT_FOUND, FORBIDDEN, UNSUPPORTED, INVALID = 0, -32002, -32003, -32006, -32602
CLIENT = {"protocol": 1, "client": {"name": "t", "version": "1"}}

# The methods that name one session, and what a machine reaches by them: to read, to send a message, or to send
# anything else.
READS: dict[str, dict[str, Any]] = {
    "sessions_history": {"sessionKey": "KEY"},
    "chat.history": {"sessionKey": "KEY"},
    "sessions.resolve": {"key": "KEY"},
    "sessions_search": {"query": "plum", "sessionKey": "KEY"},
    "sessions.messages.subscribe": {"key": "KEY"},
    "sessions.messages.unsubscribe": {"key": "KEY"},
}
MESSAGES: dict[str, dict[str, Any]] = {
    "sessions_send": {"sessionKey": "KEY", "message": "plum", "timeoutSeconds": 0},
    "chat.send": {"sessionKey": "KEY", "message": "plum"},
}
SENDING: dict[str, dict[str, Any]] = {
    "chat.abort": {"sessionKey": "KEY"},
    "sessions.steer": {"key": "KEY", "message": "plum"},
}
# What shows several sessions, and where their keys stand in the answer.
LISTS: dict[str, dict[str, Any]] = {
    "sessions_list": {},
    "sessions.list": {},
    "sessions.usage": {},
    "questions.list": {},
    "sessions.subscribe": {},
    "sessions.unsubscribe": {},
    "sessions.preview": {"keys": list(KEYS)},
}
# What gives everybody the same, and what asks for a run that the machine does not execute.
OPEN_TO_ALL: dict[str, tuple[dict[str, Any], int]] = {
    "initialize": (CLIENT, RESULT),
    "ping": ({}, RESULT),
    "rpc.discover": ({}, RESULT),
    "run.event": ({"runId": "none", "type": "delta", "text": "x"}, NOT_FOUND),
    "agents.ask": (
        {"runId": "none", "title": "x", "options": [{"id": "a", "label": "", "kind": "allow_once"}]},
        NOT_FOUND,
    ),
    "agents.attach": ({"agentId": "mars"}, FORBIDDEN),
    # It names no session, and has none of its own that it could read so.
    "sessions_inbox": ({}, INVALID),
    "chat.inject": ({"sessionKey": CHILD, "messages": [{"role": "user", "content": "x"}]}, FORBIDDEN),
}
OF_THEIR_OWN = ("sessions_spawn", "agents_list", "agent.wait")
# What `admin` and `answer` are needed for: never.
NEVER = tuple(method.name for method in METHODS if method.scope in ("admin", "answer"))


def test_every_method_of_the_table_is_tried() -> None:
    tried = [*READS, *MESSAGES, *SENDING, *LISTS, *OPEN_TO_ALL, *OF_THEIR_OWN, *NEVER]
    assert sorted(tried) == sorted(method.name for method in METHODS), "say what another machine may do with it"


def expected(kind: str, key: str, sends: tuple[str, ...]) -> bool:
    """The rule in five lines: whether a machine reaches the session."""
    if kind == "read":
        return key in (OWN, CHILD)
    if key == CHILD:
        return True
    return kind == "message" and key in (PATTERN, HIDDEN) and ("*" in sends or (key == PATTERN and SENDS[1] == sends))


async def code_of(connection: Connection, method: str, params: dict[str, Any]) -> int:
    answer = await connection.answer(await connection.send(method, **params))
    return answer["error"]["code"] if "error" in answer else RESULT


async def make_world(parts: InProcessDaemon, owner: Connection) -> None:
    for key in (CHILD, PATTERN, HIDDEN):
        await owner.call("sessions.create", key=key)
        await owner.call("chat.inject", sessionKey=key, messages=[{"role": "user", "content": "plum"}])
    for key in (OWN, ELSEWHERE):
        await owner.call("sessions.create", key=key)
    child = parts.services.store.catalog.by_key[CHILD]
    await parts.services.store.append(child, [Custom(ENTRY, {"spawnedBy": OWN})])


def apply_rule(parts: InProcessDaemon, sends: tuple[str, ...], spawns: tuple[str, ...], more: str = "") -> None:
    """What a reload does with the rule."""
    rule = f"send = {list(sends)}\nspawn = {list(spawns)}"
    parts.services.config = parse(linked_config(rule, more))


def everything() -> Caller:
    """As if somebody had minted a token with all scopes before the agent stood for a machine."""
    return Caller(kind="token", scopes=frozenset(SCOPES), agent_id="mars", is_machine=True)


# The configuration's own reach, which must not be the machine's.
@pytest.mark.parametrize("more", pick(["", OPEN], __name__))
async def test_a_machine_does_what_its_rule_says_and_no_more(tmp_path: Path, more: str) -> None:
    wrong: list[str] = []
    more += "[limits]\nmessagesPerMinute = 1000000\n"
    async with linked_daemon(tmp_path, more=more) as (parts, owner):
        await make_world(parts, owner)
        async with parts.connect(everything()) as machine:
            for sends, spawns in product(SENDS, SPAWNS):
                apply_rule(parts, sends, spawns, more)
                for kind, methods in (("read", READS), ("message", MESSAGES), ("send", SENDING)):
                    for (method, params), key in product(methods.items(), KEYS):
                        named = {name: key if value == "KEY" else value for name, value in params.items()}
                        got = await code_of(machine, method, named)
                        if got != (RESULT if expected(kind, key, sends) else NOT_FOUND):
                            wrong.append(f"send={sends}: {method} of {key}: {got}")
                for agent_id in (None, "mars", "venus", "venus/ops", "ops", "main", "other"):
                    named = {"task": "x", **({"agentId": agent_id} if agent_id else {})}
                    allowed = (agent_id == "ops" and spawns in (("ops",), ("*",))) or (
                        agent_id == "main" and spawns == ("*",)
                    )
                    got = await code_of(machine, "sessions_spawn", named)
                    if got != (RESULT if allowed else FORBIDDEN):
                        wrong.append(f"spawn={spawns}: of {agent_id}: {got}")
                    await trio.testing.wait_all_tasks_blocked()
                listed = {one["id"] for one in (await machine.call("agents_list"))["agents"]}
                wanted = {"ops"} if spawns == ("ops",) else {"main", "ops"} if spawns == ("*",) else set()
                if listed != wanted:
                    wrong.append(f"spawn={spawns}: lists {listed}")
            never: dict[str, tuple[dict[str, Any], int]] = dict.fromkeys(NEVER, ({}, FORBIDDEN))
            for method, (params, code) in (OPEN_TO_ALL | never).items():
                if (got := await code_of(machine, method, params)) != code:
                    wrong.append(f"{method}: {got}")
    assert wrong == []


async def test_what_a_machine_lists_and_follows_is_its_own_tree(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path, more=OPEN) as (parts, owner):
        await make_world(parts, owner)
        apply_rule(parts, ("*",), ("*",), OPEN)
        hidden = (PATTERN, HIDDEN, ELSEWHERE)
        async with machine_connection(parts, owner) as machine:
            for method, params in LISTS.items():
                text = str(await machine.call(method, **params))
                if method == "sessions.preview":
                    assert text.count("plum") == 1
                else:
                    assert [key for key in hidden if f"'{key}'" in text] == [], method
            rows = (await machine.call("sessions_list"))["sessions"]
            assert {row["key"] for row in rows} == {"main", CHILD} or {row["key"] for row in rows} == {OWN, CHILD}
            found = await machine.call("sessions_search", query="plum")
            assert {hit["sessionKey"] for hit in found["matches"]} == {CHILD}


async def test_a_machine_waits_for_what_it_spawned_and_hears_the_answers_to_its_messages_only(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), machine_connection(parts, owner) as machine:
        other = await owner.call("chat.send", sessionKey=PATTERN, message="for others")
        assert (await machine.failure("agent.wait", runId=other["runId"]))["code"] == NOT_FOUND
        sent = await machine.call(
            "sessions_send", sessionKey=PATTERN, message="hello", timeoutSeconds=PATIENCE_S, idempotencyKey="k"
        )
        assert (sent["status"], sent["reply"]) == ("ok", "hello")
        again = await machine.call(
            "sessions_send", sessionKey=PATTERN, message="hello", timeoutSeconds=PATIENCE_S, idempotencyKey="k"
        )
        assert again == sent
        spawned = await machine.call("sessions_spawn", task="look", agentId="ops")
        ended = await machine.call("agent.wait", runId=spawned["runId"])
        assert (ended["status"], ended["reply"]) == ("ok", "look")


async def test_the_announcement_of_what_a_machine_spawned_goes_nowhere(tmp_path: Path) -> None:
    """It is on record; the machine waits for the run itself, and no run of its agent goes back to it."""

    async def answer(_: Program, __: dict[str, Any]) -> Any:
        raise AssertionError("the machine was asked")

    async with (
        linked_daemon(tmp_path) as (parts, owner),
        agent(parts, "mars", answer) as link,
        machine_connection(parts, owner) as machine,
    ):
        spawned = await machine.call("sessions_spawn", task="look", agentId="ops")
        await machine.call("agent.wait", runId=spawned["runId"])
        with trio.fail_after(PATIENCE_S):
            while not (said := user_messages(await owner.call("sessions_history", sessionKey=OWN))):
                await trio.lowlevel.checkpoint()
        assert said[0]["provenance"]["sourceTool"] == "subagent_announce"
        child = parts.services.store.catalog.by_key[spawned["childSessionKey"]]
        with trio.fail_after(PATIENCE_S):
            while child.entry.spawn.announced is None:
                await trio.lowlevel.checkpoint()
        assert link.turns == []


async def test_a_message_of_a_machine_opens_no_conversation_that_goes_back(tmp_path: Path) -> None:
    async def answer(_: Program, __: dict[str, Any]) -> Any:
        raise AssertionError("the machine was asked")

    async with (
        linked_daemon(tmp_path) as (parts, owner),
        agent(parts, "mars", answer) as link,
        machine_connection(parts, owner) as machine,
    ):
        sent = await machine.call("sessions_send", sessionKey=PATTERN, message="hello", timeoutSeconds=PATIENCE_S)
        assert sent["delivery"]["status"] == "skipped"
        session = parts.services.store.catalog.by_key[PATTERN]
        assert (session.entry.talks, link.turns) == ((), [])


META = {"machine": {"sessionKey": "agent:ops:night", "traceId": "6f1d3a52-8c0e-4f2b-9a57-1b6f2f4f6b70", "hops": 3}}


async def test_who_sent_it_on_the_machine_is_data_beside_the_machines_own_identity(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), machine_connection(parts, owner) as machine:
        sent = await machine.call("sessions_send", sessionKey=PATTERN, message="hello", _meta=META)
        await owner.call("agent.wait", runId=sent["runId"])
        (message,) = user_messages(await owner.call("sessions_history", sessionKey=PATTERN))
        assert message["provenance"] == {
            "kind": "inter_session",
            "sourceSessionKey": OWN,
            "sourceTool": "sessions_send",
            "machine": "mars",
            "machineSessionKey": "agent:ops:night",
            "hops": 4,
            "traceId": "6f1d3a52-8c0e-4f2b-9a57-1b6f2f4f6b70",
        }
        spawned = await machine.call("sessions_spawn", task="look", agentId="ops", _meta=META)
        (task,) = user_messages(await owner.call("sessions_history", sessionKey=spawned["childSessionKey"]))
        assert (task["provenance"]["machine"], task["provenance"]["machineSessionKey"]) == ("mars", "agent:ops:night")


async def test_a_chain_of_messages_is_counted_over_machines(tmp_path: Path) -> None:
    more = "[limits]\nmaxHops = 4\n"
    async with linked_daemon(tmp_path, more=more) as (parts, owner), machine_connection(parts, owner) as machine:
        await machine.call("sessions_send", sessionKey=PATTERN, message="hello", _meta=META)
        longer = {"machine": {**META["machine"], "hops": 4}}
        error = await machine.failure("sessions_send", sessionKey=PATTERN, message="hello", _meta=longer)
        assert error["data"]["code"] == "too_many_hops"


async def test_nobody_else_can_say_that_a_message_came_from_a_machine(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path, more=OPEN) as (parts, owner):
        await owner.call("sessions.create", key=PATTERN)
        minted = await owner.call("tokens.mint", scopes=["send"], sessionKey=HIDDEN)
        async with parts.connect(parts.services.tokens.caller(minted["token"])) as other:
            sent = await other.call("sessions_send", sessionKey=PATTERN, message="hello", _meta=META)
        await owner.call("agent.wait", runId=sent["runId"])
        message = user_messages(await owner.call("sessions_history", sessionKey=PATTERN))[0]
        assert not message["provenance"].keys() & {"machine", "machineSessionKey"}
        assert message["provenance"]["hops"] == 1


async def test_the_first_message_of_a_machine_begins_an_agents_main_session_and_no_other(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (parts, owner), machine_connection(parts, owner) as machine:
        for name in ("agent:ops:other", "agent:unknown:main", "main", "agent:main:main", "mars/main", OWN):
            assert (await machine.failure("sessions_send", sessionKey=name, message="x"))["code"] == NOT_FOUND, name
        assert "agent:main:main" not in parts.services.store.catalog.by_key
        sent = await machine.call("sessions_send", sessionKey=PATTERN, message="hello", timeoutSeconds=PATIENCE_S)
        assert sent["sessionKey"] == PATTERN
        apply_rule(parts, ("agent:main:main",), ())
        # `main` is what it is here, not the session as which the machine acts.
        sent = await machine.call("sessions_send", sessionKey="main", message="hello", timeoutSeconds=PATIENCE_S)
        assert sent["sessionKey"] == "agent:main:main"


async def test_a_machine_that_was_taken_out_of_the_configuration_may_do_nothing_more(tmp_path: Path) -> None:
    """Not even what an agent of that name may: the token is that of a machine."""
    without = (
        OPEN + '[agents.defaults.subagents]\nallowAgents = ["*"]\n[[agents.list]]\nid = "ops"\nruntime.type = "echo"\n'
    )
    async with linked_daemon(tmp_path, more=OPEN) as (parts, owner), machine_connection(parts, owner) as machine:
        await machine.call("sessions_send", sessionKey=PATTERN, message="hello")
        parts.services.config = parse(without)
        assert (await machine.failure("sessions_send", sessionKey=PATTERN, message="x"))["code"] == NOT_FOUND
        assert (await machine.failure("sessions_history", sessionKey=PATTERN))["code"] == NOT_FOUND
        error = await machine.failure("sessions_spawn", task="x", agentId="ops")
        assert error["code"] in (FORBIDDEN, NOT_FOUND)


async def test_a_token_that_is_older_than_the_machine_has_the_machines_rights(tmp_path: Path) -> None:
    agents = OPEN + '[[agents.list]]\nid = "ops"\nruntime.type = "echo"\n'
    async with in_process_daemon(tmp_path, agents) as parts, parts.connect() as owner:
        await owner.call("sessions.create", key=PATTERN)
        minted = await owner.call("tokens.mint", scopes=["admin", "answer"], agentId="mars")
        caller = parts.services.tokens.caller(minted["token"])
        assert caller.has("admin") and not caller.is_machine
        apply_rule(parts, (), ())
        caller = parts.services.tokens.caller(minted["token"])
        assert caller.is_machine
        assert not caller.has("admin") and not caller.has("answer") and caller.has("read")
        ended: list[Caller] = []
        parts.services.tokens.on_dead = lambda is_dead: ended.extend(
            one for one in (caller, Caller(kind="token", agent_id="mars"), Caller(kind="owner")) if is_dead(one)
        )
        parts.services.tokens.agents_became_machines({"mars"})
        assert ended == [Caller(kind="token", agent_id="mars")]


async def test_a_token_of_a_machine_is_never_minted_with_more(tmp_path: Path) -> None:
    async with linked_daemon(tmp_path) as (_, owner):
        for scope, claims in product(("admin", "answer"), ({"agentId": "mars"}, {"sessionKey": OWN})):
            error = await owner.failure("tokens.mint", scopes=["send", scope], **claims)
            assert error["data"]["code"] == "token_wider"


@given(
    st.none()
    | st.dictionaries(
        st.sampled_from(["machine", "runId", "x"]),
        st.none()
        | st.integers()
        | st.text(max_size=5)
        | st.dictionaries(
            st.sampled_from(["sessionKey", "traceId", "hops"]),
            st.none() | st.booleans() | st.integers() | st.text(max_size=600) | st.just("agent:a:b\u202e"),
        ),
    )
)
def test_whatever_a_machine_says_of_a_sender_is_a_key_on_one_line_or_nothing(meta: dict[str, Any] | None) -> None:
    found = machine_sender("mars", meta)
    assert isinstance(found, MachineSender)
    assert found.name == "mars"
    assert found.session_key is None or (
        found.session_key.startswith("agent:")
        and found.session_key.isprintable()
        and len(found.session_key.encode()) <= 512
    )
    assert 0 <= found.hops <= 1024
