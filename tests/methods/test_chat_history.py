"""`chat.history` over every transport."""

from __future__ import annotations

from support.method_calls import Call
from support.real_daemon import Daemon


def test_tool_results_are_included(call: Call, shared: Daemon, fresh: str) -> None:
    tool = {"role": "toolResult", "toolCallId": "1", "toolName": "x", "content": [], "isError": False}
    shared.call("chat.inject", sessionKey=fresh, messages=[tool])
    assert call("chat.history", sessionKey=fresh, limit=1)["messages"] == [tool]
