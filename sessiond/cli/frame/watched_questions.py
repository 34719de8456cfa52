"""Questions for commands that follow sessions: those that are open at the start, and those closed without an event."""

from __future__ import annotations

from sessiond.cli.frame.daemon import CALL_TIMEOUT_S
from sessiond.cli.frame.failures import CommandFailed
from sessiond.client.errors import ClientError
from sessiond.client.wire import Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sessiond.client.blocking import Client

ASKED, ANSWERED = "question.asked", "question.answered"


class WatchedQuestions:
    """Calls `show(event)` for each question that is open when a subscription stands, and for each one shown before that
    was closed while the connection was lost.

    For `Client.subscribe`: pass it `on_connect`, and pass every event to `take`. `key`: those of one session only.
    """

    def __init__(self, client: Client, key: str | None, show: Callable[[Event], None]) -> None:
        self._client, self._key, self._show = client, key, show
        self._open: dict[str, dict[str, Any]] = {}

    def on_connect(self) -> None:
        """The subscription was confirmed, for the first time or after a lost connection."""
        try:
            present = {one["id"]: one for one in self._list(self._key, only_open=True)}
            gone = [one for one in self._open.values() if one["id"] not in present]
            for key in {one["sessionKey"] for one in gone}:
                closed = {one["id"]: one.get("answer") for one in self._list(key, only_open=False)}
                for one in gone:
                    if one["sessionKey"] == key:
                        answer = closed.get(one["id"]) or {"outcome": "withdrawn"}
                        self._show(Event(ANSWERED, {"sessionKey": key, "id": one["id"], "answer": answer}))
        except (ClientError, CommandFailed):  # a caller may follow a session and not be allowed to list questions
            return
        for one in present.values():
            self._show(Event(ASKED, {"sessionKey": one["sessionKey"], "question": one}))

    def take(self, event: Event) -> dict[str, Any] | None:
        """The question that an event asks, None if it was shown already; or the one that it closes, if known."""
        if event.name == ANSWERED:
            return self._open.pop(str(event.get("id")), None)
        question: dict[str, Any] = event["question"]
        is_new = question["id"] not in self._open
        self._open[question["id"]] = question
        return question if is_new else None

    def _list(self, key: str | None, *, only_open: bool) -> list[dict[str, Any]]:
        given = {**({} if key is None else {"sessionKey": key}), **({"open": True} if only_open else {})}
        questions: list[dict[str, Any]] = self._client.call("questions.list", given, timeout_s=CALL_TIMEOUT_S)[
            "questions"
        ]
        return questions
