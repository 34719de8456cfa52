"""`agents.attach`: who may attach, what an attached agent is sent, and what it may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Refused, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config, program, until
from support.method_calls import Call, CallFailed
from support.sampling import amount

KEY = "agent:alice:main"


async def answer_message(_: Program, params: dict[str, Any]) -> Any:
    return {"reply": f"alice heard: {params['message']}"}


async def never_answer(_: Program, __: dict[str, Any]) -> Any:
    await trio.sleep_forever()


def test_attaching_needs_a_lasting_connection(call: Call, request: pytest.FixtureRequest) -> None:
    over_http = "http" in request.node.callspec.id
    if over_http:
        with pytest.raises(CallFailed) as failed:
            call("agents.attach", agentId="other")
        assert failed.value.error["code"] == -32006
    else:
        assert call("agents.attach", agentId="other") == {"agentId": "other", "attached": True}


async def test_an_invalid_agent_id_is_refused(tmp_path: Path):
    async with in_process_daemon(tmp_path) as there, there.connect() as owner:
        for agent_id in ("", "Alice", "a b", "../x", "x" * 65):
            assert (await owner.failure("agents.attach", agentId=agent_id))["code"] == -32602
        assert (await owner.failure("agents.attach", agentId="a", capabilities=["fly"]))["code"] == -32602


async def test_an_agent_that_is_not_configured_is_refused_with_the_lines_to_add(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("alice")) as there, there.connect() as owner:
        error = await owner.failure("agents.attach", agentId="bob")
        assert (error["code"], error["data"]["code"]) == (-32002, "agent_not_found")
        assert 'id = "bob"' in error["message"] and "sessiond config reload" in error["message"]
        assert await owner.call("agents.attach", agentId="alice") == {"agentId": "alice", "attached": True}


async def test_only_callers_with_the_scope_and_the_agent_may_attach(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("alice")) as there, there.connect() as owner:

        async def attach(**token: Any) -> int | None:
            made = await owner.call("tokens.mint", **token)
            async with there.connect(there.services.tokens.caller(made["token"])) as client:
                answer = await client.answer(await client.send("agents.attach", agentId="alice"))
            return answer["error"]["code"] if "error" in answer else None

        assert await attach(scopes=["admin"]) is None
        assert await attach(scopes=["list"], agentId="alice") is None
        assert await attach(scopes=["list"], agentId="main") == -32003
        assert await attach(scopes=["list", "read", "send"], sessionKey="agent:main:main") == -32003
        assert await attach(scopes=["send"], sessionKey="agent:alice:telegram:group:1") == -32003


async def test_the_token_of_a_run_cannot_attach(tmp_path: Path):
    """A sub-agent with its run's token must not take over what else its agent does."""
    seen: list[int] = []

    async def act(made: Program, params: dict[str, Any]) -> Any:
        caller = there.services.tokens.caller(params["token"])
        async with there.connect(caller) as second:
            seen.append((await second.failure("agents.attach", agentId="alice"))["code"])
        return {"reply": ""}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act),
        there.connect() as owner,
    ):
        await owner.say(KEY, "x")
    assert seen == [-32003]


async def test_a_run_is_sent_as_a_request_and_its_answer_ends_the_run(tmp_path: Path):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", answer_message) as alice,
        there.connect() as owner,
    ):
        assert await owner.say(KEY, "hello") == "alice heard: hello"
        [turn] = alice.turns
        sessions = await owner.call("sessions.resolve", key=KEY)
        assert turn == {
            "runId": turn["runId"],
            "sessionKey": KEY,
            "sessionId": sessions["sessionId"],
            "step": "primary",
            "message": "hello",
            "token": turn["token"],
        }
        agents = {one["id"]: one for one in (await owner.call("agents_list"))["agents"]}
        assert agents["alice"]["runtime"] == "attached"
        assert (await owner.call("daemon.status"))["attachedAgents"] == {"alice": 1}
    assert alice.called_off == []


async def test_the_runs_token_serves_on_a_second_connection_until_the_run_ends(tmp_path: Path):
    tokens: list[str] = []

    async def act(_: Program, params: dict[str, Any]) -> Any:
        tokens.append(params["token"])
        async with there.connect(there.services.tokens.caller(params["token"])) as second:
            page = await second.call("sessions_history", sessionKey="current")
            return {"reply": page["messages"][0]["content"]}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act),
        there.connect() as owner,
    ):
        assert await owner.say(KEY, "who am I?") == "who am I?"
        with pytest.raises(Exception, match="token"):
            there.services.tokens.caller(tokens[0])


async def test_calls_with_a_runs_id_are_made_as_its_session(tmp_path: Path):
    async def act(made: Program, params: dict[str, Any]) -> Any:
        own = {"_meta": {"runId": params["runId"]}}
        page = await made.call("sessions_history", sessionKey="current", **own)
        listed = await made.call("sessions_list", **own)
        with pytest.raises(Refused) as refused:
            await made.call("daemon.status", **own)
        with pytest.raises(Refused):
            await made.call("sessions_history", sessionKey="current", _meta={"runId": 5})
        return {"reply": f"{len(page['messages'])} {listed['visibility']} {refused.value.args[0]['code']}"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act),
        there.connect() as owner,
    ):
        assert await owner.say(KEY, "x") == "1 tree -32003"


async def test_runs_wait_for_an_agent_that_is_not_attached_and_start_when_it_attaches(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("alice")) as there, there.connect() as owner:
        ids = [(await owner.call("chat.send", sessionKey=KEY, message=str(n)))["runId"] for n in range(3)]
        rows = (await owner.call("sessions_list"))["sessions"]
        assert (rows[0]["status"], rows[0]["queuedRuns"]) == ("queued", 3)
        async with agent(there, "alice", answer_message) as alice:
            for number, run_id in enumerate(ids):
                ended = await owner.call("agent.wait", runId=run_id)
                assert ended["reply"] == f"alice heard: {number}"
        assert [turn["message"] for turn in alice.turns] == ["0", "1", "2"]


async def test_a_run_ends_when_its_agent_does_not_attach_in_time(tmp_path: Path):
    config = attached_agents_config("alice", more="[agents.defaults]\nqueueTtlSeconds = 0.2\n")
    async with in_process_daemon(tmp_path, config) as there, there.connect() as owner:
        sent = await owner.call("chat.send", sessionKey=KEY, message="x")
        ended = await owner.call("agent.wait", runId=sent["runId"])
        assert (ended["status"], ended["error"]) == (
            "error",
            "agent alice was not attached within 0.2 s; start it and send again",
        )


async def test_a_lost_connection_ends_its_run_and_queued_runs_wait_for_the_next_one(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("alice")) as there, there.connect() as owner:
        async with agent(there, "alice", never_answer) as alice:
            lost = await owner.call("chat.send", sessionKey=KEY, message="lost")
            queued = await owner.call("chat.send", sessionKey=KEY, message="queued")
            await alice.got.wait()
        ended = await owner.call("agent.wait", runId=lost["runId"])
        assert (ended["status"], ended["error"]) == ("error", "agent alice lost its connection during the run")
        assert (await owner.call("agent.wait", runId=queued["runId"], timeoutMs=0))["status"] == "running"
        async with agent(there, "alice", answer_message):
            assert (await owner.call("agent.wait", runId=queued["runId"]))["reply"] == "alice heard: queued"


async def test_several_connections_share_the_runs_of_an_agent(tmp_path: Path):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", never_answer) as one,
        agent(there, "alice", never_answer) as other,
        there.connect() as owner,
    ):
        for number in range(4):
            await owner.call("chat.send", sessionKey=f"agent:alice:{number}", message="x")
        await until(lambda: len(one.turns) + len(other.turns) == 4)
        assert (len(one.turns), len(other.turns)) == (2, 2)


async def test_one_connection_may_run_several_agents(tmp_path: Path):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice", "bob")) as there,
        program(there, answer_message) as both,
    ):
        for name in ("alice", "bob"):
            await both.call("agents.attach", agentId=name)
        async with there.connect() as owner:
            for name in ("alice", "bob"):
                assert await owner.say(f"agent:{name}:main", name) == f"alice heard: {name}"
        assert there.services.attached.counts() == {"alice": 1, "bob": 1}
    assert there.services.attached.counts() == {}


async def test_many_attached_agents_sending_to_each_other_end_each_run_once(tmp_path: Path):
    """Many agents send messages to each other: every run ends, and none ends twice."""
    count, sends = amount(64, 8), amount(128, 16)
    config = """
[tools.sessions]
visibility = "all"
[tools.agentToAgent]
enabled = true
allow = ["*"]
[session]
agentToAgent = { maxPingPongTurns = 0 }
"""

    async def act(_: Program, params: dict[str, Any]) -> Any:
        return {"reply": "ANNOUNCE_SKIP" if params["step"] == "announce" else params["message"]}

    names = [f"a{number}" for number in range(count)]
    async with (
        in_process_daemon(tmp_path, attached_agents_config(*names, more=config)) as there,
        there.connect() as owner,
    ):
        async with trio.open_nursery() as nursery:
            programs = [Program(await _opened(there, nursery)) for _ in names]
            for name, made in zip(names, programs, strict=True):
                nursery.start_soon(made.serve, act)
                await made.call("agents.attach", agentId=name)
                await owner.call("sessions.create", key=f"agent:{name}:main")
            replies: list[tuple[str, str]] = []

            async def send(number: int) -> None:
                async with there.connect() as client:
                    key = f"agent:{names[number % count]}:main"
                    got = await client.call("sessions_send", sessionKey=key, message=str(number))
                    replies.append((got["status"], got["reply"]))

            async with trio.open_nursery() as sending:
                for number in range(sends):
                    sending.start_soon(send, number)
            assert sorted(replies) == sorted(("ok", str(number)) for number in range(sends))
            # One turn for each message, and none for an announcement: there is no channel that it could be posted to.
            turns = [turn["runId"] for made in programs for turn in made.turns]
            assert len(turns) == len(set(turns)) == sends
            nursery.cancel_scope.cancel()


async def _opened(there: Any, nursery: trio.Nursery) -> Any:
    """A connection that is open as long as the nursery."""
    ready: list[Any] = []

    async def hold(*, task_status: trio.TaskStatus[None]) -> None:
        async with there.connect() as connection:
            ready.append(connection)
            task_status.started()
            await trio.sleep_forever()

    await nursery.start(hold)
    return ready[0]
