"""An attached agent that goes while a run waits for it: what it did not read waits for it to come back."""

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
def started(daemon: Daemon) -> Daemon:
    return daemon.start(CONFIG)


def attached(daemon: Daemon) -> Wire:
    wire = daemon.connect()
    wire.call("agents.attach", agentId="main")
    return wire


def unread(wire: Wire) -> int:
    """How many bytes the kernel has for the agent."""
    count: int = struct.unpack("i", fcntl.ioctl(wire.socket, termios.FIONREAD, b"\0" * 4))[0]
    return count


def answer(wire: Wire, reply: str) -> dict[str, Any]:
    """Take the next run and end it; its params."""
    request = wire.receive()
    assert request["method"] == "run.start"
    wire.send({"jsonrpc": "2.0", "id": request["id"], "result": {"reply": reply}})
    params: dict[str, Any] = request["params"]
    return params


def gone_from(daemon: Daemon) -> None:
    daemon.wait_for(lambda: not daemon.call("daemon.status")["attachedAgents"].get("main"), "the agent is still there")


def started_run(daemon: Daemon, agent: Wire, message: str = "hello") -> str:
    """A run whose start the kernel has, and the agent has not read."""
    run_id: str = daemon.call("chat.send", sessionKey=KEY, message=message)["runId"]
    daemon.wait_for(lambda: unread(agent), "the start never came")
    return run_id


@pytest.mark.parametrize("read", [0, 10])
def test_a_start_that_the_agent_did_not_read_waits_for_it_to_come_back(started: Daemon, read: int) -> None:
    """Also one of which it read a part: it cannot know what it was asked."""
    dying = attached(started)
    run_id = started_run(started, dying)
    dying.socket.recv(read)
    dying.close()
    gone_from(started)
    with attached(started) as agent:
        assert answer(agent, "back again")["runId"] == run_id
        ended = started.call("agent.wait", runId=run_id)
    assert (ended["status"], ended["reply"]) == ("ok", "back again")
    assert [record["message"]["role"] for record in started.records(KEY) if record["type"] == "message"] == [
        "user",
        "assistant",
    ]


def test_a_long_start_that_the_kernel_has_in_part_waits_too(started: Daemon) -> None:
    dying = attached(started)
    run_id = started_run(started, dying, "x" * 3_000_000)
    dying.close()
    gone_from(started)
    with attached(started) as agent:
        assert len(answer(agent, "read")["message"]) == 3_000_000
        assert started.call("agent.wait", runId=run_id)["reply"] == "read"


def test_a_start_that_the_agent_read_ends_with_it(started: Daemon) -> None:
    dying = attached(started)
    run_id = started_run(started, dying)
    assert dying.receive()["method"] == "run.start"
    dying.close()
    ended = started.call("agent.wait", runId=run_id)
    assert (ended["status"], ended["error"]) == ("error", "agent main lost its connection during the run")


def test_a_start_with_something_unread_behind_it_may_have_been_read(started: Daemon) -> None:
    dying = attached(started)
    run_id = started_run(started, dying)
    assert dying.receive()["method"] == "run.start"
    dying.send({"jsonrpc": "2.0", "id": 7, "method": "ping", "params": {}})
    started.wait_for(lambda: unread(dying), "the ping was never answered")
    dying.close()
    assert started.call("agent.wait", runId=run_id)["status"] == "error"
