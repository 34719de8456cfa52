"""`chat.abort`: ends the runs of a session, or one of them. Nothing blocks it, and no process is left behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from support.in_process import in_process_daemon
from support.in_process_agents import Program, agent, attached_agents_config, until
from support.method_calls import Call, CallFailed
from support.rows import check_each

KEY = "agent:alice:main"


def _is_alive(pid: str) -> bool:
    """Whether the process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if it ends between opening and reading
        return False


async def never_answer(_: Program, __: dict[str, Any]) -> Any:
    await trio.sleep_forever()


@check_each("name", ["chat.abort", "sessions.abort"])
def test_without_a_run_nothing_is_aborted(call: Call, fresh: str, name: str) -> None:
    assert call(name, sessionKey=fresh) == {"aborted": False, "runIds": []}
    assert call(name, sessionKey=fresh, runId="no.such") == {"aborted": False, "runIds": []}


def test_an_unknown_session_is_not_found_and_the_scope_is_required(call: Call, shared: Any, fresh: str) -> None:
    with pytest.raises(CallFailed) as failed:
        call("chat.abort", sessionKey="agent:main:none")
    assert failed.value.error["code"] == -32002
    token = shared.call("tokens.mint", scopes=["read"], sessionKey=fresh)["token"]
    with pytest.raises(CallFailed) as failed:
        call("chat.abort", by=token, sessionKey=fresh)
    assert failed.value.error["code"] == -32003


async def test_all_runs_of_a_session_or_one_of_them_are_aborted(tmp_path: Path):
    async with (
        in_process_daemon(tmp_path, attached_agents_config("alice")) as there,
        agent(there, "alice", never_answer) as alice,
        there.connect() as owner,
    ):
        ids = [(await owner.call("chat.send", sessionKey=KEY, message=str(n)))["runId"] for n in range(4)]
        await alice.got.wait()
        got = await owner.call("chat.abort", sessionKey=KEY, runId=ids[2])
        assert got == {"aborted": True, "runIds": [ids[2]]}
        assert (await owner.call("agent.wait", runId=ids[0], timeoutMs=0))["status"] == "running"
        got = await owner.call("chat.abort", sessionKey=KEY)
        assert got == {"aborted": True, "runIds": [ids[0], ids[1], ids[3]]}
        for run_id in ids:
            ended = await owner.call("agent.wait", runId=run_id)
            assert (ended["status"], ended["error"]) == ("aborted", "aborted")
        await until(lambda: alice.called_off == [1])
        rows = (await owner.call("sessions_list"))["sessions"]
        assert (rows[0]["status"], rows[0]["abortedLastRun"]) == ("aborted", True)


async def test_a_program_and_its_children_are_dead_when_the_abort_is_answered(tmp_path: Path):
    pids = tmp_path / "pids"
    script = f"trap '' TERM; sleep 300 & echo $$ $! > {pids}; wait"
    config = f'[[agents.list]]\nid = "main"\nruntime = {{ type = "exec", command = ["sh", "-c", "{script}"] }}\n'
    async with in_process_daemon(tmp_path, config) as there, there.connect() as owner:
        sent = await owner.call("chat.send", sessionKey="main", message="x")
        await until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        got = await owner.call("chat.abort", sessionKey="main")
        assert got["runIds"] == [sent["runId"]]
        # The group has had its KILL by now; the kernel takes a moment to carry it out on all of its processes.
        await until(lambda: not any(map(_is_alive, pids.read_text().split())))
        # The run slot is free at once.
        again = await owner.call("chat.send", sessionKey="main", message="y")
        await until(lambda: there.services.supervisor.current("agent:main:main"))
        await owner.call("chat.abort", sessionKey="main", runId=again["runId"])
