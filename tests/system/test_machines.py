"""Runs for another machine and a daemon that is killed; and rules that a reload changes. A client plays the link."""

from __future__ import annotations

import random
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from support.lasting_connections import HttpJson
from support.linked_machines import AGENTS, linked_config
from support.real_daemon import Daemon, RpcFailure, Wire
from support.sampling import amount

pytestmark = pytest.mark.system

OURS = "agent:mars:mars/main"


def attach(daemon: Daemon) -> Wire:
    wire = daemon.connect()
    wire.call("agents.attach", agentId="mars")
    return wire


def take(wire: Wire) -> dict[str, Any]:
    """The next run that the link is asked for."""
    while True:
        message = wire.events.pop(0) if wire.events else wire.receive()
        if message.get("method") == "run.start":
            return message


def answer(wire: Wire, request: dict[str, Any]) -> None:
    wire.send({"jsonrpc": "2.0", "id": request["id"], "result": {"reply": f"re: {request['params']['message']}"}})


def methods_left(wire: Wire) -> list[str]:
    """What the daemon says until it closes the connection."""
    found: list[str] = []
    with suppress(ConnectionError):
        while True:
            found.append(wire.receive().get("method", ""))
    return found


def said(daemon: Daemon) -> list[str]:
    messages = [record["message"] for record in daemon.records(OURS) if record["type"] == "message"]
    texts = [one["content"] if isinstance(one["content"], str) else one["content"][0]["text"] for one in messages]
    return [f"{message['role']}: {text}" for message, text in zip(messages, texts, strict=True)]


def reload(daemon: Daemon, config: str) -> None:
    before = daemon.call("daemon.status").get("reloadedAt")
    daemon.config.write_text(config)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    daemon.wait_for(lambda: daemon.call("daemon.status").get("reloadedAt") != before, "no reload")
    assert "reloadProblem" not in daemon.call("daemon.status")


def test_a_daemon_killed_anywhere_asks_again_and_says_everything_once(daemon: Daemon) -> None:
    """Each message is in one of four states when the daemon is killed: not asked for yet, asked for, answered, over."""
    rng = random.Random(20)
    daemon.start(linked_config())
    sent: list[str] = []
    for number in range(amount(12, 7)):
        run = daemon.call("chat.send", sessionKey="mars/main", message=f"m{number}", idempotencyKey=f"k{number}")
        sent.append(run["runId"])
        state = rng.choice(["waits", "asked", "answered", "over"])
        if state != "waits":
            with attach(daemon) as link:
                request = take(link)
                if state != "asked":
                    answer(link, request)
                if state == "over":
                    daemon.call("agent.wait", runId=request["params"]["runId"])
                daemon.kill()
        else:
            daemon.kill()
        daemon.start()
        again = daemon.call("chat.send", sessionKey="mars/main", message=f"m{number}", idempotencyKey=f"k{number}")
        assert again["runId"] == run["runId"]
    with attach(daemon) as link, daemon.connect() as owner:
        for run_id in sent:
            if owner.call("agent.wait", runId=run_id, timeoutMs=0)["status"] == "running":
                answer(link, take(link))
            assert owner.call("agent.wait", runId=run_id)["status"] == "ok"
    assert said(daemon) == [line for n in range(len(sent)) for line in (f"user: m{n}", f"assistant: re: m{n}")]
    ends = [
        record["data"]["runId"]
        for record in daemon.records(OURS)
        if record.get("customType") == "sessiond/run" and record["data"]["status"] == "ok"
    ]
    assert ends == sent


def test_a_daemon_that_stops_leaves_the_run_to_the_machine(daemon: Daemon) -> None:
    daemon.start(linked_config())
    run_id = daemon.call("chat.send", sessionKey="mars/main", message="hello")["runId"]
    with attach(daemon) as link:
        take(link)
        assert daemon.stop() == 0
        # It closes the connection, and calls nothing off.
        assert "$/cancelRequest" not in methods_left(link)
    daemon.start()
    with attach(daemon) as link:
        request = take(link)
        assert request["params"]["runId"] == run_id
        answer(link, request)
        assert daemon.call("agent.wait", runId=run_id)["status"] == "ok"
    assert said(daemon) == ["user: hello", "assistant: re: hello"]


def test_a_rule_that_is_taken_out_holds_for_connections_that_are_open(daemon: Daemon) -> None:
    daemon.start(linked_config())
    token = daemon.call("tokens.mint", scopes=["send", "spawn"], agentId="mars")["token"]
    hello = {"protocol": 1, "client": {"name": "link", "version": "1"}, "token": token}
    send = {"sessionKey": "agent:ops:main", "message": "hello", "timeoutSeconds": 0}
    with daemon.connect(daemon.agent_socket) as machine:
        machine.call("initialize", **hello)
        assert machine.call("sessions_send", **send)["status"] == "accepted"
        assert machine.call("sessions_spawn", task="look", agentId="ops")["status"] == "accepted"
        reload(daemon, linked_config(rule=""))
        with pytest.raises(RpcFailure, match="no session"):
            machine.call("sessions_send", **send)
        with pytest.raises(RpcFailure, match="agent_not_allowed"):
            machine.call("sessions_spawn", task="look", agentId="ops")
        reload(daemon, AGENTS)
        with pytest.raises(RpcFailure, match="no session"):
            machine.call("sessions_send", **send)


def test_an_agent_that_becomes_a_machine_loses_its_connections_and_what_its_tokens_gave_it(daemon: Daemon) -> None:
    daemon.start(AGENTS)
    token = daemon.call("tokens.mint", scopes=["admin"], agentId="mars")["token"]
    hello = {"protocol": 1, "client": {"name": "x", "version": "1"}, "token": token}
    with daemon.connect(daemon.agent_socket) as wire:
        wire.call("initialize", **hello)
        wire.call("tokens.list")
        reload(daemon, linked_config())
        with pytest.raises((ConnectionError, RpcFailure)):
            wire.call("tokens.list")
    with daemon.connect(daemon.agent_socket) as wire:
        wire.call("initialize", **hello)
        with pytest.raises(RpcFailure, match="admin"):
            wire.call("tokens.list")


def test_a_sub_agent_there_outlives_a_kill_with_its_files_and_is_announced_once(daemon: Daemon) -> None:
    daemon.start(linked_config())
    files = [{"name": "a.txt", "content": "plum"}]
    spawned = daemon.call("sessions_spawn", task="look", agentId="mars/ops", attachments=files)
    with attach(daemon) as link:
        first = take(link)["params"]
        daemon.kill()
    daemon.start()
    with attach(daemon) as link:
        request = take(link)
        assert request["params"] == first
        folder = Path(first["workspace"], first["attachments"]["relDir"])
        assert (folder / "a.txt").read_text() == "plum"
        answer(link, request)
        assert daemon.call("agent.wait", runId=spawned["runId"])["reply"] == "re: look"
    daemon.wait_for(lambda: announcements(daemon), "no announcement")
    daemon.kill()
    daemon.start()
    with attach(daemon) as link:
        daemon.reply("main", "and now?")
        assert link.ask("ping")["result"] == {}
        assert not [message for message in link.events if message.get("method") == "run.start"]
    assert len(announcements(daemon)) == 1


def announcements(daemon: Daemon) -> list[dict[str, Any]]:
    messages = daemon.call("sessions_history", sessionKey="main")["messages"]
    return [one for one in messages if one.get("provenance", {}).get("sourceTool") == "subagent_announce"]


def test_the_http_routes_give_a_machine_no_more(daemon: Daemon) -> None:
    daemon.start(linked_config())
    daemon.reply("agent:ops:main", "plum")
    token = daemon.call("tokens.mint", scopes=["list", "read", "send", "spawn"], agentId="mars")["token"]
    client = HttpJson(daemon, "agent", token).client
    with client:
        got = {
            f"{method} {path}": client.request(method, path).status_code
            for method, path in (
                ("GET", "/sessions/agent:ops:main/history"),
                ("GET", "/sessions/agent:ops:missing/history"),
                ("POST", "/sessions/agent:ops:main/kill"),
                ("GET", "/metrics"),
                ("POST", "/questions/none/answer"),
            )
        }
        questions = client.get("/questions?open=1").json()
    assert list(got.values()) == [404, 404, 403, 403, 403]
    assert questions["questions"] == []
