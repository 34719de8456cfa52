"""Programs started by the daemon end with it, also after kill -9, and before the next run of their session begins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.real_daemon import Daemon

pytestmark = pytest.mark.system

CONFIG = """
[[agents.list]]
id = "main"
default = true
runtime = { type = "exec", command = ["/bin/sh", "agent.sh"] }
"""
# Each run starts a process that leaves its group, session and parent, ignores SIGTERM, and writes into the workspace
# until it is killed. The two runs use different files, so that their processes can be told apart.
AGENT = """
if [ -e first ]; then name=second; else name=first; fi
(setsid sh -c 'trap "" TERM; echo $$ >>'$name'; while :; do echo >>log; sleep 0.01; done' >&- 2>&- &)
while ! [ -s $name ]; do sleep 0.01; done
if [ $name = second ]; then echo again; exit 0; fi
touch works
exec sleep 600
"""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def daemon(tmp_path: Path) -> Daemon:
    daemon = Daemon(tmp_path)
    workspace = daemon.store / "agents" / "main" / "workspace"
    workspace.mkdir(parents=True)
    (workspace / "agent.sh").write_text(AGENT)
    return daemon


def test_processes_of_a_run_are_gone_when_a_killed_daemon_answers_again(daemon: Daemon) -> None:
    workspace = daemon.store / "agents" / "main" / "workspace"
    daemon.start(CONFIG)
    try:
        daemon.call("chat.send", sessionKey="main", message="leave")
        daemon.wait_for((workspace / "works").exists, "the agent does not work")
        first = int((workspace / "first").read_text())
        assert is_alive(first)
        daemon.kill()
        daemon.start()
        assert not is_alive(first)
        assert daemon.reply("main", "again")["status"] == "ok"
        assert not is_alive(int((workspace / "second").read_text()))
    finally:
        daemon.kill()


def test_no_process_of_a_run_is_left_after_an_ordinary_stop(daemon: Daemon) -> None:
    workspace = daemon.store / "agents" / "main" / "workspace"
    daemon.start(CONFIG)
    assert daemon.process is not None
    daemon.call("chat.send", sessionKey="main", message="leave")
    daemon.wait_for((workspace / "works").exists, "the agent does not work")
    assert daemon.stop() == 0
    left = [pid for pid in os.listdir("/proc") if pid.isdigit() and str(daemon.folder).encode() in _working_folder(pid)]
    assert left == []


def _working_folder(pid: str) -> bytes:
    try:
        return os.readlink(f"/proc/{pid}/cwd").encode()
    except OSError:
        return b""
