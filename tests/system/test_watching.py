"""What a person sees of a run while it goes on, and of one that a crash ended: on a real terminal, of a real daemon."""

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
def started(daemon: Daemon) -> Daemon:
    agent = daemon.folder / "agent.py"
    agent.write_text(AGENT)
    return daemon.start(CONFIG.format(python=sys.executable, agent=agent, workspace=workspace(daemon)))


def workspace(daemon: Daemon) -> Path:
    return daemon.folder / "workspace"


def go_on(daemon: Daemon) -> None:
    workspace(daemon).mkdir(exist_ok=True)
    (workspace(daemon) / "go-on").touch()


class Terminal:
    """A command on a pseudo-terminal; `shown` is all that it has written."""

    def __init__(self, daemon: Daemon, *words: str) -> None:
        self.shown = ""
        self._ours, theirs = pty.openpty()
        environ = {**daemon.environ, "TERM": "xterm", "COLUMNS": "100", "NO_COLOR": "1"}
        command = [sys.executable, "-m", "sessiond", *words]
        self.process = subprocess.Popen(command, env=environ, stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)

    def until(self, text: str) -> None:
        """Read until this was shown."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            if not select.select([self._ours], [], [], max(0, deadline - time.monotonic()))[0] or not self._read():
                raise AssertionError(f"{text!r} was not shown: {self.shown!r}")

    def rest(self) -> str:
        """All that was shown, when the command has ended."""
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
def terminal(daemon: Daemon, *words: str) -> Iterator[Terminal]:
    made = Terminal(daemon, *words)
    try:
        yield made
    finally:
        made.close()


class Piped:
    """A command on pipes; both outputs are kept as they come."""

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
def piped(daemon: Daemon, *words: str) -> Iterator[Piped]:
    made = Piped(daemon, *words)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.parametrize("words", [("main",), ("--agent", "main"), (KEY,)])
def test_send_on_a_terminal_shows_the_reply_as_it_comes_and_once(started: Daemon, words: tuple[str, ...]) -> None:
    started.call("sessions.create", key=KEY)
    with terminal(started, "send", *words, "hello") as shown:
        shown.until("first words of hello")
        go_on(started)
        text = shown.rest()
    assert text.endswith("first words of hello\nlast words\n")
    assert (text.count("first words of hello"), text.count("last words")) == (1, 1)


def test_the_first_message_of_a_session_is_shown_once_as_well(started: Daemon) -> None:
    with terminal(started, "send", "agent:main:new", "hello") as shown:
        started.wait_for(lambda: any(row["key"] == "agent:main:new" for row in started.rows()), "it was not sent")
        go_on(started)
        assert shown.rest().endswith("first words of hello\nlast words\n")


def test_send_into_a_pipe_prints_the_reply_at_the_end(started: Daemon) -> None:
    go_on(started)
    assert started.cli("send", "main", "hello").stdout == "first words of hello\nlast words\n"


@pytest.mark.parametrize("words", [("watch",), ("watch", KEY), ("history", "-f", KEY)])
def test_a_terminal_shows_what_is_being_written_in_its_last_line(started: Daemon, words: tuple[str, ...]) -> None:
    started.call("sessions.create", key=KEY)
    with terminal(started, *words) as shown:
        started.wait_for(lambda: started.call("daemon.status")["subscribers"], "it does not follow")
        started.call("chat.send", sessionKey=KEY, message="hello")
        shown.until("writing   first words of hello")
        go_on(started)
        shown.until("assistant first words of hello")
    assert "\r\x1b[K" in shown.shown.rpartition("writing")[2]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("watch",), "run       failed (error: interrupted)"),
        (("watch", KEY), "run       failed (error: interrupted)"),
        (("history", "-f", KEY), "run       was interrupted: the daemon stopped"),
    ],
)
def test_a_run_that_the_daemons_death_ended_is_shown_after_the_reconnect(
    started: Daemon, words: tuple[str, ...], told: str
) -> None:
    started.call("sessions.create", key=KEY)
    with piped(started, *words) as watch:
        started.wait_for(lambda: started.call("daemon.status")["subscribers"], "it does not follow")
        started.call("chat.send", sessionKey=KEY, message="hello")
        # Of all sessions the start is told, of one its messages.
        begun = "started" if words == ("watch",) else "hello"
        started.wait_for(lambda: begun in watch.text, "the run was not shown")
        started.kill()
        started.start()
        started.wait_for(lambda: told in watch.text, "the end was not shown")
        assert "connected again" in watch.text
        go_on(started)
        started.call("chat.send", sessionKey=KEY, message="again")
        started.wait_for(lambda: "last words" in watch.text, "nothing more was shown")
    assert watch.text.count("interrupted") == 1
