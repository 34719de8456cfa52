"""`agents_list` over every transport."""

from __future__ import annotations

from support.method_calls import Call
from support.real_daemon import Daemon


def test_the_owner_sees_every_configured_agent(call: Call) -> None:
    got = call("agents_list")
    assert (got["requester"], got["allowAny"]) == ("main", False)
    assert [(agent["id"], agent["configured"], agent["runtime"]) for agent in got["agents"]] == [
        ("main", True, "echo"),
        ("other", True, "echo"),
    ]


def test_an_agent_sees_what_it_may_spawn(call: Call, shared: Daemon) -> None:
    token = shared.call("tokens.mint", scopes=["list"], sessionKey="agent:other:main")["token"]
    got = call("agents_list", by=token)
    assert (got["requester"], [agent["id"] for agent in got["agents"]]) == ("other", ["other"])
