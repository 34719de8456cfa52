"""Agents that speak ACP under the real daemon: one made with the official SDK, and one by hand."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from support import acp_agent_path
from support.real_daemon import Daemon
from support.rows import check_each
from support.sampling import WHOLE

from sessiond.runtimes.sandbox import Bubblewrap

SDK_AGENT = acp_agent_path.PATH.with_name("acp_sdk_agent.py")
CONFIG = f"""
[[agents.list]]
id = "main"
runtime = {{ type = "acp", command = ["{sys.executable}", "{SDK_AGENT}"], permissionRules = {{ execute = "allow" }} }}

[[agents.list]]
id = "hand"
runtime = {{ type = "acp", command = ["{sys.executable}", "-S", "{acp_agent_path.PATH}", "load"] }}
"""
pytestmark = pytest.mark.system
PIXEL = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(60)).decode()


@pytest.fixture(scope="module")
def acp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    daemon = Daemon(Path(tmp_path_factory.mktemp("acp")))
    daemon.start(CONFIG)
    yield daemon
    daemon.kill()


def shape(daemon: Daemon, key: str) -> list[Any]:
    """The transcript in short, without its header and ids of records."""
    found = []
    for record in daemon.records(key)[1:]:
        match record:
            case {"type": "message", "message": {"role": "assistant", "content": content}}:
                found.append([block.get("text") or block.get("thinking") or block["name"] for block in content])
            case {"type": "message", "message": message}:
                found.append(message["role"])
            case {"customType": kind, "data": data}:
                found.append((kind, data.get("status") or data.get("decision") or data.get("contextTokens")))
    return found


def test_a_turn_of_an_agent_of_the_official_sdk_is_in_the_transcript(acp: Daemon) -> None:
    with acp.connect() as wire:
        wire.call("sessions.create", key="agent:main:one")
        wire.call("sessions.messages.subscribe", key="agent:main:one")
        sent = wire.call("chat.send", sessionKey="agent:main:one", message="work")
        live = [wire.event("session.tool") for _ in range(2)]
    ended = acp.call("agent.wait", runId=sent["runId"], timeoutMs=60_000)
    assert (ended["status"], ended["reply"], ended["stopReason"]) == ("ok", "done, option allow_once", "end_turn")
    assert [(one["phase"], one["name"]) for one in live] == [("start", "execute"), ("end", "execute")]
    assert shape(acp, "agent:main:one") == [
        ("sessiond/run", "accepted"),
        "user",
        ("sessiond/run", "running"),
        ("sessiond/native", None),
        ("sessiond/answer", "allow"),
        ["what is there?", "I look. ", "execute"],
        "toolResult",
        ["done, option allow_once"],
        ("sessiond/native", 9000),
        ("sessiond/run", "ok"),
    ]
    (row,) = [row for row in acp.rows() if row["key"] == "agent:main:one"]
    expected = {"totalTokens": 500, "contextTokens": 9000, "estimatedCostUsd": 0.25, "status": "ok"}
    assert expected.items() <= row.items() and row["nativeId"].startswith("sdk-")
    with_image = acp.reply(
        "agent:main:one",
        "look",
        attachments=[{"name": "a.png", "content": PIXEL, "encoding": "base64", "mimeType": "image/png"}],
    )
    assert with_image["reply"] == "look and 1 images"


def test_a_killed_daemon_leaves_no_agent_and_its_sessions_go_on_with_nothing_doubled(acp: Daemon) -> None:
    key = "agent:main:killed"
    acp.call("sessions.create", key=key)
    assert acp.reply(key, "first")["reply"] == "first"
    pid = int(acp.rows()[0]["nativeId"].split("-")[1])
    with acp.connect() as wire:
        wire.call("sessions.messages.subscribe", key=key)
        sent = wire.call("chat.send", sessionKey=key, message="wait for ever")
        assert wire.event("session.delta")["text"] == "waiting"
    acp.kill()
    acp.start()
    assert not Path(f"/proc/{pid}").exists()
    assert list((acp.run / "acp").glob("*")) == []
    ended = acp.call("agent.wait", runId=sent["runId"])
    assert (ended["status"], ended["error"]) == ("error", "interrupted")
    assert acp.reply(key, "known")["reply"] == "first | wait for ever | known"
    said = [record["message"]["content"] for record in acp.records(key) if record["type"] == "message"]
    texts = [one if isinstance(one, str) else one[0]["text"] for one in said]
    assert texts == ["first", "first", "wait for ever", "known", "first | wait for ever | known"]
    assert [kind for kind, *_ in shape(acp, key) if kind == "sessiond/native"] == ["sessiond/native"]


@pytest.mark.skipif(not WHOLE, reason="a sweep over the test above: SESSIOND_TESTS=whole")
def test_a_turn_killed_at_any_of_its_events_is_repeated_by_nobody(acp: Daemon) -> None:
    key = "agent:main:anywhere"
    acp.call("sessions.create", key=key)
    for moment in range(1, 6):
        with acp.connect() as wire:
            wire.call("sessions.messages.subscribe", key=key)
            wire.call("chat.send", sessionKey=key, message="work")
            for _ in range(moment):
                while wire.receive().get("method") not in ("session.delta", "session.tool", "session.message"):
                    pass
        acp.kill()
        acp.start()
        before = [record["id"] for record in acp.records(key)]
        assert acp.reply(key, "work")["reply"] == "done, option allow_once"
        kinds = [kind if isinstance(kind, str) else kind[0] for kind in shape(acp, key)[len(before) - 1 :]]
        own = ["sessiond/run", "user", "sessiond/run", "sessiond/answer", "what is there?", "toolResult"]
        assert kinds == [*own, "done, option allow_once", "sessiond/native", "sessiond/run"], (moment, kinds)


def test_an_aborted_turn_is_cancelled_and_keeps_what_was_said(acp: Daemon) -> None:
    key = "agent:main:aborted"
    acp.call("sessions.create", key=key)
    with acp.connect() as wire:
        wire.call("sessions.messages.subscribe", key=key)
        sent = wire.call("chat.send", sessionKey=key, message="wait")
        wire.event("session.delta")
        wire.call("chat.abort", sessionKey=key)
    assert acp.call("agent.wait", runId=sent["runId"])["status"] == "aborted"
    assert shape(acp, key)[-2:] == [["waiting"], ("sessiond/run", "aborted")]
    assert acp.reply(key, "again")["reply"] == "again"


def test_the_tool_server_of_a_session_has_the_token_of_each_run(acp: Daemon) -> None:
    for key in ("agent:hand:a", "agent:hand:b"):
        acp.call("sessions.create", key=key)
    # The second time with the same server process and the token of another run.
    for turn in range(2):
        for key, other in (("agent:hand:a", "agent:hand:b"), ("agent:hand:b", "agent:hand:a")):
            own = acp.reply(key, f'mcp sessions_history {{"sessionKey": "{key}"}}')["reply"]
            assert own.startswith(f"{key}: {1 + 4 * turn} message"), own
            refused = acp.reply(key, f'mcp sessions_history {{"sessionKey": "{other}"}}')["reply"]
            assert "no session" in refused, refused
    folder = acp.run / "acp"
    assert {file.read_text() for file in folder.glob("*/*")} == {""}


@check_each("environment", ["whole", "little"])
def test_a_command_of_an_agent_is_nobody_and_never_the_owner(acp: Daemon, environment: str) -> None:
    acp.call("sessions.create", key="agent:hand:shell")
    said = acp.reply("agent:hand:shell", f"shell {environment}")["reply"]
    assert not said.startswith("0:") and "is empty: no run goes on that it is for" in said, said


def test_a_reload_ends_an_agent_whose_configuration_changed_and_a_stop_ends_all(acp: Daemon) -> None:
    assert acp.process is not None
    key = "agent:hand:shell"
    pid = acp.reply(key, "pid")["reply"]
    acp.config.write_text(CONFIG.replace('"load"]', '"load", "noise"]'))
    acp.process.send_signal(signal.SIGHUP)
    acp.wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the agent with the old configuration goes on")
    pid = acp.reply(key, "pid")["reply"]
    acp.call("sessions.create", key="agent:main:one")
    with acp.connect() as wire:
        wire.call("sessions.messages.subscribe", key="agent:main:one")
        sent = wire.call("chat.send", sessionKey="agent:main:one", message="wait")
        wire.event("session.delta")
    assert acp.stop() == 0
    assert not Path(f"/proc/{pid}").exists() and list((acp.run / "acp").glob("*")) == []
    acp.start()
    assert acp.call("agent.wait", runId=sent["runId"])["error"] == "interrupted"
    assert shape(acp, "agent:main:one")[-2:] == [["waiting"], ("sessiond/run", "error")]


BOX = f"""
[tools.sessions]
visibility = "all"

[agents.defaults.subagents]
announce = "reply"

[[agents.list]]
id = "main"
runtime = {{ type = "acp", command = ["{os.path.realpath(sys.executable)}", "-S", "{acp_agent_path.PATH}"] }}
sandbox = {{ mode = "all", readOnly = ["{acp_agent_path.PATH.parent}"] }}
"""


def test_an_agent_in_the_sandbox_spawns_another_with_a_file_and_hears_of_it(
    daemon: Daemon,
) -> None:
    if (reason := trio.run(Bubblewrap(private=()).find_problem)) is not None:
        pytest.skip(reason)
    daemon.start(BOX)
    spawn = {"task": "files", "attachments": [{"name": "note.txt", "content": "the secret word"}]}
    reply = daemon.reply("main", f"mcp sessions_spawn {json.dumps(spawn)}")["reply"]
    child = next(word for word in re.split(r"[\s,;.]+", reply) if ":subagent:" in word)

    def announced() -> bool:
        return any("files: note.txt the secret word" in json.dumps(record) for record in daemon.records("main"))

    daemon.wait_for(announced, "the requester hears nothing")
    row = next(row for row in daemon.rows() if row["key"] == child)
    assert row["status"] == "ok" and row["sandboxed"]
    # Images are passed on and need no other process, in which the session would have to be resumed.
    image = {"name": "a.png", "content": PIXEL, "encoding": "base64", "mimeType": "image/png"}
    assert daemon.reply("main", "files", attachments=[image])["reply"] == "files: "
    assert not any("lost" in record.get("data", {}) for record in daemon.records("main"))
    assert daemon.reply("main", "files", attachments=[{"name": "b.txt", "content": "x"}])["reply"] == "files: b.txt x"
    assert any("lost" in record.get("data", {}) for record in daemon.records("main"))
