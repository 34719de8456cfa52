"""An attached agent disconnects while a run waits for it: a start that it did not read waits until it reconnects."""

from __future__ import annotations

import fcntl
import struct
import termios
from typing import Any

import pytest
from support.real_daemon import Daemon, Wire

pytestmark = pytest.mark.system

CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "attached" }
"""
KEY = "agent:main:main"


@pytest.fixture
def running(daemon: Daemon) -> Daemon:
    return daemon.start(CONFIG)


def attach(daemon: Daemon) -> Wire:
    wire = daemon.connect()
    wire.call("agents.attach", agentId="main")
    return wire


def count_unread_bytes(wire: Wire) -> int:
    """The number of bytes in the kernel's buffer that the agent has not read."""
    count: int = struct.unpack("i", fcntl.ioctl(wire.socket, termios.FIONREAD, b"\0" * 4))[0]
    return count


def answer_run(wire: Wire, reply: str) -> dict[str, Any]:
    """Take the next run and end it with this reply; returns the params of its start."""
    request = wire.receive()
    assert request["method"] == "run.start"
    wire.send({"jsonrpc": "2.0", "id": request["id"], "result": {"reply": reply}})
    params: dict[str, Any] = request["params"]
    return params


def wait_for_detach(daemon: Daemon) -> None:
    daemon.wait_for(lambda: not daemon.call("daemon.status")["attachedAgents"].get("main"), "the agent is still there")


def start_run(daemon: Daemon, agent: Wire, message: str = "hello") -> str:
    """Start a run; its start is in the kernel's buffer, and the agent has not read it."""
    run_id: str = daemon.call("chat.send", sessionKey=KEY, message=message)["runId"]
    daemon.wait_for(lambda: count_unread_bytes(agent), "the start never came")
    return run_id


@pytest.mark.parametrize("read", [0, 10])
def test_a_start_that_the_agent_did_not_read_waits_until_it_reconnects(running: Daemon, read: int) -> None:
    """Also if it read a part of it, which is not enough to act on."""
    dying = attach(running)
    run_id = start_run(running, dying)
    dying.socket.recv(read)
    dying.close()
    wait_for_detach(running)
    with attach(running) as agent:
        assert answer_run(agent, "back again")["runId"] == run_id
        ended = running.call("agent.wait", runId=run_id)
    assert (ended["status"], ended["reply"]) == ("ok", "back again")
    assert [record["message"]["role"] for record in running.records(KEY) if record["type"] == "message"] == [
        "user",
        "assistant",
    ]


def test_a_long_start_that_was_sent_only_in_part_waits_until_the_agent_reconnects(running: Daemon) -> None:
    dying = attach(running)
    run_id = start_run(running, dying, "x" * 3_000_000)
    dying.close()
    wait_for_detach(running)
    with attach(running) as agent:
        assert len(answer_run(agent, "read")["message"]) == 3_000_000
        assert running.call("agent.wait", runId=run_id)["reply"] == "read"


def test_a_run_whose_start_the_agent_read_ends_with_the_connection(running: Daemon) -> None:
    dying = attach(running)
    run_id = start_run(running, dying)
    assert dying.receive()["method"] == "run.start"
    dying.close()
    ended = running.call("agent.wait", runId=run_id)
    assert (ended["status"], ended["error"]) == ("error", "agent main lost its connection during the run")


def test_a_run_whose_start_may_have_been_read_ends_with_the_connection(running: Daemon) -> None:
    dying = attach(running)
    run_id = start_run(running, dying)
    assert dying.receive()["method"] == "run.start"
    # The unread answer to this ping comes after the start, so the daemon cannot tell whether the start was read.
    dying.send({"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {}})
    running.wait_for(lambda: count_unread_bytes(dying), "the ping was never answered")
    dying.close()
    assert running.call("agent.wait", runId=run_id)["status"] == "error"
