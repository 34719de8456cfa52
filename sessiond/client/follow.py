"""Which events a subscriber has had, and which calls resume it after a lost connection.

Sans-io: a plan is a generator that yields `(method, params)`, is sent the result (or thrown the RpcError), and returns
events to deliver first. Knows nothing of sockets, threads or Trio.
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
_NOTHING = ("", 0, 0, 0, None)


class FollowState:
    """The state of a subscription to one session (`key`) or to all that the caller may see (None).

    No message appended after the subscription was confirmed is missed or delivered twice, however often the connection
    is lost: the daemon replays each session from the last cursor, even one from before a reset, and sends
    `session.resync` where it cannot. With all sessions, the cursors of the list say which of them have to be replayed.
    A message that another program writes in parts is delivered with each of them, whole, under the same `messageId` and
    `seq`: what came before under that id is to be replaced.

    `with_changes`: deliver `sessions.changed` for a single session too; the daemon sends it for all sessions or none.
    """

    def __init__(self, key: str | None, cursor: str | None, *, with_changes: bool = False) -> None:
        self.key = key
        self.cursor = cursor
        self._with_changes = with_changes
        self._confirmed = False
        # sessionKey -> sessionId, the highest seq; of what was delivered last: the offset behind it, seq and messageId
        self._last_seen: dict[str, tuple[str, int, int, int, object]] = {}
        self._cursors: dict[str, str] = {}  # sessionKey -> the cursor up to which all messages were delivered
        self._names: dict[str, str] = {}  # key in the list (`main`) -> key in events
        self._replaying: set[str] = set()  # sessions whose replay has not begun: live messages are replayed too

    def connect(self) -> Plan:
        """The calls that subscribe on a new connection; returns events to deliver first."""
        events = yield from (self._connect_all() if self.key is None else self._connect_one())
        self._confirmed = True
        return events

    def take(self, event: Event) -> bool:
        """Whether to deliver `event`; False if the subscriber has had it, or will get it in the replay."""
        key = event.get("sessionKey")
        if self._with_changes and self.key is not None and key != self.key:
            return False
        if event.name == "session.message":
            session_id, seq, offset = event.get("sessionId"), event.get("seq"), _offset_of(event.get("cursor"))
            had_id, had_seq, had_offset, last_seq, had_message = self._last_seen.get(key, _NOTHING)
            message_id = event.get("messageId")
            is_known = session_id == had_id and seq <= had_seq
            # A line may change several messages, which then have the same cursor.
            is_beside = offset == had_offset >= 0 and had_message not in (None, message_id)
            # Where the file was replaced by an older copy meanwhile, another message may have the same number.
            is_other = seq == last_seq and had_message not in (None, message_id)
            has_grown = is_known and ((offset > had_offset and not is_other) or is_beside)
            if key in self._replaying:
                if has_grown:
                    return True  # perhaps live, so what lies before it may still be replayed
                if had_id not in ("", session_id) or seq != had_seq + 1:
                    return False
                self._replaying.discard(key)
            elif is_known and not has_grown:
                return False
            highest = max(seq, had_seq) if session_id == had_id else seq
            self._last_seen[key] = (session_id, highest, offset, seq, message_id)
            self._note_cursor(key, event)
        elif event.name == "session.resync":
            if event.get("reason") != "lagged":  # the file has another content now, all of which is new
                self._last_seen.pop(key, None)
                if event.get("sessionId") is not None:  # sent by the daemon, which replays the session after it
                    self._replaying.discard(key)
            self._note_cursor(key, event)
        return True

    def _note_cursor(self, key: str, event: Event) -> None:
        cursor = event.get("cursor")
        if cursor is not None and self.key is not None:
            self.cursor = cursor
        elif cursor is not None:
            self._cursors[key] = cursor

    def _connect_one(self) -> Plan:
        params = {"key": self.key}
        if self.cursor is not None:
            params["cursor"] = self.cursor
        events: list[Event] = []
        try:
            answer = yield ("sessions.messages.subscribe", params)
        except RpcError as error:
            # A cursor that was valid before the connection was lost: its transcript has been removed meanwhile.
            if not self._confirmed or error.slug != "invalid_params":
                raise
            answer = yield ("sessions.messages.subscribe", {**params, "cursor": START})
            self.cursor = answer["cursor"]
            self._last_seen.clear()
            events = [_reset_event(answer["key"], answer["cursor"])]
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
            # The list before subscribing has only messages that do not have to be delivered.
            yield from self._list_sessions(self._note_row)
            yield ("sessions.subscribe", {})
            # Again, because the list is ordered by the newest message and misses a session that moves while its pages
            # are read. A session that moves now is reported by an event.
            yield from self._list_sessions(self._note_row)
            return events
        self._replaying.clear()
        yield ("sessions.subscribe", {})
        behind: list[dict[str, Any]] = []
        yield from self._list_sessions(behind.append)
        for row in behind:
            key = self._names.get(row["key"], row["key"])
            if self._cursors.get(key) != row.get("cursor"):
                events += yield from self._resume(row["key"], key)
        return events

    def _note_row(self, row: dict[str, Any]) -> None:
        key, cursor = self._names.get(row["key"], row["key"]), row.get("cursor")
        if cursor is not None and key not in self._cursors:
            self._cursors[key] = cursor
            self._last_seen[key] = row["sessionId"], row.get("messageCount", 0), _offset_of(cursor), 0, None

    def _resume(self, name: str, key: str) -> Plan:
        """Let the daemon replay the missed messages of a session, as events on this connection."""
        events: list[Event] = []
        self._last_seen.setdefault(key, _NOTHING)
        self._replaying.add(key)
        try:
            yield ("sessions.messages.subscribe", {"key": name, "cursor": self._cursors.get(key, START)})
        except RpcError as error:
            if error.slug in ("forbidden", "not_found"):  # the caller may list but not read it; or it was deleted
                self._replaying.discard(key)
                return events
            if error.slug != "invalid_params":
                raise
            answer = yield ("sessions.messages.subscribe", {"key": name, "cursor": START})
            self._last_seen[key] = _NOTHING
            self._cursors[key] = answer["cursor"]
            events = [_reset_event(key, answer["cursor"])]
        # It is followed together with all others; this subscription was for the replay only.
        yield ("sessions.messages.unsubscribe", {"key": name})
        return events

    def _list_sessions(self, each: Any) -> Generator[tuple[str, dict[str, Any]], Any, None]:
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
        """The full key of a session that the list calls `main`, which events use."""
        try:
            answer = yield ("sessions.messages.subscribe", {"key": short})
        except RpcError:
            return short  # the caller may not read it, so there will be no event of it either
        name: str = answer["key"]
        yield ("sessions.messages.unsubscribe", {"key": short})
        return name


def _offset_of(cursor: object) -> int:
    """The place of a cursor in its file; -1 for one of another form."""
    digits = cursor.partition("-")[0] if isinstance(cursor, str) else ""
    return int(digits) if digits.isascii() and digits.isdigit() else -1


def _reset_event(key: str, cursor: str) -> Event:
    return Event("session.resync", {"sessionKey": key, "reason": "reset", "cursor": cursor})
