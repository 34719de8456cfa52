"""What `send`, `watch` and `history -f` show of a run while it goes on and after a crash, also on a real terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.sampling import spread

pytestmark = pytest.mark.system

AGENT = """
import pathlib, sys, time
message = sys.stdin.read().split()[-1]
print("first words of " + message, flush=True)
while not pathlib.Path("go-on").exists():
    time.sleep(0.01)
print("last words")
"""
CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = {{ type = "exec", command = ["{python}", "{agent}"] }}
workspace = "{workspace}"
"""
KEY = "agent:main:main"


@pytest.fixture
def running(daemon: Daemon) -> Daemon:
    agent = daemon.folder / "agent.py"
    agent.write_text(AGENT)
    return daemon.start(CONFIG.format(python=sys.executable, agent=agent, workspace=workspace(daemon)))


def workspace(daemon: Daemon) -> Path:
    return daemon.folder / "workspace"


def let_agent_finish(daemon: Daemon) -> None:
    workspace(daemon).mkdir(exist_ok=True)
    (workspace(daemon) / "go-on").touch()


class Terminal:
    """A command on a pseudo-terminal; `shown` is all its output so far."""

    def __init__(self, daemon: Daemon, *words: str) -> None:
        self.shown = ""
        self._ours, theirs = pty.openpty()
        environ = {**daemon.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "sessiond", *words]
        self.process = subprocess.Popen(command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)

    def wait_for_text(self, text: str) -> None:
        """Read until the text is shown."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            if not select.select([self._ours], [], [], max(0, deadline - time.monotonic()))[0] or not self._read():
                raise AssertionError(f"{text!r} was not shown: {self.shown!r}")

    def read_to_end(self) -> str:
        """Read until the command ends; returns all its output."""
        while self._read():
            pass
        assert self.process.wait(PATIENCE_S) == 0, self.shown
        return self.shown

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def _read(self) -> bool:
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # EIO: the other side is closed
            return False
        self.shown += data.decode().replace("\r\n", "\n")
        return bool(data)


@contextmanager
def run_on_terminal(daemon: Daemon, *words: str) -> Iterator[Terminal]:
    made = Terminal(daemon, *words)
    try:
        yield made
    finally:
        made.close()


class PipedCommand:
    """A command whose output goes to a pipe; `lines` are its stdout and stderr as they come."""

    def __init__(self, daemon: Daemon, *words: str) -> None:
        self.lines: list[str] = []
        command = [sys.executable, "-m", "sessiond", *words]
        self.process = subprocess.Popen(
            command, env=daemon.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    @property
    def text(self) -> str:
        return "".join(self.lines)

    def close(self) -> None:
        self.process.kill()
        self._reader.join()
        self.process.communicate()


@contextmanager
def run_on_pipe(daemon: Daemon, *words: str) -> Iterator[PipedCommand]:
    made = PipedCommand(daemon, *words)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("words", spread([("main",), ("--agent", "main"), (KEY,)], 1))
def test_send_on_a_terminal_shows_the_reply_once_as_it_is_written(running: Daemon, words: tuple[str, ...]) -> None:
    running.call("sessions.create", key=KEY)
    with run_on_terminal(running, "send", *words, "hello") as shown:
        shown.wait_for_text("first words of hello")
        let_agent_finish(running)
        text = shown.read_to_end()
    assert text.endswith("first words of hello\nlast words\n")
    assert (text.count("first words of hello"), text.count("last words")) == (1, 1)


def test_send_to_a_new_session_shows_the_reply_once(running: Daemon) -> None:
    with run_on_terminal(running, "send", "agent:main:new", "hello") as shown:
        running.wait_for(lambda: any(row["key"] == "agent:main:new" for row in running.rows()), "it was not sent")
        let_agent_finish(running)
        assert shown.read_to_end().endswith("first words of hello\nlast words\n")


def test_send_into_a_pipe_prints_the_reply_at_the_end(running: Daemon) -> None:
    let_agent_finish(running)
    assert running.cli("send", "main", "hello").stdout == "first words of hello\nlast words\n"


@pytest.mark.parametrize("words", spread([("watch",), ("watch", KEY), ("history", "-f", KEY)], 2))
def test_a_terminal_shows_the_text_being_written_in_its_last_line(running: Daemon, words: tuple[str, ...]) -> None:
    running.call("sessions.create", key=KEY)
    with run_on_terminal(running, *words) as shown:
        running.wait_for(lambda: running.call("daemon.status")["subscribers"], "it does not follow")
        running.call("chat.send", sessionKey=KEY, message="hello")
        shown.wait_for_text("writing   first words of hello")
        let_agent_finish(running)
        shown.wait_for_text("assistant first words of hello")
    assert "\r\x1b[K" in shown.shown.rpartition("writing")[2]


@pytest.mark.parametrize(
    ("words", "end_line"),
    spread(
        [
            (("watch",), "run       failed (error: interrupted)"),
            (("watch", KEY), "run       failed (error: interrupted)"),
            (("history", "-f", KEY), "run       was interrupted: the daemon stopped"),
        ],
        2,
    ),
)
def test_a_run_that_was_interrupted_by_kill_9_is_shown_as_such_after_the_reconnect(
    running: Daemon, words: tuple[str, ...], end_line: str
) -> None:
    running.call("sessions.create", key=KEY)
    with run_on_pipe(running, *words) as watch:
        running.wait_for(lambda: running.call("daemon.status")["subscribers"], "it does not follow")
        running.call("chat.send", sessionKey=KEY, message="hello")
        # Without a session `watch` shows starts of runs, with one its messages.
        begin_text = "started" if words == ("watch",) else "hello"
        running.wait_for(lambda: begin_text in watch.text, "the run was not shown")
        running.kill()
        running.start()
        running.wait_for(lambda: end_line in watch.text, "the end was not shown")
        assert "connected again" in watch.text
        let_agent_finish(running)
        running.call("chat.send", sessionKey=KEY, message="again")
        running.wait_for(lambda: "last words" in watch.text, "nothing more was shown")
    assert watch.text.count("interrupted") == 1, watch.text
