"""Which tokens were issued and which revoked, as lines of JSON that only grow. Sans-io: the store keeps the file.

A line is `{"type": "revoked", "id", "at"}` or `{"type": "issued", "id", "scopes", "sandboxed", "issuedAt", "expiresAt",
"sessionKey"?, "agentId"?, "runId"?}`; times are milliseconds since 1970. No line holds a token.
"""

from __future__ import annotations

import msgspec

from sessiond.auth.tokens import TOKEN_ID, Claims
from sessiond.errors import InvalidParams


class TokenRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A token as `tokens.list` shows it. Source: shapes.md."""

    id: str
    scopes: tuple[str, ...]
    issued_at: int
    expires_at: int
    session_key: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    # Without a default: the list always says these two.
    sandboxed: bool
    revoked: bool


class _Issued(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag="issued"):
    id: str
    scopes: tuple[str, ...]
    sandboxed: bool
    issued_at: int
    expires_at: int
    session_key: str | None = None
    agent_id: str | None = None
    run_id: str | None = None


class _Revoked(msgspec.Struct, frozen=True, rename="camel", tag="revoked"):
    id: str
    at: int


_decode = msgspec.json.Decoder(_Issued | _Revoked).decode
_encode = msgspec.json.Encoder().encode


class TokenLog:
    """The log in memory. Its changing methods give the line to append, which is to be on disk before anyone is told.

    A revocation counts at once, also for an id that the log does not know: the line of its issue may be the lost one.
    """

    def __init__(self) -> None:
        self._issued: dict[str, _Issued] = {}
        self._revoked: dict[str, int] = {}
        self.skipped = 0

    @classmethod
    def parse(cls, data: bytes) -> TokenLog:
        """The log in a file's bytes. Lines that are torn or foreign are passed over and counted in `skipped`."""
        log = cls()
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                log._apply(_decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                log.skipped += 1
        return log

    def issue(self, claims: Claims) -> bytes:
        """Note a new token."""
        record = _Issued(
            id=claims.id,
            scopes=claims.scopes,
            sandboxed=claims.sandboxed,
            issued_at=claims.issued_at_ms,
            expires_at=claims.expires_at_ms,
            session_key=claims.session_key,
            agent_id=claims.agent_id,
            run_id=claims.run_id,
        )
        self._apply(record)
        return _encode(record) + b"\n"

    def revoke(self, token_id: str, now_ms: int) -> bytes | None:
        """Note that a token counts no more; None where it was revoked already. InvalidParams for what is no id."""
        if not TOKEN_ID.fullmatch(token_id):
            raise InvalidParams("$.id is no token id: ids are 32 hex digits; tokens.list shows them", field="$.id")
        if token_id in self._revoked:
            return None
        record = _Revoked(token_id, now_ms)
        self._apply(record)
        return _encode(record) + b"\n"

    def is_revoked(self, token_id: str) -> bool:
        """Whether the token with this id was revoked."""
        return token_id in self._revoked

    def knows(self, token_id: str) -> bool:
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
                sandboxed=record.sandboxed,
                revoked=record.id in self._revoked,
            )
            for record in self._issued.values()
        ]
        # Times are whole seconds; within one the later line is the newer token.
        return sorted(rows, key=lambda row: row.issued_at)[::-1]

    def compact(self, now_ms: int) -> bytes:
        """Forget tokens that have expired, and their revocations; the lines of what is left, for a new file.

        A revocation whose token is not known stays for good: nobody can tell when it may go.
        """
        expired = [token_id for token_id, record in self._issued.items() if record.expires_at <= now_ms]
        for token_id in expired:
            del self._issued[token_id]
            self._revoked.pop(token_id, None)
        lines: list[_Issued | _Revoked] = [*self._issued.values()]
        lines += [_Revoked(token_id, at) for token_id, at in self._revoked.items()]
        return b"".join(_encode(line) + b"\n" for line in lines)

    def __len__(self) -> int:
        return len(self._issued) + len(self._revoked)

    def _apply(self, record: _Issued | _Revoked) -> None:
        match record:
            case _Issued():
                self._issued[record.id] = record
            case _Revoked():
                self._revoked.setdefault(record.id, record.at)
