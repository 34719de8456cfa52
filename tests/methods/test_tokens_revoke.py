"""`tokens.revoke` over every transport."""

from __future__ import annotations

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon
from support.rows import check_each


def test_a_revoked_token_is_refused(call: Call, shared: Daemon, fresh: str) -> None:
    made = shared.call("tokens.mint", scopes=["list"], sessionKey=fresh)
    assert call("sessions_list", by=made["token"])["count"] == 1
    assert shared.call("tokens.revoke", id=made["id"]) == {"revoked": True}
    with pytest.raises(CallFailed) as failed:
        call("sessions_list", by=made["token"])
    assert failed.value.error["code"] == -32001
    assert call("tokens.revoke", id=made["id"]) == {"revoked": False}


def test_a_token_can_be_revoked_by_its_text(call: Call, shared: Daemon, fresh: str) -> None:
    made = shared.call("tokens.mint", scopes=["list"], sessionKey=fresh)
    assert call("tokens.revoke", token=made["token"]) == {"revoked": True}


@check_each("params", [{}, {"id": "a" * 32, "token": "x"}, {"id": "short"}])
def test_exactly_one_valid_name_of_a_token_must_be_given(call: Call, params: dict[str, str]) -> None:
    with pytest.raises(CallFailed) as failed:
        call("tokens.revoke", **params)
    assert failed.value.error["code"] == -32602


def test_revoking_a_token_ends_its_subscriptions(shared: Daemon, fresh: str) -> None:
    made = shared.call("tokens.mint", scopes=["list", "read"], sessionKey=fresh)
    with shared.connect() as wire:
        wire.call("initialize", protocol=1, client={"name": "t", "version": "1"}, token=made["token"])
        wire.call("sessions.subscribe")
        shared.call("tokens.revoke", id=made["id"])
        with pytest.raises(ConnectionError):
            wire.receive()
