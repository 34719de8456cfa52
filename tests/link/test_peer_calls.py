"""Calls for another machine, with the real daemon: its token, its scopes, and a token that was revoked."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.link_stand_ins import run_until, settle
from support.nats_machines import AGENTS
from support.real_daemon import Daemon

from sessiond.client.errors import RpcError
from sessiond.config.link import PeerConfig
from sessiond.link.identity import new_identity
from sessiond.link.peer_calls import TTL_S, PeerCalls, scopes_of

LINK = f"""
[link]
name = "lap"
server = "nats://127.0.0.1:4222"
[[link.peers]]
name = "mars"
key = "{new_identity().public.text}"
send = ["agent:ops:*"]
"""
MARS = PeerConfig(name="mars", key="k" * 16, send=("agent:ops:*",))
pytestmark = pytest.mark.system


def test_a_peer_gets_the_scopes_of_its_rule() -> None:
    assert scopes_of(MARS) == ("send",)
    assert scopes_of(PeerConfig(name="mars", key="k" * 16, send=("*",), spawn=("ops",))) == ("send", "spawn")


def test_a_call_is_made_as_the_peer_with_one_token_that_is_renewed(daemon: Daemon, tmp_path: Path) -> None:
    daemon.start(AGENTS + LINK)
    minted: list[dict[str, Any]] = []
    present = [0.0]

    async def owner(method: str, **params: Any) -> Any:
        minted.append(params)
        return daemon.call(method, **params)

    calls = PeerCalls(str(daemon.socket), owner, lambda: present[0])

    async def send(key: str) -> Any:
        return await calls.call(MARS, "sessions_send", {"sessionKey": key, "message": "hi", "timeoutSeconds": 0})

    async def body() -> None:
        assert (await send("agent:ops:main"))["status"] == "accepted"
        with pytest.raises(RpcError) as refused:
            await send("agent:main:main")
        assert refused.value.slug in ("forbidden", "not_found")
        assert minted == [{"scopes": ["send"], "agentId": "mars", "ttlSeconds": TTL_S}]
        for token in daemon.call("tokens.list")["tokens"]:
            daemon.call("tokens.revoke", id=token["id"])
        assert (await send("agent:ops:main"))["status"] == "accepted"
        assert len(minted) == 2
        present[0] += TTL_S / 2
        assert (await send("agent:ops:main"))["status"] == "accepted"
        assert len(minted) == 3

    run_until(body)


def test_calls_at_the_same_time_outlive_the_revocation_of_their_token(daemon: Daemon) -> None:
    daemon.start(AGENTS + LINK)

    async def owner(method: str, **params: Any) -> Any:
        await settle()  # the others find out meanwhile that their token is revoked
        return daemon.call(method, **params)

    calls = PeerCalls(str(daemon.socket), owner)

    async def send(number: int) -> Any:
        params = {"sessionKey": "agent:ops:main", "message": f"{number}", "timeoutSeconds": 0}
        return await calls.call(MARS, "sessions_send", params)

    async def body() -> None:
        await send(0)
        for token in daemon.call("tokens.list")["tokens"]:
            daemon.call("tokens.revoke", id=token["id"])
        answers = await asyncio.gather(*(send(number) for number in range(1, 9)))
        assert [one["status"] for one in answers] == ["accepted"] * 8

    run_until(body)
