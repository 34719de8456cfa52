"""A real agent program in a run of sessiond, with `sessiond` as its tool server or in its shell: the tools are there in
the first turn, and what it says there is said as the run's session. Nothing tells the program of the run but the
environment that the daemon gives it, of which it hands on what it likes."""

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
# The README's line for each; opencode has it in its settings, and pi knows no tool servers.
ADD = {
    "claude": ["mcp", "add", "--scope", "user", "sessiond", "--", "sessiond", "mcp"],
    "codex": ["mcp", "add", "sessiond", "--", "sessiond", "mcp"],
    "gemini": ["mcp", "add", "--scope", "user", "sessiond", "sessiond", "mcp"],
}
# What a person allows it to use.
ALLOWED = {"claude": ("--allowedTools", f"Bash,{SEND}")}


class Desk:
    """A daemon whose agent `main` is the program, in a home with `sessiond` on the PATH."""

    def __init__(self, daemon: Daemon, program: Any, path: Path, model: Any, home: Path) -> None:
        self.daemon, self.program, self.model, self.home = daemon, program, model, home
        self._path = path
        self.sessiond = ours = home / "bin" / "sessiond"
        ours.parent.mkdir()
        ours.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
        ours.chmod(0o755)
        self._env = {"HOME": str(home), "PATH": f"{ours.parent}:{os.environ['PATH']}"}
        # Tools of servers stand in its requests, where the stub looks, instead of being searched for first.
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
        """As the README says it, in a shell of the user."""
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

    def told(self) -> tuple[str, str]:
        """What the reader was told, and by whom."""
        (message,) = self.daemon.call("sessions_history", sessionKey=READER)["messages"]
        return message["content"], message["provenance"]["sourceSessionKey"]

    def first_request(self, text: str) -> Any:
        """The first that asks the model with `text` and tools; what only looks for a title has none."""
        bodies = [request["body"] for request in self.model.requests()]
        return next(body for body in bodies if text in json.dumps(body) and body.get("tools"))


@pytest.fixture
def desk(daemon: Daemon, program: Any, program_path: Path, model: Any, home: Path) -> Desk:
    return Desk(daemon, program, program_path, model, home)


@pytest.mark.parametrize("program", ["claude", "codex", "gemini", "opencode"], indirect=True)
def test_the_tools_are_there_in_the_first_turn_and_speak_as_the_run(desk: Desk) -> None:
    desk.add_tool_server()
    daemon = desk.start()
    daemon.call("sessions.create", key=READER)
    ended = desk.say(f"please TELL {READER} the heron is grey")
    assert ended["status"] == "ok", ended
    assert "sessions_send" in json.dumps(desk.first_request("TELL")["tools"])
    assert desk.told() == ("the heron is grey", DESK)


def test_its_shell_speaks_as_the_run(desk: Desk) -> None:
    daemon = desk.start()
    daemon.call("sessions.create", key=READER)
    # By its whole path: Codex has a login shell, which makes a PATH of its own.
    ended = desk.say(f"please RUN {desk.sessiond} send --no-wait {READER} the heron is grey")
    assert ended["status"] == "ok", ended
    assert desk.told() == ("the heron is grey", DESK)
