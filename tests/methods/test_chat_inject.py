"""`chat.inject` over every transport."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.rows import check_each


def test_messages_are_appended_and_no_agent_runs(call: Call, shared: Daemon, fresh: str) -> None:
    got = call(
        "chat.inject", sessionKey=fresh, messages=[{"role": "user", "content": "one"}, {"role": "x", "content": []}]
    )
    assert len(got["ids"]) == 2
    page = shared.call("sessions_history", sessionKey=fresh, limit=2)
    assert [position["id"] for position in page["positions"]] == got["ids"]
    assert page["cursor"] == got["cursor"]
    assert [message["content"] for message in page["messages"]] == ["one", []]


@check_each(
    ("messages", "field"),
    [
        ([], "$.messages"),
        ([{"role": "user", "content": "x"}] * 1001, "$.messages"),
        (["text"], "$.messages[0]"),
        ([{"role": "user", "content": "x"}, {"content": "x"}], "$.messages[1]"),
        ([{"role": "", "content": "x"}], "$.messages[0].role"),
        ([{"role": "user", "content": 5}], "$.messages[0].content"),
    ],
)
def test_an_invalid_message_is_refused_with_its_index(call: Call, fresh: str, messages: Any, field: str) -> None:
    with pytest.raises(CallFailed) as failed:
        call("chat.inject", sessionKey=fresh, messages=messages)
    assert (failed.value.error["code"], failed.value.error["data"]["field"]) == (-32602, field)


def test_records_are_accepted_up_to_the_limit_and_not_beyond(call: Call, shared: Daemon, fresh: str) -> None:
    def text(size: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": "x" * size}]

    call("chat.inject", sessionKey=fresh, messages=text((8 << 20) - 300))
    with pytest.raises(CallFailed) as failed:
        call("chat.inject", sessionKey=fresh, messages=text(8 << 20))
    assert failed.value.error["code"] == -32005
    assert failed.value.error["data"]["limit"] == "limits.maxRecordBytes"


def test_a_missing_session_is_not_created(call: Call) -> None:
    with pytest.raises(CallFailed) as failed:
        call("chat.inject", sessionKey=f"agent:main:{uuid4()}", messages=[{"role": "user", "content": "x"}])
    assert failed.value.error["code"] == -32002


def test_an_agent_writes_into_its_own_session_only(call: Call, shared: Daemon, fresh: str) -> None:
    message = [{"role": "user", "content": "mine"}]
    token = shared.call("tokens.mint", scopes=["send"], sessionKey=fresh)["token"]
    assert len(call("chat.inject", by=token, sessionKey="current", messages=message)["ids"]) == 1
    child = shared.call("sessions.create", parentSessionKey=fresh)["key"]
    with pytest.raises(CallFailed) as failed:
        call("chat.inject", by=token, sessionKey=child, messages=message)
    assert failed.value.error["code"] == -32003


def test_the_file_content_of_an_injected_spawn_call_is_not_stored(call: Call, shared: Daemon, fresh: str) -> None:
    files = {"task": "t", "attachments": [{"name": "a", "content": "very secret"}]}
    block = {"type": "toolCall", "id": "1", "name": "sessions_spawn", "arguments": files}
    call("chat.inject", sessionKey=fresh, messages=[{"role": "assistant", "content": [block]}])
    [message] = shared.call("sessions_history", sessionKey=fresh, limit=1)["messages"]
    assert message["content"][0]["arguments"]["attachments"][0]["content"] == "__REDACTED__"
