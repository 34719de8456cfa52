"""`tokens.list` over every transport."""

from __future__ import annotations

from support.method_calls import Call
from support.real_daemon import Daemon


def test_tokens_are_listed_newest_first_without_their_text(call: Call, shared: Daemon, fresh: str) -> None:
    made = shared.call("tokens.mint", scopes=["read", "list"], agentId="other", sandboxed=True)
    rows = call("tokens.list")["tokens"]
    assert made["token"] not in str(rows)
    [row] = [row for row in rows if row["id"] == made["id"]]
    assert (row["agentId"], row["scopes"], row["sandboxed"]) == ("other", ["list", "read"], True)
