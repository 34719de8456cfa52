"""The sessions of other programs through a whole daemon: shown, read and followed, and their files only ever read."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.foreign_corpus import write_corpus
from support.foreign_sessions import key_of, pi_file, pi_line
from support.patience import PATIENCE_S
from support.real_daemon import Daemon

from sessiond.model.keys import is_foreign

pytestmark = pytest.mark.system

_CREDENTIALS = ("auth.json", "oauth_creds.json", "state_5.sqlite", "sessions/1.key", "credentials.json")


def look_at(roots: list[Path]) -> dict[Path, tuple[bytes, int]]:
    files = [path for root in roots for path in root.rglob("*") if path.is_file()]
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def row_keys(daemon: Daemon) -> set[str]:
    return {row["key"] for row in daemon.call("sessions_list", limit=200)["sessions"]}


def wait_whole(daemon: Daemon, count: int) -> None:
    def is_whole() -> bool:
        rows = [row for row in daemon.call("sessions_list", limit=200)["sessions"] if is_foreign(row["key"])]
        return len(rows) == count and not any(row.get("partial") for row in rows)

    daemon.wait_for(is_whole, "not every session was read whole")


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may see which folders a daemon opens files in")
def test_no_file_of_another_program_is_written_and_no_credential_is_opened(daemon: Daemon, tmp_path: Path) -> None:
    if subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False, capture_output=True).returncode:
        pytest.skip("strace cannot trace here")
    files = write_corpus(tmp_path, 14, 1).files
    roots = [tmp_path / name for name in (".claude", ".codex", ".gemini", ".pi")]
    for root in roots:
        for name in _CREDENTIALS:
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text("secret")
    before = look_at(roots)
    trace = tmp_path / "trace"
    calls = "trace=open,openat,openat2,creat,rename,unlink"
    daemon.start(prefix=("strace", "-f", "-qq", "-y", "-o", str(trace), "-e", calls))
    wait_whole(daemon, len(files))
    daemon.call("sessions_search", query="daemon")
    daemon.call("sessions.usage")
    for key in row_keys(daemon):
        if is_foreign(key):
            daemon.call("sessions_history", sessionKey=key, limit=5)
    # The tracer does not pass a signal on.
    os.kill(int((daemon.store / "store.lock").read_text()), signal.SIGTERM)
    assert daemon.process is not None and daemon.process.wait(timeout=PATIENCE_S) == 0
    lines = trace.read_text(errors="replace").splitlines()
    touched = [line for line in lines if any(str(root) in line for root in roots)]
    assert len(touched) > len(files), "the trace has the files that were read"
    writing = re.compile(r"O_WRONLY|O_RDWR|O_CREAT|O_TRUNC|O_APPEND|rename|unlink|creat\(")
    assert [line for line in touched if writing.search(line)] == []
    assert [line for line in touched if any(f'"{Path(name).name}"' in line for name in _CREDENTIALS)] == []
    assert look_at(roots) == before


def test_a_line_that_a_program_appends_reaches_a_subscriber_and_doctor_knows_the_source(
    daemon: Daemon, tmp_path: Path
) -> None:
    pi_file(tmp_path, 1, "one")
    daemon.start()
    wait_whole(daemon, 1)
    with daemon.connect() as wire:
        wire.call("sessions.messages.subscribe", key=key_of(1))
        pi_file(tmp_path, 1, "two", header=False)
        while (event := wire.receive()).get("method") != "session.message":
            pass
    assert event["params"]["sessionKey"] == key_of(1)
    assert "two" in str(event["params"]["message"])
    things = {found["thing"]: found["what"] for found in daemon.call("daemon.doctor")["findings"]}
    assert things["source pi"].startswith("1 session, in ")
    assert pi_line("two") in next((tmp_path / ".pi").rglob("*.jsonl")).read_bytes()


def test_a_reload_switches_the_sources_off_and_on(daemon: Daemon, tmp_path: Path) -> None:
    pi_file(tmp_path, 1, "one")
    daemon.start("[sources]\nenabled = false\n")
    assert key_of(1) not in row_keys(daemon)
    switch(daemon, "true")
    daemon.wait_for(lambda: key_of(1) in row_keys(daemon), "the sources were not switched on")
    switch(daemon, "false")
    daemon.wait_for(lambda: key_of(1) not in row_keys(daemon), "the sources were not switched off")


def switch(daemon: Daemon, enabled: str) -> None:
    """Write another configuration and let the daemon load it."""
    daemon.config.write_text(f"[sources]\nenabled = {enabled}\n")
    assert daemon.process is not None
    daemon.process.send_signal(signal.SIGHUP)
