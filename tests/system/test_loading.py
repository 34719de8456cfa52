"""The real daemon while it reads a store without an index: killed, stopped, asked."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from support.patience import PATIENCE_S
from support.real_daemon import Daemon
from support.sampling import amount

pytestmark = pytest.mark.system

COUNT = amount(20_000, 1000)


def fill(store: Path) -> None:
    folder = store / "agents" / "main" / "sessions"
    folder.mkdir(parents=True, mode=0o700)
    store.chmod(0o700)
    for number in range(COUNT):
        name = f"{number:08d}-0000-4000-8000-000000000000"
        header = {"type": "session", "version": 3, "id": name, "timestamp": "2026-01-01T00:00:00.000Z", "cwd": "/"}
        named = {**header, "sessionKey": f"agent:main:s{number}", "agentId": "main"}
        message = {"type": "message", "id": f"{number:016x}", "message": {"role": "user", "content": f"text {number}"}}
        (folder / f"{name}.jsonl").write_text(f"{json.dumps(named)}\n{json.dumps(message)}\n")


def test_a_daemon_that_reads_its_store_answers_and_may_be_ended_at_any_time(daemon: Daemon) -> None:
    """Whatever happens while it loads, no session is missing from an answer, and none gets lost or doubled."""
    fill(daemon.store)
    index = daemon.store / "agents" / "main" / "sessions" / "sessions.json"
    daemon.start(until_loaded=False)
    daemon.call("daemon.status")
    daemon.kill()
    daemon.start(until_loaded=False)
    was_loading = daemon.call("daemon.status").get("loading", False)
    assert daemon.stop() == 0
    # If it had not read everything when it ended, it left no index at all.
    assert index.exists() <= (not was_loading) or len(json.loads(index.read_text())) == COUNT
    daemon.start(until_loaded=False)
    last = f"agent:main:s{COUNT - 1}"
    with daemon.connect() as wire:
        said = [
            wire.ask("chat.inject", sessionKey=last, messages=[{"role": "user", "content": f"more {number}"}])
            for number in range(3)
        ]
        assert all("result" in answer for answer in said)
        shown = wire.call("chat.history", sessionKey=last)["messages"]
    assert [message["content"] for message in shown] == [f"text {COUNT - 1}", *(f"more {n}" for n in range(3))]
    status = daemon.call("daemon.status")
    assert ("loading" in status, status["sessions"]) == (False, COUNT)


def test_systemd_is_told_that_it_is_ready_when_it_has_read_the_store(daemon: Daemon) -> None:
    fill(daemon.store)
    path = daemon.folder / "notify"
    daemon.environ["NOTIFY_SOCKET"] = str(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.settimeout(PATIENCE_S)
        manager.bind(str(path))
        daemon.start(until_loaded=False)
        while b"READY=1" not in (told := manager.recv(4096)):
            pass
        status = daemon.call("daemon.status")
    assert f"STATUS={COUNT} sessions" in told.decode()
    assert ("loading" in status, status["sessions"]) == (False, COUNT)
