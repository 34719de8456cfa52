"""Third-party MCP clients with `sessiond mcp`: the agent programs' own commands, and the MCP inspector."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.real_daemon import Daemon

pytestmark = pytest.mark.agents
# The command of the README, and what the program then lists.
ADDED = {
    "claude": (
        ["mcp", "add", "--scope", "user", "sessiond", "--", "sessiond", "mcp"],
        "sessiond: sessiond mcp - ✔ Connected",
    ),
    "codex": (["mcp", "add", "sessiond", "--", "sessiond", "mcp"], "sessiond  sessiond  mcp"),
    "gemini": (["mcp", "add", "--scope", "user", "sessiond", "sessiond", "mcp"], "sessiond mcp (stdio) - Connected"),
}


def agents(model: Any) -> Any:
    """The module with the programs and their installer."""
    return sys.modules[type(model).__module__]


def make_environ(daemon: Daemon, home: Path) -> dict[str, str]:
    """Put `sessiond` into the home; an environment with it on PATH."""
    program = home / "bin" / "sessiond"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
    program.chmod(0o755)
    found = {**daemon.environ, "HOME": str(home), "GEMINI_CLI_TRUST_WORKSPACE": "true"}
    return found | {"PATH": f"{program.parent}:{os.environ['PATH']}"}


@pytest.mark.parametrize("name", sorted(ADDED))
def test_an_agent_program_connects_to_sessiond_as_a_tool_server(
    daemon: Daemon, model: Any, home: Path, name: str
) -> None:
    path = agents(model).install(agents(model).PROGRAMS[name])
    if isinstance(path, str):
        pytest.skip(path)
    daemon.start()
    env = make_environ(daemon, home)
    add, listed = ADDED[name]
    subprocess.run([path, *add], env=env, cwd=home, check=True, capture_output=True, timeout=60)
    done = subprocess.run([path, "mcp", "list"], env=env, cwd=home, check=True, capture_output=True, timeout=60)
    assert listed in done.stdout.decode() + done.stderr.decode()


def test_the_mcp_inspector_calls_the_tools_of_sessiond(daemon: Daemon, model: Any, home: Path) -> None:
    # The newest version that runs on Node 20.
    inspector = agents(model).Program(
        "mcp-inspector", "@modelcontextprotocol/inspector", "0.15.0", "", lambda _home, _port: {}
    )
    path = agents(model).install(inspector)
    if isinstance(path, str):
        pytest.skip(path)
    daemon.start()
    env = make_environ(daemon, home)
    server = ["-e", f"SESSIOND_SOCKET={daemon.socket}", str(shutil.which("sessiond", path=env["PATH"])), "mcp"]

    def inspect(*asked: str) -> Any:
        command = [path, "--cli", *server, "--method", *asked]
        done = subprocess.run(command, env=env, cwd=home, check=True, capture_output=True, timeout=60)
        return json.loads(done.stdout)

    assert len(inspect("tools/list")["tools"]) == 8
    inbox = inspect("tools/call", "--tool-name", "sessions_inbox")
    assert (inbox["isError"], inbox["structuredContent"]["sessionKey"]) == (False, "agent:main:mcp:inspector-cli")
    refused = inspect("tools/call", "--tool-name", "sessions_history", "--tool-arg", "sessionKey=nowhere")
    error = daemon.failure("sessions_history", sessionKey="nowhere")
    assert (refused["isError"], refused["content"][0]["text"]) == (True, error["message"])
