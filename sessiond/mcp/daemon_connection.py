"""The connection of an MCP server to the daemon: for which session it speaks, and the token that says so.

Inside a run that is what SESSIOND_TOKEN_FILE says. Otherwise a session is made where need be and a token for it minted
as the owner, so that what the tools may see follows from that session. The token is kept in memory and nowhere else,
and revoked at the end. Source: security.md, "Callers".
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sessiond import __version__
from sessiond.client import Client, ClientError
from sessiond.client.locate import has_token_file

SCOPES = ("list", "read", "send", "spawn")
# Well beyond the longest wait of a tool (an hour), with which a call may still be on its way when the next is minted.
TTL_S = 12 * 3600
RENEW_BEFORE_S = 2 * 3600
# An ordinary answer takes milliseconds; this is for a machine that does much else.
ANSWER_S = 30.0
# Programs give a server that is to end a second or two before they kill it.
LEAVE_S = 1.0
# A daemon that was not there when the client came is asked again, so that others find the session. Seldom in the end:
# there may never be one.
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
_MAX_NAME = 64


class DaemonConnection:
    """`session` is the key from the command line; without one it is named after the MCP client.

    `clock` is in seconds, for the age of the token. Methods may be called from any thread.
    """

    def __init__(self, *, socket: str | None, session: str | None, clock: Callable[[], float] = time.time) -> None:
        self._socket, self._session, self._clock = socket, session, clock
        self._has_token = has_token_file()
        self._client_name = "client"
        self._lock = threading.Lock()  # guards what follows
        self._client: Client | None = None
        self._renew_at = float("inf")
        # Calls that were begun with an older token may still be waiting; it is good until they end.
        self._opened: list[tuple[Client, str | None]] = []
        self._left = threading.Event()

    def introduce(self, client_name: str) -> None:
        """The MCP client has said its name: make its session as soon as there is a daemon."""
        self._client_name = slug(client_name)
        threading.Thread(target=self._connect_soon, daemon=True).start()

    def client(self) -> Client:
        """The client library's connection that speaks for the session. ClientError where there is none to be had."""
        with self._lock:
            if self._client is None or self._clock() >= self._renew_at:
                try:
                    minted = {} if self._has_token else self._mint()
                except ClientError:
                    if self._client is None:
                        raise
                    return self._client  # the old token is good for long enough; it is renewed with the next call
                self._client = Client(
                    self._socket, token=minted.get("token"), name=f"mcp:{self._client_name}", version=__version__
                )
                self._opened.append((self._client, minted.get("id")))
            return self._client

    def give_up(self, client: Client) -> None:
        """The daemon no longer takes this client's token: the next client has another one.

        That of a run is another one in its next run, in the same file.
        """
        with self._lock:
            if self._client is client:
                self._client = None

    def close(self) -> None:
        """End the connections, and the tokens that were minted for them."""
        self._left.set()
        if not self._lock.acquire(timeout=LEAVE_S):
            return  # a daemon that does not answer; the token ends by itself
        try:
            minted = [token_id for _, token_id in self._opened if token_id is not None]
            if minted:
                with suppress(ClientError), self._owner() as owner:
                    for token_id in minted:
                        owner.call("tokens.revoke", id=token_id, timeout_s=LEAVE_S)
            for client, _ in self._opened:
                client.close()
        finally:
            self._lock.release()

    def _connect_soon(self) -> None:
        delay_s = FIRST_RETRY_S
        while not self._left.is_set():
            try:
                _ = self.client().caller
            except ClientError:
                # Whoever calls a tool is told; nobody waits for this here.
                self._left.wait(delay_s)
                delay_s = min(delay_s * 2, LAST_RETRY_S)
            else:
                return

    def _mint(self) -> dict[str, Any]:
        with self._owner() as owner:
            key = self._session or f"mcp:{self._client_name}"
            session = owner.call("sessions.create", key=key, timeout_s=ANSWER_S)
            minted: dict[str, Any] = owner.call(
                "tokens.mint", sessionKey=session["key"], scopes=list(SCOPES), ttlSeconds=TTL_S, timeout_s=ANSWER_S
            )
        self._renew_at = self._clock() + TTL_S - RENEW_BEFORE_S
        return minted

    def _owner(self) -> Client:
        return Client(self._socket, name="sessiond-mcp", version=__version__)


def slug(name: str) -> str:
    """A client's name as part of a session key: `Claude Code` is `claude-code`."""
    return re.sub(r"[^a-z0-9._]+", "-", name.lower())[:_MAX_NAME].strip("-._") or "client"
