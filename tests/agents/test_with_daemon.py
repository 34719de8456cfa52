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
# A run of such a program takes some seconds, and longer on a busy machine.
RUN_MS = 120_000


@pytest.fixture(params=("claude", "codex"))
def program(request: pytest.FixtureRequest) -> Any:
    agents = sys.modules[request.getfixturevalue("model").__class__.__module__]
    return agents.PROGRAMS[request.param]


class ProgramDaemon:
    """A daemon whose agent `main` is one of the programs."""

    def __init__(self, daemon: Daemon, program: Any, path: Path, model: Any, home: Path) -> None:
        self.daemon, self.program, self.model = daemon, program, model
        self._path, self._home = path, home
        self._workspace = home.parent / "workspace"

    def start(self, *words: str) -> Daemon:
        # Requests contain the servers' tools at once, as the stub needs it, instead of a tool to search for them.
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

    def start_with_tools(self) -> Daemon:
        """Start it with `sessiond mcp` among the program's tools, permitted as by `sessiond setup`."""
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
        return self.wait_for_end(sent["runId"])

    def wait_for_end(self, run_id: str) -> Any:
        with self.daemon.connect() as wire:
            wire.socket.settimeout(RUN_MS / 1000 + 10)
            return wire.call("agent.wait", runId=run_id, timeoutMs=RUN_MS)


@pytest.fixture
def desk(daemon, program, program_path, model, home) -> ProgramDaemon:
    return ProgramDaemon(daemon, program, program_path, model, home)


def test_a_program_calls_a_tool_replies_counts_tokens_and_resumes_after_a_restart(desk: ProgramDaemon) -> None:
    daemon = desk.start()
    ended = desk.say("main", "please RUN echo forty-two")
    assert (ended["status"], ended.get("reply")) == ("ok", "The command printed: forty-two"), ended
    messages = daemon.call("chat.history", sessionKey="main")["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "toolResult", "assistant"]
    assert any(block["type"] == "toolCall" for block in messages[1]["content"])
    (row,) = daemon.rows()
    # Two turns of the model, each with 60 input, 40 cached and 7 output tokens.
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


def test_an_abort_ends_the_program(desk: ProgramDaemon) -> None:
    daemon = desk.start()
    sent = daemon.call("chat.send", sessionKey="main", message="HANG please")
    daemon.wait_for(lambda: "HANG" in str(desk.model.requests()), "the program sent no request")
    assert _processes_of(sent["runId"])
    assert daemon.call("chat.abort", sessionKey="main") == {"aborted": True, "runIds": [sent["runId"]]}
    assert desk.wait_for_end(sent["runId"])["status"] == "aborted"
    daemon.wait_for(lambda: not _processes_of(sent["runId"]), "the program still runs")


def _processes_of(run_id: str) -> list[int]:
    """The processes with this run in their environment."""
    wanted = f"SESSIOND_RUN_ID={run_id}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_an_agent_sends_to_another_session_with_its_own_tools(desk: ProgramDaemon) -> None:
    daemon = desk.start_with_tools()
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


def test_an_agent_gets_the_answer_of_another_session_as_its_tools_result(desk: ProgramDaemon) -> None:
    daemon = desk.start_with_tools()
    daemon.call("sessions.create", key="main")
    ended = desk.say("agent:main:desk", "please TELL main what is a heron?")
    assert ended["status"] == "ok", ended
    # The other session's agent is the same program. Its answer is the tool's result, which the reply quotes.
    assert "what is a heron?" in ended["reply"], ended
    said = daemon.call("sessions_history", sessionKey="main")["messages"]
    assert said[0]["content"] == "what is a heron?"
    assert [message["role"] for message in said[:2]] == ["user", "assistant"]
