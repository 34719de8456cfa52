"""The questions of one session's agent, asked in the editor as well. The first answer counts, wherever it is given.

An editor that says no to being asked, or goes away, leaves a question open for others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sessiond.acp.editor_calls import EditorCalls
from sessiond.acp.frames import EditorAnswer, FrameId
from sessiond.acp.refusals import CALL_S
from sessiond.acp.tool_calls import KINDS, Update
from sessiond.client import Client, ClientError
from sessiond.client.wire import Event

# Clients made with asyncio read lines of up to 64 KiB unless told otherwise; a character takes up to six bytes.
MAX_DETAIL_CHARS = 6000


class _ShownQuestion:
    """`request_id` while the editor is asked, `call_id` of the tool call that stands for a question without one."""

    __slots__ = ("call_id", "request_id")

    def __init__(self, call_id: str | None) -> None:
        self.call_id = call_id
        self.request_id: FrameId = None


class EditorQuestions:
    """`session_id` is the editor's. `may_answer`: whether the caller may; else nothing is asked. `acp_id_of` has the
    ids of tool calls as the editor knows them, `send` takes an update and `say` a sentence for the person. Methods may
    be called from any thread.
    """

    def __init__(
        self,
        session_id: str,
        client: Client,
        calls: EditorCalls,
        *,
        may_answer: bool,
        acp_id_of: Callable[[str], str],
        send: Callable[[Update], None],
        say: Callable[[str], None],
    ) -> None:
        self._session_id, self._client, self._calls, self._may_answer = session_id, client, calls, may_answer
        self._acp_id_of, self._send, self._say = acp_id_of, send, say
        self._refreshing = threading.Lock()
        self._lock = threading.RLock()  # guards what follows
        self._is_active = False
        self._shown: dict[str, _ShownQuestion] = {}
        self._ended: set[str] | None = None  # while a list of questions is on its way: those that ended meanwhile

    def begin(self) -> None:
        """Ask from now on."""
        with self._lock:
            self._is_active = self._may_answer

    def refresh(self, key: str) -> None:
        """Bring what is asked in line with what is open: events may have been missed."""
        with self._refreshing:
            with self._lock:
                if not self._is_active:
                    return
                before, ended = set(self._shown), set[str]()
                self._ended = ended
            try:
                answer = self._client.call("questions.list", sessionKey=key, open=True, timeout_s=CALL_S)
                found = [question for question in answer["questions"] if _is_question(question)]
                with self._lock:
                    for question_id in before - {question["id"] for question in found}:
                        self._end(question_id, is_answered=False)
                    for question in found:
                        if question["id"] not in ended:
                            self._ask(question)
            except ClientError:
                return  # the next connection brings them
            finally:
                with self._lock:
                    self._ended = None

    def take(self, event: Event) -> None:
        """An event of the session."""
        question, answer = event.get("question"), event.get("answer")
        if event.name == "question.asked" and _is_question(question):
            self._ask(question)
        elif event.name == "question.answered":
            is_answered = isinstance(answer, dict) and answer.get("outcome") == "answered"
            self._end(str(event.get("id")), is_answered=is_answered)

    def close(self) -> None:
        """Ask no more; what is open stays open for others."""
        with self._lock:
            self._is_active = False
            for question_id in list(self._shown):
                self._end(question_id, is_answered=False)

    def _ask(self, question: dict[str, Any]) -> None:
        question_id = question["id"]
        with self._lock:
            if not self._is_active or question_id in self._shown:
                return
            own_call = question.get("toolCallId")
            shown = self._shown[question_id] = _ShownQuestion(None if own_call else f"question-{question_id}")
            params = {
                "sessionId": self._session_id,
                "toolCall": _describe(question, self._acp_id_of(own_call) if own_call else shown.call_id),
                "options": [
                    {"optionId": option["id"], "name": option["label"], "kind": option["kind"]}
                    for option in question["options"]
                ],
                "_meta": {"sessiond": {"questionId": question_id}},
            }
            shown.request_id = self._calls.begin(
                "session/request_permission", params, lambda answer: self._take_answer(question_id, answer)
            )

    def _end(self, question_id: str, *, is_answered: bool) -> None:
        with self._lock:
            if self._ended is not None:
                self._ended.add(question_id)
            shown = self._shown.pop(question_id, None)
            if shown is None:
                return
            if shown.request_id is not None:
                self._calls.cancel(shown.request_id)
            if shown.call_id is not None:
                status = "completed" if is_answered else "failed"
                self._send({"sessionUpdate": "tool_call_update", "toolCallId": shown.call_id, "status": status})

    def _take_answer(self, question_id: str, answer: EditorAnswer) -> None:
        # It stays shown until it is over: somebody who did not want to be asked is not asked again.
        option_id, note = _read_answer(answer)
        if option_id is not None:
            threading.Thread(target=self._answer, args=(question_id, option_id, note), daemon=True).start()

    def _answer(self, question_id: str, option_id: str, note: str | None) -> None:
        params = {"id": question_id, "optionId": option_id}
        try:
            self._client.call("questions.answer", {**params, "note": note} if note else params, timeout_s=CALL_S)
        except ClientError as error:
            self._say(f"The answer was not taken: {error}")


def _is_question(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("id"), str) and isinstance(value.get("options"), list)


def _describe(question: dict[str, Any], call_id: str | None) -> Update:
    """A question as the tool call for which permission is asked."""
    call: Update = {"toolCallId": call_id, "title": question.get("title") or "A question"}
    if question.get("kind") in KINDS:
        call["kind"] = question["kind"]
    detail = question.get("detail")
    if detail:
        text = detail if len(detail) <= MAX_DETAIL_CHARS else f"{detail[:MAX_DETAIL_CHARS]}…"
        call["content"] = [{"type": "content", "content": {"type": "text", "text": text}}]
    return call


def _read_answer(answer: EditorAnswer) -> tuple[str | None, str | None]:
    """The option that was chosen, None if none was; and what was said with it (`_meta.sessiond.reason`)."""
    result = answer.result if isinstance(answer.result, dict) else {}
    outcome = result.get("outcome")
    option_id = outcome.get("optionId") if isinstance(outcome, dict) and outcome.get("outcome") == "selected" else None
    meta = result.get("_meta")
    ours = meta.get("sessiond") if isinstance(meta, dict) else None
    note = ours.get("reason") if isinstance(ours, dict) else None
    return option_id if isinstance(option_id, str) else None, note if isinstance(note, str) else None
