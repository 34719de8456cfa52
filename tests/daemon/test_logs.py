"""The format of the daemon's log for a terminal, for journald and for programs."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import subprocess
import sys

import pytest
from structlog.testing import capture_logs
from support.real_daemon import PATIENCE_S, Daemon

from sessiond.daemon.logs import SHORTAGE_LINE_S, FaultLog

pytestmark = pytest.mark.system


def run_and_read_log(daemon: Daemon, *options: str) -> list[str]:
    """The log lines of a daemon that is started, gets a message and is stopped."""
    daemon.start(extra=options)
    daemon.wait_for(lambda: "ready" in daemon.log.read_text(), "not ready")
    daemon.reply("main", "words that nobody else should read")
    assert daemon.stop() == 0
    return daemon.log.read_text().splitlines()


def test_the_log_for_a_terminal_has_times_and_no_message_text(daemon: Daemon) -> None:
    lines = run_and_read_log(daemon)
    assert re.match(r"\d\d:\d\d:\d\d \[info", lines[0])
    assert "words" not in "".join(lines)


def test_the_log_for_journald_has_priorities_and_no_times(daemon: Daemon) -> None:
    daemon.run.mkdir(mode=0o700)
    ours, theirs = socket.socketpair()  # systemd also passes a socket
    with ours, ours.makefile("r", encoding="utf-8") as lines:
        with theirs:
            status = os.fstat(theirs.fileno())
            environ = daemon.environ | {"JOURNAL_STREAM": f"{status.st_dev}:{status.st_ino}"}
            daemon.process = subprocess.Popen(daemon.command(), env=environ, stderr=theirs, process_group=0)
        ours.settimeout(PATIENCE_S)
        assert re.match(r"<6>\[info +\] ready ", lines.readline())
        assert daemon.stop() == 0
        assert lines.readline() == "<6>[info     ] stopping\n"


def test_with_json_the_log_has_one_object_per_line(daemon: Daemon) -> None:
    first, *_ = [json.loads(line) for line in run_and_read_log(daemon, "--json")]
    assert (first["event"], first["level"], first["sessions"]) == ("ready", "info", 0)


@pytest.mark.parametrize("is_journal", [False, True])
def test_what_others_have_named_does_not_control_the_terminal_that_shows_the_log(
    is_journal: bool,
) -> None:
    code = """if True:
        import structlog
        from sessiond.daemon import logs
        logs.configure("info")
        log = structlog.get_logger("sessiond.link")
        log.warning("of \\x9b31m", command="c\\x1b]0;owned\\x07", peer="lap", reason="a\\u202eb", names=["\\x1b[1m"])
    """
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            status = os.fstat(theirs.fileno())
            stream = f"{status.st_dev}:{status.st_ino}" if is_journal else ""
            environ = os.environ | {"JOURNAL_STREAM": stream}
            subprocess.run([sys.executable, "-c", code], stderr=theirs, env=environ, check=True)
        said = ours.recv(10_000).decode()
    assert said.isascii() and said.removesuffix("\n").isprintable() and said.startswith("<4>") is is_journal, repr(said)
    for shown in (r"\u009b31m", r"\u001b]0;owned\u0007", r"a\u202eb", r"\x1b[1m"):
        assert shown in said


def test_a_flood_that_meets_a_shortage_fills_no_log() -> None:
    times = [0.0, 1.0, SHORTAGE_LINE_S - 1, SHORTAGE_LINE_S, SHORTAGE_LINE_S + 1]
    faults = FaultLog(iter(times).__next__)
    with capture_logs() as logs:
        for _ in times:
            try:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            except OSError as error:
                faults.note("sessions_list", error)
        faults.note("sessions_list", LookupError("x"))
    lines = [one for one in logs if one["log_level"] == "warning"]
    assert [(one["what"], one["refused"], one["reason"]) for one in lines] == [
        ("sessions_list", 1, "Resource temporarily unavailable"),
        ("sessions_list", 3, "Resource temporarily unavailable"),
    ]
    assert re.fullmatch(r"test_logs\.py:\d+", lines[0]["at"])
    assert [one["event"] for one in logs if one["log_level"] == "error"] == ["internal error"]


@pytest.mark.parametrize(
    ("errors", "level"),
    [([MemoryError()], "warning"), ([MemoryError()] * 2, "warning"), ([MemoryError(), LookupError()], "error")],
)
def test_a_group_is_a_shortage_if_each_of_its_errors_is(errors: list[Exception], level: str) -> None:
    with capture_logs() as logs:
        FaultLog(lambda: 0.0).note("connection", ExceptionGroup("", [ExceptionGroup("", errors)]))
    assert [one["log_level"] for one in logs] == [level]


def test_the_daemon_imports_no_library_that_only_structlog_could_use() -> None:
    """They are no small part of a start. Whoever asks for one later gets it whole."""
    script = """
import sys
import sessiond.daemon.lifecycle
assert not {"asyncio", "rich", "pygments"} & set(sys.modules)
import asyncio
assert asyncio.run
import sessiond.daemon.logs as logs
logs.configure("info")
try:
    1 / 0
except ZeroDivisionError as error:
    logs.FaultLog(lambda: 0.0).note("test", error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, "ZeroDivisionError" in done.stderr) == (0, True), done.stderr
