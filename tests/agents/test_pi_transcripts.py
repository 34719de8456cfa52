"""The program pi with transcripts that sessiond wrote: its session loader opens them, its footer's code adds
them up, and the program continues them."""

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
GOLDEN = Path(__file__).parents[1] / "golden" / "presets"
RECORDED = ("claude", "codex", "gemini", "opencode")
# Does the same as `components/footer.js` and `agent-session.js`; a sum is NaN if a part is missing.
SCRIPT = """
import {{ SessionManager }} from "{dist}/core/session-manager.js";
const manager = SessionManager.open(process.argv[1]);
const sums = {{ input: 0, output: 0, cacheRead: 0, cacheWrite: 0, cost: 0 }};
const roles = [];
for (const entry of manager.getEntries()) {{
  if (entry.type !== "message") continue;
  const message = entry.message;
  roles.push(message.role);
  if (!(message.timestamp > 1.6e12)) throw new Error("no timestamp: " + JSON.stringify(message));
  if (message.role !== "assistant") continue;
  for (const name of ["input", "output", "cacheRead", "cacheWrite"]) sums[name] += message.usage[name];
  sums.cost += message.usage.cost.total;
}}
const context = manager.buildSessionContext();
console.log(JSON.stringify({{ roles, sums, context: context.messages.length, header: manager.getHeader().version }}));
"""


@pytest.fixture
def pi(model: Any) -> Any:
    agents = sys.modules[type(model).__module__]
    path = agents.install(agents.PROGRAMS["pi"])
    if isinstance(path, str):
        pytest.skip(path)
    return agents.PROGRAMS["pi"], path


def write_transcript(daemon: Daemon, name: str, folder: Path) -> Path:
    """The transcript of a session whose agent prints the recorded output of the real program."""
    program = folder / name
    program.write_text(f"#!/bin/sh\nexec cat {GOLDEN / name}-tool.jsonl\n")
    program.chmod(0o755)
    runtime = f'{{ type = "exec", preset = "{name}", command = [{json.dumps(str(program))}] }}'
    daemon.start(f'[[agents.list]]\nid = "main"\nworkspace = "{folder}"\nruntime = {runtime}\n')
    assert daemon.reply("main", "please RUN echo forty-two")["status"] == "ok"
    (path,) = daemon.transcripts()
    return path


@pytest.mark.parametrize("name", RECORDED)
def test_pi_opens_a_transcript_of_sessiond_and_adds_up_its_tokens(
    daemon: Daemon, pi: Any, workspace: Path, name: str
) -> None:
    _, path = pi
    ours = write_transcript(daemon, name, workspace)
    script = SCRIPT.format(dist=Path(path).resolve().parent)
    node = shutil.which("node")
    assert node is not None
    command = [node, "--input-type=module", "-e", script, str(ours)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["roles"] == ["user", "assistant", "toolResult", "assistant"]
    tokens = {"input": 120, "output": 14, "cacheRead": 80, "cacheWrite": 0}
    assert {part: found["sums"][part] for part in tokens} == tokens
    assert isinstance(found["sums"]["cost"], int | float)
    assert (found["context"], found["header"]) == (4, 3)


def test_pi_continues_a_conversation_of_sessiond(
    daemon: Daemon, pi: Any, model: Any, home: Path, workspace: Path
) -> None:
    program, path = pi
    ours = write_transcript(daemon, "claude", workspace)
    copied = workspace / "ours.jsonl"
    shutil.copy(ours, copied)
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "TERM": "dumb", **program.setup(home, model.port)}
    command = [str(path), "--mode", "json", "-p", "--model", program.model, "--session", str(copied)]
    done = subprocess.run(
        command, input="and again", env=env, cwd=workspace, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    # Both user texts were sent: that of the transcript, and the new one.
    assert "Answer 2 to: and again" in done.stdout, done.stdout[-2000:]
    assert "forty-two" in json.dumps(model.requests()[-1])
    assert len(copied.read_text().splitlines()) > len(ours.read_text().splitlines())
