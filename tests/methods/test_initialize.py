"""`initialize` over every transport."""

from __future__ import annotations

import pytest
from support.method_calls import Call, CallFailed
from support.real_daemon import Daemon

CLIENT = {"name": "test", "version": "1"}


def test_initialize_tells_the_owner_who_it_is(call: Call) -> None:
    got = call("initialize", protocol=1, client=CLIENT)
    assert got["protocol"] == 1
    assert got["server"]["name"] == "sessiond"
    assert got["caller"] == {"sandboxed": False, "scopes": ["admin", "answer", "list", "read", "send", "spawn"]}
    assert got["limits"] == {
        "maxFrameBytes": 16 << 20,
        "maxRecordBytes": 8 << 20,
        "maxNesting": 64,
        "maxInFlight": 64,
        "maxQueuedEvents": 1024,
    }


def test_showing_a_token_narrows_the_owner(call: Call, shared: Daemon) -> None:
    token = shared.call("tokens.mint", scopes=["list"], sessionKey="main", sandboxed=True)["token"]
    got = call("initialize", protocol=1, client=CLIENT, token=token)
    assert got["caller"] == {
        "sessionKey": "agent:main:main",
        "agentId": "main",
        "sandboxed": True,
        "scopes": ["list"],
    }


def test_an_unsupported_protocol_version_is_refused_with_the_supported_ones(call: Call) -> None:
    with pytest.raises(CallFailed) as failed:
        call("initialize", protocol=2, client=CLIENT)
    assert failed.value.error["code"] == -32602
    assert failed.value.error["data"]["supported"] == [1]


def test_a_bad_token_is_refused(call: Call) -> None:
    with pytest.raises(CallFailed) as failed:
        call("initialize", protocol=1, client=CLIENT, token="nonsense")
    assert failed.value.error["code"] == -32001
