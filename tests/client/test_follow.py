"""The state machine of a subscription, run against a small model of the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.client.errors import RpcError
from sessiond.client.follow import FollowState
from sessiond.client.wire import Event


class ModelDaemon:
    """Sessions as lists of texts, one list for each transcript that a key had. `page` is small, so that every page
    boundary is met. What is replayed to the connection is in `pushed`.
    """

    def __init__(self, page: int = 2) -> None:
        self.files: dict[str, list[list[str]]] = {}
        self.edition: dict[str, int] = {}
        self.page = page
        self.pushed: list[Event] = []

    def append(self, key: str, text: str) -> Event:
        texts = self.files.setdefault(key, [[]])[-1]
        texts.append(text)
        return self.event(key, len(self.files[key]) - 1, len(texts))

    def rewrite(self, key: str, *texts: str) -> None:
        self.files[key][-1] = list(texts)
        self.edition[key] = self.edition.get(key, 0) + 1

    def cursor(self, key: str, number: int, seq: int) -> str:
        last = number == len(self.files[key]) - 1
        return f"{key}#{number}@{seq}@{self.edition.get(key, 0) if last else 0}"

    def event(self, key: str, number: int, seq: int) -> Event:
        params = {
            "sessionKey": key,
            "sessionId": f"{key}#{number}",
            "messageId": f"m{seq}",
            "seq": seq,
            "cursor": self.cursor(key, number, seq),
            "message": {"role": "user", "content": self.files[key][number][seq - 1]},
        }
        return Event("session.message", params)

    def answer(self, method: str, params: dict[str, Any]) -> Any:
        match method:
            case "sessions.subscribe" | "sessions.messages.unsubscribe":
                return {}
            case "sessions_list":
                return self.listed(int(params.get("cursor", 0)))
            case "sessions.messages.subscribe":
                key = params["key"]
                end = self.cursor(key, len(self.files[key]) - 1, len(self.files[key][-1]))
                self.replay(key, params.get("cursor", end))
                return {"subscribed": True, "key": key, "cursor": params.get("cursor", end)}
        raise AssertionError(method)

    def listed(self, start: int) -> dict[str, Any]:
        rows = [
            {
                "key": key,
                "sessionId": f"{key}#{len(files) - 1}",
                "messageCount": len(files[-1]),
                "cursor": self.cursor(key, len(files) - 1, len(files[-1])),
            }
            for key, files in islice(self.files.items(), start, start + self.page)
        ]
        more = start + self.page < len(self.files)
        page = {"sessions": rows, "hasMore": more}
        return {**page, "nextCursor": str(start + self.page)} if more else page

    def replay(self, key: str, cursor: str) -> None:
        last = len(self.files[key]) - 1
        number, seq = last, 0
        if cursor != "start":
            name, text, edition = cursor.split("@")
            if not name.startswith(key + "#"):
                raise RpcError(-32602, "invalid_params", "the cursor is another session's")
            number, seq = int(name.rpartition("#")[2]), int(text)
            if number == last and int(edition) != self.edition.get(key, 0):
                seq = 0
                self.resync(key, number, "rewritten")
        while True:
            self.pushed += [self.event(key, number, n + 1) for n in range(seq, len(self.files[key][number]))]
            if number == last:
                return
            number, seq = number + 1, 0
            self.resync(key, number, "reset")

    def resync(self, key: str, number: int, reason: str) -> None:
        cursor = self.cursor(key, number, 0)
        params = {"sessionKey": key, "sessionId": f"{key}#{number}", "reason": reason, "cursor": cursor}
        self.pushed.append(Event("session.resync", params))


def connect_and_take(follow: FollowState, model: ModelDaemon, *live: Event) -> list[Event]:
    """The events that are handed out after a new connection; `live` arrives as soon as everything is followed."""
    plan = follow.connect()
    backlog: list[Event] = []
    model.pushed = backlog
    try:
        call = next(plan)
        while True:
            try:
                result = model.answer(*call)
            except RpcError as error:
                call = plan.throw(error)
            else:
                if call[0] == "sessions.subscribe":
                    backlog += live
                call = plan.send(result)
    except StopIteration as end:
        return [*filter(follow.take, end.value), *filter(follow.take, backlog)]


def texts_of(events: Iterator[Event] | list[Event]) -> list[str]:
    return [event["message"]["content"] for event in events if event.name == "session.message"]


STEPS = ["a", "b", "c", "lost", "back", "again", "reset a", "rewrite a", "busy"]


@given(st.lists(st.sampled_from(STEPS), max_size=60))
def test_every_message_of_every_session_arrives_once_and_in_order(steps: list[str]) -> None:
    model = ModelDaemon()
    for text in ("old 1", "old 2", "old 3"):
        model.append("a", text)
    follow = FollowState(None, None)
    assert connect_and_take(follow, model) == []
    seen: list[Event] = []
    connected, count = True, 0
    for step in [*steps, "back"]:
        if step == "lost":
            connected = False
        elif step == "busy" and not connected:
            # A message is appended while the sessions are listed: it arrives live, before those that were missed.
            count += 1
            seen += connect_and_take(follow, model, model.append("a", f"live {count}"))
            connected = True
        elif step in ("back", "again"):
            seen += connect_and_take(follow, model)
            connected = True
        elif step == "reset a":
            connected = False  # while connected, the daemon announces it
            model.files["a"].append([])
        elif step == "rewrite a":
            connected = False
            count += 1
            model.rewrite("a", f"anew {count}", f"and more {count}")
        elif step in "abc":
            count += 1
            event = model.append(step, f"{step} {count}")
            # The same event twice: the replay for a lagging subscriber overlaps with earlier events.
            seen += filter(follow.take, [event, event] if connected else [])
    for key in ("a", "b", "c"):
        files = model.files.get(key, [[]])
        heard = texts_by_transcript(key, len(files), seen)
        assert heard[-1] == files[-1]
        if not model.edition:
            assert heard == files


def texts_by_transcript(key: str, files: int, seen: list[Event]) -> list[list[str]]:
    """The texts that a follower has got of each transcript of a key."""
    heard: dict[str, list[str]] = {f"{key}#{number}": [] for number in range(files)}
    if key == "a":
        heard["a#0"] = ["old 1", "old 2", "old 3"]
    for event in seen:
        if event["sessionKey"] == key and event.name == "session.resync":
            heard[event["sessionId"]] = []
        elif event["sessionKey"] == key:
            heard[event["sessionId"]].append(event["message"]["content"])
            assert len(heard[event["sessionId"]]) == event["seq"]
    return list(heard.values())


def test_more_than_ten_thousand_sessions_are_followed() -> None:
    model = ModelDaemon(page=200)
    for number in range(10_300):
        model.append(f"s:{number}", "old")
    follow = FollowState(None, None)
    assert connect_and_take(follow, model) == []
    model.append("s:10299", "missed")
    assert texts_of(connect_and_take(follow, model)) == ["missed"]


def test_one_session_is_asked_for_from_the_last_cursor_that_was_handed_out() -> None:
    model = ModelDaemon()
    model.append("a", "one")
    follow = FollowState("a", None)
    connect_and_take(follow, model)
    assert follow.cursor == "a#0@1@0"
    assert follow.take(model.append("a", "two"))
    plan = follow.connect()
    assert next(plan) == ("sessions.messages.subscribe", {"key": "a", "cursor": "a#0@2@0"})


def test_changes_of_the_followed_session_arrive_and_those_of_others_do_not() -> None:
    model = ModelDaemon()
    model.append("a", "one")
    follow = FollowState("a", None, with_changes=True)
    plan = follow.connect()
    call = next(plan)
    assert call[0] == "sessions.messages.subscribe"
    # After the subscription with the cursor, so that replayed messages come first.
    assert plan.send(model.answer(*call)) == ("sessions.subscribe", {})
    with pytest.raises(StopIteration):
        plan.send({"subscribed": True})
    assert follow.take(Event("sessions.changed", {"sessionKey": "a", "phase": "error"}))
    assert not follow.take(Event("sessions.changed", {"sessionKey": "b", "phase": "error"}))
    assert not follow.take(model.append("b", "another's"))
    assert follow.cursor == "a#0@1@0"
    assert follow.take(model.append("a", "two"))


def test_a_caller_without_the_scope_to_list_follows_a_session_without_its_changes() -> None:
    model = ModelDaemon()
    model.append("a", "one")
    for slug in ("forbidden", "stopping"):
        plan = FollowState("a", None, with_changes=True).connect()
        plan.send(model.answer(*next(plan)))
        with pytest.raises(StopIteration if slug == "forbidden" else RpcError):
            plan.throw(RpcError(-32003, slug, "no"))


def test_messages_missed_before_a_reset_arrive_before_those_of_the_new_session() -> None:
    model = ModelDaemon()
    model.append("a", "before")
    for follow in (FollowState("a", None), FollowState(None, None)):
        connect_and_take(follow, model)
        model.append("a", "tail")
        model.files["a"].append(["new 1", "new 2"])
        events = connect_and_take(follow, model)
        assert texts_of(events) == ["tail", "new 1", "new 2"]
        assert events[1]["reason"] == "reset"


def test_after_an_older_copy_was_put_back_no_later_message_is_dropped() -> None:
    model = ModelDaemon()
    for text in ("1", "2", "3"):
        model.append("a", text)
    follow = FollowState(None, None)
    connect_and_take(follow, model)
    assert follow.take(model.append("a", "4"))
    model.rewrite("a", "1", "2")
    events = connect_and_take(follow, model)
    assert (events[0]["reason"], texts_of(events)) == ("rewritten", ["1", "2"])
    assert follow.take(model.append("a", "another 3"))


def test_a_vanished_transcript_is_followed_from_its_beginning() -> None:
    model = ModelDaemon()
    model.append("a", "before")
    for follow in (FollowState("a", None), FollowState(None, None)):
        connect_and_take(follow, model)
        follow.cursor = "gone#0@1@0"
        follow._cursors["a"] = "gone#0@1@0"
        model.files["a"] = [["all", "of it"]]
        events = connect_and_take(follow, model)
        assert events[0].name == "session.resync" and texts_of(events) == ["all", "of it"]


def test_a_bad_cursor_in_the_first_subscription_raises() -> None:
    model = ModelDaemon()
    model.append("a", "x")
    with pytest.raises(RpcError, match="another session's"):
        connect_and_take(FollowState("a", "b#0@1@0"), model)


def test_a_rewritten_file_is_handed_out_again_and_a_lagging_replay_is_not() -> None:
    model = ModelDaemon()
    follow = FollowState(None, None)
    connect_and_take(follow, model)
    event = model.append("a", "x")
    params = {"sessionKey": "a", "sessionId": "a#0", "cursor": "a#0@0@0"}
    assert follow.take(event)
    assert follow.take(Event("session.resync", {**params, "reason": "lagged"}))
    assert not follow.take(event)
    assert follow.take(Event("session.resync", {**params, "reason": "rewritten"}))
    assert follow.take(event)


def test_a_caller_with_the_scope_list_only_resumes_without_an_error() -> None:
    model = ModelDaemon()
    follow = FollowState(None, None)
    connect_and_take(follow, model)
    model.append("s:a", "secret")
    plan = follow.connect()
    assert next(plan) == ("sessions.subscribe", {})
    assert plan.send({}) == ("sessions_list", {"limit": 200, "includeCursors": True})
    assert plan.send(model.answer("sessions_list", {}))[0] == "sessions.messages.subscribe"
    with pytest.raises(StopIteration) as end:
        plan.throw(RpcError(-32003, "forbidden", "scope read is needed"))
    assert end.value.value == []


def growing(offset: int, seq: int, message_id: str, text: str, session_id: str = "s") -> Event:
    cursor = f"{offset}-{seq}-{'0' * 20}"
    message = {"role": "assistant", "content": text}
    params = {"sessionKey": "c", "sessionId": session_id, "messageId": message_id, "seq": seq, "cursor": cursor}
    return Event("session.message", {**params, "message": message})


def test_a_message_that_grows_is_delivered_with_each_part_and_no_event_twice() -> None:
    follow = FollowState("c", None)
    events = [growing(10, 1, "u", "go"), growing(20, 2, "m", "a"), growing(30, 3, "r", "result")]
    events += [growing(40, 2, "m", "ab"), growing(40, 2, "m", "ab"), growing(30, 3, "r", "result")]
    events += [growing(50, 2, "m", "abc"), growing(60, 4, "n", "on"), growing(50, 2, "m", "abc")]
    assert texts_of(list(filter(follow.take, events))) == ["go", "a", "result", "ab", "abc", "on"]
    assert follow.cursor == events[7]["cursor"]


def test_a_message_that_grows_after_its_row_was_listed_is_delivered() -> None:
    follow = FollowState(None, None)
    follow._note_row({"key": "agent:c", "sessionId": "s", "messageCount": 2, "cursor": f"20-2-{'0' * 20}"})
    for event, delivered in ((growing(20, 2, "m", "a"), False), (growing(30, 2, "m", "ab"), True)):
        event.params["sessionKey"] = "agent:c"
        assert follow.take(event) is delivered


def test_a_live_part_does_not_hide_what_a_replay_still_brings() -> None:
    follow = FollowState(None, None)
    follow._last_seen["c"] = ("s", 2, 20, 2, "m")
    follow._replaying.add("c")
    events = [growing(60, 2, "m", "abc"), growing(70, 4, "n", "live"), growing(30, 3, "r", "result")]
    events += [growing(60, 2, "m", "abc"), growing(70, 4, "n", "on")]
    assert texts_of(list(filter(follow.take, events))) == ["abc", "result", "abc", "on"]


def test_another_message_under_a_known_number_has_not_grown() -> None:
    """An older copy of the file was put back: the replay begins with a resync, and brings the live message too."""
    follow = FollowState(None, None)
    assert [follow.take(growing(10, 1, "u", "go")), follow.take(growing(20, 2, "m", "before"))] == [True, True]
    follow._replaying.add("c")
    assert not follow.take(growing(30, 2, "n", "after the copy"))
    resync = Event("session.resync", {"sessionKey": "c", "reason": "rewritten", "cursor": f"0-0-{'0' * 20}"})
    events = [resync, growing(10, 1, "u", "go"), growing(30, 2, "n", "after the copy")]
    assert all(map(follow.take, events))


def test_a_message_beside_the_one_delivered_last_may_grow() -> None:
    follow = FollowState("c", None)
    events = [growing(20, 2, "m", "a"), growing(30, 3, "r", "result"), growing(40, 2, "m", "ab")]
    events += [growing(50, 3, "r", "results"), growing(60, 2, "m", "abc")]
    assert all(map(follow.take, events))


def test_messages_that_one_line_changes_are_all_delivered() -> None:
    follow = FollowState("c", None)
    events = [
        growing(10, 1, "u", "go"),
        growing(20, 3, "m", "a"),
        growing(20, 3, "r", "result"),
        growing(20, 3, "r", ""),
    ]
    events += [growing(30, 2, "m", "ab"), growing(30, 3, "r", "results"), growing(30, 3, "r", "results")]
    assert texts_of(list(filter(follow.take, events))) == ["go", "a", "result", "ab", "results"]


@check_each("cursor", [None, 5, "", "start", "\u0663-1-x", "-1", "a@1"])
def test_a_cursor_of_another_form_has_no_place(cursor: object) -> None:
    event = growing(1, 1, "m", "a")
    event.params["cursor"] = cursor
    follow = FollowState("c", None)
    assert follow.take(event) and not follow.take(event)
