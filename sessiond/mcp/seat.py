"""The seat of an MCP server at the daemon: for which session it speaks, and the connection that says so.

Inside a run that is what SESSIOND_TOKEN_FILE says. Otherwise a session is made where need be and a token for it minted
as the owner, so that what the tools may see follows from that session. The token is kept in memory and nowhere else.
Source: security.md, "Callers".
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

import trio

from sessiond import __version__
from sessiond.client import ClientError, TrioClient

SCOPES = ("list", "read", "send", "spawn")
# Well beyond the longest wait of a tool (an hour), with which a call may still be on its way when the next is minted.
TTL_S = 12 * 3600
RENEW_BEFORE_S = 2 * 3600
# An ordinary answer takes milliseconds; this is for a machine that does much else.
ANSWER_S = 30.0
# A daemon that was not there when the client came is asked again at this pace, so that others find the session.
ARRIVE_AGAIN_S = 5.0
_MAX_NAME = 64


class Seat:
    """Lives in `nursery`. `session` is the key from the command line; without one it is named after the client.

    `clock` is in seconds, for the age of the token.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        *,
        socket: str | None,
        session: str | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nursery, self._socket, self._session, self._clock = nursery, socket, session, clock
        self._has_token = bool(os.environ.get("SESSIOND_TOKEN_FILE"))
        self._name = "client"
        self._arrived = False
        self._taking = trio.Lock()
        self._client: TrioClient | None = None
        self._renew_at = float("inf")
        self._leave = trio.Event()
        self.was_taken = False

    def arrive(self, client_name: str) -> None:
        """The MCP client has said its name: take the seat as soon as there is a daemon."""
        if not self._arrived:
            self._arrived = True
            self._name = slug(client_name)
            self._nursery.start_soon(self._keep_trying)

    async def client(self) -> TrioClient:
        """The client library's connection that speaks for the session. ClientError where there is none to be had."""
        async with self._taking:
            if self._client is None or self._clock() >= self._renew_at:
                token = None if self._has_token else await self._mint()
                self._leave.set()
                self._leave = trio.Event()
                self._client = await self._nursery.start(self._hold, token, self._leave)
            return self._client

    def give_up(self, client: TrioClient) -> bool:
        """The daemon no longer takes this client's token. Whether another one can be had."""
        if self._has_token:
            return False
        if self._client is client:
            self._client = None
        return True

    async def _keep_trying(self) -> None:
        while True:
            try:
                await (await self.client()).caller()
                self.was_taken = True
                return
            except ClientError:
                # Whoever calls a tool is told; nobody waits for this here.
                await trio.sleep(ARRIVE_AGAIN_S)

    async def _mint(self) -> str:
        async with TrioClient(self._socket, name="sessiond-mcp", version=__version__) as owner:
            key = self._session or f"mcp:{self._name}"
            made = await owner.call("sessions.create", key=key, timeout_s=ANSWER_S)
            minted: dict[str, Any] = await owner.call(
                "tokens.mint", sessionKey=made["key"], scopes=list(SCOPES), ttlSeconds=TTL_S, timeout_s=ANSWER_S
            )
        self._renew_at = self._clock() + TTL_S - RENEW_BEFORE_S
        return str(minted["token"])

    async def _hold(
        self,
        token: str | None,
        leave: trio.Event,
        *,
        task_status: trio.TaskStatus[TrioClient] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        async with TrioClient(self._socket, token=token, name=f"mcp:{self._name}", version=__version__) as client:
            task_status.started(client)
            await leave.wait()
            # Calls that were begun with this token may still be waiting; it is good until then.
            await trio.sleep(RENEW_BEFORE_S)


def slug(name: str) -> str:
    """A client's name as part of a session key: `Claude Code` is `claude-code`."""
    return re.sub(r"[^a-z0-9._]+", "-", name.lower())[:_MAX_NAME].strip("-._") or "client"
