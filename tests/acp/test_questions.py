"""Questions of agents in editors that are made with the official SDK, against a real daemon."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.acp_editor import CallRefused, RawEditor, SdkEditor
from support.patience import PATIENCE_S
from support.real_daemon import Daemon

from sessiond.client import BlockingRun, Client

OPTIONS = [
    {"optionId": "yes", "name": "Say yes", "kind": "allow_once"},
    {"optionId": "no", "name": "Say no", "kind": "reject_once"},
]


@pytest.fixture
def session(acting: Daemon, editors: tuple[SdkEditor, SdkEditor], tmp_path: Path) -> str:
    """A session of an agent that asks, which both editors follow."""
    key = f"agent:asker:{tmp_path.name.replace('_', '-')}"
    acting.call("sessions.create", key=key, cwd=str(tmp_path))
    made: str = acting.call("sessions.resolve", key=key)["sessionId"]
    for editor in editors:
        editor.call("load_session", session_id=made, cwd=str(tmp_path), mcp_servers=[])
    return made


def open_questions(daemon: Daemon, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.call("questions.list", sessionKey=session, open=True)["questions"]
    return found


def last_answer(daemon: Daemon, session: str) -> dict[str, Any]:
    (*_, question) = daemon.call("questions.list", sessionKey=session, open=False)["questions"]
    answer: dict[str, Any] = question["answer"]
    return answer


def says(text: str) -> Any:
    return lambda update: text in str(update.get("content"))


def test_every_follower_is_asked_and_the_first_answer_counts(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], session: str
) -> None:
    first, second = editors
    turn = first.begin_prompt(session, "ask")
    (number, asked), (other, asked_too) = first.next_question(), second.next_question()
    assert asked == asked_too
    (question,) = open_questions(acting, session)
    assert asked == {
        "sessionId": session,
        "toolCall": {
            "toolCallId": "c1",
            "title": "Run c1",
            "kind": "execute",
            "content": [{"type": "content", "content": {"type": "text", "text": "do c1"}}],
        },
        "options": OPTIONS,
        "_meta": {"sessiond": {"questionId": question["id"]}},
    }
    second.choose(other, "no", "not today")
    assert first.result_of(turn)["stopReason"] == "end_turn"
    first.wait_until_taken_back(number)
    first.wait_for_update(session, says("no (not today)"))
    assert last_answer(acting, session).items() >= {"by": "owner", "road": "acp", "optionId": "no"}.items()
    # An answer that is too late goes nowhere, and what is not wanted any more is not asked again.
    first.choose(number, "yes")
    turn = first.begin_prompt(session, "ask again")
    (number, asked), (other, _) = first.next_question(), second.next_question()
    assert asked["toolCall"]["title"] == "Run again" and second.taken_back == []
    # A wrong answer is refused in words, and the question stays open; so does it where a dialog is closed.
    second.choose(other, "perhaps")
    second.wait_for_update(
        session, says("The answer was not taken: `$.optionId`: the question has no option 'perhaps'")
    )
    first.dismiss(number)
    assert len(open_questions(acting, session)) == 1
    acting.call("questions.answer", id=open_questions(acting, session)[0]["id"], optionId="yes")
    assert first.result_of(turn)["stopReason"] == "end_turn"
    assert last_answer(acting, session)["road"] == "socket"
    first.wait_for_update(session, says("yes (answered by owner)"))


def test_who_opens_a_session_is_asked_what_is_open_and_who_closes_it_leaves_it_to_others(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], session: str, tmp_path: Path
) -> None:
    first, second = editors
    second.call("close_session", session_id=session)
    turn = first.begin_prompt(session, "both")
    numbers = [first.next_question()[0] for _ in range(2)]
    # An editor that is killed leaves them to others.
    with RawEditor(acting) as killed:
        killed.call("initialize", protocolVersion=1)
        killed.call("session/load", sessionId=session, cwd=str(tmp_path), mcpServers=[])
        assert [killed.next_line()["method"] for _ in range(2)] == ["session/request_permission"] * 2
    second.call("load_session", session_id=session, cwd=str(tmp_path), mcp_servers=[])
    found = [second.next_question() for _ in range(2)]
    assert [asked["toolCall"]["toolCallId"] for _, asked in found] == ["c1", "c2"]
    second.choose(found[1][0], "yes")
    first.wait_until_taken_back(numbers[1])
    second.call("close_session", session_id=session)
    second.wait_until_taken_back(found[0][0])
    assert [question["title"] for question in open_questions(acting, session)] == ["Run c1"]
    # Who cancels the turn withdraws its questions.
    first.call("cancel", session_id=session)
    assert first.result_of(turn)["stopReason"] == "cancelled"
    first.wait_until_taken_back(numbers[0])
    assert last_answer(acting, session)["outcome"] in ("withdrawn", "answered")
    assert open_questions(acting, session) == []


def test_a_question_of_an_attached_agent_is_asked_in_the_editor(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], tmp_path: Path
) -> None:
    def answer(run: BlockingRun) -> str:
        return str(run.ask("May I?", detail="All of it.")["optionId"])

    editor, _ = editors
    acting.call("sessions.create", key="agent:helper:main", cwd=str(tmp_path))
    session = acting.call("sessions.resolve", key="agent:helper:main")["sessionId"]
    editor.call("load_session", session_id=session, cwd=str(tmp_path), mcp_servers=[])
    with Client(str(acting.socket)) as client:
        threading.Thread(target=client.attach, args=("helper", answer), daemon=True).start()
        turn = editor.begin_prompt(session, "go")
        number, asked = editor.next_question()
        (question,) = open_questions(acting, session)
        call_id = f"question-{question['id']}"
        assert (asked["toolCall"]["toolCallId"], asked["toolCall"]["title"]) == (call_id, "May I?")
        editor.choose(number, "yes")
        assert editor.result_of(turn)["stopReason"] == "end_turn"
        editor.wait_for_update(session, says("'text': 'yes'"))
        # What stands for the question as a tool call has an end, too.
        editor.wait_for_update(
            session, lambda one: (one.get("toolCallId"), one.get("status")) == (call_id, "completed")
        )


def test_who_may_not_answer_is_not_asked(acting: Daemon, tmp_path: Path) -> None:
    acting.call("sessions.create", key="agent:asker:own")
    minted = acting.call("tokens.mint", sessionKey="agent:asker:own", scopes=["list", "read", "send"])
    token = tmp_path / "token"
    token.write_text(minted["token"])
    with RawEditor(acting, SESSIOND_TOKEN_FILE=str(token)) as inside:
        inside.call("initialize", protocolVersion=1)
        session = inside.call("session/list")["sessions"][0]["sessionId"]
        inside.call("session/load", sessionId=session, cwd="/", mcpServers=[])
        run_id = acting.call("chat.send", sessionKey="agent:asker:own", message="ask")["runId"]
        acting.wait_for(lambda: open_questions(acting, session), "nothing is asked")
        acting.call("questions.answer", id=open_questions(acting, session)[0]["id"], optionId="yes")
        assert acting.call("agent.wait", runId=run_id, timeoutMs=PATIENCE_S * 1000)["status"] == "ok"
        # The next frames are updates and the answer: nothing was asked.
        inside.call("session/list")
        assert all("sessionUpdate" in update for update in inside.updates)


def test_a_restart_of_the_daemon_withdraws_a_question_in_the_editor_too(
    acting: Daemon, editors: tuple[SdkEditor, SdkEditor], session: str
) -> None:
    first, second = editors
    turn = first.begin_prompt(session, "ask")
    (number, _), (other, _) = first.next_question(), second.next_question()
    acting.kill()
    acting.start()
    with pytest.raises(CallRefused, match="interrupted"):
        first.result_of(turn)
    first.wait_until_taken_back(number)
    second.wait_until_taken_back(other)
    assert (
        last_answer(acting, session).items()
        >= {
            "outcome": "withdrawn",
            "reason": "the daemon ended while it was open",
        }.items()
    )
    # The agent asks anew.
    turn = first.begin_prompt(session, "ask")
    first.choose(first.next_question()[0], "yes")
    assert first.result_of(turn)["stopReason"] == "end_turn"
    second.wait_until_taken_back(second.next_question()[0])
