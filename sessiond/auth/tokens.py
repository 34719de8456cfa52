"""Tokens: a CWT (RFC 8392) in COSE_Sign1, as base64url text. Mints, reads and verifies them; no file, no clock.

Knows the claims of a token and whether it is valid. Does not know what its holder may see or where tokens are logged.
Source: security.md, "Callers".
"""

from __future__ import annotations

import base64
import math
import os
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from sessiond.auth import cose
from sessiond.errors import InvalidParams, Unauthenticated, quote
from sessiond.model import keys
from sessiond.model.caller import SCOPES, Caller
from sessiond.ranges import TOKEN_TTL_S

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    from sessiond.auth.keyring import SigningKey

ISSUER = "sessiond"
# The lifetime of a run's token. It becomes invalid when the run ends, long before that.
MAX_TTL_SECONDS = TOKEN_TTL_S.most
# A token takes a few hundred bytes; with the longest session key (512 bytes) still less than 1 KiB.
MAX_TOKEN_CHARS = 4096
# A token may appear to be issued this far in the future, because the clock may be set back a little.
MAX_SKEW_MS = 60_000
ID_BYTES = 16
TOKEN_ID = re.compile(r"[0-9a-f]{32}")

# Registered claims (RFC 8392 section 3.1) and our own, in the range for private use (below -65536).
_ISS, _SUB, _EXP, _IAT, _CTI = 1, 2, 4, 6, 7
_AGENT, _RUN, _SANDBOXED, _SCOPES, _PAGE, _MACHINE = -70_001, -70_002, -70_003, -70_004, -70_005, -70_006
_CLAIMS = frozenset({_ISS, _SUB, _EXP, _IAT, _CTI, _AGENT, _RUN, _SANDBOXED, _SCOPES, _PAGE, _MACHINE})

# The first bytes of every token: tag 18, array of four, protected header {alg: EdDSA}, empty unprotected header. They
# are checked before decoding, so that in an unsigned message the CBOR decoder only ever sees two byte strings.
_PREFIX = bytes.fromhex("d28443a10127a0")
_TEXT = re.compile(r"[A-Za-z0-9_-]+")

NOT_OURS = "the token is not one of this daemon's; `sessiond token mint` makes one"
EXPIRED = "the token has expired; `sessiond token mint` makes a new one"
REVOKED = "the token was revoked"
NOT_YET = "the token was issued in the future: this machine's clock has been set back"


class Claims(msgspec.Struct, frozen=True, kw_only=True):
    """The claims of a token. `id` is 32 hex digits; times are milliseconds since 1970, multiples of 1000."""

    id: str
    scopes: tuple[str, ...]
    issued_at_ms: int
    expires_at_ms: int
    session_key: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    sandboxed: bool = False
    is_page: bool = False
    is_machine: bool = False

    def caller(self) -> Caller:
        """The caller who holds the token. If the token names a session, its agent is the session's."""
        agent_id = keys.agent_of(self.session_key) if self.session_key is not None else self.agent_id
        return Caller(
            kind="token",
            scopes=frozenset(self.scopes),
            session_key=self.session_key,
            agent_id=agent_id,
            run_id=self.run_id,
            sandboxed=self.sandboxed,
            is_page=self.is_page,
            is_machine=self.is_machine,
            token_id=self.id,
            expires_at_ms=self.expires_at_ms,
        )


def mint(
    key: SigningKey,
    *,
    scopes: tuple[str, ...] | frozenset[str],
    now_ms: int,
    ttl_seconds: float = TOKEN_TTL_S.default,
    session_key: str | None = None,
    agent_id: str | None = None,
    run_id: str | None = None,
    sandboxed: bool = False,
    is_page: bool = False,
    is_machine: bool = False,
    random: Callable[[int], bytes] = os.urandom,
) -> tuple[str, Claims]:
    """A new token and its claims. `session_key` is canonical; `ttl_seconds` is floored and clamped to 1 s - 10 years.

    InvalidParams for an unknown scope, a malformed agent id, or an agent that is not the session's.
    """
    unknown = sorted(set(scopes) - set(SCOPES))
    if unknown:
        raise InvalidParams(f"$.scopes: {quote(unknown[0])} is no scope; use {', '.join(SCOPES)}", field="$.scopes")
    if agent_id is not None and not keys.AGENT_ID.fullmatch(agent_id):
        raise InvalidParams("$.agentId is no agent id: ids match [a-z0-9][a-z0-9_-]{0,63}", field="$.agentId")
    if session_key is not None and agent_id not in (None, keys.agent_of(session_key)):
        raise InvalidParams(f"$.agentId: {session_key} is not a session of agent {agent_id}", field="$.agentId")
    if math.isnan(ttl_seconds):
        raise InvalidParams("$.ttlSeconds is not a number", field="$.ttlSeconds")
    issued = now_ms // 1000
    ttl = math.floor(max(1, min(MAX_TTL_SECONDS, ttl_seconds)))
    claims = Claims(
        id=random(ID_BYTES).hex(),
        scopes=tuple(scope for scope in SCOPES if scope in scopes),
        issued_at_ms=issued * 1000,
        expires_at_ms=(issued + ttl) * 1000,
        session_key=session_key,
        agent_id=agent_id,
        run_id=run_id,
        sandboxed=sandboxed,
        is_page=is_page,
        is_machine=is_machine,
    )
    signed = cose.sign(cose.encode(_to_cwt(claims)), key.private)
    return base64.urlsafe_b64encode(signed).rstrip(b"=").decode("ascii"), claims


def read(text: str, key: Ed25519PublicKey) -> Claims:
    """The claims of a token signed by `key`, even if it is expired or revoked. Unauthenticated for any other text."""
    try:
        message = cose.verify(_signed_bytes(text), key)
        return _from_cwt(cose.decode(message.payload))
    except (cose.CoseError, ValueError, msgspec.ValidationError):
        # Do not tell a caller without a valid token what is wrong with it.
        raise Unauthenticated(NOT_OURS) from None


def verify(text: str, key: Ed25519PublicKey, now_ms: int, is_revoked: Callable[[Claims], bool]) -> Caller:
    """The caller who holds the token. Unauthenticated if it is not ours, expired, revoked, or issued in the future."""
    claims = read(text, key)
    _check_valid(claims, now_ms, is_revoked)
    return claims.caller()


class TokenVerifier:
    """`verify` with a cache of verified signatures.

    Expiry and revocation are checked at every call. Only valid tokens are cached, the `capacity` most recently used
    ones. `is_revoked` also has to be true for tokens of runs that have ended.
    """

    def __init__(
        self,
        key: Ed25519PublicKey,
        *,
        wall_ms: Callable[[], int],
        is_revoked: Callable[[Claims], bool],
        capacity: int = 1024,
    ) -> None:
        self._key = key
        self._wall_ms = wall_ms
        self._is_revoked = is_revoked
        self._capacity = capacity
        self._known: OrderedDict[str, tuple[Claims, Caller]] = OrderedDict()

    def authenticate(self, text: str) -> Caller:
        """Like `verify`, at the current time."""
        known = self._known.get(text)
        if known is None:
            claims = read(text, self._key)
            known = claims, claims.caller()
        try:
            _check_valid(known[0], self._wall_ms(), self._is_revoked)
        except Unauthenticated:
            self._known.pop(text, None)
            raise
        self._known[text] = known
        self._known.move_to_end(text)
        if len(self._known) > self._capacity:
            self._known.popitem(last=False)
        return known[1]

    def __len__(self) -> int:
        return len(self._known)


def _check_valid(claims: Claims, now_ms: int, is_revoked: Callable[[Claims], bool]) -> None:
    if is_revoked(claims):
        raise Unauthenticated(REVOKED)
    if now_ms >= claims.expires_at_ms:
        raise Unauthenticated(EXPIRED)
    if claims.issued_at_ms > now_ms + MAX_SKEW_MS:
        raise Unauthenticated(NOT_YET)


def _signed_bytes(text: str) -> bytes:
    if len(text) > MAX_TOKEN_CHARS or not _TEXT.fullmatch(text):
        raise ValueError("no token text")
    raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    # Each token has exactly one text: refuse base64 whose unused trailing bits are not zero.
    if base64.urlsafe_b64encode(raw).rstrip(b"=").decode("ascii") != text or not raw.startswith(_PREFIX):
        raise ValueError("no token of ours")
    return raw


def _to_cwt(claims: Claims) -> dict[int, Any]:
    optional = {
        _SUB: claims.session_key,
        _AGENT: claims.agent_id,
        _RUN: claims.run_id,
        _PAGE: claims.is_page or None,
        _MACHINE: claims.is_machine or None,
    }
    return {
        _ISS: ISSUER,
        _EXP: claims.expires_at_ms // 1000,
        _IAT: claims.issued_at_ms // 1000,
        _CTI: bytes.fromhex(claims.id),
        _SANDBOXED: claims.sandboxed,
        _SCOPES: list(claims.scopes),
        **{claim: value for claim, value in optional.items() if value is not None},
    }


def _from_cwt(cwt: Any) -> Claims:
    """The claims of a signed payload. ValueError if they are not in our format: an older release may have signed it."""
    if not isinstance(cwt, dict) or not cwt.keys() <= _CLAIMS or cwt.get(_ISS) != ISSUER:
        raise ValueError("no claims of ours")
    fields = {
        "id": cwt[_CTI].hex() if isinstance(cwt.get(_CTI), bytes) else None,
        "scopes": cwt.get(_SCOPES),
        "issued_at_ms": _seconds(cwt.get(_IAT)),
        "expires_at_ms": _seconds(cwt.get(_EXP)),
        "session_key": cwt.get(_SUB),
        "agent_id": cwt.get(_AGENT),
        "run_id": cwt.get(_RUN),
        "sandboxed": cwt.get(_SANDBOXED),
        "is_page": cwt.get(_PAGE, False),
        "is_machine": cwt.get(_MACHINE, False),
    }
    claims = msgspec.convert(fields, Claims)
    if not set(claims.scopes) <= set(SCOPES):
        raise ValueError("an unknown scope")
    if claims.session_key is not None and not re.fullmatch(r"agent:[^:]+:.+", claims.session_key, re.DOTALL):
        raise ValueError("a subject that is no session key")
    return claims


def _seconds(value: Any) -> int | None:
    return value * 1000 if type(value) is int else None
