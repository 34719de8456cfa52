"""Spawns while the daemon is killed: at each step of one spawn, and several times during two hundred."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from faults.faulty_daemons import FaultyDaemon, FaultyDaemons
from faults.kill_sweep import kill_at_every_call
from support.announcements import announcements, wait_for_announcement
from support.real_daemon import Daemon
from support.sampling import amount, whole_only

pytestmark = pytest.mark.system

CONFIG = """
[agents.defaults.subagents]
announce = "reply"
wakeRequester = false

[tools.sessions_spawn.attachments]
retainOnSessionKeep = true
"""
FILES = [{"name": "a", "content": "x" * 1000}, {"name": "b", "content": "y" * 1000}]


def test_kill_9_at_any_step_of_a_spawn_leaves_an_announced_child_or_nothing(daemons: FaultyDaemons) -> None:
    counts = kill_at_every_call(daemons, CONFIG, _spawn_until_killed_or_announced, _check_spawns_are_complete, 4)
    # Journal, both files, their manifest, transcript; and the records of the run, the announcement, that it was made.
    assert counts["create"] == 5 and counts["write"] >= 8 and counts["sync"] >= 12
    assert (counts["mkdir"], counts["rename"], counts["remove"]) == (1, 2, 1)


@whole_only("test_kill_9_at_any_step_of_a_spawn_leaves_an_announced_child_or_nothing")
def test_kill_9_at_any_step_of_a_message_with_files_leaves_no_file_without_a_record(daemons: FaultyDaemons) -> None:
    counts = kill_at_every_call(daemons, CONFIG, _send_until_killed_or_answered, _check_files_have_records, 3)
    assert counts["create"] == 4 and counts["write"] >= 6 and counts["sync"] >= 9
    assert (counts["mkdir"], counts["rename"], counts["remove"]) == (1, 2, 0)


def _send_until_killed_or_answered(daemon: FaultyDaemon) -> None:
    daemon.reply("main", "x", attachments=FILES)


def _check_files_have_records(daemon: FaultyDaemon, where: str) -> None:
    attachments = daemon.store / "agents/main/workspace/.openclaw/attachments"
    records = "".join(path.read_text() for path in daemon.transcripts())
    for folder in attachments.iterdir():
        assert folder.name in records, where
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "manifest.json"], where
    journal = {path.name.partition(".")[0] for path in (daemon.store / "spawning").iterdir()}
    assert journal == {folder.name for folder in attachments.iterdir()}, where


def _spawn_until_killed_or_announced(daemon: FaultyDaemon) -> None:
    """Request a spawn, and watch its files: more requests would add calls at which the daemon could be killed."""
    process = daemon.process
    try:
        child = daemon.call("sessions_spawn", task="x", attachments=FILES)["childSessionKey"]
        path = next(row["transcriptPath"] for row in daemon.rows() if row["key"] == "main")
    except (OSError, StopIteration):
        return
    needle = f'"sourceSessionKey":"{child}"'
    child_path = _transcript_of(daemon, child)
    daemon.wait_for(
        lambda: (
            process.poll() is not None
            or (needle in Path(path).read_text() and child_path and '"announced"' in child_path.read_text())
        ),
        "neither killed nor announced",
    )


def _transcript_of(daemon: Daemon, key: str) -> Path | None:
    needle = f'"sessionKey":"{key}"'
    return next((path for path in daemon.transcripts() if needle in path.read_text()), None)


def _check_spawns_are_complete(daemon: Daemon, where: str) -> None:
    rows = [row for row in daemon.rows() if ":subagent:" in row["key"]]
    for row in rows:
        text = wait_for_announcement(daemon, row["key"])
        assert text.startswith(("Status: ok\n", "Status: error: interrupted\n")), (where, text)
        assert row.get("status") is not None, where
    attachments = daemon.store / "agents/main/workspace/.openclaw/attachments"
    ids = {row["key"].rpartition(":")[2] for row in rows}
    assert {folder.name for folder in attachments.iterdir()} == ids, where
    for folder in attachments.iterdir():
        assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "manifest.json"], where
        assert (folder / "a").read_text() + (folder / "b").read_text() == "x" * 1000 + "y" * 1000, where
    assert list((daemon.store / "spawning").iterdir()) == [], where


SPAWNS, KILLS, CLIENTS = amount(200, 10), amount(10, 2), 4


def test_each_of_many_spawns_is_announced_once_over_several_kills(daemon: Daemon) -> None:
    daemon.start("[agents.defaults.subagents]\nmaxChildrenPerAgent = 1000\nmaxConcurrent = 64\n")
    daemon.call("sessions.create", key="main")
    children: dict[str, str] = {}

    def spawn_some(client: int) -> None:
        for number in range(client, SPAWNS, CLIENTS):
            while str(number) not in children:
                try:
                    params = {"task": f"task {number}", "idempotencyKey": str(number)}
                    children[str(number)] = daemon.call("sessions_spawn", **params)["childSessionKey"]
                except OSError:
                    threading.Event().wait(0.01)  # the daemon was killed; the same request gives the same child

    with ThreadPoolExecutor(CLIENTS) as clients:
        spawning = [clients.submit(spawn_some, client) for client in range(CLIENTS)]
        for kill in range(KILLS):
            most = (kill + 1) * SPAWNS // (KILLS + 1)
            daemon.wait_for(lambda most=most: len(children) >= most, "the spawns do not go on")
            daemon.kill()
            daemon.start()
        for one in spawning:
            one.result()
    daemon.wait_for(lambda: len(announcements(daemon)) >= SPAWNS, "announcements are missing")
    daemon.wait_for(lambda: daemon.call("daemon.status")["liveRuns"] == 0, "runs do not end")
    announced = Counter(one["provenance"]["sourceSessionKey"] for one in announcements(daemon))
    assert announced == dict.fromkeys(children.values(), 1)
    daemon.kill()
    daemon.start()
    daemon.wait_for(lambda: daemon.call("daemon.status")["liveRuns"] == 0, "runs do not end")
    assert Counter(one["provenance"]["sourceSessionKey"] for one in announcements(daemon)) == announced
