"""The store taken away under a real daemon: it ends in words, and whoever starts it anew has a store again."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from support.real_daemon import PATIENCE_S, Daemon

pytestmark = pytest.mark.system
ECHO = '[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n'


@pytest.mark.parametrize("part", ["", "agents"])
def test_a_daemon_whose_store_is_gone_ends_and_the_next_start_serves(daemon: Daemon, part: str) -> None:
    daemon.start(ECHO)
    daemon.call("chat.send", sessionKey="main", message="hello")
    # The daemon may write a file into a folder that is just being emptied: the removal fails, and begins again.
    daemon.wait_for(partial(is_removed, daemon.store / part), "the store cannot be removed")
    assert daemon.process is not None
    # What systemd's Restart=on-failure takes for a failure, and RestartPreventExitStatus does not name.
    assert daemon.process.wait(timeout=PATIENCE_S) == 74
    last = daemon.log.read_text().splitlines()[-1]
    assert last.startswith("sessiond: ") and str(daemon.store) in last
    # It may have been making a folder just then.
    assert "was removed or moved away" in last or "another folder stands at" in last
    daemon.start()
    assert daemon.call("sessions_list")["sessions"] == []
    assert daemon.stop() == 0


def is_removed(folder: Path) -> bool:
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
