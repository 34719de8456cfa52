"""What `sessiond watch` shows of a message that grows: each part once."""

from __future__ import annotations

from typing import Any

from sessiond.cli.watch import GrowingMessages
from sessiond.client.wire import Event


def message(message_id: str | None, *texts: str, role: str = "assistant", key: str = "k") -> Event:
    content: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    params = {"sessionKey": key, "messageId": message_id, "message": {"role": role, "content": content}}
    return Event("session.message", params)


def shown(*events: Event) -> list[list[str] | None]:
    growing = GrowingMessages()
    new = [growing.take_new(event) for event in events]
    return [[block["text"] for block in one["message"]["content"]] if one is not None else None for one in new]


def test_of_a_message_that_grows_only_the_new_parts_are_shown() -> None:
    assert shown(
        message("m", "a"),
        message("r", "result", role="toolResult"),
        message("m", "a", "b"),
        message("m", "a", "b"),
        message("m", "a", "b", "c", "d"),
        message("n", "e"),
    ) == [["a"], ["result"], ["b"], None, ["c", "d"], ["e"]]


def test_messages_of_other_sessions_or_without_an_id_are_shown_whole() -> None:
    assert shown(message("m", "a"), message("m", "b", key="other"), message(None, "c"), message(None, "c")) == [
        ["a"],
        ["b"],
        ["c"],
        ["c"],
    ]
    assert shown(message("m", "a", "b"), message("m", "new")) == [["a", "b"], ["new"]]


def test_other_events_are_left_as_they_are() -> None:
    growing = GrowingMessages()
    for event in (Event("session.delta", {}), Event("session.message", {"message": {"content": "text"}})):
        assert growing.take_new(event) is event
