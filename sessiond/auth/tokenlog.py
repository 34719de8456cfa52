"""The log of issued and revoked tokens, as lines of JSON. Sans-io: `sessions/tokens.py` reads and writes the file.

A line is `{"type": "revoked", "id", "at", "expiresAt"?}` or `{"type": "issued", "id", "scopes", "sandboxed",
"issuedAt", "expiresAt", "sessionKey"?, "agentId"?, "runId"?, "parent"?, "page"?}`. `parent` is the id of the token that
minted this one, `page` says that it is a page's; times are milliseconds since 1970. No line holds a token itself. The
file grows by one line per event and is rewritten when half of its lines are about expired tokens.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Annotated

import msgspec
from msgspec import Meta

from sessiond.auth.tokens import MAX_SKEW_MS, MAX_TTL_SECONDS, TOKEN_ID, Claims
from sessiond.errors import InvalidParams
from sessiond.model.decoding_cost import find_excess


class TokenRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A token as `tokens.list` shows it. Source: protocol.md, "The gateway's calls"."""

    id: Annotated[str, Meta(description="The token's id.")]
    scopes: Annotated[
        tuple[str, ...], Meta(description="Its scopes: some of list, read, send, spawn, answer and admin.")
    ]
    issued_at: Annotated[int, Meta(description="When it was issued, in milliseconds since 1970.")]
    expires_at: Annotated[int, Meta(description="When it expires, in milliseconds since 1970.")]
    session_key: Annotated[str | None, Meta(description="The session that it acts as.")] = None
    agent_id: Annotated[str | None, Meta(description="The agent that it belongs to.")] = None
    run_id: Annotated[str | None, Meta(description="The run that minted it.")] = None
    page: Annotated[bool, Meta(description="Whether the page of `sessiond web` holds it.")] = False
    # Without a default, so that these two are always on the wire.
    sandboxed: Annotated[bool, Meta(description="Whether its holder is sandboxed.")]
    revoked: Annotated[bool, Meta(description="Whether it was ended before its time.")]


class Issue(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag="issued"):
    """The line of a new token. `parent` is the id of the token that minted it; None: the owner minted it."""

    id: str
    scopes: tuple[str, ...]
    sandboxed: bool
    issued_at: int
    expires_at: int
    session_key: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    parent: str | None = None
    page: bool = False


class Revocation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag="revoked"):
    """The line of a revoked token. `expires_at` is None if it is not known."""

    id: str
    at: int
    expires_at: int | None = None


_decode = msgspec.json.Decoder(Issue | Revocation).decode
_encode = msgspec.json.Encoder().encode
# What may be a line of ours. The others are not looked at: a file may have millions.
_OBJECT = re.compile(rb"^[ \t]*\{[^\n]*", re.MULTILINE)
# A file with fewer lines is never rewritten.
_FEW_LINES = 16
# Whether one with more is to be is looked for after an eighth of new lines, since that looks at each of them.
_MANY_LINES = 1024


class TokenLog:
    """The log in memory. `issue` and `revoke` only return the line to write; call `take` once the line is on disk, so
    that memory never holds more than a restart would read.

    Revoking a token also revokes every token minted with it, directly or indirectly. An id without an `issued` line can
    be revoked too: that line may have been lost.
    """

    def __init__(self) -> None:
        self._issued: dict[str, Issue] = {}
        self._revoked: dict[str, Revocation] = {}
        # The revoked tokens and all that were minted with them.
        self._invalid: set[str] = set()
        self._children: dict[str, list[str]] = {}
        # The number of lines in the file, unreadable ones included.
        self._lines = self._next_look = 0

    @classmethod
    def parse(cls, data: bytes) -> TokenLog:
        """The log in the bytes of a file. Lines that cannot be read are skipped."""
        log = cls()
        for found in _OBJECT.finditer(data):
            line = found[0]
            if find_excess(line) is None:
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    log.take(_decode(line))
        log._lines = data.count(b"\n") + (not data.endswith(b"\n"))
        return log

    def issue(self, claims: Claims, parent: str | None = None) -> Issue:
        """The line to write for a new token."""
        return Issue(
            id=claims.id,
            scopes=claims.scopes,
            sandboxed=claims.sandboxed,
            issued_at=claims.issued_at_ms,
            expires_at=claims.expires_at_ms,
            session_key=claims.session_key,
            agent_id=claims.agent_id,
            run_id=claims.run_id,
            parent=parent,
            page=claims.is_page,
        )

    def revoke(self, token_id: str, now_ms: int, expires_at_ms: int | None = None) -> Revocation | None:
        """The line to write to revoke a token; None if it is revoked already.

        `expires_at_ms` is for a token that the log may not know. InvalidParams if `token_id` is malformed.
        """
        if not TOKEN_ID.fullmatch(token_id):
            raise InvalidParams("$.id is no token id: ids are 32 hex digits; tokens.list shows them", field="$.id")
        if token_id in self._invalid:
            return None
        issued = self._issued.get(token_id)
        return Revocation(token_id, now_ms, issued.expires_at if issued is not None else expires_at_ms)

    def take(self, line: Issue | Revocation) -> None:
        """Apply a line that is on disk."""
        self._lines += 1
        match line:
            case Issue():
                self._issued[line.id] = line
                if line.parent is not None:
                    self._children.setdefault(line.parent, []).append(line.id)
                    if line.parent in self._invalid:
                        self._invalidate(line.id)
            case Revocation():
                self._revoked.setdefault(line.id, line)
                self._invalidate(line.id)

    def _invalidate(self, token_id: str) -> None:
        pending = [token_id]
        while pending:
            one = pending.pop()
            if one not in self._invalid:
                self._invalid.add(one)
                pending += self._children.get(one, ())

    def is_revoked(self, token_id: str) -> bool:
        """Whether the token with this id was revoked, or any token that it was minted with."""
        return token_id in self._invalid

    def has(self, token_id: str) -> bool:
        """Whether a token with this id was issued, as far as the log remembers."""
        return token_id in self._issued

    def rows(self) -> list[TokenRow]:
        """The tokens issued, newest first."""
        rows = [
            TokenRow(
                id=record.id,
                scopes=record.scopes,
                issued_at=record.issued_at,
                expires_at=record.expires_at,
                session_key=record.session_key,
                agent_id=record.agent_id,
                run_id=record.run_id,
                page=record.page,
                sandboxed=record.sandboxed,
                revoked=record.id in self._invalid,
            )
            for record in self._issued.values()
        ]
        # Times are whole seconds. Among tokens of the same second the later line is the newer token.
        return sorted(rows, key=lambda row: row.issued_at)[::-1]

    def drop_expired(self, now_ms: int) -> TokenLog:
        """A new log without the expired tokens and their revocations.

        A revocation is kept for MAX_SKEW_MS after its token expires, because the clock may be set back; if the expiry
        is not known, for the longest life that a token can have.
        """
        log = TokenLog()
        for record in self._issued.values():
            if record.expires_at > now_ms:
                log.take(record)
        for revocation in self._revoked.values():
            last = revocation.at + MAX_TTL_SECONDS * 1000 if revocation.expires_at is None else revocation.expires_at
            if last + MAX_SKEW_MS > now_ms:
                log.take(revocation)
        for token_id in self._invalid - self._revoked.keys():
            # Revoked through its parent: give it a revocation of its own, which outlives its `issued` line.
            expires_at = self._issued[token_id].expires_at
            if expires_at + MAX_SKEW_MS > now_ms:
                log.take(Revocation(token_id, now_ms, expires_at))
        return log

    def is_outgrown(self, now_ms: int) -> bool:
        """Whether at least half of the lines are obsolete, so that the file should be rewritten."""
        if self._lines < max(_FEW_LINES, self._next_look):
            return False
        self._next_look = self._lines + self._lines // 8 if self._lines >= _MANY_LINES else 0
        return self._lines >= 2 * len(self.drop_expired(now_ms))

    def encode(self) -> bytes:
        """The content of a new file for the whole log."""
        lines: list[Issue | Revocation] = [*self._issued.values(), *self._revoked.values()]
        return b"".join(encode(line) for line in lines)

    def __len__(self) -> int:
        return len(self._issued) + len(self._revoked)


def encode(line: Issue | Revocation) -> bytes:
    """The bytes of one line of the file."""
    return _encode(line) + b"\n"
