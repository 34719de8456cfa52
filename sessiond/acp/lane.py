"""The requests for one session of an editor, which are answered one after the other in a thread of their own."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from sessiond.acp.frames import EditorRequest, FrameId
from sessiond.acp.opened import OpenedSession
from sessiond.acp.refusals import refusal_of, refuse_unopened, require_folder, require_text
from sessiond.acp.turn import EditorTurn
from sessiond.client import ClientError

Answer = Callable[[], dict[str, Any]]


class LaneHost(Protocol):
    """What a lane needs of the server."""

    def open_session(self, session_id: str) -> OpenedSession:
        """The session that the editor calls so. ClientError if there is none."""

    def answer(self, request: EditorRequest, make: Answer) -> None:
        """Answer a request with what `make` returns, or with its error."""

    def note_tool_servers(self, params: dict[str, Any]) -> None:
        """Check the parameter `mcpServers`, and say that it is not used. Refusal."""

    def retire(self, lane: SessionLane) -> None:
        """Forget the lane if it is unused."""


class SessionLane:
    """One session as the editor calls it. Methods may be called from any thread."""

    def __init__(self, session_id: str, host: LaneHost, session: OpenedSession | None = None) -> None:
        self.session_id = session_id
        self.is_closed = False  # since the editor closed it; then it takes no place among the open sessions
        self._host = host
        self._session = session  # None until it is opened
        self._lock = threading.Lock()  # guards what follows
        self._waiting: deque[EditorRequest | EditorTurn] = deque()
        self._current: EditorTurn | None = None
        self._is_working = False

    def put(self, request: EditorRequest) -> None:
        """Have a request answered after those that came before."""
        is_prompt = request.method == "session/prompt"
        with self._lock:
            self._waiting.append(EditorTurn(request) if is_prompt else request)
            if self._is_working:
                return
            self._is_working = True
        threading.Thread(target=self._work, daemon=True).start()

    def cancel(self) -> None:
        """Cancel the prompts that have come so far."""
        for turn in self._turns():
            turn.cancel()

    def cancel_request(self, request_id: FrameId) -> None:
        """Cancel the prompt with this id, if it is here."""
        for turn in self._turns():
            if turn.request.id == request_id:
                turn.cancel()

    def _turns(self) -> list[EditorTurn]:
        with self._lock:
            return [item for item in (self._current, *self._waiting) if isinstance(item, EditorTurn)]

    def is_unused(self) -> bool:
        """Whether it has no session and nothing to do."""
        with self._lock:
            return self._session is None and not self._is_working

    def _work(self) -> None:
        while True:
            with self._lock:
                item = self._waiting.popleft() if self._waiting else None
                self._current = item if isinstance(item, EditorTurn) else None
                if item is None:
                    self._is_working = False
            if item is None:
                self._host.retire(self)
                return
            if isinstance(item, EditorTurn):
                self._host.answer(item.request, partial(self._prompt, item))
            else:
                self._host.answer(item, partial(self._handle, item))
                if self._session is not None and not self.is_closed:
                    self._session.show_questions()

    def _prompt(self, turn: EditorTurn) -> dict[str, Any]:
        return turn.run(self._require_open())

    def _require_open(self) -> OpenedSession:
        if self._session is None:
            raise refuse_unopened(self.session_id)
        return self._session

    def _handle(self, request: EditorRequest) -> dict[str, Any]:
        if request.method == "session/close":
            self._require_open().close()
            self._session = None
            self.is_closed = True
            return {}
        self.is_closed = False
        return self._open(request.params, replay=request.method == "session/load")

    def _open(self, params: dict[str, Any], *, replay: bool) -> dict[str, Any]:
        require_text(params, "sessionId")
        require_folder(params)
        self._host.note_tool_servers(params)
        if self._session is not None:  # it was opened before
            self._session.close()
            self._session = None
        try:
            session = self._host.open_session(self.session_id)
            if replay:
                session.replay()
            else:
                session.follow()
        except ClientError as error:
            raise refusal_of(error) from None
        self._session = session
        return {"_meta": {"sessionKey": session.key}}
