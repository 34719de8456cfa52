"""An agent removed from the configuration, or a transcript removed from its folder, while the daemon runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.real_daemon import PATIENCE_S, Daemon

MAIN = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "exec", command = ["sleep", "600"] }
"""
REMOVED = """
[[agents.list]]
id = "removed"
runtime = { type = "attached" }
"""


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.kill()


def test_an_agent_removed_from_the_configuration_gets_no_messages_and_its_queued_runs_end(daemon: Daemon) -> None:
    daemon.start(MAIN + REMOVED)
    daemon.call("sessions.create", key="agent:removed:main")
    queued = daemon.call("chat.send", sessionKey="agent:removed:main", message="waits")["runId"]
    daemon.config.write_text(MAIN)
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
    ended = daemon.call("agent.wait", runId=queued, timeoutMs=PATIENCE_S * 1000)
    assert (ended["status"], ended["error"]) == (
        "error",
        "agent removed was taken out of the configuration; configure it again and send again",
    )
    for method, params in (
        ("chat.send", {"sessionKey": "agent:removed:main", "message": "x"}),
        ("sessions_send", {"sessionKey": "agent:removed:main", "message": "x"}),
        ("sessions.steer", {"key": "agent:removed:main", "message": "x"}),
    ):
        error = daemon.failure(method, **params)
        assert error["message"].startswith("agent:removed:main belongs to agent removed, which is not configured"), (
            method
        )
    assert daemon.stop() == 0


def test_removing_the_transcript_ends_its_run_with_an_error(daemon: Daemon) -> None:
    daemon.start(MAIN)
    sent = daemon.call("chat.send", sessionKey="main", message="x")
    [path] = daemon.transcripts()
    daemon.wait_for(lambda: daemon.call("daemon.status")["liveRuns"] == 1, "it does not run")
    os.unlink(path)
    ended = daemon.call("agent.wait", runId=sent["runId"], timeoutMs=PATIENCE_S * 1000)
    assert ended["status"] == "error"
    assert ended["error"] == "the transcript of agent:main:main was removed while the run was going on"
    assert daemon.call("daemon.status")["liveRuns"] == 0
    assert daemon.stop() == 0
