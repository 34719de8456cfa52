"""`tokens.list` over every transport."""

from __future__ import annotations

from support.method_calls import Call
from support.real_daemon import Daemon


def test_the_newest_comes_first_and_no_token_is_shown(call: Call, shared: Daemon, fresh: str) -> None:
    made = shared.call("tokens.mint", scopes=["read", "list"], agentId="other", sandboxed=True)
    rows = call("tokens.list")["tokens"]
    assert made["token"] not in str(rows)
    [row] = [row for row in rows if row["id"] == made["id"]]
    assert (row["agentId"], row["scopes"], row["sandboxed"]) == ("other", ["list", "read"], True)
