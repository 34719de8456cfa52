"""`daemon.status` over every transport."""

from __future__ import annotations

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon


def test_the_status_names_the_store_and_counts(call: Call, shared: Daemon, fresh: str) -> None:
    got = call("daemon.status")
    assert got["store"] == str(shared.store)
    assert shared.process is not None
    assert got["pid"] == shared.process.pid
    assert got["sessions"] >= 1
    assert (got["corruptRecords"], got["deadLetters"], got["watcher"]) == (0, 0, "inotify")
    assert got["uptimeMs"] > 0


def test_the_status_needs_admin(call: Call, shared: Daemon) -> None:
    token = shared.call("tokens.mint", scopes=["list", "read", "send", "spawn"], sessionKey="main")["token"]
    with pytest.raises(CallFailed) as failed:
        call("daemon.status", by=token)
    assert failed.value.error["code"] == -32003
