"""A real agent program in a run of sessiond, with `sessiond` as its tool server or in its shell: the tools are there in
the first turn, and act as the run's session. The program learns of the run from its environment only, of which it
passes on what it likes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import Daemon

pytestmark = pytest.mark.agents
RUN_MS = 120_000
READER = "agent:main:mcp:reader"
DESK = "agent:main:desk"
SEND = "mcp__sessiond__sessions_send"
# The README's command for each; opencode has a settings file, and pi has no tool servers.
ADD = {
    "claude": ["mcp", "add", "--scope", "user", "sessiond", "--", "sessiond", "mcp"],
    "codex": ["mcp", "add", "sessiond", "--", "sessiond", "mcp"],
    "gemini": ["mcp", "add", "--scope", "user", "sessiond", "sessiond", "mcp"],
}
# The tools that the user permits.
ALLOWED = {"claude": ("--allowedTools", f"Bash,{SEND}")}


class ToolServerDaemon:
    """A daemon whose agent `main` is the program, in a home with `sessiond` on the PATH."""

    def __init__(self, daemon: Daemon, program: Any, path: Path, model: Any, home: Path) -> None:
        self.daemon, self.program, self.model, self.home = daemon, program, model, home
        self._path = path
        self.sessiond = ours = home / "bin" / "sessiond"
        ours.parent.mkdir()
        ours.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
        ours.chmod(0o755)
        self._env = {"HOME": str(home), "PATH": f"{ours.parent}:{os.environ['PATH']}"}
        # Requests contain the servers' tools at once, as the stub needs it, instead of a tool to search for them.
        self._env |= {"ENABLE_TOOL_SEARCH": "false", **program.setup(home, model.port)}

    def start(self, config: str = "") -> Daemon:
        extra = ALLOWED.get(self.program.name, self.program.extra)
        command = [str(self._path), *extra]
        env = ", ".join(f"{name} = {json.dumps(value)}" for name, value in self._env.items())
        return self.daemon.start(
            '[tools.sessions]\nvisibility = "agent"\n'
            f'[[agents.list]]\nid = "main"\nworkspace = {json.dumps(str(self.home.parent / "workspace"))}\n'
            f"model = {json.dumps(self.program.model)}\n"
            f'runtime = {{ type = "exec", preset = "{self.program.name}", command = {json.dumps(command)}, '
            f"env = {{ {env} }} }}\n{config}"
        )

    def add_tool_server(self) -> None:
        """Add it as the README says, in the user's shell."""
        if self.program.name == "opencode":
            file = self.home / ".config" / "opencode" / "opencode.json"
            settings = json.loads(file.read_text())
            settings["mcp"] = {"sessiond": {"type": "local", "command": ["sessiond", "mcp"], "enabled": True}}
            file.write_text(json.dumps(settings))
            return
        env = {"TERM": "dumb", "LANG": "C.UTF-8", **self._env}
        command = [str(self._path), *ADD[self.program.name]]
        subprocess.run(command, env=env, cwd=self.home, check=True, capture_output=True, timeout=60)

    def say(self, text: str) -> Any:
        sent = self.daemon.call("chat.send", sessionKey=DESK, message=text)
        with self.daemon.connect() as wire:
            wire.socket.settimeout(RUN_MS / 1000 + 10)
            return wire.call("agent.wait", runId=sent["runId"], timeoutMs=RUN_MS)

    def received(self) -> tuple[str, str]:
        """The message that the reader got, and its sender."""
        (message,) = self.daemon.call("sessions_history", sessionKey=READER)["messages"]
        return message["content"], message["provenance"]["sourceSessionKey"]

    def first_request(self, text: str) -> Any:
        """The first request with `text` and tools; a request for a title has no tools."""
        bodies = [request["body"] for request in self.model.requests()]
        return next(body for body in bodies if text in json.dumps(body) and body.get("tools"))


@pytest.fixture
def desk(daemon: Daemon, program: Any, program_path: Path, model: Any, home: Path) -> ToolServerDaemon:
    return ToolServerDaemon(daemon, program, program_path, model, home)


@pytest.mark.parametrize("program", ["claude", "codex", "gemini", "opencode"], indirect=True)
def test_the_tools_are_in_the_first_turn_and_act_as_the_runs_session(desk: ToolServerDaemon) -> None:
    desk.add_tool_server()
    daemon = desk.start()
    daemon.call("sessions.create", key=READER)
    ended = desk.say(f"please TELL {READER} the heron is grey")
    assert ended["status"] == "ok", ended
    assert "sessions_send" in json.dumps(desk.first_request("TELL")["tools"])
    assert desk.received() == ("the heron is grey", DESK)


def test_commands_in_the_programs_shell_act_as_the_runs_session(desk: ToolServerDaemon) -> None:
    daemon = desk.start()
    daemon.call("sessions.create", key=READER)
    # The whole path, because Codex uses a login shell, which sets its own PATH.
    ended = desk.say(f"please RUN {desk.sessiond} send --no-wait {READER} the heron is grey")
    assert ended["status"] == "ok", ended
    assert desk.received() == ("the heron is grey", DESK)
