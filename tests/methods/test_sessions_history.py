"""`sessions_history` over every transport."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon


def inject_numbered(shared: Daemon, key: str, count: int) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": f"m{n}", "odd": {"b": 1, "a": [1.50]}} for n in range(count)]
    shared.call("chat.inject", sessionKey=key, messages=messages)
    return messages


def test_messages_are_returned_unchanged_and_oldest_first(call: Call, shared: Daemon, fresh: str) -> None:
    messages = inject_numbered(shared, fresh, 3)
    got = call("sessions_history", sessionKey=fresh, limit=3)
    assert got["messages"] == messages
    assert [position["seq"] for position in got["positions"]] == [3, 4, 5]
    assert (got["sessionKey"], got["hasMore"], got["skipped"], got["contentRedacted"]) == (fresh, True, 0, False)


def test_pages_join_without_gap_or_repetition(call: Call, shared: Daemon, fresh: str) -> None:
    inject_numbered(shared, fresh, 7)
    pages: list[list[str]] = []
    cursor: dict[str, str] = {}
    while True:
        page = call("sessions_history", sessionKey=fresh, limit=4, **cursor)
        pages.insert(0, [position["seq"] for position in page["positions"]])
        if not page["hasMore"]:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert pages == [[1], [2, 3, 4, 5], [6, 7, 8, 9]]


def test_tool_results_are_left_out_unless_requested(call: Call, shared: Daemon, fresh: str) -> None:
    tool = {"role": "toolResult", "toolCallId": "1", "toolName": "x", "content": [], "isError": False}
    shared.call("chat.inject", sessionKey=fresh, messages=[tool])
    assert call("sessions_history", sessionKey=fresh, limit=1)["messages"][0]["role"] == "assistant"
    assert call("sessions_history", sessionKey=fresh, limit=1, includeTools=True)["messages"] == [tool]


def test_a_message_over_the_size_limit_is_replaced_by_a_placeholder(call: Call, shared: Daemon, fresh: str) -> None:
    shared.call("chat.inject", sessionKey=fresh, messages=[{"role": "user", "content": "x" * 5000}])
    got = call("sessions_history", sessionKey=fresh, limit=1, maxBytes=1000)
    [message] = got["messages"]
    assert message["role"] == "user"
    assert message["content"] == "[sessions_history omitted: message too large]"
    assert message["omitted"]["bytes"] > 5000
    assert got["hasMore"]


def test_a_page_ends_before_it_is_too_large_and_says_so(call: Call, shared: Daemon, fresh: str) -> None:
    shared.call("chat.inject", sessionKey=fresh, messages=[{"role": "user", "content": "x" * 600}] * 4)
    got = call("sessions_history", sessionKey=fresh, limit=4, maxBytes=1500)
    assert len(got["messages"]) == 2
    assert got["hasMore"]


def test_cursors_of_another_session_and_forged_ones_are_refused(call: Call, shared: Daemon, fresh: str) -> None:
    other = f"agent:main:test:{uuid4()}"
    shared.reply(other, "secret")
    foreign = shared.call("sessions_history", sessionKey=other)["cursor"]
    for cursor in (foreign, "12-1-000000000000", "nonsense", "0-0-" + "0" * 12):
        with pytest.raises(CallFailed) as failed:
            call("sessions_history", sessionKey=fresh, cursor=cursor)
        assert (failed.value.error["code"], failed.value.error["data"]["field"]) == (-32602, "$.cursor")


def test_bad_lines_are_counted_and_skipped(call: Call, shared: Daemon, fresh: str) -> None:
    path = Path(call("sessions_list", search=fresh)["sessions"][0]["transcriptPath"])
    with path.open("ab") as file:
        file.write(b"torn {\n" + b'{"type":"message","message":{"role":"user","content":"after"}}\n')
    shared.wait_for(lambda: shared.call("sessions_history", sessionKey=fresh)["positions"][-1]["seq"] == 3, "not seen")
    got = call("sessions_history", sessionKey=fresh)
    assert (got["messages"][-1]["content"], got["skipped"]) == ("after", 1)


def test_an_unknown_and_an_invisible_session_get_the_same_answer(call: Call, shared: Daemon, fresh: str) -> None:
    token = shared.call("tokens.mint", scopes=["read"], sessionKey="agent:other:main")["token"]
    errors = []
    for key in (fresh, fresh[:-1] + "x"):
        with pytest.raises(CallFailed) as failed:
            call("sessions_history", by=token, sessionKey=key)
        error = failed.value.error
        errors.append({**error, "message": error["message"].replace(key, "KEY")})
    assert errors[0] == errors[1]
    assert errors[0]["code"] == -32002


def test_secrets_are_masked_for_tokens_and_kept_in_the_file(call: Call, shared: Daemon, fresh: str) -> None:
    secret = "sk-" + "abcdefghij0123456789" * 2
    shared.call("chat.inject", sessionKey=fresh, messages=[{"role": "user", "content": f"use {secret}"}])
    token = shared.call("tokens.mint", scopes=["read"], sessionKey=fresh)["token"]
    masked = call("sessions_history", by=token, sessionKey=fresh, limit=1)
    assert masked["contentRedacted"]
    assert secret not in str(masked["messages"])
    assert call("sessions_history", sessionKey=fresh, limit=1)["messages"][0]["content"] == f"use {secret}"
