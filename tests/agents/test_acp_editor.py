"""`sessiond acp` driven by `acpx`, a client from the npm registry, and its frames held against the official schema."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support import acp_agent_path
from support.real_daemon import Daemon

pytestmark = pytest.mark.agents

AGENT = Path(__file__).parent.parent / "support" / "acting_agent.py"
CONFIG = (
    '[[agents.list]]\nid = "main"\nruntime = { type = "exec", input = "json", output = "jsonl",'
    f" command = {json.dumps([sys.executable, str(AGENT)])} }}\n"
    '[[agents.list]]\nid = "asker"\nruntime = { type = "acp",'
    f" command = {json.dumps([sys.executable, '-S', str(acp_agent_path.PATH)])} }}\n"
)
# acpx resumes where an agent can, and loads where it can only do that. What the agent sends is kept.
WRAPPER = """#!/bin/sh
{python} -m sessiond acp | tee -a {frames} | sed -u {change}
"""


class Acpx:
    """acpx in a folder, with `sessiond acp` as its agent."""

    def __init__(self, program: Path, daemon: Daemon, folder: Path) -> None:
        self._program, self.project, self.frames_file = program, folder / "project", folder / "frames"
        self.project.mkdir()
        os.mkfifo(self.project / "gate")
        self._environ = daemon.environ
        self._agent = self._wrap(folder / "agent", "")
        self._loading_agent = self._wrap(folder / "loading", "'s/\"resume\":{},//'")

    def _wrap(self, path: Path, change: str) -> Path:
        path.write_text(WRAPPER.format(python=sys.executable, frames=self.frames_file, change=change or "''"))
        path.chmod(0o755)
        return path

    def command(self, *words: str, loads: bool = False) -> list[str]:
        agent = self._loading_agent if loads else self._agent
        return [str(self._program), "--agent", str(agent), "--ttl", "60", "--format", "json", *words]

    def run(self, *words: str, loads: bool = False, status: int = 0) -> list[dict[str, Any]]:
        """What it prints: frames, or what it says of itself. `status` is what it exits with."""
        process = self.start(*words, loads=loads)
        out, err = process.communicate(timeout=120)
        assert process.returncode == status, (out, err)
        return [json.loads(line) for line in out.splitlines()]

    def start(self, *words: str, loads: bool = False) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*words, loads=loads),
            cwd=self.project,
            env=self._environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def end_owners(self) -> None:
        """End the processes that acpx leaves to keep its agents warm."""
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"HOME={self._environ['HOME']}".encode() in path.read_bytes().split(b"\0"):
                    words = path.with_name("cmdline").read_bytes()
                    if str(self._program.parent.parent).encode() in words:
                        os.kill(int(path.parent.name), signal.SIGKILL)

    def frames(self) -> list[dict[str, Any]]:
        """Every frame that the agents have sent so far."""
        return [json.loads(line) for line in self.frames_file.read_text().splitlines()]

    def forget_frames(self) -> None:
        self.frames_file.write_text("")


@pytest.fixture
def editor(acpx: Path, daemon: Daemon, tmp_path: Path) -> Iterator[Acpx]:
    daemon.environ["PATH"] = os.environ["PATH"]
    daemon.start(CONFIG)
    made = Acpx(acpx, daemon, tmp_path)
    yield made
    made.end_owners()


def kinds(frames: list[dict[str, Any]]) -> list[str]:
    return [frame["params"]["update"]["sessionUpdate"] for frame in frames if frame.get("method") == "session/update"]


def stop_reasons(frames: list[dict[str, Any]]) -> list[str]:
    results = [frame["result"] for frame in frames if isinstance(frame.get("result"), dict)]
    return [result["stopReason"] for result in results if "stopReason" in result]


def test_acpx_makes_lists_loads_prompts_and_cancels(editor: Acpx, daemon: Daemon, acp_schema: dict[str, Any]) -> None:
    [made] = editor.run("sessions", "new")
    session = made["acpxSessionId"]
    turn = editor.run("prompt", "work")
    assert kinds(turn)[:5] == [
        "agent_message_chunk", "tool_call", "agent_thought_chunk", "tool_call_update", "agent_message_chunk"
    ]  # fmt: skip
    assert stop_reasons(turn) == ["end_turn"]
    [listed] = editor.run("sessions", "list")
    assert [(row["sessionId"], row["title"], row["cwd"]) for row in listed["sessions"]] == [
        (session, "work", str(editor.project))
    ]
    held = editor.start("prompt", "hold")
    daemon.wait_for(lambda: daemon.rows()[0].get("status") == "running", "the run does not begin")
    editor.run("cancel")
    out, _ = held.communicate(timeout=120)
    assert stop_reasons([json.loads(line) for line in out.splitlines()]) == ["cancelled"]
    check_schema(acp_schema, editor.frames())
    # A second client loads it, with the tool calls, and says something in it.
    editor.forget_frames()
    editor.run("sessions", "new", "--name", "again", "--resume-session", session, loads=True)
    assert kinds(editor.frames()) == [
        "user_message_chunk", "agent_thought_chunk", "agent_message_chunk", "tool_call", "tool_call_update",
        "agent_message_chunk", "user_message_chunk",
    ]  # fmt: skip
    assert stop_reasons(editor.run("prompt", "-s", "again", "say more", loads=True)) == ["end_turn"]
    check_schema(acp_schema, editor.frames())


def test_acpx_goes_on_after_a_restart_in_mid_turn(editor: Acpx, daemon: Daemon, acp_schema: dict[str, Any]) -> None:
    [made] = editor.run("sessions", "new")
    held = editor.start("prompt", "hold")
    daemon.wait_for(lambda: daemon.rows()[0].get("status") == "running", "the run does not begin")
    daemon.kill()
    daemon.start()
    out, _ = held.communicate(timeout=120)
    assert "interrupted: sessiond was restarted" in out
    assert stop_reasons(editor.run("prompt", "say on")) == ["end_turn"]
    said = daemon.call("chat.history", sessionKey=made["acpxSessionId"])["messages"]
    assert [message["role"] for message in said] == ["user", "user", "assistant"]
    check_schema(acp_schema, editor.frames())


def test_acpx_answers_what_an_agent_asks(editor: Acpx, daemon: Daemon, acp_schema: dict[str, Any]) -> None:
    for number, (flag, said) in enumerate((("--approve-all", "yes"), ("--deny-all", "no"))):
        key = f"agent:asker:{number}"
        daemon.call("sessions.create", key=key, cwd=str(editor.project))
        session = daemon.call("sessions.resolve", key=key)["sessionId"]
        editor.run("sessions", "new", "--name", said, "--resume-session", session)
        turn = editor.run(flag, "prompt", "-s", said, "ask", status=0 if said == "yes" else 5)  # 5: it has denied
        assert stop_reasons(turn) == ["end_turn"]
        (question,) = daemon.call("questions.list", sessionKey=key)["questions"]
        assert question["answer"].items() >= {"outcome": "answered", "optionId": said, "road": "acp"}.items()
        assert f"{said} (answered by owner)" in str(daemon.call("chat.history", sessionKey=key)["messages"])
    asked = [frame for frame in editor.frames() if frame.get("method") == "session/request_permission"]
    assert [frame["params"]["toolCall"]["title"] for frame in asked] == ["Run c1", "Run c1"]
    check_schema(acp_schema, editor.frames())


def test_acpx_says_that_no_daemon_runs(editor: Acpx, daemon: Daemon) -> None:
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.wait()
    process = editor.start("exec", "work")
    out, err = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "sessiond is not running" in out + err


_SENT = {
    "session/update": "SessionNotification",
    "session/request_permission": "RequestPermissionRequest",
    "$/cancel_request": "CancelRequestNotification",
}


def check_schema(schema: dict[str, Any], frames: list[dict[str, Any]]) -> None:
    """Each frame is one that an agent may send, by the schema of its result or its notification."""
    assert frames
    validator = Draft202012Validator({"$ref": "#/$defs/AgentMessage", "$defs": {**schema["$defs"], **_agent(schema)}})
    for frame in frames:
        errors = sorted(validator.iter_errors(frame), key=lambda error: len(error.path))
        assert not errors, (frame, errors[0].message)
        if "method" in frame:  # the schema takes any method as an extension, so its params are checked by name
            named = {"$ref": f"#/$defs/{_SENT[frame['method']]}", "$defs": schema["$defs"]}
            Draft202012Validator(named).validate(frame["params"])


def _agent(schema: dict[str, Any]) -> dict[str, Any]:
    return {"AgentMessage": next(part for part in schema["anyOf"] if part["title"] == "Agent")}
