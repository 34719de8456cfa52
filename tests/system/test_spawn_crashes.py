"""Spawns while the daemon is killed: at each step of one spawn, and several times during two hundred."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from support.announcements import announcements, wait_for_announcement
from support.real_daemon import Daemon
from support.sampling import amount, spread

pytestmark = pytest.mark.system

# Where the daemon is killed: the thread, its system call, and the number of that call since the spawn was requested.
# strace counts the calls of each thread separately; files are written in a worker thread.
POINTS = [
    *(("loop", call, nth) for call, most in (("openat", 1), ("unlinkat", 1)) for nth in range(1, most + 1)),
    *(("worker", call, 1) for call in ("mkdirat", "renameat")),
    # Two of these write the spawn journal, before anything else is written.
    *(("worker", "write", nth) for nth in range(1, 9)),
    *(("worker", "fsync", nth) for nth in range(1, 9)),
    *(("worker", "fdatasync", nth) for nth in range(1, 5)),
    *(("worker", "openat", nth) for nth in (4, 6, 8, 10)),
]
CONFIG = """
[agents.defaults.subagents]
announce = "reply"
wakeRequester = false

[tools.sessions_spawn.attachments]
retainOnSessionKeep = true
"""
FILES = [{"name": "a", "content": "x" * 1000}, {"name": "b", "content": "y" * 1000}]


def _can_trace() -> bool:
    """Whether strace can be attached to a daemon; only root may trace one."""
    if shutil.which("strace") is None or os.geteuid() != 0:
        return False
    probe = subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False)
    return probe.returncode == 0


@pytest.mark.skipif(not _can_trace(), reason="strace cannot be had here, or is not root's")
def test_kill_9_at_any_step_of_a_spawn_leaves_an_announced_child_or_nothing(daemon: Daemon) -> None:
    daemon.start(CONFIG)
    daemon.call("sessions_spawn", task="warm up", attachments=FILES)
    points = spread(POINTS, 6)
    hits = sum(_kill_spawn_at(daemon, *point) for point in points)
    # strace counts the calls of each thread for itself. Several threads sync files at once, so that one of them makes
    # as many calls as a point says in some runs only. `faults.sweep` kills at every call, whichever thread makes it.
    assert hits >= len(points) // 2


def _kill_spawn_at(daemon: Daemon, thread: str, call: str, nth: int) -> bool:
    """Kill the daemon at this call of a spawn, restart it and check the spawn; returns whether it was killed."""
    assert daemon.process is not None
    pid = daemon.process.pid
    daemon.call("sessions.create", key="agent:main:warm:up")  # so that there is a worker thread
    tids = {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    chosen = {pid} if thread == "loop" else tids - {pid}
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={nth}"]
    command = ["strace", "-qq", "-o", "/dev/null", *inject, *(word for tid in chosen for word in ("-p", str(tid)))]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as strace:
        try:
            daemon.wait_for(lambda: all(_is_traced(tid) for tid in chosen), "strace does not attach")
            _spawn_until_killed_or_announced(daemon)
        finally:
            strace.terminate()
    killed = False
    try:
        daemon.call("ping")
    except OSError:
        killed = True
        daemon.process.wait()
        daemon.start()
    _check_spawns_are_complete(daemon, f"{thread} {call} {nth}")
    return killed


SEND_POINTS = [
    ("loop", "unlinkat", 1),
    *(("worker", "mkdirat", nth) for nth in (1, 2)),
    *(("worker", "write", nth) for nth in range(1, 6)),
    *(("worker", "fsync", nth) for nth in range(1, 8)),
    *(("worker", "renameat", nth) for nth in (1, 2)),
    *(("worker", "fdatasync", nth) for nth in (1, 2)),
]


@pytest.mark.skipif(not _can_trace(), reason="strace cannot be had here, or is not root's")
def test_kill_9_at_any_step_of_a_message_with_files_leaves_no_file_without_a_record(daemon: Daemon) -> None:
    daemon.start(CONFIG)
    daemon.call("chat.send", sessionKey="main", message="warm up", attachments=FILES)
    for thread, call, nth in spread(SEND_POINTS, 5):
        _kill_send_at(daemon, thread, call, nth)
        attachments = daemon.store / "agents/main/workspace/.openclaw/attachments"
        records = "".join(path.read_text() for path in daemon.transcripts())
        for folder in attachments.iterdir():
            assert folder.name in records, (thread, call, nth)
            assert sorted(path.name for path in folder.iterdir()) == ["a", "b", "manifest.json"], (thread, call, nth)
        journal = {path.name.partition(".")[0] for path in (daemon.store / "spawning").iterdir()}
        assert journal == {folder.name for folder in attachments.iterdir()}, (thread, call, nth)


def _kill_send_at(daemon: Daemon, thread: str, call: str, nth: int) -> None:
    """Kill the daemon at this call while it takes a message with files, and restart it."""
    assert daemon.process is not None
    pid = daemon.process.pid
    daemon.call("sessions.create", key="agent:main:warm:up")
    tids = {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    chosen = {pid} if thread == "loop" else tids - {pid}
    inject = ["-e", f"trace={call}", "-e", f"inject={call}:signal=KILL:when={nth}"]
    command = ["strace", "-qq", "-o", "/dev/null", *inject, *(word for tid in chosen for word in ("-p", str(tid)))]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as strace:
        try:
            daemon.wait_for(lambda: all(_is_traced(tid) for tid in chosen), "strace does not attach")
            with suppress(OSError):
                daemon.reply("main", "x", attachments=FILES)
        finally:
            strace.terminate()
    try:
        daemon.call("ping")
    except OSError:
        daemon.process.wait()
        daemon.start()


def _is_traced(tid: int) -> bool:
    try:
        status = Path(f"/proc/{tid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True  # it ended meanwhile
    return "TracerPid:\t0\n" not in status


def _spawn_until_killed_or_announced(daemon: Daemon) -> None:
    """Request a spawn, and watch its files: more requests would add calls at which the daemon could be killed."""
    assert daemon.process is not None
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


SPAWNS, KILLS, CLIENTS = amount(200, 40), amount(10, 2), 4


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
