"""An editor that goes on with a session of another program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.acp_editor import RawEditor, describe_update
from support.acp_schema import check_update
from support.continued_sessions import ID, OURS, ClaudeHome
from support.real_daemon import Daemon


def shown(editor: RawEditor) -> list[str]:
    for update in editor.updates:
        check_update({"sessionId": ID, "update": update})
    found = [text for update in editor.updates if (text := describe_update(update))]
    editor.updates.clear()
    return found


def test_a_session_of_another_program_is_listed_loaded_followed_and_continued(daemon: Daemon, tmp_path: Path) -> None:
    home = ClaudeHome(tmp_path)
    home.write("remember plum")
    daemon.environ["HOME"] = str(home.path)
    daemon.start(home.agent())
    daemon.wait_for(lambda: daemon.call("sessions_list")["sessions"], "the session is not listed")
    place: dict[str, Any] = {"sessionId": ID, "cwd": str(home.project), "mcpServers": []}
    with RawEditor(daemon) as editor:
        [row] = editor.call("session/list", cwd=str(home.project))["sessions"]
        assert (row["sessionId"], row["title"], row["_meta"]["source"]) == (ID, "remember plum", "claude")
        assert editor.call("session/load", **place) == {"_meta": {"sessionKey": f"claude:{ID}"}}
        assert shown(editor) == ["user: remember plum"]
        home.write("and pear")  # in the program itself
        assert editor.next_line()["params"]["update"]["content"]["text"] == "and pear"
        for text, known in (("which?", "which?"), ("and?", "which? | and?")):
            answer = editor.call("session/prompt", sessionId=ID, prompt=[{"type": "text", "text": text}])
            assert (answer["stopReason"], answer["_meta"]["sessionKey"]) == ("end_turn", OURS)
            assert shown(editor) == [f"agent: knows: remember plum | and pear | {known}"]
    with RawEditor(daemon) as editor:  # the next day
        assert editor.call("session/load", **place) == {"_meta": {"sessionKey": OURS}}
        assert [text.partition(" | ")[0] for text in shown(editor)] == [
            "user: remember plum",
            "user: and pear",
            "user: which?",
            "agent: knows: remember plum",
            "user: and?",
            "agent: knows: remember plum",
        ]
        editor.call("session/resume", **place)
        daemon.reply(OURS, "hey")
        assert editor.next_line()["params"]["update"]["content"]["text"] == "hey"
        answer_what_a_terminal_asks(daemon, home, editor)


def answer_what_a_terminal_asks(daemon: Daemon, home: ClaudeHome, editor: RawEditor) -> None:
    """The hook of a program asks; the editor that has the session open answers, and the hook hears of it."""
    native_id = f"{ID[:-1]}f"
    path = home.write("in a terminal", native_id=native_id)
    daemon.wait_for(lambda: len(daemon.call("sessions_list")["sessions"]) > 2, "the session is not listed")
    editor.call("session/load", sessionId=native_id, cwd=str(home.project), mcpServers=[])
    options = [{"id": "allow", "label": "Allow", "kind": "allow_once"}]
    hook = {"event": "PermissionRequest", "sessionId": native_id, "transcriptPath": str(path)}
    with daemon.connect() as wire:
        asked = {"jsonrpc": "2.0", "id": 1, "method": "hooks.ask"}
        wire.send({**asked, "params": {**hook, "title": "Bash: ls", "options": options}})
        while (frame := editor.next_line()).get("method") != "session/request_permission":
            pass
        assert (frame["params"]["sessionId"], frame["params"]["toolCall"]["title"]) == (native_id, "Bash: ls")
        chosen = {"outcome": {"outcome": "selected", "optionId": "allow"}}
        editor.write(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "result": chosen}).encode() + b"\n")
        result = wire.receive()["result"]
    assert (result["outcome"], result["optionId"], result["answeredBy"]) == ("answered", "allow", "owner")
