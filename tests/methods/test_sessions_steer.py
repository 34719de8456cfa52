"""`sessions.steer`: the message goes into the live run if its agent takes it, or else interrupts it. It is never lost
or reordered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import Refused, in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config, until
from support.method_calls import Call, CallFailed
from support.rows import check_each

KEY = "agent:alice:main"


def test_without_a_live_run_a_steer_is_a_message(call: Call, fresh: str) -> None:
    got = call("sessions.steer", key=fresh, message="hello")
    assert got == {"runId": got["runId"], "status": "accepted", "interrupted": []}


def test_the_same_idempotency_key_gives_the_same_run(call: Call, fresh: str) -> None:
    first = call("sessions.steer", key=fresh, message="hello", idempotencyKey="k")
    assert call("sessions.steer", key=fresh, message="hello", idempotencyKey="k")["runId"] == first["runId"]
    with pytest.raises(CallFailed) as failed:
        call("sessions.steer", key=fresh, message="else", idempotencyKey="k")
    assert failed.value.error["code"] == -32004


@check_each(
    ("params", "code"),
    [
        ({"key": "agent:main:none", "message": "x"}, -32002),
        ({"key": "main", "message": " "}, -32602),
        ({"key": "main"}, -32602),
    ],
)
def test_invalid_params_are_refused(call: Call, fresh: str, params: dict[str, Any], code: int) -> None:
    params = {**params, "key": fresh if params["key"] == "main" else params["key"]}
    with pytest.raises(CallFailed) as failed:
        call("sessions.steer", **params)
    assert failed.value.error["code"] == code


async def hang_if_live(made: Program, params: dict[str, Any]) -> Any:
    if params.get("message") == "live":
        await trio.sleep_forever()
    return {"reply": f"re: {params['message']}"}


async def _texts(owner: Any) -> list[str]:
    page = await owner.call("sessions_history", sessionKey=KEY)
    return [message["content"] for message in page["messages"] if message["role"] == "user"]


async def test_a_steer_interrupts_the_live_run_and_goes_before_queued_messages(tmp_path: Path):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", hang_if_live) as alice,
        there.connect() as owner,
    ):
        live = await owner.call("chat.send", sessionKey=KEY, message="live")
        queued = await owner.call("chat.send", sessionKey=KEY, message="queued")
        await alice.got.wait()
        got = await owner.call("sessions.steer", key=KEY, message="now this")
        assert got == {"runId": got["runId"], "status": "accepted", "interrupted": [live["runId"]]}
        assert (await owner.call("agent.wait", runId=live["runId"]))["status"] == "aborted"
        assert (await owner.call("agent.wait", runId=got["runId"]))["reply"] == "re: now this"
        assert (await owner.call("agent.wait", runId=queued["runId"]))["reply"] == "re: queued"
        assert await _texts(owner) == ["live", "now this", "queued"]


async def test_a_session_whose_send_policy_denies_cannot_be_steered(tmp_path: Path):
    async with in_process_daemon(tmp_path, attached_agents_config("alice")) as there, there.connect() as owner:
        await owner.call("chat.send", sessionKey=KEY, message="/send off")
        assert (await owner.failure("sessions.steer", key=KEY, message="x"))["code"] == -32003


async def test_a_run_whose_agent_takes_the_steer_is_not_interrupted(tmp_path: Path):
    heard: list[dict[str, Any]] = []

    async def act(made: Program, params: dict[str, Any]) -> Any:
        if "sessionKey" not in params:  # run.steer
            heard.append(params)
            made.gate.set()
            return {}
        await made.gate.wait()
        return {"reply": f"turned {heard[0]['message']}"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act, capabilities=["steer"]) as alice,
        there.connect() as owner,
    ):
        live = await owner.call("chat.send", sessionKey=KEY, message="live")
        await alice.got.wait()
        asked = {"key": KEY, "message": "left", "idempotencyKey": "k"}
        got = await owner.call("sessions.steer", **asked)
        assert got == {"runId": live["runId"], "status": "accepted", "interrupted": []}
        assert heard == [{"runId": live["runId"], "message": "left"}]
        assert (await owner.call("agent.wait", runId=live["runId"]))["reply"] == "turned left"
        assert await _texts(owner) == ["live", "left"]
        # The idempotency key is remembered although the message started no run.
        assert (await owner.call("sessions.steer", **asked))["runId"] == live["runId"]
        assert await _texts(owner) == ["live", "left"]


@pytest.mark.parametrize("how", ["refuses", "leaves"])
async def test_a_run_whose_agent_does_not_take_the_steer_is_interrupted_and_the_message_stored_once(
    tmp_path: Path, how: str
):
    async def act(made: Program, params: dict[str, Any]) -> Any:
        if "sessionKey" in params:
            return await hang_if_live(made, params)
        if how == "refuses":
            raise Refused("not now")
        return await made.connection.close()

    async with in_process_daemon(tmp_path, attached_agents_config("alice")) as there, there.connect() as owner:
        async with agent(there, "alice", act, capabilities=["steer"]) as alice:
            live = await owner.call("chat.send", sessionKey=KEY, message="live")
            await alice.got.wait()
            got = await owner.call("sessions.steer", key=KEY, message="left")
            assert got["runId"] != live["runId"]
            async with agent(there, "alice", hang_if_live):
                assert (await owner.call("agent.wait", runId=got["runId"]))["reply"] == "re: left"
                ended = await owner.call("agent.wait", runId=live["runId"])
                assert ended["status"] == ("aborted" if how == "refuses" else "error")
                assert await _texts(owner) == ["live", "left"]


async def test_after_several_steers_the_last_one_runs(tmp_path: Path):
    async def act(made: Program, params: dict[str, Any]) -> Any:
        if params["message"] != "4":
            await trio.sleep_forever()
        return {"reply": "4"}

    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", act) as alice,
        there.connect() as owner,
    ):
        await owner.call("chat.send", sessionKey=KEY, message="0")
        steered = [await owner.call("sessions.steer", key=KEY, message=str(n)) for n in range(1, 5)]
        assert (await owner.call("agent.wait", runId=steered[-1]["runId"]))["reply"] == "4"
        statuses = [(await owner.call("agent.wait", runId=one["runId"]))["status"] for one in steered]
        assert statuses == ["aborted", "aborted", "aborted", "ok"]
        await until(lambda: [turn["message"] for turn in alice.turns][-1] == "4")
