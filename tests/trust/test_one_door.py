"""Whatever brings a message into another session says whose it is, counts its hops and its rate: every method, by
every kind of caller. What is not in the tables here fails."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Connection, InProcessDaemon, in_process_daemon
from support.in_process_agents import Program, agent

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

# How each method that starts a run with somebody's words is asked to.
DOORS: dict[str, Params] = {
    "chat.send": lambda key, text: {"sessionKey": key, "message": text},
    "sessions.send": lambda key, text: {"sessionKey": key, "message": text},
    "agent": lambda key, text: {"sessionKey": key, "message": text},
    "sessions.steer": lambda key, text: {"key": key, "message": text},
    "sessions_send": lambda key, text: {"sessionKey": key, "message": text, "timeoutSeconds": 0},
    "sessions.create": lambda key, text: {"key": key, "message": text},
}
TOOLS = {"sessions.send": "chat.send", "agent": "chat.send", "sessions.create": "chat.send"}
ADMINS_ONLY = {"sessions.create"}
# Puts words into a transcript and starts nothing: signed, not counted.
INJECTING = {"chat.inject", "sessions.append"}
# Bring no words into a session that is there: a task goes into a new one, and the rest only stops runs.
OTHERS = {"sessions_spawn", "chat.abort", "sessions.abort"}

ANONYMOUS = "a program without a session"
# scopes, claims, whose name the message bears (None: the owner's own words).
CALLERS: dict[str, tuple[tuple[str, ...], dict[str, Any], str | None]] = {
    "an admin for the owner": (("admin",), {}, None),
    "a session": (("list", "read", "send"), {"sessionKey": FROM}, FROM),
    "an admin of a session": (("admin",), {"sessionKey": FROM}, FROM),
    "a sandboxed session": (("send",), {"sessionKey": "agent:main:parent", "sandboxed": True}, "agent:main:parent"),
    "a session that is not there yet": (("send",), {"sessionKey": "agent:main:later"}, "agent:main:later"),
    "an agent": (("send",), {"agentId": "main"}, "agent:main:main"),
    "an admin of an agent": (("admin",), {"agentId": "main"}, "agent:main:main"),
    "nobody's": (("send",), {}, ANONYMOUS),
    "the session itself": (("send",), {"sessionKey": INTO}, None),
}
PAIRS = [(method, case) for method in DOORS for case in CALLERS if method not in ADMINS_ONLY or "admin" in case]


def test_every_method_that_writes_is_in_a_table_here() -> None:
    names = {name for method in METHODS for name in (method.name, *method.aliases) if method.scope in ("send", "spawn")}
    assert names == (DOORS.keys() | INJECTING | OTHERS) - ADMINS_ONLY


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


async def ended(owner: Connection, answer: dict[str, Any]) -> None:
    await owner.call("agent.wait", runId=answer["runId"])


@pytest.mark.parametrize(("method", "case"), PAIRS)
async def test_a_message_says_whose_it_is(tmp_path: Path, method: str, case: str) -> None:
    name = CALLERS[case][2]
    async with world(tmp_path) as (parts, owner):
        caller = await caller_of(parts, owner, case)
        async with parts.connect(caller) as connection:
            await ended(owner, await connection.call(method, **DOORS[method](INTO, "psst")))
        found = await provenance(owner, INTO, "psst")
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


@pytest.mark.parametrize("method", DOORS)
async def test_the_owner_is_nobody_else(tmp_path: Path, method: str) -> None:
    async with world(tmp_path, rate=1) as (_, owner):
        for _ in range(3):
            answer = await owner.call(method, **DOORS[method](INTO, "psst"))
            await ended(owner, answer)
        page = await owner.call("sessions_history", sessionKey=INTO)
        said = [message.get("provenance") for message in page["messages"] if message["content"] == "psst"]
        assert [one and one.get("sourceSessionKey") for one in said if one] == [None] * (
            3 if method == "sessions_send" else 0
        )


@pytest.mark.parametrize(("method", "case"), [(method, case) for method, case in PAIRS if CALLERS[case][2] is not None])
async def test_all_doors_together_count_one_rate(tmp_path: Path, method: str, case: str) -> None:
    async with world(tmp_path, rate=4) as (parts, owner):
        caller = await caller_of(parts, owner, case)
        async with parts.connect(caller) as connection:
            for other in ("chat.send", "sessions.steer", "sessions_send", method):
                await ended(owner, await connection.call(other, **DOORS[other](INTO, "psst")))
            failed = await connection.failure(method, **DOORS[method](INTO, "one too many"))
        assert (failed["code"], failed["data"]["code"]) == (-32007, "rate_limited")
        page = await owner.call("sessions_history", sessionKey=INTO)
        assert "one too many" not in [message["content"] for message in page["messages"]]


@pytest.mark.parametrize("method", ["chat.send", "sessions.steer"])
async def test_the_same_key_again_is_not_counted_again(tmp_path: Path, method: str) -> None:
    async with world(tmp_path, rate=1) as (parts, owner):
        async with parts.connect(await caller_of(parts, owner, "a session")) as connection:
            asked = {**DOORS[method](INTO, "psst"), "idempotencyKey": "k"}
            answers = [(await connection.call(method, **asked))["runId"] for _ in range(3)]
            assert len(set(answers)) == 1
            assert (await connection.failure(method, **DOORS[method](INTO, "more")))["code"] == -32007


@pytest.mark.parametrize("target", [INTO, ALICE])
@pytest.mark.parametrize("method", sorted(DOORS.keys() - ADMINS_ONLY))
async def test_hops_go_on_from_the_run_that_sends(tmp_path: Path, method: str, target: str) -> None:
    """Into another session, and into its own: a run that writes to itself goes in a circle as well."""
    told: list[Any] = []
    facts: list[dict[str, Any]] = []

    async def act(_: Program, params: dict[str, Any]) -> Any:
        if params["step"] == "primary" and params["message"] == "go":
            caller = parts.services.tokens.caller(params["token"])
            async with parts.connect(caller) as connection:
                # A run that steers its own session interrupts itself: the answer is for whoever is left to read it.
                with trio.CancelScope(shield=True):
                    answer = await connection.answer(await connection.send(method, **DOORS[method](target, "psst")))
                told.append(answer.get("error", {}).get("data", {}).get("code"))
                if "result" in answer:
                    run = parts.services.supervisor.registry.get(answer["result"]["runId"])
                    facts.append(run.request.message["provenance"])
        return {"reply": "ANNOUNCE_SKIP"}

    async with world(tmp_path, hops=2) as (parts, owner), agent(parts, "alice", act):
        await owner.call("sessions.create", key=ALICE)
        session = parts.services.store.catalog.by_key[ALICE]
        before: dict[str, Any] | None = None
        for count in (0, 1, 2):  # somebody's first, second and third message of a chain
            if count:
                before = {"kind": "inter_session", "sourceSessionKey": FROM, "hops": count, "traceId": "t"}
            run = await _accepted(parts, session, before)
            await run.done.wait()
            while len(told) == count:
                await trio.lowlevel.checkpoint()
        assert told == [None, None, "too_many_hops"]
        assert [(one["hops"], one["sourceSessionKey"], one["sourceTool"]) for one in facts] == [
            (1, ALICE, TOOLS.get(method, method)),
            (2, ALICE, TOOLS.get(method, method)),
        ]
        assert facts[1]["traceId"] == "t" != facts[0]["traceId"]


async def _accepted(parts: InProcessDaemon, session: Any, before: dict[str, Any] | None) -> Any:
    return await parts.services.supervisor.accept(session, RunRequest(text="go", message=user_message("go", 1, before)))


@pytest.mark.parametrize("method", ["chat.send", "sessions.steer", "sessions_send"])
async def test_the_agent_is_told_whose_words_it_gets_also_in_mid_run(tmp_path: Path, method: str) -> None:
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
            answer = await connection.call(method, **DOORS[method](ALICE, "psst"))
        await ended(owner, answer)
        if method == "sessions.steer":
            [text] = steered
            assert text.endswith("\n\npsst")
        else:
            [turn] = [turn for turn in alice.turns if turn["message"] == "psst"]
            text = turn["context"]
        assert f"From: {FROM}" in text and f"sent with {method}." in text
        found = await provenance(owner, ALICE, "psst")
        assert found is not None and found["sourceSessionKey"] == FROM


@pytest.mark.parametrize("case", ["an admin of a session", "an admin of an agent", "an admin for the owner"])
@pytest.mark.parametrize("method", sorted(INJECTING))
async def test_injected_words_are_signed_whatever_they_say_of_themselves(
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


async def test_deliver_opens_no_second_way_out(tmp_path: Path) -> None:
    async with world(tmp_path) as (parts, owner):
        async with parts.connect(await caller_of(parts, owner, "a session")) as connection:
            answer = await connection.call("chat.send", sessionKey=INTO, message="psst", deliver=True)
        run = parts.services.supervisor.registry.get(answer["runId"])
        follow = run.request.follow
        assert (follow.talk is not None, follow.deliver) == (True, False)
        assert parts.services.stranger(OWNER, INTO) is None
