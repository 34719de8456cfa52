"""Which events a subscriber has had, and what to ask for after a lost connection. Sans-io: it plans calls as
generators that yield `(method, params)`, are sent the result (or thrown the RpcError), and return events to hand out
first. Knows nothing of sockets, threads or Trio.
"""

from __future__ import annotations

import time

from sessiond.client.errors import RpcError
from sessiond.client.wire import Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    Plan = Generator[tuple[str, dict[str, Any]], Any, list[Event]]

# A page of sessions_list holds 200 rows: 50 pages are 10,000 sessions and take some 0.1 s at the start of a watch.
MAX_LIST_PAGES = 50
HISTORY_PAGE = 1000


class Follow:
    """The state of one subscription, of one session (`key`) or of all that the caller may see (None).

    Nothing that was appended after the subscription was confirmed is missed or handed out twice, however often the
    connection is lost. For one session the daemon replays from our cursor. For all of them it cannot, so counts are
    compared: what a session's row counts beyond what we have had is read from its history.
    """

    def __init__(self, key: str | None, cursor: str | None) -> None:
        self.key = key
        self.cursor = cursor
        self._confirmed = False
        self._began_ms = 0
        self._had: dict[str, tuple[str, int]] = {}  # sessionKey -> (sessionId, seq) of the last message handed out
        self._baseline: dict[str, int] = {}  # sessionId -> messageCount when the subscription began

    def connect(self) -> Plan:
        """The calls that make a new connection this subscription's; returns the events missed meanwhile."""
        events = yield from (self._connect_all() if self.key is None else self._connect_one())
        self._confirmed = True
        return events

    def take(self, event: Event) -> bool:
        """Whether to hand out `event`; False for what the subscriber has had before."""
        if event.name == "session.message":
            key, session_id, seq = event.get("sessionKey"), event.get("sessionId"), event.get("seq")
            had_id, had_seq = self._had.get(key, ("", 0))
            if session_id == had_id and seq <= had_seq:
                return False
            self._had[key] = (session_id, seq)
            self.cursor = event.get("cursor", self.cursor)
        elif event.name == "session.resync":
            if event.get("reason") != "lagged":  # another text stands in the file now: all of it is news
                self._had.pop(event.get("sessionKey"), None)
            self.cursor = event.get("cursor", self.cursor)
        return True

    def _connect_one(self) -> Plan:
        params = {"key": self.key}
        if self.cursor is not None:
            params["cursor"] = self.cursor
        try:
            answer = yield ("sessions.messages.subscribe", params)
        except RpcError as error:
            # A cursor that was good before the connection was lost and is not now: the session was reset meanwhile.
            if not self._confirmed or error.slug != "invalid_params":
                raise
            return (yield from self._begin_again())
        self.key = answer["key"]
        if self.cursor is None:
            self.cursor = answer["cursor"]
        return []

    def _begin_again(self) -> Plan:
        answer = yield ("sessions.messages.subscribe", {"key": self.key})
        key, cursor = answer["key"], answer["cursor"]
        messages = yield from self._history(key, 0)
        # Only now: were the connection lost before, the old cursor would bring us here again.
        self.cursor = cursor
        self._had.pop(key, None)
        return [Event("session.resync", {"sessionKey": key, "reason": "reset", "cursor": cursor}), *messages]

    def _connect_all(self) -> Plan:
        if not self._confirmed:
            # Before subscribing: what is counted here can then never be something that we still have to hand out.
            self._began_ms = time.time_ns() // 1_000_000
            rows = yield from self._rows()
            self._baseline = {row["sessionId"]: row.get("messageCount", 0) for row in rows}
            yield ("sessions.subscribe", {})
            return []
        yield ("sessions.subscribe", {})
        had = dict(self._had.values())
        missed: list[Event] = []
        for row in (yield from self._rows()):
            session_id, count = row["sessionId"], row.get("messageCount", 0)
            known = max(had.get(session_id, 0), self._baseline.get(session_id, 0))
            is_new = row.get("createdAt", 0) >= self._began_ms
            if count > known and (session_id in had or session_id in self._baseline or is_new):
                missed += yield from self._history(row["key"], known)
        return missed

    def _rows(self) -> Generator[tuple[str, dict[str, Any]], Any, list[dict[str, Any]]]:
        rows: list[dict[str, Any]] = []
        params: dict[str, Any] = {"limit": 200}
        for _ in range(MAX_LIST_PAGES):
            page = yield ("sessions_list", params)
            rows += page["sessions"]
            if not page.get("hasMore"):
                break
            params = {"limit": 200, "cursor": page["nextCursor"]}
        return rows

    def _history(self, key: str, after_seq: int) -> Plan:
        """The messages of `key` with a seq above `after_seq`, oldest first, as the events they would have been."""
        pages: list[list[Event]] = []
        params: dict[str, Any] = {"sessionKey": key, "limit": HISTORY_PAGE, "includeTools": True}
        while True:
            try:
                page = yield ("sessions_history", params)
            except RpcError as error:
                if error.slug in ("forbidden", "not_found"):  # a caller who may list and not read; a session now gone
                    return []
                raise
            events = _as_events(page)
            wanted = [event for event in events if event["seq"] > after_seq]
            pages.append(wanted)
            if not page.get("hasMore") or len(wanted) < len(events) or not page.get("nextCursor"):
                break
            params = {**params, "cursor": page["nextCursor"]}
        return [event for wanted in reversed(pages) for event in wanted]


def _as_events(page: dict[str, Any]) -> list[Event]:
    return [
        Event(
            "session.message",
            {
                "sessionKey": page["sessionKey"],
                "sessionId": page["sessionId"],
                "messageId": place["id"],
                "seq": place["seq"],
                "cursor": place["cursor"],
                "message": message,
            },
        )
        for message, place in zip(page["messages"], page["positions"], strict=True)
    ]
