"""The connection of an MCP server to the daemon: the session that it acts as, and its token.

Inside a run both come from SESSIOND_TOKEN_FILE. Otherwise the server creates a session, if needed, and mints a token
for it as the owner; what the tools may see follows from that session. The token is kept in memory only and is revoked
at the end. Source: security.md, "Callers".
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
from sessiond.client.retry import Backoff

SCOPES = ("list", "read", "send", "spawn")
# RENEW_BEFORE_S is longer than a tool waits at most (an hour): a call may still be using the old token when the next
# one is minted.
TTL_S = 12 * 3600
RENEW_BEFORE_S = 2 * 3600
# An answer usually takes milliseconds; this allows for a busy machine.
ANSWER_S = 30.0
# A client that lists its tools waits for this.
SCOPES_S = 1.0
# Programs that stop an MCP server kill it after a second or two.
CLOSE_TIMEOUT_S = 1.0
# If no daemon is running when the client connects, these are the first and last pause between attempts. The session is
# created even if no tool is called, so that other sessions can send to it.
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
_MAX_NAME = 64


class DaemonConnection:
    """`session` is the key from the command line; None: the session is named after the MCP client.

    `clock` gives seconds, for the age of the token. Methods may be called from any thread.
    """

    def __init__(self, *, socket: str | None, session: str | None, clock: Callable[[], float] = time.time) -> None:
        self._socket, self._session, self._clock = socket, session, clock
        self._has_token = has_token_file()
        self._client_name = "client"
        self._lock = threading.Lock()  # guards what follows
        self._client: Client | None = None
        self._renew_at = float("inf")
        # All clients with the ids of their tokens. Calls with an older token may still be waiting, so none is revoked
        # before `close`.
        self._opened: list[tuple[Client, str | None]] = []
        self._left = threading.Event()

    def set_client_name(self, client_name: str, when_connected: Callable[[], object] = lambda: None) -> None:
        """Take the name of the MCP client, and create its session in the background as soon as a daemon runs.

        Then `when_connected` is called, in a thread of its own.
        """
        self._client_name = slug(client_name)
        threading.Thread(target=self._connect_in_background, args=(when_connected,), daemon=True).start()

    def may_answer(self) -> bool:
        """Whether the caller may answer questions of agents; False while no daemon can be asked.

        A token that is minted here may not: an agent does not answer for the owner unless the owner made it a token
        that does.
        """
        if not self._has_token:
            return False
        try:
            client = self.client()
            client.call("ping", timeout_s=SCOPES_S)
            return "answer" in client.caller["scopes"]
        except ClientError:
            return False

    def client(self) -> Client:
        """A client with a valid token for the session. ClientError if the daemon cannot be reached or refuses."""
        with self._lock:
            if self._client is None or self._clock() >= self._renew_at:
                try:
                    minted = {} if self._has_token else self._mint()
                except ClientError:
                    if self._client is None:
                        raise
                    return self._client  # the old token is still valid; the next call tries to renew it again
                self._client = Client(
                    self._socket, token=minted.get("token"), name=f"mcp:{self._client_name}", version=__version__
                )
                self._opened.append((self._client, minted.get("id")))
            return self._client

    def drop_client(self, client: Client) -> None:
        """Drop a client whose token the daemon refused, so that the next call of `client` gets another token.

        Inside a run the token file is read again: the next run has another token in the same file.
        """
        with self._lock:
            if self._client is client:
                self._client = None

    def close(self) -> None:
        """Close the connections and revoke the tokens that were minted for them."""
        self._left.set()
        if not self._lock.acquire(timeout=CLOSE_TIMEOUT_S):
            return  # the daemon does not answer; the token will expire
        try:
            minted = [token_id for _, token_id in self._opened if token_id is not None]
            if minted:
                with suppress(ClientError), self._owner() as owner:
                    for token_id in minted:
                        owner.call("tokens.revoke", id=token_id, timeout_s=CLOSE_TIMEOUT_S)
            for client, _ in self._opened:
                client.close()
        finally:
            self._lock.release()

    def _connect_in_background(self, when_connected: Callable[[], object]) -> None:
        backoff = Backoff(FIRST_RETRY_S, LAST_RETRY_S)
        while not self._left.is_set():
            try:
                _ = self.client().caller
            except ClientError:
                # A tool call reports the error; here it is only tried again.
                self._left.wait(backoff.next_s())
            else:
                when_connected()
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
