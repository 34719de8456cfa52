"""`sessions.kill` and `POST /sessions/{key}/kill`: end the runs of a session and of all that it spawned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from support.in_process import in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config, until
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon

TREE = ["agent:alice:main", "agent:alice:subagent:1", "agent:alice:subagent:2", "agent:alice:subagent:3"]


async def never_answer(_: Program, __: dict[str, Any]) -> Any:
    await trio.sleep_forever()


def test_without_a_run_nothing_is_killed(call: Call, fresh: str) -> None:
    assert call("sessions.kill", key=fresh) == {"killed": False, "runIds": []}


def test_kill_needs_the_scope_admin(call: Call, shared: Daemon, fresh: str) -> None:
    token = shared.call("tokens.mint", scopes=["send", "spawn"], sessionKey=fresh)["token"]
    with pytest.raises(CallFailed) as failed:
        call("sessions.kill", by=token, key=fresh)
    assert failed.value.error["code"] == -32003
    with pytest.raises(CallFailed) as failed:
        call("sessions.kill", key="agent:main:none")
    assert failed.value.error["code"] == -32002


async def test_runs_of_a_session_and_its_descendants_are_ended_and_no_others(tmp_path: Path):
    async with (
        in_process_daemon(
            tmp_path, attached_agents_config("alice", more="[agents.defaults]\nmaxConcurrent = 9\n")
        ) as there,
        agent(there, "alice", never_answer) as alice,
        there.connect() as owner,
    ):
        parents = [None, TREE[0], TREE[1], TREE[1]]
        for key, parent in zip(TREE, parents, strict=True):
            params = {"parentSessionKey": parent} if parent is not None else {}
            await owner.call("sessions.create", key=key, **params)
        ids = [(await owner.call("chat.send", sessionKey=key, message="x"))["runId"] for key in TREE]
        other = (await owner.call("chat.send", sessionKey="agent:alice:other", message="x"))["runId"]
        await until(lambda: len(alice.turns) == 5)
        got = await owner.call("sessions.kill", key=TREE[1])
        assert (got["killed"], sorted(got["runIds"])) == (True, sorted(ids[1:]))
        assert [(await owner.call("agent.wait", runId=one, timeoutMs=0))["status"] for one in (ids[0], other)] == [
            "running"
        ] * 2
        assert await owner.call("sessions.kill", key=TREE[0]) == {"killed": True, "runIds": [ids[0]]}


def test_the_http_route_says_whether_anything_was_killed(shared: Daemon, fresh: str) -> None:
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(shared.socket), verify=False)) as client:
        got = client.post(f"http://d/sessions/{fresh}/kill")
        assert (got.status_code, got.json()) == (200, {"ok": True, "killed": False})
        missing = client.post("http://d/sessions/agent:main:none/kill")
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found")
