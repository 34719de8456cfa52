"""The store's tokens: minted, verified, revoked. Keeps their log in `tokens.jsonl`; loads it at the first use.

Knows the store and `auth`. `alive(run_id)` says whether a run is going on: its token dies with it, without a line in
the log. The imports of `auth` cost a tenth of a second and wait for the first token.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from sessiond.clock import Clock
from sessiond.errors import StorageError
from sessiond.model.caller import Caller
from sessiond.store import dirfd, layout, transcript
from sessiond.store.store import SessionStore

if TYPE_CHECKING:
    from sessiond.auth.keyring import SigningKey
    from sessiond.auth.tokenlog import TokenLog, TokenRow
    from sessiond.auth.tokens import Claims, TokenVerifier


class Tokens:
    """`on_dead(caller_is)` is called with a test for callers whose token has just died, so that streams can end."""

    def __init__(self, store: SessionStore, clock: Clock, alive: Callable[[str], bool]) -> None:
        self._store, self._clock, self._alive = store, clock, alive
        self._loaded: tuple[SigningKey, TokenLog, TokenVerifier] | None = None
        self.on_dead: Callable[[Callable[[Caller], bool]], None] = _nobody

    def caller(self, text: str) -> Caller:
        """The caller who shows this token. Unauthenticated where it does not count."""
        return self._load()[2].authenticate(text)

    def is_dead(self, caller: Caller) -> bool:
        """Whether the token of a caller who was let in has died since."""
        if caller.kind != "token":
            return False
        if caller.expires_at_ms is not None and caller.expires_at_ms <= self._clock.wall_ms():
            return True
        if caller.run_id is not None and not self._alive(caller.run_id):
            return True
        return caller.token_id is not None and self._load()[1].is_revoked(caller.token_id)

    def mint_for_run(self, *, run_id: str, session_key: str, scopes: frozenset[str], sandboxed: bool) -> str:
        """The token of a run. It needs no line in the log: it counts while the run is going on."""
        from sessiond.auth import tokens

        text, _ = tokens.mint(
            self._load()[0],
            scopes=scopes,
            now_ms=self._clock.wall_ms(),
            ttl_seconds=tokens.MAX_TTL_SECONDS,
            session_key=session_key,
            run_id=run_id,
            sandboxed=sandboxed,
        )
        return text

    async def mint(
        self,
        *,
        scopes: frozenset[str],
        session_key: str | None,
        agent_id: str | None,
        sandboxed: bool,
        ttl_seconds: float,
    ) -> tuple[str, Claims]:
        """A token for somebody outside, its issue on disk when this returns."""
        from sessiond.auth import tokens

        key, log, _ = self._load()
        text, claims = tokens.mint(
            key,
            scopes=scopes,
            now_ms=self._clock.wall_ms(),
            ttl_seconds=ttl_seconds,
            session_key=session_key,
            agent_id=agent_id,
            sandboxed=sandboxed,
        )
        await self._append(log.issue(claims))
        return text, claims

    async def revoke(self, *, token_id: str | None, text: str | None) -> bool:
        """End a token for good; False where it was revoked before. What its holders follow ends at once."""
        from sessiond.auth import tokens

        key, log, _ = self._load()
        if token_id is None:
            token_id = tokens.read(text or "", key.public).id
        line = log.revoke(token_id, self._clock.wall_ms())
        if line is None:
            return False
        self.on_dead(lambda caller: caller.token_id == token_id)
        await self._append(line)
        return True

    def run_ended(self, run_id: str) -> None:
        """The run is over: connections that came with its token end."""
        self.on_dead(lambda caller: caller.run_id == run_id)

    def rows(self) -> list[TokenRow]:
        """The tokens issued, newest first."""
        return self._load()[1].rows()

    def _load(self) -> tuple[SigningKey, TokenLog, TokenVerifier]:
        if self._loaded is None:
            from sessiond.auth.keyring import SigningKey
            from sessiond.auth.tokenlog import TokenLog
            from sessiond.auth.tokens import TokenVerifier

            key, log = SigningKey(self._store.secret), TokenLog.parse(self._read())

            def revoked(claims: Claims) -> bool:
                ended = claims.run_id is not None and not self._alive(claims.run_id)
                return ended or log.is_revoked(claims.id)

            self._loaded = key, log, TokenVerifier(key.public, wall_ms=self._clock.wall_ms, is_revoked=revoked)
        return self._loaded

    def _read(self) -> bytes:
        try:
            fd = dirfd.open_file(self._store.root_fd, layout.TOKENS, os.O_RDONLY)
        except FileNotFoundError:
            return b""
        with os.fdopen(fd, "rb") as file:
            return file.read()

    async def _append(self, line: bytes) -> None:
        def write() -> None:
            fd = dirfd.open_file(self._store.root_fd, layout.TOKENS, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            try:
                transcript.append(fd, line)
                os.fdatasync(fd)
            finally:
                os.close(fd)
            dirfd.fsync_dir(self._store.root_fd)

        try:
            await self._store.run_sync(write)
        except OSError as error:
            reason = os.strerror(error.errno or 5)
            raise StorageError(f"could not write {layout.TOKENS} in the store: {reason}; nothing was changed") from None


def _nobody(_is_dead: Callable[[Caller], bool]) -> None:
    pass
