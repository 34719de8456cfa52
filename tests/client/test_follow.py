"""The plan of a subscription, carried out against a ten-line model of the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessiond.client.errors import RpcError
from sessiond.client.follow import Follow
from sessiond.client.wire import Event


class Model:
    """Sessions as lists of texts. `page` is small, so that every page boundary is met."""

    def __init__(self, page: int = 2) -> None:
        self.sessions: dict[str, list[str]] = {}
        self.generation: dict[str, int] = {}
        self.page = page

    def session_id(self, key: str) -> str:
        return f"{key}#{self.generation.get(key, 0)}"

    def append(self, key: str, text: str) -> Event:
        self.sessions.setdefault(key, []).append(text)
        return self.event(key, len(self.sessions[key]))

    def event(self, key: str, seq: int) -> Event:
        params = {
            "sessionKey": key,
            "sessionId": self.session_id(key),
            "messageId": f"m{seq}",
            "seq": seq,
            "cursor": f"{self.session_id(key)}@{seq}",
            "message": {"role": "user", "content": self.sessions[key][seq - 1]},
        }
        return Event("session.message", params)

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "sessions.subscribe":
                return {"subscribed": True}
            case "sessions_list":
                rows = [
                    {"key": key, "sessionId": self.session_id(key), "messageCount": len(texts), "createdAt": 2**50}
                    for key, texts in self.sessions.items()
                ]
                start = int(params.get("cursor", 0))
                more = start + self.page < len(rows)
                page = {"sessions": rows[start : start + self.page], "hasMore": more}
                return {**page, "nextCursor": str(start + self.page)} if more else page
            case "sessions.messages.subscribe":
                key = params["key"]
                cursor = params.get("cursor", f"{self.session_id(key)}@{len(self.sessions[key])}")
                if not cursor.startswith(self.session_id(key) + "@"):
                    raise RpcError(-32602, "invalid_params", "the cursor is another session's")
                return {"subscribed": True, "key": key, "cursor": cursor}
            case "sessions_history":
                return self.history(params["sessionKey"], params.get("cursor"))
        raise AssertionError(method)

    def history(self, key: str, cursor: str | None) -> dict[str, Any]:
        end = len(self.sessions[key]) if cursor is None else int(cursor)
        start = max(0, end - self.page)
        events = [self.event(key, seq + 1) for seq in range(start, end)]
        return {
            "sessionKey": key,
            "sessionId": self.session_id(key),
            "messages": [event["message"] for event in events],
            "positions": [{"id": e["messageId"], "seq": e["seq"], "cursor": e["cursor"]} for e in events],
            "hasMore": start > 0,
            "nextCursor": str(start),
        }


def connect(follow: Follow, model: Model) -> list[Event]:
    plan = follow.connect()
    try:
        call = next(plan)
        while True:
            try:
                result = model.answer(*call)
            except RpcError as error:
                call = plan.throw(error)
            else:
                call = plan.send(result)
    except StopIteration as end:
        return list(filter(follow.take, end.value))


def texts(events: Iterator[Event] | list[Event]) -> list[str]:
    return [event["message"]["content"] for event in events if event.name == "session.message"]


@given(st.lists(st.sampled_from(["a", "b", "c", "lost", "back", "again"]), max_size=60))
def test_every_message_of_every_session_comes_once_and_in_order(steps: list[str]) -> None:
    model = Model()
    for text in ("old 1", "old 2", "old 3"):
        model.append("a", text)
    follow = Follow(None, None)
    assert connect(follow, model) == []
    seen: list[Event] = []
    connected, count = True, 0
    for step in steps:
        if step == "lost":
            connected = False
        elif step in ("back", "again"):
            seen += connect(follow, model)
            connected = True
        else:
            count += 1
            event = model.append(step, f"{step} {count}")
            # The same event twice: the replay of a lagging subscriber overlaps what it has had.
            seen += filter(follow.take, [event, event] if connected else [])
    if not connected:
        seen += connect(follow, model)
    for key in ("a", "b", "c"):
        expected = [text for text in model.sessions.get(key, []) if not text.startswith("old")]
        assert texts([event for event in seen if event["sessionKey"] == key]) == expected


def test_one_session_is_asked_for_from_the_last_cursor_that_was_handed_out() -> None:
    model = Model()
    model.append("a", "one")
    follow = Follow("a", None)
    connect(follow, model)
    assert follow.cursor == "a#0@1"
    assert follow.take(model.append("a", "two"))
    plan = follow.connect()
    assert next(plan) == ("sessions.messages.subscribe", {"key": "a", "cursor": "a#0@2"})


def test_a_session_that_was_reset_while_away_is_read_from_its_new_start() -> None:
    model = Model()
    model.append("a", "before")
    follow = Follow("a", None)
    connect(follow, model)
    model.generation["a"] = 1
    model.sessions["a"] = ["new 1", "new 2", "new 3"]
    events = connect(follow, model)
    assert events[0] == Event("session.resync", {"sessionKey": "a", "reason": "reset", "cursor": "a#1@3"})
    assert texts(events) == ["new 1", "new 2", "new 3"]
    assert follow.cursor == "a#1@3"


def test_a_first_subscription_with_a_bad_cursor_is_the_callers_error() -> None:
    model = Model()
    model.append("a", "x")
    with pytest.raises(RpcError, match="another session's"):
        connect(Follow("a", "b#0@1"), model)


def test_a_rewritten_file_is_handed_out_again_and_a_lag_is_not() -> None:
    model = Model()
    follow = Follow(None, None)
    connect(follow, model)
    event = model.append("a", "x")
    assert follow.take(event)
    assert follow.take(Event("session.resync", {"sessionKey": "a", "reason": "lagged", "cursor": "a#0@0"}))
    assert not follow.take(event)
    assert follow.take(Event("session.resync", {"sessionKey": "a", "reason": "rewritten", "cursor": "a#0@0"}))
    assert follow.take(event)


def test_a_caller_who_may_list_and_not_read_gets_no_error_for_what_it_missed() -> None:
    model = Model()
    follow = Follow(None, None)
    connect(follow, model)
    model.append("a", "secret")
    plan = follow.connect()
    assert next(plan) == ("sessions.subscribe", {})
    assert plan.send({}) == ("sessions_list", {"limit": 200})
    assert plan.send(model.answer("sessions_list", {}))[0] == "sessions_history"
    with pytest.raises(StopIteration) as end:
        plan.throw(RpcError(-32003, "forbidden", "scope read is needed"))
    assert end.value.value == []
