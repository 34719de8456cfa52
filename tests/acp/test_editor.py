"""`sessiond acp` driven by editors that are made with the official SDK, against a real daemon."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest
from support.acp_editor import CallRefused, RawEditor, SdkEditor, describe_update
from support.acp_schema import check_update
from support.patience import PATIENCE_S
from support.real_daemon import Daemon

WORK = [
    "agent: I look. ",
    "call call_1 in_progress",
    "thought: where?",
    "call call_1 completed a.txt",
    "agent: One file.",
]
REPLAYED_WORK = [
    "user: work",
    "thought: where?",
    "agent: I look.",
    "call call_1 pending",
    "call call_1 completed a.txt",
    "agent: One file.",
]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    os.mkfifo(folder / "gate")
    return folder


def begin(editor: SdkEditor, project: Path) -> str:
    """The id of a new session."""
    made: str = editor.call("new_session", cwd=str(project), mcp_servers=[])["sessionId"]
    return made


def load(editor: SdkEditor, session_id: str, project: Path) -> list[str]:
    """What an editor is shown when it loads a session."""
    editor.new_updates(session_id)
    editor.call("load_session", session_id=session_id, cwd=str(project), mcp_servers=[])
    return editor.new_texts(session_id)


def refusal(editor: SdkEditor | RawEditor, method: str, /, **args: Any) -> CallRefused:
    with pytest.raises(CallRefused) as refused:
        editor.call(method, **args)
    return refused.value


def writes(text: str) -> Any:
    return lambda update: update.get("content") == text_block(text)


def text_block(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def listed(editor: SdkEditor, **args: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = editor.call("list_sessions", **args)["sessions"]
    return rows


def test_a_session_is_made_worked_in_listed_and_loaded_by_another_editor(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], project: Path
) -> None:
    first, second = editors
    session = begin(first, project)
    assert [row["title"] for row in listed(second, cwd=str(project))] == ["New session"]
    assert first.prompt(session, "work")["stopReason"] == "end_turn"
    updates = first.new_updates(session)
    assert {"sessionUpdate": "session_info_update", "title": "work"} in updates
    [row] = listed(second, cwd=f"{project}/")
    assert (row["sessionId"], row["cwd"], row["title"]) == (session, str(project), "work")
    key = row["_meta"]["sessionKey"]
    assert key.startswith("agent:main:acp:")
    assert acting.call("sessions.resolve", key=key)["sessionId"] == session
    assert listed(second, cwd=str(project.parent)) == []  # exactly that folder
    assert session in [row["sessionId"] for row in listed(second)]
    assert load(second, session, project) == REPLAYED_WORK
    first.call("prompt", session_id=session, prompt=[{"type": "text", "text": "where am I"}])
    assert json.loads(first.new_texts(session)[0].removeprefix("agent: ")) == ["where am I", "project", []]


def test_a_session_that_has_said_no_folder_is_listed_in_its_agents_workspace(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor]
) -> None:
    session = "0e821bfa-0000-4222-8333-0123456789ab"
    folder = acting.store / "agents" / "elder" / "sessions"
    folder.mkdir(parents=True)
    header = {"type": "session", "version": 3, "id": session, "timestamp": "2026-01-01T00:00:00Z"}
    (folder / f"{session}.jsonl").write_text(json.dumps(header) + "\n")

    def rows() -> list[dict[str, Any]]:
        return [row for row in listed(editors[0]) if row["sessionId"] == session]

    acting.wait_for(rows, "the session is not listed")
    assert rows()[0]["cwd"] == str(folder.parent / "workspace")


def test_every_follower_sees_a_turn_live_and_only_others_see_the_prompt(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], project: Path
) -> None:
    first, second = editors
    session = begin(first, project)
    assert load(second, session, project) == []
    first.prompt(session, "work")
    assert first.new_texts(session) == WORK
    second.wait_for_update(session, writes("One file."))
    assert second.new_texts(session) == ["user: work", *WORK]
    second.prompt(session, "say two words")
    assert second.new_texts(session) == ["agent: two ", "agent: words "]
    # A terminal speaks in it too.
    acting.reply(session, "say hello")
    for editor in editors:
        editor.wait_for_update(session, writes("hello "))
        assert editor.new_texts(session)[-2:] == ["user: say hello", "agent: hello "]
    second.call("close_session", session_id=session)
    first.prompt(session, "say more")
    assert second.new_texts(session) == []
    assert refusal(second, "prompt", session_id=session, prompt=[{"type": "text", "text": "x"}]).code == -32002
    second.call("resume_session", session_id=session, cwd=str(project))
    second.prompt(session, "say again")
    assert second.new_texts(session) == ["agent: again "]


def test_prompts_follow_one_another_and_a_cancel_ends_the_editors_own(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], project: Path
) -> None:
    first, second = editors
    session = begin(first, project)
    load(second, session, project)
    held, waiting = first.begin_prompt(session, "hold"), first.begin_prompt(session, "say never")
    first.wait_for_update(session, writes("Wait. "))
    others = second.begin_prompt(session, "say mine")
    second.call("cancel", session_id="another")
    first.call("cancel", session_id=session)
    assert first.result_of(held)["stopReason"] == "cancelled"
    assert first.result_of(waiting)["stopReason"] == "cancelled"
    assert second.result_of(others)["stopReason"] == "end_turn"
    [one, two] = [first.begin_prompt(session, f"say {word}") for word in ("one", "two")]
    assert {first.result_of(number)["stopReason"] for number in (two, one)} == {"end_turn"}
    texts = [text for text in first.new_texts(session) if text in ("agent: one ", "agent: two ")]
    assert texts == ["agent: one ", "agent: two "]
    said = [message["content"] for message in acting.call("chat.history", sessionKey=session)["messages"]]
    assert "say never" not in said
    assert "say mine" in said


def test_commands_a_reset_and_what_the_session_has_used(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], project: Path
) -> None:
    first, second = editors
    session = begin(first, project)
    load(second, session, project)
    first.prompt(session, "say one")
    assert first.prompt(session, "/reset")["stopReason"] == "end_turn"
    assert len(first.new_texts(session)) == 2  # what was said, and what became of the command
    key = first.prompt(session, "say two")["_meta"]["sessionKey"]
    assert first.new_texts(session) == ["agent: two "]
    second.wait_for_update(session, writes("two "))
    assert second.new_texts(session) == ["user: say one", "agent: one ", "user: say two", "agent: two "]
    acting.call("sessions.patch", key=key, contextTokens=1000)
    first.prompt(session, "say three")
    usage = {"used": 12, "size": 1000, "cost": {"amount": 1.0, "currency": "USD"}}
    assert {"sessionUpdate": "usage_update", **usage} in first.new_updates(session)
    second.wait_for_update(session, writes("three "))
    # An editor that comes back with the id from before the reset goes on under the same key.
    assert load(second, session, project)[:2] == ["user: say two", "agent: two"]


def test_closing_a_session_cancels_its_turn(editors: tuple[SdkEditor, SdkEditor], project: Path) -> None:
    first, _ = editors
    session = begin(first, project)
    held = first.begin_prompt(session, "hold")
    first.wait_for_update(session, writes("Wait. "))
    first.call("close_session", session_id=session)
    assert first.result_of(held)["stopReason"] == "cancelled"


def test_links_texts_and_images_reach_the_agent(editors: tuple[SdkEditor, SdkEditor], project: Path) -> None:
    first, _ = editors
    session = begin(first, project)
    blocks = [
        {"type": "text", "text": "look at "},
        {"type": "resource_link", "name": "a.py", "uri": "file:///w/a.py"},
        {"type": "resource", "resource": {"uri": "file:///w/b.txt", "text": "bee"}},
        {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"\x89PNG").decode()},
    ]
    first.call("prompt", session_id=session, prompt=blocks)
    message, _, files = json.loads(first.new_texts(session)[0].removeprefix("agent: "))
    assert message.startswith("look at [@a.py](file:///w/a.py) [@b.txt](file:///w/b.txt)\n\n<context ref=")
    assert files == ["image-1.png"]
    assert load(first, session, project)[:2] == [f"user: {message}", "user: image"]


def test_an_agent_that_speaks_the_protocol_itself_is_passed_on_as_it_speaks(acting: Daemon, project: Path) -> None:
    with RawEditor(acting, "--agent", "speaker") as editor:
        session = editor.call("session/new", cwd=str(project), mcpServers=[])["sessionId"]

        def shown(words: str) -> tuple[str, list[str]]:
            editor.updates.clear()
            blocks = [{"type": "text", "text": words}]
            answer = editor.call("session/prompt", sessionId=session, prompt=blocks)
            for update in editor.updates:
                check_update({"sessionId": session, "update": update})
            return answer["stopReason"], [text for update in editor.updates if (text := describe_update(update))]

        shown("hello")  # the agent is started
        said = [f"agent: {words}" for words in ("one ", "two", "three", "four")]
        assert shown("messages") == ("end_turn", ["thought: hm", *said])
        stop, steps = shown("order")
        assert (stop, steps[0], steps[-1]) == ("end_turn", "call c1 in_progress", "agent: chose yes")
        named = {(update.get("title"), update.get("kind")) for update in editor.updates if "title" in update}
        assert ("Run it", "execute") in named
        assert shown("stop max_tokens")[0] == "max_tokens"
        assert shown("stop refusal")[0] == "refusal"


def test_errors_say_what_is_wrong(acting: Daemon, editors: tuple[SdkEditor, SdkEditor], project: Path) -> None:
    first, _ = editors
    session = begin(first, project)
    place = {"cwd": str(project), "mcp_servers": []}
    text = [{"type": "text", "text": "fail"}]
    wrong: list[tuple[str, dict[str, Any], int, str]] = [
        ("load_session", {"session_id": "nothing", **place}, -32002, "no session 'nothing'"),
        ("resume_session", {"session_id": "nothing", **place}, -32002, "no session 'nothing'"),
        ("prompt", {"session_id": "nothing", "prompt": text}, -32002, "the session nothing is not open here"),
        ("load_session", {"session_id": session, "cwd": "project"}, -32602, "`cwd` is to be an absolute path"),
        ("new_session", {"cwd": "project"}, -32602, "`cwd` is to be an absolute path"),
        ("new_session", {"cwd": str(project / "missing")}, -32602, "`$.cwd`: there is no folder"),
        ("list_sessions", {"cursor": "x"}, -32602, "$.cursor is not a cursor"),
        ("prompt", {"session_id": session, "prompt": []}, -32602, "the prompt is empty"),
        ("prompt", {"session_id": session, "prompt": text}, -32603, "the agent is out of order"),
        ("set_session_mode", {"session_id": session, "mode_id": "x"}, -32602, "sessions of sessiond have no modes"),
        ("ext_method", {"method": "x", "params": {}}, -32601, "this agent has no method _x"),
    ]  # fmt: skip
    for method, args, code, sentence in wrong:
        error = refusal(first, method, **args)
        assert error.code == code, error.message
        assert sentence in error.message
    first.prompt(session, "say it goes on")
    servers = {"cwd": str(project), "mcpServers": [{"name": "x", "command": "y", "args": [], "env": []}]}
    with RawEditor(acting, "--agent", "nobody") as lost:
        assert lost.process.wait(PATIENCE_S) == 1
    with RawEditor(acting, "--agent", "echo") as echoing:
        made = echoing.call("session/new", **servers)
        assert made["_meta"]["sessionKey"].startswith("agent:echo:acp:")
        echoing.call("session/load", sessionId=made["sessionId"], **servers)
        echoing.call("session/prompt", sessionId=made["sessionId"], prompt=[{"type": "text", "text": "hey"}])
        assert describe_update(echoing.updates[0]) == "agent: hey"
    log = (acting.folder / "editor-stderr").read_text()
    assert log.count("MCP servers are not passed on") == 1
    assert "no agent 'nobody'; the agents there are: sessiond agents" in log


def test_a_run_that_starts_it_acts_as_its_session(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], project: Path, tmp_path: Path
) -> None:
    acting.call("sessions.create", key="agent:main:own")
    minted = acting.call("tokens.mint", sessionKey="agent:main:own", scopes=["list", "read", "send"])
    token = tmp_path / "token"
    token.write_text(minted["token"])
    hidden = begin(editors[0], project)
    place = {"cwd": str(project), "mcpServers": []}
    with RawEditor(acting, SESSIOND_TOKEN_FILE=str(token)) as inside:
        [row] = inside.call("session/list")["sessions"]
        assert row["_meta"]["sessionKey"] == "agent:main:own"
        assert refusal(inside, "session/load", sessionId=hidden, **place).code == -32002
        inside.call("session/load", sessionId=row["sessionId"], **place)
        secret = "say the key is sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
        inside.call("session/prompt", sessionId=row["sessionId"], prompt=[{"type": "text", "text": secret}])
        assert {update["sessionUpdate"] for update in inside.updates} == {"agent_message_chunk", "session_info_update"}
        error = refusal(inside, "session/new", **place)
        assert (error.code, error.data["type"]) == (-32603, "forbidden")


def test_a_restart_in_mid_turn_shows_nothing_twice_and_the_turn_says_that_it_was_interrupted(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], project: Path
) -> None:
    editor, watching = editors
    session = begin(editor, project)
    load(watching, session, project)
    editor.prompt(session, "work")
    held = editor.begin_prompt(session, "hold")
    for one in editors:
        one.wait_for_update(session, writes("Wait. "))
    queued = watching.begin_prompt(session, "say queued")
    acting.wait_for(lambda: any(row.get("queuedRuns") for row in acting.rows()), "the message is not queued")
    acting.kill()
    acting.start()
    with pytest.raises(CallRefused) as refused:
        editor.result_of(held)
    assert (refused.value.code, refused.value.message.partition(":")[0]) == (-32603, "interrupted")
    assert watching.result_of(queued)["stopReason"] == "end_turn"
    # The run may be over before it is followed again: then its text comes from the transcript, which has no last blank.
    editor.wait_for_update(session, lambda update: update.get("content") in map(text_block, ("queued", "queued ")))
    *before, last = editor.new_texts(session)
    assert (before, last.rstrip()) == ([*WORK, "agent: Wait. ", "user: say queued"], "agent: queued")
    editor.prompt(session, "say after")
    assert editor.new_texts(session) == ["agent: after "]
    watching.wait_for_update(session, writes("after "))
    assert load(watching, session, project) == [
        *REPLAYED_WORK, "user: hold", "user: say queued", "agent: queued", "user: say after", "agent: after"
    ]  # fmt: skip
