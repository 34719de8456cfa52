"""The daemon's log as a terminal, journald and a program read it."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest
from real_daemon import Daemon

pytestmark = pytest.mark.system


def logged(daemon: Daemon, *options: str, journal: bool = False) -> list[str]:
    """The lines of a daemon that is started, spoken to and stopped."""
    daemon.run.mkdir(mode=0o700)
    log = daemon.log.open("wb")
    environ = daemon.environ
    if journal:
        status = os.fstat(log.fileno())
        environ = environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
    with log:
        daemon.process = subprocess.Popen(daemon.command(*options), env=environ, stderr=log)
    daemon.wait_for(lambda: "ready" in daemon.log.read_text(), "not ready")
    daemon.reply("main", "words that nobody else should read")
    assert daemon.stop() == 0
    return daemon.log.read_text().splitlines()


def test_a_terminal_gets_times_and_no_message_text(daemon: Daemon) -> None:
    lines = logged(daemon)
    assert re.match(r"\d\d:\d\d:\d\d \[info", lines[0])
    assert "words" not in "".join(lines)


def test_journald_gets_priorities_and_no_times(daemon: Daemon) -> None:
    lines = logged(daemon, journal=True)
    assert lines
    assert all(re.match(r"<6>\[info", line) for line in lines)


def test_a_program_gets_one_object_a_line(daemon: Daemon) -> None:
    first, *_ = [json.loads(line) for line in logged(daemon, "--json")]
    assert (first["event"], first["level"], first["sessions"]) == ("ready", "info", 0)
