"""The daemon's process: file modes under any umask, folders of other users, what children inherit, what it logs."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.real_daemon import PROGRAM, Daemon, RpcFailure
from support.sampling import spread

pytestmark = pytest.mark.system

# Writes a report of all that the program inherited, and its token, into the file that its first argument names.
CHILD = """
import json, os, stat, sys
def owner_of(fd):
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return None
fds = {fd: owner_of(fd) for fd in os.listdir("/proc/self/fd")}
try:
    os.close(os.open("/dev/tty", os.O_RDWR))
    terminal = True
except OSError:
    terminal = False
token_file = os.environ.get("SESSIOND_TOKEN_FILE")
report = {
    "fds": {fd: where for fd, where in fds.items() if where and "/fd" not in where},
    "environ": dict(os.environ),
    "cmdline": open("/proc/self/cmdline", "rb").read().decode().split("\\0"),
    "parent": open(f"/proc/{os.getppid()}/cmdline", "rb").read().decode().split("\\0"),
    "group": os.getpgid(0) == os.getpid(),
    "session": os.getsid(0) == os.getpid(),
    "terminal": terminal,
    "token": open(token_file).read() if token_file else None,
    "token_file": token_file,
    "token_mode": stat.S_IMODE(os.stat(token_file).st_mode) if token_file else None,
    "folder_mode": stat.S_IMODE(os.stat(os.path.dirname(token_file)).st_mode) if token_file else None,
    "said": sys.stdin.read(),
}
open(sys.argv[1], "w").write(json.dumps(report))
print("done")
"""


def command(daemon: Daemon, *more: str) -> str:
    script = daemon.folder / "child.py"
    script.write_text(CHILD)
    words = [sys.executable, str(script), str(daemon.folder / "report.json"), *more]
    return json.dumps(words)


def report(daemon: Daemon) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((daemon.folder / "report.json").read_text())
    return found


def use_everything(daemon: Daemon, canary: str) -> list[str]:
    """Do all that leaves something on disk or in a log, each with the canary in it; returns the tokens used."""
    main = "agent:main:main"
    daemon.reply(main, f"a message {canary}")
    spawned = daemon.call(
        "sessions_spawn",
        task=f"a task {canary}",
        label=f"a label {canary}",
        attachments=[{"name": f"{canary}.txt", "content": f"an attachment {canary}"}],
    )
    daemon.call("agent.wait", runId=spawned["runId"])
    daemon.call("chat.inject", sessionKey=main, messages=[{"role": "user", "content": f"injected {canary}"}])
    daemon.call("sessions_send", sessionKey=main, message=f"sent {canary}", timeoutSeconds=5)
    daemon.call("sessions.patch", key=main, displayName=f"a name {canary}")
    daemon.call("sessions_search", query=canary)
    minted = daemon.call("tokens.mint", scopes=["list"], sessionKey=main)
    with daemon.connect(daemon.agent_socket) as wire:
        wire.call("initialize", protocol=1, client={"name": canary, "version": "1"}, token=minted["token"])
        wire.ask("sessions_history", sessionKey=canary)
        wire.ask(f"no.method.{canary}")
        wire.send(f"no json {canary}\n".encode())
        wire.receive()
    bad = minted["token"][:-4] + "AAAA"
    with daemon.connect(daemon.agent_socket) as wire:
        wire.ask("initialize", protocol=1, client={"name": "x", "version": "1"}, token=bad)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(daemon.agent_socket))
        sock.sendall(f"GET /{canary}?token={bad} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {bad}\r\n\r\n".encode())
        assert sock.recv(4096).startswith(b"HTTP/1.1 40")
    daemon.call("tokens.revoke", token=minted["token"])
    daemon.call("sessions.reset", key=main)
    return [minted["token"], bad]


# `spread` always keeps the first and the last, which clear no bits and all of them.
UMASKS = ("000", "022", "077", "177", "777")


@pytest.mark.parametrize("umask", spread(UMASKS, 2))
def test_every_file_is_0600_and_every_folder_0700_whatever_the_umask(daemon: Daemon, umask: str) -> None:
    daemon.run = daemon.store / "run"
    daemon.environ["SESSIOND_SOCKET"] = str(daemon.socket)
    del daemon.environ["SESSIOND_SOCKET"]
    daemon.run.parent.mkdir(mode=0o700)
    daemon.start(umask=int(umask, 8))
    use_everything(daemon, "canary")
    wrong = {}
    for path in [daemon.store, *daemon.store.rglob("*")]:
        found = path.lstat()
        wanted = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
        assert found.st_uid == os.geteuid()
        if stat.S_IMODE(found.st_mode) != wanted:
            wrong[str(path.relative_to(daemon.store))] = oct(found.st_mode)
    assert wrong == {}
    assert stat.S_ISSOCK(daemon.socket.stat().st_mode) and stat.S_ISSOCK(daemon.agent_socket.stat().st_mode)


def start_refused(daemon: Daemon, **environ: str) -> subprocess.CompletedProcess[str]:
    """Start the daemon, which must exit at once; returns its exit status and output."""
    env = {name: value for name, value in daemon.environ.items() if name != "SESSIOND_SOCKET"} | environ
    return daemon.cli(*daemon.command()[len(PROGRAM) :], env=env)


def test_a_symlinked_runtime_folder_is_refused(daemon: Daemon) -> None:
    elsewhere, runtime = daemon.folder / "elsewhere", daemon.folder / "runtime"
    elsewhere.mkdir(mode=0o700)
    runtime.mkdir(mode=0o700)
    (runtime / "sessiond").symlink_to(elsewhere)
    got = start_refused(daemon, XDG_RUNTIME_DIR=str(runtime))
    assert (got.returncode, "symbolic link" in got.stderr) == (78, True)
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create a folder of another user")
@pytest.mark.parametrize("chosen", [False, True])
def test_a_runtime_folder_of_another_user_is_refused(daemon: Daemon, *, chosen: bool) -> None:
    runtime = daemon.folder / "runtime"
    folder = runtime / "sessiond"
    folder.mkdir(parents=True)
    os.chown(folder, 65534, 65534)
    where = {"SESSIOND_SOCKET": str(folder / "s.sock")} if chosen else {"XDG_RUNTIME_DIR": str(runtime)}
    got = start_refused(daemon, **where)
    assert (got.returncode, "another user" in got.stderr) == (78, True)
    assert list(folder.iterdir()) == []


def test_a_folder_open_to_others_is_closed_if_it_is_the_default_and_refused_if_configured(daemon: Daemon) -> None:
    runtime = daemon.folder / "runtime"
    folder = runtime / "sessiond"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    got = start_refused(daemon, SESSIOND_SOCKET=str(folder / "sessiond.sock"))
    assert (got.returncode, "chmod 700" in got.stderr) == (78, True)
    daemon.environ = {**daemon.environ, "XDG_RUNTIME_DIR": str(runtime)}
    del daemon.environ["SESSIOND_SOCKET"]
    daemon.run = folder
    daemon.start()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_regular_file_at_the_sockets_path_is_not_replaced(daemon: Daemon) -> None:
    daemon.run.mkdir(mode=0o700)
    daemon.socket.write_text("somebody's")
    got = start_refused(daemon, SESSIOND_SOCKET=str(daemon.socket))
    assert (got.returncode, daemon.socket.read_text()) == (78, "somebody's")


@pytest.fixture
def secretive(daemon: Daemon) -> Daemon:
    """A daemon with secrets in its own environment; not started yet."""
    daemon.environ |= {
        "AWS_SECRET_ACCESS_KEY": "canary-secret",
        "OPENAI_API_KEY": "canary-secret",
        "SSH_AUTH_SOCK": "/tmp/canary-secret",
        "DBUS_SESSION_BUS_ADDRESS": "unix:path=/the-desktop",
        "XDG_RUNTIME_DIR": "/the-desktop",
        "LD_PRELOAD": "",
        "PYTHONSTARTUP": "/canary-secret",
        "NOTIFY_SOCKET": "",
        "LISTEN_FDNAMES": "canary-secret",
        "http_proxy": "http://user:canary-secret@127.0.0.1:1",
    }
    return daemon


def test_an_agents_program_gets_three_descriptors_and_a_clean_environment(secretive: Daemon) -> None:
    daemon = secretive
    config = f'[[agents.list]]\nid = "main"\nruntime = {{ type = "exec", command = {command(daemon)} }}\n'
    # The daemon itself inherits descriptor 9, which its children must not get.
    daemon.start(config, prefix=("sh", "-c", 'exec 9<"$0"; exec "$@"', "/etc/passwd"))
    with daemon.connect(), daemon.connect(daemon.agent_socket):
        assert daemon.reply("main", "words for the program")["status"] == "ok"
    inherited = report(daemon)
    assert sorted(inherited["fds"]) == ["0", "1", "2"]
    assert all(where.startswith("pipe:") for where in inherited["fds"].values())
    assert "canary-secret" not in json.dumps(inherited["environ"])
    # Through these variables an agent would find the owner's socket and the owner's desktop.
    assert "the-desktop" not in json.dumps(inherited["environ"])
    assert {name for name in inherited["environ"] if name.startswith("SESSIOND")} == {
        "SESSIOND_SOCKET",
        "SESSIOND_TOKEN_FILE",
        "SESSIOND_SESSION_KEY",
        "SESSIOND_RUN_ID",
    }
    # With the agents' socket a run can never become the owner by accident.
    assert inherited["environ"]["SESSIOND_SOCKET"] == str(daemon.agent_socket)
    assert (inherited["group"], inherited["session"], inherited["terminal"]) == (True, True, False)
    assert (inherited["token_mode"], inherited["folder_mode"]) == (0o600, 0o700)


def test_the_token_of_a_run_is_in_its_file_only_and_is_invalid_after_the_run(daemon: Daemon) -> None:
    config = f'[[agents.list]]\nid = "main"\nruntime = {{ type = "exec", command = {command(daemon)} }}\n'
    daemon.start(config)
    assert daemon.reply("main", "hello")["status"] == "ok"
    inherited = report(daemon)
    token = inherited["token"].strip()
    assert len(token) > 100
    assert token not in json.dumps([inherited["environ"], inherited["cmdline"], inherited["parent"]])
    assert not Path(inherited["token_file"]).exists()
    with daemon.connect(daemon.agent_socket) as wire:
        answer = wire.ask("initialize", protocol=1, client={"name": "late", "version": "1"}, token=token)
        assert answer["error"]["code"] == -32001
    assert list(files_with(daemon.store, token)) == []
    assert token not in daemon.log.read_text()


def test_the_command_of_a_channel_gets_three_descriptors_and_a_clean_environment(secretive: Daemon) -> None:
    daemon = secretive
    config = f"""
[channels.desktop]
command = {command(daemon, "{text}")}
[[agents.list]]
id = "main"
runtime = {{ type = "echo" }}
"""
    daemon.start(config, prefix=("sh", "-c", 'exec 9<"$0"; exec "$@"', "/etc/passwd"))
    daemon.reply("main", "hello")
    daemon.call("sessions.patch", key="main", deliveryContext={"channel": "desktop", "to": "me"})
    daemon.call("sessions_send", sessionKey="main", message="announce this", timeoutSeconds=5)
    daemon.wait_for((daemon.folder / "report.json").exists, "nothing was delivered")
    daemon.wait_for(lambda: (daemon.folder / "report.json").read_text().endswith("}"), "the report is not whole")
    inherited = report(daemon)
    assert sorted(inherited["fds"]) == ["0", "1", "2"]
    assert "canary-secret" not in json.dumps(inherited["environ"])
    # It is the owner's own program and may need the desktop; but it belongs to no run: no socket and no token.
    assert {name for name in inherited["environ"] if name.startswith("SESSIOND")} == set()
    assert (inherited["group"], inherited["terminal"]) == (True, False)


def files_with(folder: Path, text: str) -> Iterator[Path]:
    """The files below a folder that contain the text."""
    for path in folder.rglob("*"):
        if path.is_file() and text.encode() in path.read_bytes():
            yield path


FAILING = """
import sys
text = sys.stdin.read()
print(text, file=sys.stderr)
sys.exit(3)
"""


def test_the_log_contains_no_text_of_messages_and_no_token(daemon: Daemon) -> None:
    canary = f"canary{uuid4().hex}"
    script = daemon.folder / "failing.py"
    script.write_text(FAILING)
    failing = json.dumps([sys.executable, str(script)])
    complaining = json.dumps([sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", "{to} {text}"])
    config = f"""
[delivery]
retrySeconds = [0.01]
giveUpMinutes = 0.001
[channels.failing]
command = {complaining}
[[agents.list]]
id = "main"
default = true
runtime = {{ type = "echo" }}
[[agents.list]]
id = "failing"
runtime = {{ type = "exec", command = {failing} }}
"""
    daemon.config.write_text(config)
    daemon.start(config, extra=("--log-level", "debug"))
    tokens = use_everything(daemon, canary)
    failed = daemon.reply("agent:failing:main", f"make it fail {canary}")
    assert (failed["status"], canary in failed["error"]) == ("error", True)
    daemon.reply("agent:main:channel", "hello")
    daemon.call("sessions.patch", key="agent:main:channel", deliveryContext={"channel": "failing", "to": canary})
    daemon.call("sessions_send", sessionKey="agent:main:channel", message=f"announce {canary}", timeoutSeconds=5)
    daemon.wait_for(lambda: daemon.call("daemon.status")["deadLetters"], "the delivery is not given up")
    daemon.kill()
    daemon.start(config, extra=("--log-level", "debug"))
    with pytest.raises(RpcFailure):
        daemon.call("sessions_history", sessionKey=f"agent:main:{canary}")
    daemon.config.write_text(f'[session]\nmainKey = "{canary}"\nnonsense = "{canary}"\n')
    daemon.stop()
    log = daemon.log.read_text()
    assert "ready" in log and "delivery" in log
    assert "run failed" in log
    assert [line for line in log.splitlines() if canary in line] == []
    assert [token for token in tokens if token in log or token[:40] in log] == []
    # No token is anywhere in the store.
    assert [path for token in tokens for path in files_with(daemon.store, token[20:60])] == []


def test_no_token_is_in_the_daemons_own_arguments_or_environment(daemon: Daemon) -> None:
    daemon.start()
    minted = daemon.call("tokens.mint", scopes=["list"])
    assert daemon.process is not None
    proc = Path(f"/proc/{daemon.process.pid}")
    assert minted["token"].encode() not in (proc / "cmdline").read_bytes()
    if os.geteuid() == 0:  # only root may read the daemon's environment
        assert minted["token"].encode() not in (proc / "environ").read_bytes()
    else:
        with pytest.raises(PermissionError):
            (proc / "environ").read_bytes()
    assert minted["expiresAt"] > time.time() * 1000
