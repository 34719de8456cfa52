"""Which tokens were issued and which revoked, as lines of JSON. Sans-io: the store keeps the file.

A line is `{"type": "revoked", "id", "at", "expiresAt"?}` or `{"type": "issued", "id", "scopes", "sandboxed",
"issuedAt", "expiresAt", "sessionKey"?, "agentId"?, "runId"?, "parent"?}`, where `parent` is the id of the token that
minted it; times are milliseconds since 1970. No line holds a
token. The file grows by a line for each, and is written anew when half of them have expired.
"""

from __future__ import annotations

import msgspec

from sessiond.auth.tokens import MAX_SKEW_MS, MAX_TTL_SECONDS, TOKEN_ID, Claims
from sessiond.errors import InvalidParams


class TokenRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A token as `tokens.list` shows it. Source: protocol.md, "The gateway's calls"."""

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


class Issue(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag="issued"):
    """The line of a new token. `parent` is the token that minted it; without one the owner did."""

    id: str
    scopes: tuple[str, ...]
    sandboxed: bool
    issued_at: int
    expires_at: int
    session_key: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    parent: str | None = None


class Revocation(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, tag="revoked"):
    """The line of a token that counts no more. `expires_at` is there where it was known."""

    id: str
    at: int
    expires_at: int | None = None


_decode = msgspec.json.Decoder(Issue | Revocation).decode
_encode = msgspec.json.Encoder().encode
# A file of so few lines is not worth a rewrite.
_FEW_LINES = 16


class TokenLog:
    """The log in memory. `issue` and `revoke` give the line to write and change nothing: `take` does, once it is on
    disk. So memory never knows more than a restart would.

    A token that is revoked takes with it all that were minted by it, by those, and so on. A revocation counts also for
    an id that the log does not know: the line of its issue may be the lost one.
    """

    def __init__(self) -> None:
        self._issued: dict[str, Issue] = {}
        self._revoked: dict[str, Revocation] = {}
        # Those revoked and those minted by them; and by whom each was minted.
        self._dead: set[str] = set()
        self._minted: dict[str, list[str]] = {}
        # How many lines the file has, whatever they say.
        self._lines = 0
        self.skipped = 0

    @classmethod
    def parse(cls, data: bytes) -> TokenLog:
        """The log in a file's bytes. Lines that are torn or foreign are passed over and counted in `skipped`."""
        log = cls()
        for line in data.split(b"\n"):
            if not line.strip():
                continue
            try:
                log.take(_decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                log._lines += 1
                log.skipped += 1
        return log

    def issue(self, claims: Claims, parent: str | None = None) -> Issue:
        """What is to be written of a new token."""
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
        )

    def revoke(self, token_id: str, now_ms: int, expires_at_ms: int | None = None) -> Revocation | None:
        """What is to be written so that a token counts no more; None where it was revoked already.

        `expires_at_ms` is for a token that the log may not know. InvalidParams for what is no id.
        """
        if not TOKEN_ID.fullmatch(token_id):
            raise InvalidParams("$.id is no token id: ids are 32 hex digits; tokens.list shows them", field="$.id")
        if token_id in self._dead:
            return None
        issued = self._issued.get(token_id)
        return Revocation(token_id, now_ms, issued.expires_at if issued is not None else expires_at_ms)

    def take(self, line: Issue | Revocation) -> None:
        """The line is on disk: it counts from now on."""
        self._lines += 1
        match line:
            case Issue():
                self._issued[line.id] = line
                if line.parent is not None:
                    self._minted.setdefault(line.parent, []).append(line.id)
                    if line.parent in self._dead:
                        self._bury(line.id)
            case Revocation():
                self._revoked.setdefault(line.id, line)
                self._bury(line.id)

    def _bury(self, token_id: str) -> None:
        dying = [token_id]
        while dying:
            one = dying.pop()
            if one not in self._dead:
                self._dead.add(one)
                dying += self._minted.get(one, ())

    def is_revoked(self, token_id: str) -> bool:
        """Whether the token with this id was revoked, or the one that it comes from."""
        return token_id in self._dead

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
                revoked=record.id in self._dead,
            )
            for record in self._issued.values()
        ]
        # Times are whole seconds; within one the later line is the newer token.
        return sorted(rows, key=lambda row: row.issued_at)[::-1]

    def drop_expired(self, now_ms: int) -> TokenLog:
        """The log without the tokens that have expired and without their revocations. This one stays as it is.

        A revocation outlasts its token by as much as the clock may be set back, and where nobody knows when the token
        expires by the longest that a token can live.
        """
        log = TokenLog()
        for record in self._issued.values():
            if record.expires_at > now_ms:
                log.take(record)
        for revocation in self._revoked.values():
            last = revocation.at + MAX_TTL_SECONDS * 1000 if revocation.expires_at is None else revocation.expires_at
            if last + MAX_SKEW_MS > now_ms:
                log.take(revocation)
        for token_id in self._dead - self._revoked.keys():
            # It outlasts the line of its issue, by which it is known whose it was, as every revocation does.
            expires_at = self._issued[token_id].expires_at
            if expires_at + MAX_SKEW_MS > now_ms:
                log.take(Revocation(token_id, now_ms, expires_at))
        return log

    def is_outgrown(self, now_ms: int) -> bool:
        """Whether half of the file or more says nothing any more, so that writing it anew is worth it."""
        return self._lines >= _FEW_LINES and self._lines >= 2 * len(self.drop_expired(now_ms))

    def encode(self) -> bytes:
        """The whole log as the lines of a new file."""
        lines: list[Issue | Revocation] = [*self._issued.values(), *self._revoked.values()]
        return b"".join(encode(line) for line in lines)

    def __len__(self) -> int:
        return len(self._issued) + len(self._revoked)


def encode(line: Issue | Revocation) -> bytes:
    """The line as it stands in the file."""
    return _encode(line) + b"\n"
