"""Real agent programs as agents of the real daemon, and with its sessions as their tools."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import Daemon

from sessiond.runtimes.presets.tool_servers import PROGRAMS

pytestmark = pytest.mark.agents
# A run of such a program takes some seconds; on a machine that does much else, more.
RUN_MS = 120_000


@pytest.fixture(params=("claude", "codex"))
def program(request: pytest.FixtureRequest) -> Any:
    agents = sys.modules[request.getfixturevalue("model").__class__.__module__]
    return agents.PROGRAMS[request.param]


class Desk:
    """A daemon whose agent `main` is one of the programs."""

    def __init__(self, daemon: Daemon, program: Any, path: Path, model: Any, home: Path) -> None:
        self.daemon, self.program, self.model = daemon, program, model
        self._path, self._home = path, home
        self._workspace = home.parent / "workspace"

    def start(self, *words: str) -> Daemon:
        # Tools of servers stand in its requests at once, where the stub looks, instead of being searched for first.
        env = {"HOME": str(self._home), "ENABLE_TOOL_SEARCH": "false"}
        env |= self.program.setup(self._home, self.model.port)
        command = [str(self._path), *(words or self.program.extra)]
        return self.daemon.start(
            '[tools.sessions]\nvisibility = "agent"\n'
            "[[agents.list]]\n"
            'id = "main"\n'
            f"workspace = {json.dumps(str(self._workspace))}\n"
            f"model = {json.dumps(self.program.model)}\n"
            f'runtime = {{ type = "exec", preset = "{self.program.name}", command = {json.dumps(command)}, env = {{'
            + ", ".join(f"{name} = {json.dumps(value)}" for name, value in env.items())
            + "} }\n"
        )

    def with_sessions(self) -> Daemon:
        """Start it with `sessiond mcp` among the program's own tools, let in as `sessiond setup` does it."""
        ours = self._home / "sessiond"
        ours.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
        ours.chmod(0o755)
        allow = [word.replace("{sessiond}", str(ours)) for word in PROGRAMS[self.program.name].allow]
        if self.program.name == "claude":
            file = self._home / "mcp.json"
            server = {"command": str(ours), "args": ["mcp"]}
            file.write_text(json.dumps({"mcpServers": {"sessiond": server}}))
            return self.start("--mcp-config", str(file), *allow)
        return self.start(*allow)

    def say(self, key: str, text: str) -> Any:
        sent = self.daemon.call("chat.send", sessionKey=key, message=text)
        return self.ended(sent["runId"])

    def ended(self, run_id: str) -> Any:
        with self.daemon.connect() as wire:
            wire.socket.settimeout(RUN_MS / 1000 + 10)
            return wire.call("agent.wait", runId=run_id, timeoutMs=RUN_MS)


@pytest.fixture
def desk(daemon, program, program_path, model, home) -> Desk:
    return Desk(daemon, program, program_path, model, home)


def test_message_tool_call_reply_usage_resume_and_restart(desk: Desk) -> None:
    daemon = desk.start()
    ended = desk.say("main", "please RUN echo forty-two")
    assert (ended["status"], ended.get("reply")) == ("ok", "The command printed: forty-two"), ended
    messages = daemon.call("chat.history", sessionKey="main")["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "toolResult", "assistant"]
    assert any(block["type"] == "toolCall" for block in messages[1]["content"])
    (row,) = daemon.rows()
    # Two turns of the model: 60 tokens in and 40 cached, 7 out, each.
    assert {name: row[name] for name in ("status", "inputTokens", "outputTokens", "messageCount")} == {
        "status": "ok",
        "inputTokens": 120,
        "outputTokens": 14,
        "messageCount": 4,
    }
    assert desk.say("main", "and again")["reply"].rstrip() == "Answer 2 to: and again"
    daemon.kill()
    daemon.start()
    assert desk.say("main", "once more")["reply"].rstrip() == "Answer 3 to: once more"
    assert "forty-two" in str(desk.model.requests()[-1])


def test_an_abort_ends_the_program(desk: Desk) -> None:
    daemon = desk.start()
    sent = daemon.call("chat.send", sessionKey="main", message="HANG please")
    daemon.wait_for(lambda: "HANG" in str(desk.model.requests()), "the program asked nothing")
    assert _living(sent["runId"])
    assert daemon.call("chat.abort", sessionKey="main") == {"aborted": True, "runIds": [sent["runId"]]}
    assert desk.ended(sent["runId"])["status"] == "aborted"
    daemon.wait_for(lambda: not _living(sent["runId"]), "the program lives on")


def _living(run_id: str) -> list[int]:
    """The processes that have this run in their environment."""
    wanted = f"SESSIOND_RUN_ID={run_id}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_an_agent_writes_to_another_session_with_its_own_tools(desk: Desk) -> None:
    daemon = desk.with_sessions()
    daemon.call("sessions.create", key="agent:main:mcp:reader")
    ended = desk.say("agent:main:desk", "please TELL agent:main:mcp:reader the heron is grey")
    assert ended["status"] == "ok", ended
    assert "agent:main:mcp:reader" in ended["reply"], ended
    (message,) = daemon.call("sessions_history", sessionKey="agent:main:mcp:reader")["messages"]
    assert message["content"] == "the heron is grey"
    provenance = message["provenance"]
    assert {name: provenance[name] for name in ("kind", "sourceSessionKey", "sourceTool")} == {
        "kind": "inter_session",
        "sourceSessionKey": "agent:main:desk",
        "sourceTool": "sessions_send",
    }


def test_an_agent_gets_the_answer_of_another_session_as_its_tools_result(desk: Desk) -> None:
    daemon = desk.with_sessions()
    daemon.call("sessions.create", key="main")
    ended = desk.say("agent:main:desk", "please TELL main what is a heron?")
    assert ended["status"] == "ok", ended
    # The other session's agent is the same program: its answer is the tool's result, and that is what is told.
    assert "what is a heron?" in ended["reply"], ended
    said = daemon.call("sessions_history", sessionKey="main")["messages"]
    assert said[0]["content"] == "what is a heron?"
    assert [message["role"] for message in said[:2]] == ["user", "assistant"]
