"""`sessiond hook`: as a process beside a stand-in for the daemon, and with settings of programs in real files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.fake_daemon import NO_ANSWER, FakeDaemon, Refusal
from support.forked_daemon import fork_server
from support.patience import PATIENCE_S
from support.rows import check_each
from support.sampling import WHOLE

from sessiond import cli
from sessiond.cli.hooks.call import is_unattended, read_stdin

BODY = {
    "session_id": "b7cf7d93-213e-4882-a973-3017e9167ff4",
    "transcript_path": "/home/ada/.claude/projects/-x/b7cf7d93-213e-4882-a973-3017e9167ff4.jsonl",
    "cwd": "/x",
}
ASKS = {
    **BODY,
    "hook_event_name": "PermissionRequest",
    "tool_name": "Bash",
    "tool_input": {"command": "touch birds.txt"},
}
PROMPTS = {**BODY, "hook_event_name": "UserPromptSubmit", "prompt": "go on"}
# What every call says of the session.
NAMED = {"sessionId": BODY["session_id"], "transcriptPath": BODY["transcript_path"]}


def clean_environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SESSIOND_", "CLAUDE"))}


def start_hook(socket: Path, **more: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sessiond", "hook", "--socket", str(socket)]
    environ = clean_environ()
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env={**environ, **more}, **pipes)


def hook(socket: Path, data: bytes, **more: Any) -> str:
    """What a hook prints; it always ends with 0 and complains of nothing."""
    if not WHOLE:
        done = fork_server().run(["hook", "--socket", str(socket)], {**clean_environ(), **more}, data)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout
    with start_hook(socket, **more) as process:
        out, err = process.communicate(data, timeout=PATIENCE_S)
    assert (process.returncode, err) == (0, b"")
    return out.decode()


def test_a_permission_is_asked_and_the_decision_printed(fake: FakeDaemon) -> None:
    fake.answers["hooks.report"] = lambda _params, _connection: {"known": True}
    fake.answers["hooks.ask"] = lambda _params, _connection: {"outcome": "answered", "optionId": "deny", "note": "no"}
    assert json.loads(hook(fake.path, json.dumps(ASKS).encode())) == {
        "hookSpecificOutput": {
            "hookEventName": "PermissionRequest",
            "decision": {"behavior": "deny", "message": "no"},
        }
    }
    assert fake.asked("hooks.report") == {"event": "PermissionRequest", **NAMED}
    asked = fake.asked("hooks.ask")
    assert (asked["title"], [option["id"] for option in asked["options"]]) == (
        "Bash: touch birds.txt",
        ["allow", "deny"],
    )


def test_what_waits_is_printed_and_confirmed(fake: FakeDaemon) -> None:
    fake.answers["hooks.report"] = lambda _params, _connection: {"known": True, "context": "a heron", "receipt": "r1"}
    assert (
        json.loads(hook(fake.path, json.dumps(PROMPTS).encode()))["hookSpecificOutput"]["additionalContext"]
        == "a heron"
    )
    assert fake.asked("hooks.report") == {"event": "UserPromptSubmit", **NAMED}
    assert fake.asked("hooks.report") == {"event": "UserPromptSubmit", **NAMED, "receipt": "r1"}


def test_nothing_is_printed_where_anything_is_amiss(fake: FakeDaemon, tmp_path: Path) -> None:
    asks = json.dumps(ASKS).encode()

    def refuse(_params: Any, _connection: Any) -> Any:
        raise Refusal(-32001, "unauthenticated", "no")

    def refuse_unread(_params: Any, connection: Any) -> Any:
        connection.send({"id": None, "error": Refusal(-32700, "parse_error", "no").error})
        return NO_ANSWER

    # No JSON, no hook, no daemon; an old one, one that does not know the session, or is in a run of its own.
    assert hook(fake.path, b"\xff{") == ""
    assert hook(fake.path, b'{"hook_event_name": "Stop"}') == ""
    assert hook(tmp_path / "none.sock", asks) == ""
    assert hook(fake.path, asks) == ""
    fake.answers["hooks.report"] = lambda _params, _connection: {"known": False}
    assert hook(fake.path, asks) == ""
    fake.answers["hooks.report"] = refuse
    assert hook(fake.path, asks) == ""
    fake.answers["hooks.report"] = lambda _params, _connection: ["odd"]
    assert hook(fake.path, asks) == ""
    # A question that the daemon cannot even read: its refusal names no request.
    fake.answers["hooks.report"] = lambda _params, _connection: {"known": True}
    fake.answers["hooks.ask"] = refuse_unread
    assert hook(fake.path, asks) == ""
    while not fake.calls.empty():
        fake.calls.get()
    assert hook(fake.path, asks, SESSIOND_TOKEN_FILE=str(tmp_path / "token")) == ""
    assert hook(fake.path, asks, CLAUDE_CODE_SESSION_ATTENDED="0") == ""
    assert fake.calls.empty()


@check_each(
    ("environ", "unattended"),
    [
        ({}, False),
        ({"CLAUDE_CODE_ENTRYPOINT": "cli"}, False),
        ({"CLAUDE_CODE_ENTRYPOINT": "sdk-cli"}, True),
        ({"CLAUDE_CODE_ENTRYPOINT": "sdk-ts", "CLAUDE_CODE_SESSION_ATTENDED": "1"}, False),
        ({"CLAUDE_CODE_ENTRYPOINT": "cli", "CLAUDE_CODE_SESSION_ATTENDED": "0"}, True),
    ],
)
def test_a_script_that_calls_the_program_waits_for_nobody(environ: dict[str, str], unattended: bool) -> None:
    assert is_unattended(environ) is unattended


def test_a_hook_without_an_input_prints_nothing(fake: FakeDaemon) -> None:
    command = [*("sh", "-c", 'exec "$@" <&-', "sh"), *(sys.executable, "-m", "sessiond", "hook"), "--socket", fake.path]
    done = subprocess.run(command, capture_output=True, check=False, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_hook_whose_output_is_closed_tells_what_happened_and_asks_nobody(fake: FakeDaemon) -> None:
    fake.answers["hooks.report"] = lambda _params, _connection: {"known": True, "context": "a heron", "receipt": "r1"}
    command, environ = [sys.executable, "-m", "sessiond", "hook", "--socket", str(fake.path)], clean_environ()
    for body, closing in ((ASKS, ">&- 2>&-"), (PROMPTS, ">&-"), (ASKS, "> /dev/null")):
        words = ["sh", "-c", f'exec "$@" {closing}', "sh", *command]
        data = json.dumps(body).encode()
        done = subprocess.run(words, input=data, env=environ, stderr=subprocess.PIPE, check=False, timeout=PATIENCE_S)
        assert (done.returncode, done.stderr) == (0, b"")
    called = [fake.calls.get_nowait()[0] for _ in range(fake.calls.qsize())]
    assert called == ["initialize", "hooks.report"] * 3


def test_what_does_not_end_and_what_is_too_long_is_no_hook() -> None:
    def read(data: bytes, most: int, *, ends: bool = True) -> bytes | None:
        reading, writing = os.pipe()
        try:
            os.write(writing, data)
            if ends:
                os.close(writing)
            return read_stdin(reading, most=most, limit_s=0.01 if not ends else PATIENCE_S)
        finally:
            os.close(reading)
            if not ends:
                os.close(writing)

    assert read(b"x" * 1000, 1000) == b"x" * 1000
    assert read(b"x" * 1001, 1000) is None
    assert read(b"{}", 1000, ends=False) is None
    assert read(b"", 1000) == b""


def test_a_slow_daemon_is_waited_for_a_second(fake: FakeDaemon) -> None:
    fake.answers["hooks.report"] = lambda _params, _connection: NO_ANSWER
    before = time.monotonic()
    assert hook(fake.path, json.dumps(PROMPTS).encode()) == ""
    # Many times what it takes, so that only a hook that does not stop waiting fails.
    assert time.monotonic() - before < PATIENCE_S / 2


def test_a_waiting_hook_ends_with_the_daemon_and_with_its_program(fake: FakeDaemon) -> None:
    fake.answers["hooks.report"] = lambda _params, _connection: {"known": True}
    fake.answers["hooks.ask"] = lambda _params, _connection: NO_ANSWER
    for end in ("daemon", "program"):
        with start_hook(fake.path) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(ASKS).encode())
            process.stdin.close()
            fake.asked("hooks.ask")
            if end == "daemon":
                fake.drop()
                assert process.stdout.read() == b""
            else:
                process.stdout.close()
            assert process.wait(timeout=PATIENCE_S) == 0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def tree(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): os.readlink(path)
        if path.is_symlink()
        else (path.read_bytes(), path.stat().st_mode)
        for path in sorted(folder.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def test_install_and_uninstall_leave_the_settings_byte_for_byte(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = home / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_bytes(b'{"model": "opus",\r\n\t"hooks" : { "Stop":[ ] } }')
    settings.chmod(0o640)
    before = tree(home)
    assert cli.run(["hook", "install", "claude"]) == 0
    assert str(settings) in capsys.readouterr().out
    assert tree(home) == before
    assert cli.run(["hook", "install", "claude", "--write"]) == 0
    backup = settings.with_name("settings.json.before-sessiond")
    assert str(backup) in capsys.readouterr().out
    assert backup.read_bytes() == before[".claude/settings.json"][0]
    hooks = json.loads(settings.read_bytes())["hooks"]
    assert sorted(hooks) == [
        "Notification",
        "PermissionRequest",
        "SessionEnd",
        "SessionStart",
        "Stop",
        "UserPromptSubmit",
    ]
    assert settings.stat().st_mode & 0o777 == 0o640
    installed = tree(home)
    assert cli.run(["hook", "install", "claude", "--write"]) == 0
    assert "already" in capsys.readouterr().err
    assert tree(home) == installed
    assert cli.run(["hook", "uninstall", "claude"]) == 0
    assert tree(home) == before
    assert cli.run(["hook", "uninstall", "claude"]) == 0
    assert tree(home) == before


def test_uninstall_says_for_which_sessions_messages_wait(
    home: Path, fake: FakeDaemon, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.answers["hooks.list"] = lambda _params, _connection: {
        "waiting": [
            {"sessionKey": "claude:b7", "unread": 1, "hasMore": False},
            {"sessionKey": "claude:c8", "unread": 50, "hasMore": True},
            {"sessionKey": "codex:d9", "unread": 2, "hasMore": False},
        ]
    }
    assert cli.run(["hook", "install", "claude", "--write", "--socket", str(fake.path)]) == 0
    assert cli.run(["hook", "uninstall", "claude"]) == 0
    said = capsys.readouterr().err
    assert "1 message waits for claude:b7, and no hook hands them over any more" in said
    assert "50 or more messages wait for claude:c8" in said and "sessiond inbox claude:c8" in said
    assert "codex" not in said
    # Without a daemon, or with one that does not know of it, nothing is said.
    for answer in ("hooks.list", None):
        fake.answers.pop(answer or "", None)
        if answer is None:
            fake.stop()
        assert cli.run(["hook", "install", "claude", "--write", "--socket", str(fake.path)]) == 0
        assert cli.run(["hook", "uninstall", "claude"]) == 0
        assert capsys.readouterr().err == ""


def test_settings_that_were_not_there_are_not_there_afterwards(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["hook", "install", "codex", "--write"]) == 0
    assert "Codex asks once" in capsys.readouterr().err
    hooks = json.loads((home / ".codex" / "hooks.json").read_bytes())["hooks"]
    assert "Notification" not in hooks
    assert hooks["SessionEnd"][0]["hooks"][0]["timeout"] == 3
    assert cli.run(["hook", "uninstall", "codex"]) == 0
    assert tree(home) == {}


def test_only_ours_goes_from_settings_that_were_changed_since(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / "elsewhere"))
    settings = home / "elsewhere" / "settings.json"
    assert cli.run(["hook", "install", "claude", "--write"]) == 0
    changed = {**json.loads(settings.read_bytes()), "model": "opus"}
    settings.write_text(json.dumps(changed, indent=2))
    assert cli.run(["hook", "uninstall", "claude"]) == 0
    assert settings.read_text() == '{\n  "model": "opus"\n}'


def test_a_symlink_is_followed_and_stays_one(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = home / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text("{}\n")
    link = home / ".claude" / "settings.json"
    link.parent.mkdir()
    link.symlink_to(real)
    before = tree(home)
    assert cli.run(["hook", "install", "claude", "--write"]) == 0
    assert str(real) in capsys.readouterr().out
    assert link.is_symlink() and "PermissionRequest" in real.read_text()
    assert cli.run(["hook", "uninstall", "claude"]) == 0
    assert tree(home) == before


def test_a_file_of_unknown_form_is_left_alone(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = home / ".claude" / "settings.json"
    settings.parent.mkdir()
    for data in (b'{"a": 1, // two\n}', b"[]", b"\xff", b'{"hooks": []}', b'{"hooks": {"Stop": 1}}', b'{"a":1,"a":2}'):
        settings.write_bytes(data)
        before = tree(home)
        for words in (["install", "claude", "--write"], ["install", "claude"], ["uninstall", "claude"]):
            assert cli.run(["hook", *words]) == 1
            assert f"{settings} " in capsys.readouterr().err
        assert tree(home) == before
    assert cli.run(["hook", "install", "gemini"]) == 2
