"""Which events a subscriber has had, and what to ask for after a lost connection. Sans-io: it plans calls as
generators that yield `(method, params)`, are sent the result (or thrown the RpcError), and return events to hand out
first. Knows nothing of sockets, threads or Trio.
"""

from __future__ import annotations

from sessiond.client.errors import RpcError
from sessiond.client.wire import Event

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Any

    Plan = Generator[tuple[str, dict[str, Any]], Any, list[Event]]

# The cursor before the first message of a session.
START = "start"


class FollowState:
    """The state of one subscription, of one session (`key`) or of all that the caller may see (None).

    Nothing that was appended after the subscription was confirmed is missed or handed out twice, however often the
    connection is lost: the daemon replays every session from the cursor that we had, be it one of before a reset, and
    says `session.resync` where it cannot. For all sessions the cursors of the list tell which ones to ask for.

    `with_changes`: of one session the `sessions.changed` too, which the daemon sends for all sessions or for none.
    """

    def __init__(self, key: str | None, cursor: str | None, *, with_changes: bool = False) -> None:
        self.key = key
        self.cursor = cursor
        self._with_changes = with_changes
        self._confirmed = False
        self._had: dict[str, tuple[str, int]] = {}  # sessionKey -> (sessionId, seq) of the last message handed out
        self._places: dict[str, str] = {}  # sessionKey -> the cursor up to which everything was handed out
        self._names: dict[str, str] = {}  # what the list calls a session -> what events call it
        self._awaited: set[str] = set()  # sessions whose replay has not come yet: what runs ahead of it comes again

    def connect(self) -> Plan:
        """The calls that make a new connection this subscription's; returns events to hand out first."""
        events = yield from (self._connect_all() if self.key is None else self._connect_one())
        self._confirmed = True
        return events

    def take(self, event: Event) -> bool:
        """Whether to hand out `event`; False for what the subscriber has had before, or will have in its order."""
        key = event.get("sessionKey")
        if self._with_changes and self.key is not None and key != self.key:
            return False
        if event.name == "session.message":
            session_id, seq = event.get("sessionId"), event.get("seq")
            had_id, had_seq = self._had.get(key, ("", 0))
            if key in self._awaited:
                if had_id not in ("", session_id) or seq != had_seq + 1:
                    return False
                self._awaited.discard(key)
            elif session_id == had_id and seq <= had_seq:
                return False
            self._had[key] = (session_id, seq)
            self._reach(key, event)
        elif event.name == "session.resync":
            if event.get("reason") != "lagged":  # another text stands in the file now: all of it is news
                self._had.pop(key, None)
                if event.get("sessionId") is not None:  # the daemon's own, with all of the session behind it
                    self._awaited.discard(key)
            self._reach(key, event)
        return True

    def _reach(self, key: str, event: Event) -> None:
        cursor = event.get("cursor")
        if cursor is not None and self.key is not None:
            self.cursor = cursor
        elif cursor is not None:
            self._places[key] = cursor

    def _connect_one(self) -> Plan:
        params = {"key": self.key}
        if self.cursor is not None:
            params["cursor"] = self.cursor
        events: list[Event] = []
        try:
            answer = yield ("sessions.messages.subscribe", params)
        except RpcError as error:
            # A cursor that was good before the connection was lost and is not now: its transcript is no longer there.
            if not self._confirmed or error.slug != "invalid_params":
                raise
            answer = yield ("sessions.messages.subscribe", {**params, "cursor": START})
            self.cursor = answer["cursor"]
            self._had.clear()
            events = [_begun_again(answer["key"], answer["cursor"])]
        self.key = answer["key"]
        if self.cursor is None:
            self.cursor = answer["cursor"]
        if self._with_changes:
            yield from self._ask_for_changes()
        return events

    def _ask_for_changes(self) -> Generator[tuple[str, dict[str, Any]], Any, None]:
        try:
            yield ("sessions.subscribe", {})
        except RpcError as error:
            if error.slug != "forbidden":  # a caller may read a session without the scope to list others
                raise

    def _connect_all(self) -> Plan:
        events: list[Event] = []
        if not self._confirmed:
            # Before subscribing: what is there by then can never be something that we still have to hand out.
            yield from self._list(self._know)
            yield ("sessions.subscribe", {})
            # Once more: the list is in the order of the newest message, and a session that moves while it is read is
            # left out. One that moves now is told of.
            yield from self._list(self._know)
            return events
        self._awaited.clear()
        yield ("sessions.subscribe", {})
        behind: list[dict[str, Any]] = []
        yield from self._list(behind.append)
        for row in behind:
            key = self._names.get(row["key"], row["key"])
            if self._places.get(key) != row.get("cursor"):
                events += yield from self._resume(row["key"], key)
        return events

    def _know(self, row: dict[str, Any]) -> None:
        key, cursor = self._names.get(row["key"], row["key"]), row.get("cursor")
        if cursor is not None and key not in self._places:
            self._places[key] = cursor
            self._had[key] = row["sessionId"], row.get("messageCount", 0)

    def _resume(self, name: str, key: str) -> Plan:
        """Let the daemon replay what we have not had of a session, as events on this connection."""
        events: list[Event] = []
        self._had.setdefault(key, ("", 0))
        self._awaited.add(key)
        try:
            yield ("sessions.messages.subscribe", {"key": name, "cursor": self._places.get(key, START)})
        except RpcError as error:
            if error.slug in ("forbidden", "not_found"):  # a caller who may list and not read; a session now gone
                self._awaited.discard(key)
                return events
            if error.slug != "invalid_params":
                raise
            answer = yield ("sessions.messages.subscribe", {"key": name, "cursor": START})
            self._had[key] = ("", 0)
            self._places[key] = answer["cursor"]
            events = [_begun_again(key, answer["cursor"])]
        # It is followed with all the others; this was for its place.
        yield ("sessions.messages.unsubscribe", {"key": name})
        return events

    def _list(self, each: Any) -> Generator[tuple[str, dict[str, Any]], Any, None]:
        """Every session that the caller may see, page by page."""
        params: dict[str, Any] = {"limit": 200, "includeCursors": True}
        while True:
            page = yield ("sessions_list", params)
            for row in page["sessions"]:
                if ":" not in row["key"] and row["key"] not in self._names:
                    self._names[row["key"]] = yield from self._name_of(row["key"])
                each(row)
            if not page.get("hasMore"):
                return
            params = {**params, "cursor": page["nextCursor"]}

    def _name_of(self, short: str) -> Generator[tuple[str, dict[str, Any]], Any, str]:
        """What events call the session that the list calls `main`."""
        try:
            answer = yield ("sessions.messages.subscribe", {"key": short})
        except RpcError:
            return short  # not ours to read: no event of it will come either
        name: str = answer["key"]
        yield ("sessions.messages.unsubscribe", {"key": short})
        return name


def _begun_again(key: str, cursor: str) -> Event:
    return Event("session.resync", {"sessionKey": key, "reason": "reset", "cursor": cursor})
