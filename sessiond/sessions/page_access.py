"""How the owner's page gets its rights: one-time codes, and the tokens for which the page trades them.

Knows codes and tokens. Does not know HTTP: `listener` opens the port. Source: security.md, "The page".
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sessiond.clock import Clock
from sessiond.errors import Unauthenticated
from sessiond.sessions.tokens import Tokens

if TYPE_CHECKING:
    from sessiond.auth.tokens import Claims

# A browser starts within seconds. The code is in its command line, which other users can read.
CODE_S = 30
# More than a person asks for in that time; a loop that asks for codes takes no memory.
_MAX_CODES = 16
_CODE_BYTES = 24
_NO_CODE = "this code was used, or is older than 30 seconds; run `sessiond web` again"


class PageListener(Protocol):
    """Where the page is served."""

    def open(self, until_ms: int) -> str:
        """The address of the page, `http://127.0.0.1:PORT/`, listened on until then at least."""

    def close(self) -> bool:
        """Stop listening, if it was opened for the page; whether it was."""


class _Order(NamedTuple):
    """What the token of a code will be. `ends_s` is when the code ends, on the monotonic clock."""

    scopes: frozenset[str]
    ttl_s: float
    ends_s: float


class PageAccess:
    """The codes that were not traded yet, in memory only: after a restart there are none."""

    def __init__(self, tokens: Tokens, clock: Clock) -> None:
        self.listener: PageListener | None = None
        self._tokens, self._clock = tokens, clock
        # By the hash of the code: a lookup then takes as long whatever part of a code is right.
        self._orders: dict[bytes, _Order] = {}

    def issue_code(self, scopes: frozenset[str], ttl_s: float) -> str:
        """A new code, which can be traded once within CODE_S seconds."""
        code = secrets.token_urlsafe(_CODE_BYTES)
        now_s = self._clock.monotonic()
        self._orders = {key: order for key, order in self._orders.items() if order.ends_s > now_s}
        while len(self._orders) >= _MAX_CODES:
            del self._orders[next(iter(self._orders))]
        self._orders[_digest(code)] = _Order(scopes, ttl_s, now_s + CODE_S)
        return code

    async def trade(self, code: str) -> tuple[str, Claims]:
        """The token of a code, and its claims. Unauthenticated for a code that is unknown, used or too old."""
        # Taken before anything is awaited: of two requests with the same code one gets a token.
        order = self._orders.pop(_digest(code), None)
        if order is None or order.ends_s <= self._clock.monotonic():
            raise Unauthenticated(_NO_CODE, code="page_code")
        return await self._tokens.mint(
            scopes=order.scopes,
            session_key=None,
            agent_id=None,
            sandboxed=False,
            ttl_seconds=order.ttl_s,
            is_page=True,
        )

    async def close(self) -> int:
        """Drop all codes and revoke the tokens of every page; how many were valid."""
        self._orders.clear()
        now_ms = self._clock.wall_ms()
        valid = [row.id for row in self._tokens.rows() if row.page and not row.revoked and row.expires_at > now_ms]
        for token_id in valid:
            await self._tokens.revoke(token_id=token_id, text=None)
        return len(valid)


def _digest(code: str) -> bytes:
    return hashlib.sha256(code.encode("utf-8", "surrogatepass")).digest()
