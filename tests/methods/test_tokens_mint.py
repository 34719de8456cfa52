"""`tokens.mint` over every transport."""

from __future__ import annotations

from typing import Any

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.rows import check_each


def test_a_token_acts_for_its_session_with_its_scopes(call: Call, shared: Daemon, fresh: str) -> None:
    made = call("tokens.mint", scopes=["list"], sessionKey=fresh, ttlSeconds=60)
    [row] = [row for row in shared.call("tokens.list")["tokens"] if row["id"] == made["id"]]
    assert (row["sessionKey"], row["scopes"], row["revoked"]) == (fresh, ["list"], False)
    assert made["expiresAt"] == row["expiresAt"]
    assert [one["key"] for one in call("sessions_list", by=made["token"])["sessions"]] == [fresh]


@check_each(
    "params",
    [{"scopes": []}, {"scopes": ["root"]}, {"scopes": ["list"], "agentId": "Not An Id"}, {"scopes": "list"}],
)
def test_invalid_params_are_refused(call: Call, params: dict[str, Any]) -> None:
    with pytest.raises(CallFailed) as failed:
        call("tokens.mint", **params)
    assert failed.value.error["code"] == -32602


def test_an_admin_token_cannot_mint_a_token_wider_than_itself(call: Call, shared: Daemon, fresh: str) -> None:
    token = shared.call("tokens.mint", scopes=["admin"], sessionKey=fresh)["token"]
    with pytest.raises(CallFailed) as failed:
        call("tokens.mint", by=token, scopes=["admin"])
    assert failed.value.error["code"] == -32003
    assert call("tokens.mint", by=token, scopes=["list"], sessionKey=fresh)["id"]
