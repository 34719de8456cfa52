"""Every method that sends a message into another session records the sender and counts hops and rate, for every kind
of caller. A method that is not in the tables here fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.in_process_agents import Program, agent
from support.rows import check_each
from support.sampling import spread

from sessiond.methods.table import METHODS
from sessiond.model.caller import OWNER, Caller
from sessiond.model.message import user_message
from sessiond.runs.run import RunRequest

CONFIG = """
[store]
durability = "os"
[session]
agentToAgent = {{ maxPingPongTurns = 0 }}
[tools.sessions]
visibility = "all"
[tools.agentToAgent]
enabled = true
allow = ["*"]
[limits]
messagesPerMinute = {rate}
maxHops = {hops}
[[agents.list]]
id = "main"
default = true
runtime = {{ type = "echo" }}
[[agents.list]]
id = "alice"
runtime = {{ type = "attached" }}
"""
FROM, INTO = "agent:main:from", "agent:main:into"
ALICE = "agent:alice:main"
Params = Callable[[str, str], dict[str, Any]]

# The params with which each method starts a run with a message.
SENDERS: dict[str, Params] = {
    "chat.send": lambda key, text: {"sessionKey": key, "message": text},
    "sessions.send": lambda key, text: {"sessionKey": key, "message": text},
    "agent": lambda key, text: {"sessionKey": key, "message": text},
    "sessions.steer": lambda key, text: {"key": key, "message": text},
    "sessions_send": lambda key, text: {"sessionKey": key, "message": text, "timeoutSeconds": 0},
    "sessions.create": lambda key, text: {"key": key, "message": text},
}
TOOLS = {"sessions.send": "chat.send", "agent": "chat.send", "sessions.create": "chat.send"}
ADMINS_ONLY = {"sessions.create"}
# They write messages into a transcript and start no run: the sender is recorded, the rate is not counted.
INJECTORS = {"chat.inject", "sessions.append"}
# They send no message into an existing session: a task goes into a new one, and the rest only stops runs.
OTHERS = {"sessions_spawn", "chat.abort", "sessions.abort"}

ANONYMOUS = "a program without a session"
# scopes, claims, the sender in the message's provenance (None: no provenance).
CALLERS: dict[str, tuple[tuple[str, ...], dict[str, Any], str | None]] = {
    "an admin for the owner": (("admin",), {}, None),
    "a session": (("list", "read", "send"), {"sessionKey": FROM}, FROM),
    "an admin of a session": (("admin",), {"sessionKey": FROM}, FROM),
    "a sandboxed session": (("send",), {"sessionKey": "agent:main:parent", "sandboxed": True}, "agent:main:parent"),
    "a session that is not there yet": (("send",), {"sessionKey": "agent:main:later"}, "agent:main:later"),
    "an agent": (("send",), {"agentId": "main"}, "agent:main:main"),
    "an admin of an agent": (("admin",), {"agentId": "main"}, "agent:main:main"),
    "a program without a session": (("send",), {}, ANONYMOUS),
    "the session itself": (("send",), {"sessionKey": INTO}, None),
}
PAIRS = [(method, case) for method in SENDERS for case in CALLERS if method not in ADMINS_ONLY or "admin" in case]


def test_every_method_with_scope_send_or_spawn_is_in_a_table_here() -> None:
    names = {name for method in METHODS for name in (method.name, *method.aliases) if method.scope in ("send", "spawn")}
    assert names == (SENDERS.keys() | INJECTORS | OTHERS) - ADMINS_ONLY


@asynccontextmanager
async def world(folder: Path, *, rate: int = 100, hops: int = 16) -> AsyncIterator[tuple[InProcessDaemon, Connection]]:
    async with in_process_daemon(folder, CONFIG.format(rate=rate, hops=hops)) as parts, parts.connect() as owner:
        await owner.say("agent:main:parent", "hello")
        await owner.say(FROM, "hello")
        await owner.call("sessions.create", key=INTO, parentSessionKey="agent:main:parent")
        yield parts, owner


async def caller_of(parts: InProcessDaemon, owner: Connection, case: str) -> Caller:
    scopes, claims, _ = CALLERS[case]
    found: Caller = parts.services.tokens.caller((await owner.call("tokens.mint", scopes=scopes, **claims))["token"])
    return found


async def provenance(owner: Connection, key: str, text: str) -> dict[str, Any] | None:
    page = await owner.call("sessions_history", sessionKey=key)
    [message] = [message for message in page["messages"] if message["role"] == "user" and message["content"] == text]
    found: dict[str, Any] | None = message.get("provenance")
    return found


async def wait_for_run(owner: Connection, answer: dict[str, Any]) -> None:
    await owner.call("agent.wait", runId=answer["runId"])


async def test_a_message_records_its_sender(tmp_path: Path) -> None:
    @check_each(("method", "case"), PAIRS)
    async def check(method: str, case: str) -> None:
        name, text = CALLERS[case][2], f"psst by {method} from {case}"
        caller = await caller_of(parts, owner, case)
        async with parts.connect(caller) as connection:
            await wait_for_run(owner, await connection.call(method, **SENDERS[method](INTO, text)))
        found = await provenance(owner, INTO, text)
        if name is None and method != "sessions_send":
            assert found is None
            return
        assert found is not None
        trace_id = found.pop("traceId")
        assert trace_id
        source = {"sourceSessionKey": name} if name not in (None, ANONYMOUS) else {}
        if case == "the session itself":
            source = {"sourceSessionKey": INTO}
        assert found == {"kind": "inter_session", **source, "sourceTool": TOOLS.get(method, method), "hops": 1}

    async with world(tmp_path) as (parts, owner):
        await check()


@check_each("method", SENDERS)
async def test_the_owner_has_no_rate_limit_and_is_no_sending_session(tmp_path: Path, method: str) -> None:
    async with world(tmp_path, rate=1) as (_, owner):
        for _ in range(3):
            answer = await owner.call(method, **SENDERS[method](INTO, "psst"))
            await wait_for_run(owner, answer)
        page = await owner.call("sessions_history", sessionKey=INTO)
        said = [message.get("provenance") for message in page["messages"] if message["content"] == "psst"]
        assert [one and one.get("sourceSessionKey") for one in said if one] == [None] * (
            3 if method == "sessions_send" else 0
        )


# Each method and each kind of caller; with SESSIOND_TESTS=whole each method for each kind.
@check_each(("method", "case"), spread([(method, case) for method, case in PAIRS if CALLERS[case][2] is not None], 5))
async def test_all_methods_together_count_towards_one_rate_limit(tmp_path: Path, method: str, case: str) -> None:
    async with world(tmp_path, rate=4) as (parts, owner):
        caller = await caller_of(parts, owner, case)
        async with parts.connect(caller) as connection:
            for other in ("chat.send", "sessions.steer", "sessions_send", method):
                await wait_for_run(owner, await connection.call(other, **SENDERS[other](INTO, "psst")))
            failed = await connection.failure(method, **SENDERS[method](INTO, "one too many"))
        assert (failed["code"], failed["data"]["code"]) == (-32007, "rate_limited")
        page = await owner.call("sessions_history", sessionKey=INTO)
        assert "one too many" not in [message["content"] for message in page["messages"]]


@pytest.mark.parametrize("method", ["chat.send", "sessions.steer"])
async def test_a_repeated_idempotency_key_is_counted_once(tmp_path: Path, method: str) -> None:
    async with world(tmp_path, rate=1) as (parts, owner):
        async with parts.connect(await caller_of(parts, owner, "a session")) as connection:
            params = {**SENDERS[method](INTO, "psst"), "idempotencyKey": "k"}
            answers = [(await connection.call(method, **params))["runId"] for _ in range(3)]
            assert len(set(answers)) == 1
            assert (await connection.failure(method, **SENDERS[method](INTO, "more")))["code"] == -32007


@check_each("target", [INTO, ALICE])
@check_each("method", spread(sorted(SENDERS.keys() - ADMINS_ONLY), 3))
async def test_hops_are_counted_on_from_the_run_that_sends(tmp_path: Path, method: str, target: str) -> None:
    """Into another session, and into its own: a run that sends to its own session makes a loop as well."""
    errors: list[Any] = []
    provenances: list[dict[str, Any]] = []

    async def act(_: Program, params: dict[str, Any]) -> Any:
        if params["step"] == "primary" and params["message"] == "go":
            caller = parts.services.tokens.caller(params["token"])
            async with parts.connect(caller) as connection:
                # A run that steers its own session is cancelled by it; the shield keeps the answer readable.
                with trio.CancelScope(shield=True):
                    answer = await connection.answer(await connection.send(method, **SENDERS[method](target, "psst")))
                errors.append(answer.get("error", {}).get("data", {}).get("code"))
                if "result" in answer:
                    run = parts.services.supervisor.registry.get(answer["result"]["runId"])
                    provenances.append(run.request.message["provenance"])
        return {"reply": "ANNOUNCE_SKIP"}

    async with world(tmp_path, hops=2) as (parts, owner), agent(parts, "alice", act):
        await owner.call("sessions.create", key=ALICE)
        session = parts.services.store.catalog.by_key[ALICE]
        before: dict[str, Any] | None = None
        for count in (0, 1, 2):  # hops of the message that starts the run
            if count:
                before = {"kind": "inter_session", "sourceSessionKey": FROM, "hops": count, "traceId": "t"}
            run = await _accept_run(parts, session, before)
            await run.done.wait()
            while len(errors) == count:
                await trio.lowlevel.checkpoint()
        assert errors == [None, None, "too_many_hops"]
        assert [(one["hops"], one["sourceSessionKey"], one["sourceTool"]) for one in provenances] == [
            (1, ALICE, TOOLS.get(method, method)),
            (2, ALICE, TOOLS.get(method, method)),
        ]
        assert provenances[1]["traceId"] == "t" != provenances[0]["traceId"]


async def _accept_run(parts: InProcessDaemon, session: Any, before: dict[str, Any] | None) -> Any:
    return await parts.services.supervisor.accept(session, RunRequest(text="go", message=user_message("go", 1, before)))


@check_each("method", ["chat.send", "sessions.steer", "sessions_send"])
async def test_the_agent_is_told_the_sender_of_a_message_also_in_mid_run(tmp_path: Path, method: str) -> None:
    steered: list[str] = []

    async def act(made: Program, params: dict[str, Any]) -> Any:
        if "runId" in params and "step" not in params:
            steered.append(params["message"])
            made.gate.set()
            return {}
        if params["message"] == "go on":
            await made.gate.wait()
        return {"reply": "ANNOUNCE_SKIP"}

    async with world(tmp_path) as (parts, owner), agent(parts, "alice", act, capabilities=["steer"]) as alice:
        await owner.call("sessions.create", key=ALICE)
        if method == "sessions.steer":
            await owner.call("chat.send", sessionKey=ALICE, message="go on")
            await alice.got.wait()
        async with parts.connect(await caller_of(parts, owner, "a session")) as connection:
            answer = await connection.call(method, **SENDERS[method](ALICE, "psst"))
        await wait_for_run(owner, answer)
        if method == "sessions.steer":
            [text] = steered
            assert text.endswith("\n\npsst")
        else:
            [turn] = [turn for turn in alice.turns if turn["message"] == "psst"]
            text = turn["context"]
        assert f"From: {FROM}" in text and f"sent with {method}." in text
        found = await provenance(owner, ALICE, "psst")
        assert found is not None and found["sourceSessionKey"] == FROM


@check_each("case", ["an admin of a session", "an admin of an agent", "an admin for the owner"])
@check_each("method", sorted(INJECTORS))
async def test_injected_messages_record_their_sender_whatever_provenance_they_claim(
    tmp_path: Path, method: str, case: str
) -> None:
    claimed = {"kind": "inter_session", "sourceSessionKey": "agent:main:innocent"}
    async with world(tmp_path) as (parts, owner):
        async with parts.connect(await caller_of(parts, owner, case)) as connection:
            texts = [{"role": "user", "content": "psst", "provenance": claimed}, {"role": "user", "content": "plain"}]
            await connection.call(method, sessionKey=INTO, messages=texts)
        name = CALLERS[case][2]
        found = [await provenance(owner, INTO, text) for text in ("psst", "plain")]
        if name is None:
            assert found == [claimed, None]
        else:
            assert [(one or {}).get("sourceSessionKey") for one in found] == [name] * 2


async def test_deliver_between_sessions_leaves_delivery_to_the_conversation(tmp_path: Path) -> None:
    async with world(tmp_path) as (parts, owner):
        async with parts.connect(await caller_of(parts, owner, "a session")) as connection:
            answer = await connection.call("chat.send", sessionKey=INTO, message="psst", deliver=True)
        run = parts.services.supervisor.registry.get(answer["runId"])
        follow = run.request.follow
        assert (follow.talk is not None, follow.deliver) == (True, False)
        assert parts.services.stranger(OWNER, INTO) is None
