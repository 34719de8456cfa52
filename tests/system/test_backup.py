"""The procedures of docs/backup.md: a store in git, a copy made while the daemon writes, one session restored."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.real_daemon import Daemon

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed"),
]


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"]
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(folder.parent), "GIT_CONFIG_NOSYSTEM": "1"}
    done = subprocess.run(
        ["git", *identity, "-C", str(folder), *words], env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def user_texts(daemon: Daemon, key: str) -> list[str]:
    history = daemon.call("sessions_history", sessionKey=key)
    return [message["content"] for message in history["messages"] if message["role"] == "user"]


def daemon_with_store(store: Path) -> Daemon:
    """Another daemon, as on another machine, with this folder moved to the place of its store."""
    folder = store.parent / "home"
    folder.mkdir()
    other = Daemon(folder)
    store.rename(other.store)
    return other


def test_a_store_is_committed_while_it_is_served_and_another_daemon_serves_its_clone(
    daemon: Daemon, tmp_path: Path
) -> None:
    daemon.start()
    daemon.call("sessions.create", key="mcp:reader")
    daemon.call("tokens.mint", scopes=["list"])
    daemon.reply("main", "hello")
    daemon.call("chat.send", sessionKey="mcp:reader", message="read this")
    daemon.cli("inbox", "mcp:reader")
    daemon.call("chat.send", sessionKey="mcp:reader", message="and this")
    (daemon.store / "agents/main/workspace").mkdir(exist_ok=True)
    (daemon.store / "agents/main/workspace/notes").write_text("the agent's")
    git(daemon.store, "init", "-q")
    git(daemon.store, "add", "-A")
    git(daemon.store, "commit", "-qm", "one")
    tracked = git(daemon.store, "ls-files").split()
    transcripts = sorted(str(path.relative_to(daemon.store)) for path in daemon.transcripts())
    assert sorted(tracked) == sorted([".gitignore", "store.json", *transcripts])
    assert git(daemon.store, "status", "--porcelain") == ""
    # Doctor does not complain about the git files in the store.
    found = daemon.call("daemon.doctor")["findings"]
    assert not [one for one in found if ".git" in one["thing"] and "sessiond's" in one["what"]]

    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(daemon.store), str(clone))
    other = daemon_with_store(clone).start()
    try:
        assert user_texts(other, "main") == ["hello"]
        # What was read stays read, although the clone has a key and files of its own.
        assert "read this" not in (text := other.cli("inbox", "mcp:reader").stdout) and "and this" in text
        assert other.reply("main", "and on")["status"] == "ok"
        fixed = other.cli("doctor", "--fix")
        assert fixed.returncode == 0, fixed.stdout
        assert not [one for one in other.call("daemon.doctor")["findings"] if one["level"] != "ok"]
    finally:
        other.kill()


def test_a_copy_made_while_the_store_was_written_can_be_served(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    for number in range(5):
        daemon.reply("main", f"number {number}")
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(daemon.store), str(copy)], check=True)
    daemon.reply("main", "after the copy")
    other = daemon_with_store(copy)
    # A copy of a file may end within a line.
    (transcript,) = other.transcripts()
    with transcript.open("ab") as file:
        file.write(b'{"type":"message","id":"half')
    other.start()
    try:
        assert user_texts(other, "main") == [f"number {number}" for number in range(5)]
        # The copy can be written to.
        assert other.reply("main", "and on")["status"] == "ok"
    finally:
        other.kill()


def test_one_session_is_restored_while_the_daemon_runs(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start()
    daemon.reply("agent:main:lost", "keep this")
    path = Path(daemon.cli("path", "agent:main:lost").stdout.strip())
    backup = tmp_path / path.name
    shutil.copy(path, backup)
    path.unlink()
    daemon.wait_for(lambda: not daemon.rows(), "it is still listed")
    # Copied under another name first, so that the daemon sees only the complete file.
    shutil.copy(backup, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path)
    daemon.wait_for(daemon.rows, "it is not found")
    assert user_texts(daemon, "agent:main:lost") == ["keep this"]
    daemon.call("sessions.delete", key="agent:main:lost")
    archived = path.parent / "archive" / path.name
    daemon.wait_for(archived.exists, "it is not in the archive")
    archived.rename(path)
    daemon.wait_for(daemon.rows, "it did not come back from the archive")
    assert user_texts(daemon, "agent:main:lost") == ["keep this"]
    assert daemon.reply("agent:main:lost", "and on")["status"] == "ok"
