"""`daemon.status` over every transport."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon


def test_the_status_names_the_store_and_counts(call: Call, shared: Daemon, fresh: str) -> None:
    got = call("daemon.status")
    assert got["store"] == str(shared.store)
    assert shared.process is not None
    assert got["pid"] == shared.process.pid
    assert got["sessions"] >= 1
    assert (got["deadLetters"], got["watcher"]) == (0, "inotify")
    assert got["uptimeMs"] > 0


def test_the_status_counts_lines_that_are_no_records(call: Call, shared: Daemon, fresh: str) -> None:
    before = call("daemon.status")["corruptRecords"]
    path = Path(call("sessions_list", search=fresh)["sessions"][0]["transcriptPath"])
    with path.open("ab") as file:
        file.write(b"no record\n")
    shared.wait_for(lambda: call("daemon.status")["corruptRecords"] > before, "it is not counted")
    assert call("daemon.status")["corruptRecords"] == before + 1


def test_the_status_needs_admin(call: Call, shared: Daemon) -> None:
    token = shared.call("tokens.mint", scopes=["list", "read", "send", "spawn"], sessionKey="main")["token"]
    with pytest.raises(CallFailed) as failed:
        call("daemon.status", by=token)
    assert failed.value.error["code"] == -32003
