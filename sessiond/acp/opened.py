"""A session of the daemon that an editor has opened: its key, and what the editor sees of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from sessiond.acp.editor_calls import EditorCalls
from sessiond.acp.follower import SessionFollower
from sessiond.acp.questions import EditorQuestions
from sessiond.acp.refusals import CALL_S
from sessiond.acp.tool_calls import Update
from sessiond.acp.updates import SessionUpdates
from sessiond.client import Client, ClientError

# The place before the first record.
START = "start"

Send = Callable[[Update], None]


class OpenedSession:
    """`client` and `waits` (for what takes long) are shared by all sessions, `connect` makes one for a subscription.
    For the editor it is `session_id`; `send` takes an update for it, and `calls` asks it.
    """

    def __init__(
        self,
        key: str,
        client: Client,
        waits: Client,
        connect: Callable[[], Client],
        *,
        session_id: str,
        send: Send,
        calls: EditorCalls,
    ) -> None:
        self.key, self.client, self.waits = key, client, waits
        self._connect, self._send = connect, send
        self._lock = threading.RLock()
        self._updates = SessionUpdates(client.caller.get("sessionKey"))
        self._shown_title: object = None
        self._shown_usage: object = None
        self._follower: SessionFollower | None = None
        self._questions = EditorQuestions(
            session_id,
            client,
            calls,
            may_answer="answer" in client.caller.get("scopes", ()),
            acp_id_of=self._updates.acp_id_of,
            send=send,
            say=self.say,
        )

    def show_questions(self) -> None:
        """Ask the editor what the agent asks, from now on. The editor knows the session by now."""
        self._questions.begin()
        self._questions.refresh(self.key)

    def replay(self) -> None:
        """Send everything that was said, then follow. ClientError if the session cannot be read.

        Of a session of another program that was gone on with, what was said since in ours comes behind it.
        """
        self._replay_one()
        continuation = self._find_continuation()
        if continuation is not None:
            self._close_follower()
            self.key = continuation
            self._replay_one()
        with self._lock:
            self._updates.end_replay()

    def _replay_one(self) -> None:
        session_id, seq, _ = self._last_message()
        follower = self._follow(START)
        if seq:
            follower.wait_for_message(session_id, seq)

    def _find_continuation(self) -> str | None:
        """The key of the session of ours to which messages for this one go, if that is another one."""
        source, _, native_id = self.key.partition(":")
        if source == "agent" or not native_id:
            return None
        rows = self.client.call("sessions_list", search=native_id, sources=["sessiond"], timeout_s=CALL_S)["sessions"]
        found: str | None = next((row["key"] for row in rows if row.get("continues") == self.key), None)
        return found

    def follow(self) -> None:
        """Follow from now on. ClientError."""
        self.key = self._find_continuation() or self.key
        _, _, cursor = self._last_message()
        with self._lock:
            self._updates.end_replay()
        self._follow(cursor)

    def follow_again(self) -> None:
        """Follow from now on, if the daemon refused to let it be followed any longer."""
        if self._follower is None or self._follower.has_ended:
            self.follow()

    def continue_in(self, key: str, cursor: str) -> None:
        """Follow the session `key` in place of this one, because messages to this one go there."""
        self._close_follower()
        self.key = key
        self._follow(cursor)

    def close(self) -> None:
        """Stop following."""
        self._close_follower()
        self._questions.close()

    def _close_follower(self) -> None:
        if self._follower is not None:
            self._follower.close()

    @contextmanager
    def expects_prompt(self, text: str) -> Iterator[None]:
        """While the context lasts, a message with this text is the editor's own."""
        with self._lock:
            self._updates.expect_prompt(text)
        try:
            yield
        finally:
            with self._lock:
                self._updates.forget_prompt(text)

    def say(self, text: str) -> None:
        """Show a sentence of the daemon as an answer."""
        with self._lock:
            self._send({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})

    def catch_up(self) -> None:
        """Return when all updates of a run that has ended were sent."""
        with suppress(ClientError):  # the answer must not fail because it could come too early
            session_id, seq, _ = self._last_message()
            if seq and self._follower is not None:
                self._follower.wait_for_message(session_id, seq)
            self._send_facts(session_id)
        with self._lock:
            for update in self._updates.end_turn():
                self._send(update)

    def _follow(self, cursor: str) -> SessionFollower:
        follower = SessionFollower(
            self._connect(),
            self.key,
            cursor,
            updates=self._updates,
            questions=self._questions,
            send=self._send,
            lock=self._lock,
        )
        follower.start()
        self._follower = follower
        return follower

    def _last_message(self) -> tuple[str, int, str]:
        """The session's id, the number of its last message, and the place behind its newest record."""
        # A byte of room leaves the message itself out. No limit of time: of another program's session it takes reading
        # the whole file.
        page = self.client.call("chat.history", sessionKey=self.key, limit=1, maxBytes=1)
        positions = page["positions"]
        return page["sessionId"], positions[-1]["seq"] if positions else 0, page["cursor"]

    def _send_facts(self, session_id: str) -> None:
        """Send the title and how full the context is, if they have changed."""
        rows = self.client.call("sessions_list", search=session_id, limit=5, timeout_s=CALL_S)["sessions"]
        row: dict[str, Any] = next((row for row in rows if row["sessionId"] == session_id), {})
        title = row.get("title")
        if title and title != self._shown_title:
            self._shown_title = title
            self._send({"sessionUpdate": "session_info_update", "title": title})
        used, size, cost = row.get("totalTokens"), row.get("contextTokens"), row.get("estimatedCostUsd")
        if used is not None and size and (used, size, cost) != self._shown_usage:
            self._shown_usage = (used, size, cost)
            update: Update = {"sessionUpdate": "usage_update", "used": used, "size": size}
            self._send({**update, "cost": {"amount": cost, "currency": "USD"}} if cost is not None else update)
