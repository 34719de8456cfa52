"""Calls to the daemon here on behalf of another machine: each with a token of that machine's agent, and no more rights.

A connection is opened for each call: commands are seldom, and a hundred machines must not hold a hundred of them.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

from sessiond import __version__
from sessiond.client import locate
from sessiond.client.errors import RpcError
from sessiond.config.link import PeerConfig
from sessiond.link.daemon import PROTOCOL, DaemonLink

# A day: so many tokens are in the log of tokens for one machine.
TTL_S = 86_400
# A call with a large message, on a busy machine.
CALL_S = 120.0

OwnerCall = Callable[..., Awaitable[Any]]


class PeerCalls:
    """`call(peer, method, params)`. `owner` calls the daemon as the owner, who mints the tokens."""

    def __init__(self, socket: str | None, owner: OwnerCall, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._socket, self._owner, self._monotonic = socket, owner, monotonic
        self._tokens: dict[str, tuple[str, tuple[str, ...], float]] = {}

    async def call(self, peer: PeerConfig, method: str, params: dict[str, Any]) -> Any:
        """The result for the peer. RpcError, or another ClientError where the daemon is away."""
        token = await self._token(peer)
        try:
            return await self._call_with(token, peer, method, params)
        except RpcError as error:
            if error.slug != "unauthenticated":
                raise
        # Revoked by the owner, or the store has another key. Another call may have found that out before this one.
        if (held := self._tokens.get(peer.name)) is not None and held[0] == token:
            del self._tokens[peer.name]
        return await self._call_with(await self._token(peer), peer, method, params)

    async def _call_with(self, token: str, peer: PeerConfig, method: str, params: dict[str, Any]) -> Any:
        hello = {
            "protocol": PROTOCOL,
            "client": {"name": f"sessiond-link ({peer.name})", "version": __version__},
            "token": token,
        }
        link = await DaemonLink.open(locate.socket_path(self._socket), hello, {}, lambda _event: None)
        try:
            return await link.call(method, params, timeout_s=CALL_S)
        finally:
            link.close()

    async def _token(self, peer: PeerConfig) -> str:
        scopes = scopes_of(peer)
        held = self._tokens.get(peer.name)
        if held is None or held[1] != scopes or held[2] <= self._monotonic():
            minted = await self._owner("tokens.mint", scopes=list(scopes), agentId=peer.name, ttlSeconds=TTL_S)
            # Before it ends: what runs then must not find it expired.
            held = self._tokens[peer.name] = (minted["token"], scopes, self._monotonic() + TTL_S / 2)
        return held[0]


def scopes_of(peer: PeerConfig) -> tuple[str, ...]:
    """What the peer's token is for, by its rules. None is for nothing: such a peer's commands are refused before."""
    return tuple(scope for scope, rule in (("send", peer.send), ("spawn", peer.spawn)) if rule)
