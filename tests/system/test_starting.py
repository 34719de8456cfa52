"""Commands while the daemon is starting, not running, or kept from starting by a bad configuration."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.forked_daemon import fork_server
from support.real_daemon import PROGRAM, Daemon
from support.sampling import amount

pytestmark = pytest.mark.system


def test_a_command_waits_for_a_daemon_that_is_reading_the_store(daemon: Daemon) -> None:
    folder = daemon.store / "agents" / "main" / "sessions"
    folder.mkdir(parents=True)
    (daemon.store).chmod(0o700)
    header = {"type": "session", "version": 3, "timestamp": "2026-01-01T00:00:00Z", "cwd": "/"}
    line = json.dumps({"type": "message", "id": "m", "message": {"role": "user", "content": "x" * 200}}) + "\n"
    for number in range(150):
        name = f"{number:08d}-0000-4000-8000-000000000000"
        (folder / f"{name}.jsonl").write_text(json.dumps({**header, "id": name}) + "\n" + line * 600)
    daemon.run.mkdir(mode=0o700)
    daemon.process = fork_server().start(daemon.command()[len(PROGRAM) :], daemon.environ, daemon.log)
    daemon.wait_for(lambda: (daemon.run / "starting").exists() or daemon.socket.exists(), "it does not start")
    done = daemon.cli("list", "-n", "1")
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 2), done.stderr
    assert not (daemon.run / "starting").exists()


def test_a_stop_at_any_moment_of_the_start_ends_the_daemon(daemon: Daemon) -> None:
    daemon.start()
    daemon.call("sessions.create", key="agent:main:main")
    assert daemon.stop() == 0
    for after_ms in range(0, 12, amount(1, 4)):
        daemon.start(until_loaded=False)
        time.sleep(after_ms / 1000)
        assert daemon.stop() == 0, after_ms


def test_without_threads_the_daemon_says_so_and_the_service_manager_may_start_it_again(daemon: Daemon) -> None:
    daemon.run.mkdir(mode=0o700)
    # Where stacks are so large, no thread has room for one.
    words = ["sh", "-c", 'ulimit -Ss 137438953472 && exec "$@"', "sh", *daemon.command()]
    done = subprocess.run(words, env=daemon.environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (71, "")
    assert done.stderr == (
        "sessiond: no thread can be started: let its user have more processes and threads (ulimit -u, or TasksMax= of"
        " the service), or end some\n"
    )


def test_a_command_does_not_wait_for_a_daemon_killed_while_it_started(daemon: Daemon) -> None:
    daemon.run.mkdir(mode=0o700)
    with subprocess.Popen([sys.executable, "-c", "pass  # sessiond"]) as gone:
        pass
    (daemon.run / "starting").write_text(f"{gone.pid}\nreading transcripts of agent main: 3 of 9")
    done = daemon.cli("list")
    assert (done.returncode, done.stderr.count("is starting")) == (3, 0)


def test_status_wait_waits_for_the_daemon(daemon: Daemon) -> None:
    done = daemon.cli("status", "--wait", "0")
    assert done.returncode == 3
    script = f"{sys.executable} -m sessiond serve & {sys.executable} -m sessiond status --wait 30; kill $!"
    daemon.run.mkdir(mode=0o700)
    shell = subprocess.run(["sh", "-c", script], env=daemon.environ, capture_output=True, text=True, check=False)
    assert "running for" in shell.stdout, shell.stderr


def test_a_command_names_the_configuration_error_that_prevents_the_start(daemon: Daemon, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("[agnets]\n")
    done = daemon.cli("list", env={**daemon.environ, "SESSIOND_CONFIG": str(bad)})
    assert done.returncode == 3
    assert "bad.toml:1" in done.stderr and "agents" in done.stderr


def test_a_refused_reload_is_reported_until_one_succeeds(daemon: Daemon) -> None:
    daemon.start("")
    assert daemon.process is not None
    daemon.config.write_text("[agnets]\n")
    daemon.process.send_signal(1)
    daemon.wait_for(lambda: daemon.call("daemon.status").get("reloadProblem"), "the reload was not refused")
    status = daemon.cli("status")
    assert "config.toml:1" in status.stderr and "the old one holds" in status.stderr
    assert "not taken over" in daemon.cli("doctor").stdout
    again = daemon.cli("config", "reload")
    assert again.returncode == 78 and "config.toml:1" in again.stderr
    daemon.config.write_text("")
    assert daemon.cli("config", "reload").stdout == "the daemon has the new configuration: 1 agent\n"
    assert "reloadProblem" not in daemon.call("daemon.status")
