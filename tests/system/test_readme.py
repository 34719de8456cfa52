"""The commands of the README, taken out of it and run as a reader's shell would run them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from real_daemon import PATIENCE_S, Daemon

pytestmark = pytest.mark.system
README = Path(__file__).parents[2] / "README.md"


def commands(section: str) -> list[str]:
    """The lines of the `sh` blocks of one section."""
    _, _, rest = README.read_text().partition(f"\n## {section}\n")
    text = rest.partition("\n## ")[0]
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert lines, section
    return lines


class Reader:
    """A home with `sessiond` on the PATH and a daemon that runs."""

    def __init__(self, daemon: Daemon) -> None:
        self.home = daemon.folder / "home"
        program = self.home / ".local" / "bin" / "sessiond"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m sessiond "$@"\n')
        program.chmod(0o755)
        daemon.store = self.home / ".local" / "state" / "sessiond"
        daemon.environ |= {"HOME": str(self.home), "PATH": f"{program.parent}:{os.environ['PATH']}"}
        daemon.environ["SESSIOND_STORE"] = str(daemon.store)
        self.daemon = daemon.start()

    def followers(self) -> int:
        """How many follow what happens."""
        count: int = self.daemon.call("daemon.status")["subscribers"]
        return count

    def run(self, script: str) -> str:
        """What the lines print, run by one shell that stops at the first failure."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            env=self.daemon.environ,
            cwd=self.home,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_S,
        )
        assert done.returncode == 0, (script, done.stdout, done.stderr)
        return done.stdout


@pytest.fixture
def reader(daemon: Daemon) -> Reader:
    return Reader(daemon)


def test_a_shell_script_runs_agents(reader: Reader) -> None:
    said = reader.run("\n".join(commands("Run agents from a shell script")))
    assert said.splitlines()[0] == "it said: Name one bird."
    assert "what do you think of this?" in said
    assert '"status": "ok"' in said or '"status":"ok"' in said


def test_every_way_to_watch_shows_a_message(reader: Reader) -> None:
    reader.daemon.reply("main", "before")
    for number, line in enumerate(commands("Watch everything")):
        if line.startswith("curl") and shutil.which("curl") is None:
            continue
        process = subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            env=reader.daemon.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            assert process.stdout is not None
            reader.daemon.wait_for(reader.followers, line)
            reader.daemon.reply("main", f"seen by {number}")
            while f"seen by {number}" not in (shown := process.stdout.readline()):
                assert shown, line
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        reader.daemon.wait_for(lambda: not reader.followers(), line)


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_reads_a_session(reader: Reader) -> None:
    reader.daemon.reply("main", "the heron is grey")
    reader.daemon.stop()
    said = reader.run("\n".join(commands("Read it with jq"))).splitlines()
    assert said[:2] == ["user: the heron is grey", "assistant: the heron is grey"]
    assert "agent:main:main\tok\t2" in said


def test_messages_for_a_program_and_the_configuration_for_it(reader: Reader) -> None:
    lines = commands("Give Claude Code, Codex or Gemini CLI your sessions")
    programs = [line for line in lines if re.match("claude|codex|gemini", line)]
    assert len(programs) == 3  # these are run by `just test-agents`
    reader.run("\n".join(line for line in lines if line not in programs))
    assert "the build is red" in reader.run("sessiond history mcp:claude-code")
    assert 'visibility = "all"' in (reader.home / ".config" / "sessiond" / "config.toml").read_text()


def test_the_configuration_of_the_readme_is_one_and_its_agent_adds(daemon: Daemon) -> None:
    text = README.read_text().partition("\n## An agent of your own\n")[2]
    [config] = re.findall(r"```toml\n(.*?)```", text.partition("\n## ")[0], re.DOTALL)
    daemon.config.write_text(config)
    reader = Reader(daemon)
    said = reader.run("\n".join(commands("An agent of your own"))).splitlines()
    assert said[0] == "42"
    assert any("20 22" in line for line in said[1:])


@pytest.mark.skipif(shutil.which("socat") is None or shutil.which("curl") is None, reason="socat or curl is missing")
def test_the_socket_is_spoken_to_by_hand(reader: Reader) -> None:
    sent, history, pong, rows = reader.run("\n".join(commands("By hand"))).replace("}{", "}\n{").split("\n", 3)
    assert '"status":"accepted"' in sent
    assert "hello" in history
    assert '"result":{}' in pong
    assert '"count"' in rows


def test_a_token_is_made_and_listed(reader: Reader) -> None:
    reader.daemon.reply("main", "hello")
    said = reader.run("\n".join(commands("Trust")))
    assert "agent:main:main" in said


def test_the_python_of_the_readme_runs_an_agent_and_talks_to_it(daemon: Daemon) -> None:
    text = README.read_text().partition("\n## From Python\n")[2].partition("\n## ")[0]
    talk, agent = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    daemon.start(
        '[[agents.list]]\nid = "main"\nruntime = { type = "echo" }\n[[agents.list]]\nid = "helper"\n'
        'runtime = { type = "attached" }\n'
    )
    helper = subprocess.Popen([sys.executable, "-c", agent], env=daemon.environ)
    talker = subprocess.Popen([sys.executable, "-uc", talk], env=daemon.environ, stdout=subprocess.PIPE, text=True)
    try:
        assert talker.stdout is not None
        assert talker.stdout.readline() == "hello\n"
        daemon.wait_for(lambda: daemon.call("daemon.status")["attachedAgents"] == {"helper": 1}, "not attached")
        assert daemon.reply("agent:helper:main", "knock")["reply"] == "you said: knock"
        daemon.wait_for(lambda: daemon.call("daemon.status")["subscribers"] == 1, "not following")
        daemon.reply("main", "and again")
        assert "session." in talker.stdout.readline()
    finally:
        for process in (helper, talker):
            process.kill()
            process.wait()
        talker.stdout.close()
