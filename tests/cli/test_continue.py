"""`sessiond send` to a session of another program: by the beginning of its id, with the reply of what continues it."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from support.continued_sessions import ID, KEY, OURS, ClaudeHome
from support.real_daemon import Daemon
from support.sampling import spread


@pytest.fixture
def home(tmp_path: Path) -> Iterator[ClaudeHome]:
    made = ClaudeHome(tmp_path)
    made.write("remember plum")
    return made


@pytest.fixture
def claude(daemon: Daemon, home: ClaudeHome) -> Daemon:
    """A daemon that shows the session and has an agent for it."""
    daemon.environ["HOME"] = str(home.path)
    daemon.start(home.agent())
    daemon.wait_for(lambda: daemon.call("sessions_list")["sessions"], "the session is not listed")
    return daemon


def send(daemon: Daemon, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sessiond", "send", *words]
    return subprocess.run(command, env=daemon.environ, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", spread([f"claude:{ID[:8]}", ID[:8], ID, KEY], 1))
def test_the_beginning_of_an_id_is_enough(claude: Daemon, name: str) -> None:
    done = send(claude, name, "which word?")
    assert (done.returncode, done.stdout) == (0, "knows: remember plum | which word?\n"), done.stderr
    (ended,) = [json.loads(send(claude, "--json", name, "and?").stdout)]
    assert (ended["sessionKey"], ended["reply"]) == (OURS, "knows: remember plum | which word? | and?")


def test_on_a_terminal_the_reply_is_shown_once(claude: Daemon) -> None:
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sessiond", "send", KEY, "which word?"]
    environ = {**claude.environ, "TERM": "dumb"}
    with subprocess.Popen(command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        with suppress(OSError):  # EIO: the other side is closed
            while data := os.read(ours, 65536):
                shown += data
    os.close(ours)
    assert process.returncode == 0
    assert shown.decode().count("knows: remember plum | which word?") == 1


def test_without_an_agent_the_lines_to_add_are_printed(daemon: Daemon, home: ClaudeHome) -> None:
    daemon.environ["HOME"] = str(home.path)
    daemon.start('[[agents.list]]\nid = "main"\nruntime = { type = "echo" }\n')
    daemon.wait_for(lambda: daemon.call("sessions_list")["sessions"], "the session is not listed")
    done = send(daemon, KEY, "go on")
    lines = '[[agents.list]]\nid = "claude"\nruntime = { type = "exec", preset = "claude" }\n'
    assert (done.returncode, done.stdout) == (1, "")
    assert lines in done.stderr
