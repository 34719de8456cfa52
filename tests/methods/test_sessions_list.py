"""`sessions_list` over every transport."""

from __future__ import annotations

from uuid import uuid4

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.rows import check_each


@pytest.fixture
def older_key(shared: Daemon) -> str:
    key = f"agent:main:test:{uuid4()}"
    shared.reply(key, "hello")
    return key


def test_rows_are_sorted_newest_first(call: Call, shared: Daemon, older_key: str, fresh: str) -> None:
    got = call("sessions_list", limit=1)
    [row] = got["sessions"]
    assert row["key"] != older_key
    assert (row["key"], row["kind"], row["channel"], row["status"]) == (fresh, "other", "unknown", "ok")
    assert row["messageCount"] == 2
    assert row["transcriptPath"].startswith(str(shared.store))
    assert (got["count"], got["visibility"]) == (1, "all")
    assert "messages" not in row


def test_pages_join_without_gap_or_repetition(call: Call, shared: Daemon) -> None:
    label = str(uuid4())
    keys = [shared.call("sessions.create", label=f"{label} {n}")["key"] for n in range(5)]
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = call("sessions_list", search=label, limit=2, **cursor)
        seen += [row["key"] for row in page["sessions"]]
        if not page["hasMore"]:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert sorted(seen) == sorted(keys)


def test_rows_can_include_messages_without_tool_results(call: Call, shared: Daemon, fresh: str) -> None:
    tool = {"role": "toolResult", "toolCallId": "1", "toolName": "x", "content": [], "isError": False}
    shared.call("chat.inject", sessionKey=fresh, messages=[tool, {"role": "user", "content": "last"}])
    [row] = call("sessions_list", search=fresh, messageLimit=2)["sessions"]
    assert [message["role"] for message in row["messages"]] == ["assistant", "user"]


def test_filters_apply_before_the_limit(call: Call, shared: Daemon, fresh: str) -> None:
    cron = f"cron:{uuid4()}"
    shared.reply(cron, "tick")
    shared.reply(fresh, "later")
    [row] = call("sessions_list", kinds=["CRON", "nonsense"], search=cron, limit=1)["sessions"]
    assert (row["key"], row["kind"], row["channel"]) == (f"agent:main:{cron}", "cron", "internal")
    assert call("sessions_list", agentId="other", search=cron)["count"] == 0
    assert call("sessions_list", activeMinutes=0.5, search=cron)["count"] == 1


@check_each(("given", "most"), [(0, 1), (-3, 1), (1.9, 1), (10**9, 200)])
def test_the_limit_is_floored_and_clamped(call: Call, fresh: str, given: float, most: int) -> None:
    assert len(call("sessions_list", limit=given)["sessions"]) <= most


def test_a_limit_that_is_not_a_number_is_refused_by_name(call: Call) -> None:
    with pytest.raises(CallFailed) as failed:
        call("sessions_list", limit="many")
    assert (failed.value.error["code"], failed.value.error["data"]["field"]) == (-32602, "$.limit")


def test_an_invalid_cursor_is_refused(call: Call) -> None:
    with pytest.raises(CallFailed) as failed:
        call("sessions_list", cursor="nonsense")
    assert failed.value.error["data"]["field"] == "$.cursor"
