"""What an editor is asked stays in line with what is open, however events and the list of questions meet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from support.fake_daemon import FakeDaemon, Refusal
from support.rows import check_each

from sessiond.acp.editor_calls import EditorCalls
from sessiond.acp.frames import EditorAnswer
from sessiond.acp.questions import MAX_DETAIL_CHARS, EditorQuestions
from sessiond.client import Client
from sessiond.client.wire import Event

ALLOW = {"id": "yes", "label": "Yes", "kind": "allow_once"}


class AskedEditor:
    """The questions of one session, and what the editor is sent. `open` is what the daemon says is open."""

    def __init__(self, fake: FakeDaemon, *, may_answer: bool = True) -> None:
        self.sent: list[Any] = []
        self.said: list[str] = []
        self.open: list[dict[str, Any]] = []
        self.calls = EditorCalls(lambda line: self.sent.append(json.loads(line)))
        fake.answers["questions.list"] = lambda params, _: {"questions": self.list()}
        self._client = Client(str(fake.path))
        self.questions = EditorQuestions(
            "s",
            self._client,
            self.calls,
            may_answer=may_answer,
            acp_id_of=lambda call_id: f"{call_id}-2",
            send=self.sent.append,
            say=self.said.append,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def list(self) -> list[dict[str, Any]]:
        return self.open

    def asks(self, question_id: str, **more: Any) -> None:
        self.questions.take(Event("question.asked", {"question": question(question_id, **more)}))

    def ends(self, question_id: str) -> None:
        self.questions.take(Event("question.answered", {"id": question_id, "answer": {"outcome": "answered"}}))

    def frames(self) -> list[str]:
        """What was sent since the last time, in short."""
        found = [
            f"ask {one['id']} {one['params']['toolCall']['toolCallId']}"
            if one.get("method") == "session/request_permission"
            else f"cancel {one['params']['requestId']}"
            if "method" in one
            else f"{one['toolCallId']} {one['status']}"
            for one in self.sent
        ]
        self.sent.clear()
        return found


def question(question_id: str, **more: Any) -> dict[str, Any]:
    return {"id": question_id, "title": question_id, "options": [ALLOW], **more}


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(tmp_path / "d.sock")
    yield daemon
    daemon.stop()


def test_events_that_come_while_the_list_is_read_count(fake: FakeDaemon) -> None:
    with AskedEditor(fake) as editor:
        see_events_beside_the_list(editor)


def see_events_beside_the_list(editor: AskedEditor) -> None:
    editor.asks("early")  # the editor does not know the session yet
    editor.open = [question("early"), question("ends", toolCallId="c")]
    editor.questions.begin()
    editor.questions.refresh("k")
    assert editor.frames() == ["ask 0 question-early", "ask 1 c-2"]

    def list_while_it_changes() -> list[dict[str, Any]]:
        editor.ends("ends")
        editor.asks("new", toolCallId="d")
        return [question("ends", toolCallId="c"), question("other")]

    editor.list = list_while_it_changes  # type: ignore[method-assign]
    editor.questions.refresh("k")
    # What has ended meanwhile is not asked again, what was asked meanwhile stays, and what is gone is taken back.
    assert editor.frames() == [
        *("cancel 1", "ask 2 d-2", "cancel 0", "question-early failed", "ask 3 question-other"),
    ]
    editor.ends("other")
    editor.ends("unknown")
    assert editor.frames() == ["cancel 3", "question-other completed"]
    editor.questions.close()
    assert editor.frames() == ["cancel 2"]
    editor.asks("late")
    editor.questions.refresh("k")
    assert editor.frames() == []


def test_nothing_is_kept_of_questions_that_have_ended(fake: FakeDaemon) -> None:
    with AskedEditor(fake) as editor:
        editor.questions.begin()
        for number in range(100):
            editor.asks(f"q{number}")
            if number == 50:
                editor.questions.refresh("k")
            editor.ends(f"q{number}")
        kept = {name: value for name, value in vars(editor.questions).items() if isinstance(value, (set, dict, list))}
        assert not any(kept.values()), kept


def test_nothing_is_asked_where_the_caller_may_not_answer_or_the_list_cannot_be_had(fake: FakeDaemon) -> None:
    with AskedEditor(fake, may_answer=False) as editor:
        editor.open = [question("q")]
        editor.questions.begin()
        editor.questions.refresh("k")
        editor.asks("r")
        assert editor.frames() == []

    def refuse(*_: Any) -> Any:
        raise Refusal(-32601, "method_not_found", "no such method: questions.list")

    with AskedEditor(fake) as editor:
        fake.answers["questions.list"] = refuse
        editor.questions.begin()
        editor.questions.refresh("k")
        editor.asks("q", detail="x" * 20_000, kind="unheard of")
        (frame,) = editor.sent
    call = frame["params"]["toolCall"]
    assert "kind" not in call and len(call["content"][0]["content"]["text"]) == MAX_DETAIL_CHARS + 1


NO_ANSWERS: list[Any] = [
    None,
    {},
    {"outcome": "selected"},
    {"outcome": {"outcome": "cancelled"}},
    {"outcome": {"outcome": "selected", "optionId": 7}},
    [1],
]


@check_each("result", NO_ANSWERS)
def test_an_answer_that_is_none_leaves_the_question_open(fake: FakeDaemon, result: Any) -> None:
    with AskedEditor(fake) as editor:
        editor.questions.begin()
        editor.asks("q")
        editor.calls.take(EditorAnswer(0, result, None))
        editor.calls.take(EditorAnswer(0, {"outcome": {"outcome": "selected", "optionId": "yes"}}, None))  # too late
        editor.calls.take(EditorAnswer("unknown", None, {"code": 1}))
        assert editor.frames() == ["ask 0 question-q"] and editor.said == []
        editor.asks("q")  # it was shown
        editor.ends("q")
        assert editor.frames() == ["question-q completed"]
        assert fake.calls.empty()
