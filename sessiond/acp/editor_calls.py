"""Requests to the editor, and their answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from sessiond.acp import frames
from sessiond.acp.frames import EditorAnswer, FrameId

TakeAnswer = Callable[[EditorAnswer], None]


class EditorCalls:
    """`write` takes whole lines. Methods may be called from any thread."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self._write = write
        self._lock = threading.Lock()  # guards what follows
        self._next_id = 0
        self._waiting: dict[FrameId, TakeAnswer] = {}

    def begin(self, method: str, params: dict[str, Any], take_answer: TakeAnswer) -> FrameId:
        """Send a request; its id. `take_answer` gets the answer in the thread that reads, and must not hold that up."""
        with self._lock:
            request_id, self._next_id = self._next_id, self._next_id + 1
            self._waiting[request_id] = take_answer
        self._write(frames.request(request_id, method, params))
        return request_id

    def cancel(self, request_id: FrameId) -> None:
        """Tell the editor that nobody waits for its answer any more; whatever it answers is dropped."""
        with self._lock:
            is_waiting = self._waiting.pop(request_id, None) is not None
        if is_waiting:
            self._write(frames.notice("$/cancel_request", {"requestId": request_id}))

    def take(self, answer: EditorAnswer) -> None:
        """Hand an answer of the editor to whoever waits for it."""
        with self._lock:
            take_answer = self._waiting.pop(answer.id, None)
        if take_answer is not None:
            take_answer(answer)
