"""`agent.wait` over every transport."""

from __future__ import annotations

from uuid import uuid4

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon


def test_a_wait_returns_how_the_run_ended_and_its_reply(call: Call, shared: Daemon, fresh: str) -> None:
    run_id = shared.call("chat.send", sessionKey=fresh, message="what?")["runId"]
    got = call("agent.wait", runId=run_id)
    assert (got["runId"], got["status"], got["reply"]) == (run_id, "ok", "what?")
    assert got["endedAt"] >= got["startedAt"]


def test_an_unknown_run_is_not_found(call: Call, fresh: str) -> None:
    for run_id in ("nonsense", "", str(uuid4()) + ".0123456789abcdef"):
        with pytest.raises(CallFailed) as failed:
            call("agent.wait", runId=run_id)
        assert failed.value.error["code"] == -32002


def test_a_run_of_an_invisible_session_is_not_found(call: Call, shared: Daemon, fresh: str) -> None:
    run_id = shared.call("chat.send", sessionKey=fresh, message="what?")["runId"]
    token = shared.call("tokens.mint", scopes=["read"], sessionKey="agent:other:main")["token"]
    with pytest.raises(CallFailed) as failed:
        call("agent.wait", by=token, runId=run_id)
    assert failed.value.error["code"] == -32002
