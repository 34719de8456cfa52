"""Follow one session in a thread, and hand its updates to the editor. Goes on when the daemon restarts."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sessiond.acp.questions import EditorQuestions
from sessiond.acp.tool_calls import Update
from sessiond.acp.updates import SessionUpdates
from sessiond.client import Client, ClientError, ConnectionLost

# How long nothing may come before a wait for messages that are known to be there is given up.
SILENCE_S = 30.0


class SessionFollower:
    """The subscription of one session, from `cursor` on. `client` is its own and is closed with it.

    `lock` is held while updates are made and sent, so that they keep their order.
    """

    def __init__(
        self,
        client: Client,
        key: str,
        cursor: str,
        *,
        updates: SessionUpdates,
        questions: EditorQuestions,
        send: Callable[[Update], None],
        lock: threading.RLock,
    ) -> None:
        self._client, self._key, self._cursor = client, key, cursor
        self._updates, self._questions, self._send, self._lock = updates, questions, send, lock
        self._news = threading.Condition()  # guards what follows
        self._stands = False
        self._error: ClientError | None = None
        self._seen: tuple[object, int] = (None, 0)  # session id, and the highest number of a message of it
        self._past: set[object] = set()  # ids that the key had before
        self._last_news_s = 0.0
        self._thread = threading.Thread(target=self._follow, daemon=True)

    @property
    def has_ended(self) -> bool:
        """Whether it can follow no more, because the daemon refuses it."""
        return self._error is not None

    def start(self) -> None:
        """Return when the subscription stands. ClientError if it is refused."""
        self._thread.start()
        with self._news:
            self._news.wait_for(lambda: self._stands or self._error is not None)
            if self._error is not None:
                raise self._error

    def close(self) -> None:
        """End the subscription: when this returns, nothing more is sent."""
        self._client.close()
        if threading.current_thread() is not self._thread:
            self._thread.join(SILENCE_S)

    def wait_for_message(self, session_id: str, seq: int) -> None:
        """Return when the updates of that message of the session were sent, or if it does not come."""
        with self._news:
            self._last_news_s = time.monotonic()
            while self._error is None and session_id not in self._past:
                if self._seen[0] == session_id and self._seen[1] >= seq:
                    return
                if not self._news.wait(SILENCE_S) and time.monotonic() - self._last_news_s >= SILENCE_S:
                    return

    def _follow(self) -> None:
        error: ClientError = ConnectionLost("the session is not followed any more")
        try:
            for event in self._client.subscribe(self._key, self._cursor, on_connect=self._confirm):
                with self._lock:
                    for update in self._updates.take(event):
                        self._send(update)
                    self._questions.take(event)
                if event.name == "session.message":
                    self._note_seen(event.get("sessionId"), event.get("seq"))
        except ClientError as refused:
            error = refused
        finally:
            with self._news:
                self._error = error
                self._news.notify_all()

    def _confirm(self) -> None:
        with self._lock:
            self._updates.note_gap()
        with self._news:
            self._stands = True
            self._news.notify_all()
        self._questions.refresh(self._key)

    def _note_seen(self, session_id: object, seq: object) -> None:
        with self._news:
            self._last_news_s = time.monotonic()
            number = seq if isinstance(seq, int) else 0
            if session_id == self._seen[0]:
                number = max(number, self._seen[1])
            else:
                self._past.add(self._seen[0])
            self._seen = (session_id, number)
            self._news.notify_all()
