"""`sessiond acp` at its ends: no daemon, an editor that writes anything, one that goes away."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.acp_editor import CallRefused, RawEditor
from support.acp_schema import check_frame
from support.patience import PATIENCE_S
from support.real_daemon import PROGRAM, Daemon
from support.sampling import amount

from sessiond.acp import server

INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}\n'
LIST = b'{"jsonrpc":"2.0","id":null,"method":"session/list"}\n'


def test_without_a_daemon_it_says_so_and_ends_with_3(daemon: Daemon) -> None:
    done = daemon.cli("acp", input="")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("sessiond: sessiond is not running (")
    ours, theirs = pty.openpty()  # a person who wonders what it is
    options: dict[str, Any] = {"env": daemon.environ, "capture_output": True, "text": True}
    shown = subprocess.run([*PROGRAM, "acp"], check=False, stdin=theirs, **options)
    assert (shown.returncode, "an editor starts this" in shown.stderr) == (3, True)
    for end in (ours, theirs):
        os.close(end)
    closed = subprocess.run(["sh", "-c", '"$0" "$@" <&-', *PROGRAM, "acp"], check=False, **options)
    assert (closed.returncode, closed.stdout, closed.stderr) == (0, "", "")


def test_any_bytes_are_answered_or_refused_and_what_follows_is_answered(daemon: Daemon) -> None:
    daemon.start()
    with RawEditor(daemon) as editor:
        for version in (b"1", b"2", b"0"):
            hello = editor.ask(INITIALIZE.replace(b'Version":1', b'Version":' + version))
            check_frame(hello, "initialize")
            assert (hello["id"], hello["result"]["protocolVersion"]) == (0, 1)
        wrong: list[tuple[bytes, int, Any]] = [
            (b'{"jsonrpc":"2.0","id":0,"method":"initialize"}\n', -32602, 0),
            (b"\n\r\n \nnot json\n", -32700, None),
            (b'{"jsonrpc":"2.0","id":1,"method":"session/list"\n', -32700, None),
            (b'[{"jsonrpc":"2.0","id":1,"method":"session/list"}]\n', -32600, None),
            (b'{"jsonrpc":"2.0","id":[1],"method":"session/list"}\n', -32600, None),
            (b'{"jsonrpc":"2.0","id":1,"id":2,"method":"session/list"}\n', -32600, None),
            (b'{"jsonrpc":"2.0","id":1,"method":"session/prompt"}\n', -32602, 1),
            (b'{"jsonrpc":"2.0","id":"a","method":"session/prompt","params":{"sessionId":7}}\n', -32602, "a"),
            (b'{"jsonrpc":"2.0","id":2,"method":"session/list","params":{"cwd":3}}\n', -32602, 2),
            (b'{"id":3,"method":"session/load","params":{"sessionId":"\\ud8","cwd":"/"}}\n', -32700, None),
            (b'{"id":3,"method":"session/load","params":{"sessionId":"\\ud800","cwd":"/"}}\n', -32602, 3),
            (b'{"jsonrpc":"2.0","id":4,"method":"session/new","params":{"cwd":"/","mcpServers":3}}\n', -32602, 4),
            (b'{"jsonrpc":"2.0","id":5,"method":"authenticate","params":{}}\n', -32602, 5),
            (b'{"jsonrpc":"2.0","id":6,"method":"session/delete","params":{"sessionId":"x"}}\n', -32601, 6),
        ]
        for data, code, request_id in wrong:
            answer = editor.ask(data)
            check_frame(answer)
            assert (answer["error"]["code"], answer["id"]) == (code, request_id), data
        # A line of a hundred megabytes (of a few in a sampled run) is passed over, and its request refused.
        editor.write(b'{"jsonrpc":"2.0","id":7,"method":"session/prompt","params":{"a":"')
        for _ in range(amount(100, 34)):
            editor.write(b"x" * 1_000_000)
        assert editor.ask(b'"}}\n')["id"] == 7
        # None of these is answered: notifications, and answers to nothing.
        editor.write(b'{"method":"session/cancel","params":{"sessionId":3}}\n{"method":"x"}\n{"id":9,"result":null}\n')
        editor.write(b'{"method":"$/cancel_request","params":{"requestId":"nothing"}}\n')
        listed = editor.ask(LIST)
        check_frame(listed, "session/list")
        assert (listed["id"], listed["result"]) == (None, {"sessions": []})
        # What was asked before the end of the input is answered, but for prompts.
        made = editor.call("session/new", cwd=str(daemon.folder), mcpServers=[])["sessionId"]
        load = {"sessionId": made, "cwd": "/", "mcpServers": []}
        editor.write(json.dumps({"id": "last", "method": "session/load", "params": load}).encode())
        assert editor.end() == 0
        assert editor.next_line()["id"] == "last"


def test_a_request_id_serves_again_once_it_was_answered_and_not_before(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start('[[agents.list]]\nid = "main"\nruntime = { type = "exec", command = ["sleep", "1000"] }\n')
    with RawEditor(daemon) as editor:
        session = editor.call("session/new", cwd=str(tmp_path), mcpServers=[])["sessionId"]
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "wait"}]}
        line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": prompt}).encode() + b"\n"
        doubled = editor.ask(line + line)
        assert (doubled["id"], doubled["error"]["code"]) == (None, -32600)
        daemon.wait_for(lambda: daemon.rows()[0].get("status") == "running", "the run does not begin")
        editor.write(b'{"method":"$/cancel_request","params":{"requestId":2}}\n')
        answer = editor.ask(b'{"method":"$/cancel_request","params":{"requestId":1}}\n')
        while "method" in answer:
            answer = editor.next_line()
        assert (answer["id"], answer["result"]["stopReason"]) == (1, "cancelled")
        with pytest.raises(CallRefused) as refused:
            editor.call("session/load", sessionId=session, cwd="here", mcpServers=[])
        assert refused.value.code == -32602
        # An editor that goes away ends no work.
        run = line.replace(b'"id": 1', b'"id": 9')
        editor.write(run)
        daemon.wait_for(lambda: daemon.rows()[0].get("status") == "running", "the run does not begin")
        assert editor.end() == 0
        assert daemon.rows()[0]["status"] == "running"
    with RawEditor(daemon) as editor:
        editor.ask(INITIALIZE)
        editor.process.send_signal(signal.SIGTERM)
        assert editor.process.wait(PATIENCE_S) == 0


def test_so_many_sessions_may_be_open_and_one_that_is_closed_makes_room(daemon: Daemon) -> None:
    daemon.start()
    place = {"cwd": str(daemon.folder), "mcpServers": []}
    with RawEditor(daemon) as editor:
        sessions = [editor.call("session/new", **place)["sessionId"] for _ in range(server.MAX_SESSIONS)]
        for method in ("session/new", "session/load"):
            with pytest.raises(CallRefused) as refused:
                editor.call(method, sessionId="another", **place)
            assert refused.value.message == "64 sessions are open; close one first (session/close)"
        for method in ("session/prompt", "session/close"):
            with pytest.raises(CallRefused) as refused:
                editor.call(method, sessionId="another", prompt=[])
            assert (refused.value.code, "is not open here" in refused.value.message) == (-32002, True)
        editor.call("session/resume", sessionId=sessions[0], **place)  # open already
        editor.call("session/close", sessionId=sessions[0])
        assert editor.call("session/new", **place)["sessionId"] not in sessions
        editor.call("session/close", sessionId=sessions[1])
        # Those that are asked for at once are counted, too.
        ask = json.dumps({"method": "session/new", "params": place, "jsonrpc": "2.0"})
        editor.write(b"".join(f'{{"id":"n{number}",{ask[1:]}\n'.encode() for number in range(20)))
        answers: list[dict[str, Any]] = []
        while len(answers) < 20:
            answers += [answer] if "id" in (answer := editor.next_line()) else []
        assert sum("result" in answer for answer in answers) == 1


def test_prompts_that_wait_leave_room_for_other_requests(daemon: Daemon, tmp_path: Path) -> None:
    agent = '[[agents.list]]\nid = "main"\nruntime = { type = "exec", command = ["sleep", "1000"] }\n'
    daemon.start("limits.maxInFlight = 2\n" + agent)
    with RawEditor(daemon) as editor:
        sessions = [editor.call("session/new", cwd=str(tmp_path), mcpServers=[])["sessionId"] for _ in range(2)]
        for session in sessions:
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "wait"}]}
            editor.write(json.dumps({"id": session, "method": "session/prompt", "params": prompt}).encode() + b"\n")
        daemon.wait_for(
            lambda: [row.get("status") for row in daemon.rows()] == ["running"] * 2, "the runs do not begin"
        )
        # Again and again: the prompts begin to wait a moment after their runs.
        assert {len(editor.call("session/list")["sessions"]) for _ in range(50)} == {2}
