"""The store removed under a real daemon: it exits with a message, and the next start creates a new store."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import pytest
from support.real_daemon import PATIENCE_S, Daemon
from support.sampling import spread

pytestmark = pytest.mark.system
ECHO = '[[agents.list]]\nid = "main"\ndefault = true\nruntime = { type = "echo" }\n'


@pytest.mark.parametrize("part", spread(["", "agents"], 1))
def test_a_daemon_whose_store_was_removed_exits_and_the_next_start_serves(daemon: Daemon, part: str) -> None:
    daemon.start(ECHO)
    daemon.call("chat.send", sessionKey="main", message="hello")
    # The daemon may write a file into a folder that is just being emptied: then the removal fails and is repeated.
    daemon.wait_for(partial(remove_folder, daemon.store / part), "the store cannot be removed")
    assert daemon.process is not None
    # A failure for systemd's Restart=on-failure, and not one of RestartPreventExitStatus: systemd restarts it.
    assert daemon.process.wait(timeout=PATIENCE_S) == 74
    last = daemon.log.read_text().splitlines()[-1]
    assert last.startswith("sessiond: ") and str(daemon.store) in last
    # The second message appears if the daemon was just creating a folder.
    assert "was removed or moved away" in last or "another folder stands at" in last
    daemon.start()
    assert daemon.call("sessions_list")["sessions"] == []
    assert daemon.stop() == 0


def remove_folder(folder: Path) -> bool:
    """Remove the folder; returns whether it is gone."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()
