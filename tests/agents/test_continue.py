"""Sessions that a real program wrote by itself, continued through the real daemon: as a copy that knows them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.agents
RUN_MS = 120_000
# How a person starts each program, apart from the words that it needs to run in a test.
BY_HAND = {
    "claude": ["-p"],
    "codex": ["exec", "--skip-git-repo-check"],
    "gemini": ["--yolo"],
    "opencode": ["run"],
    "pi": ["-p"],
}
FOLDERS = {
    "claude": ".claude/projects",
    "codex": ".codex/sessions",
    "gemini": ".gemini/tmp",
    "pi": ".pi/agent/sessions",
}


@pytest.fixture(params=sorted(BY_HAND))
def program(request: pytest.FixtureRequest) -> Any:
    agents = sys.modules[request.getfixturevalue("model").__class__.__module__]
    return agents.PROGRAMS[request.param]


@pytest.fixture
def environ(program, model, home) -> dict[str, str]:
    return {"HOME": str(home), "PATH": os.environ["PATH"], **program.setup(home, model.port)}


def say_by_hand(program: Any, path: Path, environ: dict[str, str], cwd: Path, text: str) -> None:
    words = [str(path), *BY_HAND[program.name], f"--model={program.model}", *program.extra]
    if program.name == "pi":
        words = [str(path), *BY_HAND["pi"], "--model", program.model]
    done = subprocess.run(
        words, input=text, env=environ, cwd=cwd, capture_output=True, text=True, timeout=RUN_MS / 1000, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def files_of(program: Any, home: Path) -> dict[str, bytes]:
    """The transcripts of the program; none for opencode, which has a database that it writes for all of them."""
    if program.name not in FOLDERS:
        return {}
    return {str(path): path.read_bytes() for path in sorted((home / FOLDERS[program.name]).rglob("*.jsonl"))}


@pytest.fixture
def configure(program, program_path, environ, workspace, daemon) -> Any:
    """Starts the daemon with an agent that runs the program."""

    daemon.environ["HOME"] = environ["HOME"]

    def start() -> None:
        inner = ", ".join(f"{name} = {json.dumps(value)}" for name, value in environ.items())
        daemon.start(
            f'[[agents.list]]\nid = "worker"\nworkspace = {json.dumps(str(workspace))}\n'
            f'model = {json.dumps(program.model)}\nruntime = {{ type = "exec", preset = "{program.name}", '
            f"command = {json.dumps([str(program_path), *program.extra])}, env = {{ {inner} }} }}\n"
        )

    return start


@pytest.fixture
def project(program, program_path, environ, tmp_path) -> Path:
    """A folder in which a person has talked to the program."""
    folder = tmp_path / "project"
    folder.mkdir()
    say_by_hand(program, program_path, environ, folder, "remember the word plum")
    return folder


def test_a_session_made_by_hand_is_continued_as_a_copy_that_knows_it(daemon, program, model, project, configure):
    home = Path(daemon.environ["HOME"])
    before = files_of(program, home)
    configure()

    def rows() -> list[Any]:
        return daemon.call("sessions_list")["sessions"]

    daemon.wait_for(rows, "the session is not listed")
    (row,) = rows()
    native = row["key"].partition(":")[2]
    assert row["key"] == f"{program.name}:{native}"
    original = daemon.call("sessions_history", sessionKey=row["key"], raw=True)["messages"]

    def send(text: str) -> Any:
        sent = daemon.call("chat.send", sessionKey=row["key"], message=text)
        assert sent["sessionKey"] == f"agent:worker:{row['key']}".lower()
        with daemon.connect() as wire:
            wire.socket.settimeout(RUN_MS / 1000 + 10)
            return wire.call("agent.wait", runId=sent["runId"], timeoutMs=RUN_MS)

    ended = send("which word was it?")
    assert ended["status"] == "ok", ended
    assert "plum" in str(model.requests()[-1])
    first = next(one for one in rows() if one["key"].startswith("agent:"))
    assert first["continues"] == row["key"]
    assert first["nativeId"] not in (native, None)
    assert first["cwd"] == str(project)
    ended = send("and once more?")
    assert ended["status"] == "ok", ended
    said = str(model.requests()[-1])
    assert "plum" in said
    assert "which word was it?" in said
    after = files_of(program, home)
    assert {path: after[path] for path in before} == before
    assert len(after) > len(before) or program.name not in FOLDERS
    assert daemon.call("sessions_history", sessionKey=row["key"], raw=True)["messages"] == original
    # The copy is shown as our session, once.
    assert sorted(one["key"] for one in rows()) == [f"agent:worker:{row['key']}".lower(), row["key"]]
    (ours,) = [one for one in rows() if one["key"].startswith("agent:")]
    assert ours["nativeId"] == first["nativeId"]
    # Two requests to the model; what the original has used counts there.
    assert (ours["inputTokens"], ours["outputTokens"], ours["messageCount"]) == (120, 14, 4)
