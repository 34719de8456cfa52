"""Mint, verify and revoke tokens. Keeps their log in `tokens.jsonl`, which is loaded at the first use.

`alive(run_id)`: whether a run is live. The token of a run is valid while it is, and has no line in the log. `auth` is
imported at the first token, because that takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import trio
from msgspec.structs import replace

from sessiond.clock import Clock
from sessiond.errors import LimitExceeded, StorageError, reason_of
from sessiond.model.caller import Caller
from sessiond.model.keys import agent_of
from sessiond.store import dirfd, layout
from sessiond.store.store import SessionStore

if TYPE_CHECKING:
    from sessiond.auth.keyring import SigningKey
    from sessiond.auth.tokenlog import Issue, Revocation, TokenLog, TokenRow
    from sessiond.auth.tokens import Claims, TokenVerifier

# A longer log is read in a thread at the start, so that nobody waits for it.
_LONG_LOG_BYTES = 256 * 1024
# No token is minted for which there is no room any more to be revoked: a log over the limit is not read.
_ROOM_FOR_REVOCATIONS = layout.MAX_TOKENS_BYTES // 2


class Tokens:
    """`on_dead(is_dead)` is called when tokens become invalid. Connections for which `is_dead(caller)` have to end.

    `is_machine(agent_id)`: whether the agent stands for another machine.
    """

    def __init__(
        self,
        store: SessionStore,
        clock: Clock,
        *,
        alive: Callable[[str], bool],
        on_dead: Callable[[Callable[[Caller], bool]], None],
        is_machine: Callable[[str], bool],
    ) -> None:
        self._is_machine = is_machine
        self._store, self._clock, self._alive, self.on_dead = store, clock, alive, on_dead
        self._loaded: tuple[SigningKey, TokenLog, TokenVerifier] | None = None
        self._restricted: dict[str, frozenset[str]] = {}
        # False after a failed write: the next write replaces the whole file.
        self._is_intact = True
        self._writing = trio.Lock()

    async def load_long_log(self) -> None:
        """Read the log now where that takes long; otherwise the first token reads it."""
        if self._log_bytes() > _LONG_LOG_BYTES:
            with contextlib.suppress(StorageError, OSError):  # whoever shows a token is told
                loaded = await self._store.run_sync(self._read_log)
                # One that was read meanwhile may have more: what is written is written to that.
                self._loaded = self._loaded or loaded

    def caller(self, text: str) -> Caller:
        """The caller who holds this token. Unauthenticated if it is invalid."""
        caller = self._load()[2].authenticate(text)
        if not caller.is_machine and self._is_machine(caller.agent_id or ""):
            # It was minted before its agent became that of another machine.
            caller = replace(caller, is_machine=True)
        held = self._restricted.get(caller.run_id or "")
        return caller if held is None else replace(caller, scopes=caller.scopes & held)

    def restrict_run(self, run_id: str, held: frozenset[str] | None) -> None:
        """Restrict the run's token to the scopes in `held`; None lifts the restriction. For runs of attached agents."""
        if held is None:
            self._restricted.pop(run_id, None)
        else:
            self._restricted[run_id] = held

    def is_dead(self, caller: Caller) -> bool:
        """Whether the token of an authenticated caller has become invalid since."""
        if caller.kind != "token":
            return False
        if caller.expires_at_ms is not None and caller.expires_at_ms <= self._clock.wall_ms():
            return True
        if caller.run_id is not None and not self._alive(caller.run_id):
            return True
        return caller.token_id is not None and self._load()[1].is_revoked(caller.token_id)

    def mint_for_run(self, *, run_id: str, session_key: str, scopes: frozenset[str], sandboxed: bool) -> str:
        """The token of a run. It needs no line in the log, because it is only valid while the run is live."""
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
        parent: str | None = None,
        run_id: str | None = None,
        is_page: bool = False,
    ) -> tuple[str, Claims]:
        """A new token; its line in the log is on disk when this returns. Revoking `parent`, its minter, revokes it too.

        A token minted by a run (`run_id`) belongs to that run: it is no longer valid when the run ends.
        """
        from sessiond.auth import tokens

        key, log, _ = self._load()
        text, claims = tokens.mint(
            key,
            scopes=scopes,
            now_ms=self._clock.wall_ms(),
            ttl_seconds=ttl_seconds,
            session_key=session_key,
            agent_id=agent_id,
            run_id=run_id,
            sandboxed=sandboxed,
            is_page=is_page,
            # On the token, so that it stays so when the machine is taken out of the configuration.
            is_machine=self._is_machine(agent_of(session_key) if session_key is not None else agent_id or ""),
        )
        issue = log.issue(claims, parent)
        await self._note(issue, most_bytes=layout.MAX_TOKENS_BYTES - _ROOM_FOR_REVOCATIONS)
        return text, claims

    async def revoke(self, *, token_id: str | None, text: str | None) -> bool:
        """Revoke a token and all minted with it, and close their connections; False if it is revoked already."""
        from sessiond.auth import tokens

        key, log, _ = self._load()
        expires_at_ms = None
        if token_id is None:
            claims = tokens.read(text or "", key.public)
            token_id, expires_at_ms = claims.id, claims.expires_at_ms
        line = log.revoke(token_id, self._clock.wall_ms(), expires_at_ms)
        if line is None:
            return False
        await self._note(line, most_bytes=layout.MAX_TOKENS_BYTES)
        revoked = self._load()[1].is_revoked
        self.on_dead(lambda caller: caller.token_id is not None and revoked(caller.token_id))
        return True

    def run_ended(self, run_id: str) -> None:
        """Close the connections that use the token of a run that has ended."""
        self.on_dead(lambda caller: caller.run_id == run_id)

    def agents_became_machines(self, names: set[str]) -> None:
        """Close the connections of agents that stand for another machine from now on: they have other rights."""
        if names:
            self.on_dead(lambda caller: not caller.is_machine and caller.agent_id in names)

    def rows(self) -> list[TokenRow]:
        """The tokens issued, newest first. Those of ended runs count as revoked."""
        return [
            replace(row, revoked=True) if row.run_id is not None and not self._alive(row.run_id) else row
            for row in self._load()[1].rows()
        ]

    def _load(self) -> tuple[SigningKey, TokenLog, TokenVerifier]:
        if self._loaded is None:
            self._loaded = self._read_log()
        return self._loaded

    def _read_log(self) -> tuple[SigningKey, TokenLog, TokenVerifier]:
        from sessiond.auth.keyring import SigningKey
        from sessiond.auth.tokenlog import TokenLog
        from sessiond.auth.tokens import TokenVerifier

        key, log = SigningKey(self._store.secret), TokenLog.parse(self._read())

        def is_revoked(claims: Claims) -> bool:
            ended = claims.run_id is not None and not self._alive(claims.run_id)
            # Not `log`: rewriting the file replaces the loaded log.
            return ended or self._load()[1].is_revoked(claims.id)

        return key, log, TokenVerifier(key.public, wall_ms=self._clock.wall_ms, is_revoked=is_revoked)

    def _log_bytes(self) -> int:
        try:
            return os.stat(layout.TOKENS, dir_fd=self._store.root_fd, follow_symlinks=False).st_size
        except OSError:
            return 0

    def _read(self) -> bytes:
        try:
            with dirfd.closing(dirfd.open_file(self._store.root_fd, layout.TOKENS, os.O_RDONLY)) as fd:
                data = dirfd.read_file(fd, layout.MAX_TOKENS_BYTES)
                if data is None:
                    raise OSError(errno.EFBIG, f"it is larger than {layout.MAX_TOKENS_BYTES} bytes")
                return data
        except FileNotFoundError:
            return b""
        except OSError as error:
            # Without the log, revoked tokens cannot be told, so all are refused.
            raise _storage_refused("read", error, "no token counts until it can be") from None

    async def _note(self, line: Issue | Revocation, *, most_bytes: int) -> None:
        """Write the line to disk, then apply it in memory. StorageError: nothing was changed.

        LimitExceeded where the log would be longer than `most_bytes`, also without the tokens that have expired.
        """
        from sessiond.auth import tokenlog

        async with self._writing:
            # Shielded: a cancelled caller must not leave a line on disk that is not applied in memory.
            with trio.CancelScope(shield=True):
                key, log, verifier = self._load()
                now_ms = self._clock.wall_ms()
                data = tokenlog.encode(line)
                is_full = self._log_bytes() + len(data) > most_bytes
                if not self._is_intact or is_full or log.is_outgrown(now_ms):
                    log = log.drop_expired(now_ms)
                    log.take(line)
                    await self._write(partial(_replace, self._store.root_fd, log, most_bytes))
                    self._loaded = key, log, verifier
                    return
                await self._write(lambda: append(self._store.root_fd, data))
                log.take(line)

    async def _write(self, write: Callable[[], None]) -> None:
        try:
            await self._store.run_sync(write)
        except OSError as error:
            # The state of the file is unknown now; the next write replaces it.
            self._is_intact = False
            raise _storage_refused("write", error, "nothing was changed") from None
        self._is_intact = True


def _replace(root_fd: int, log: TokenLog, most_bytes: int) -> None:
    data = log.encode()
    if len(data) > most_bytes:
        raise _too_many_tokens(most_bytes)
    dirfd.write_atomic(root_fd, layout.TOKENS, data)


def append(root_fd: int, data: bytes) -> None:
    """Append a line to the log; on disk when this returns. After an error the file has its old length."""
    with dirfd.closing(dirfd.open_file(root_fd, layout.TOKENS, os.O_RDWR | os.O_APPEND | os.O_CREAT)) as fd:
        size = os.fstat(fd).st_size
        torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        try:
            dirfd.write_all(fd, b"\n" + data if torn else data)
            os.fdatasync(fd)
            dirfd.fsync_dir(root_fd)
        except OSError:
            # The store's lock makes this process the only one that writes here.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
                os.fsync(fd)
            raise


def _too_many_tokens(most_bytes: int) -> LimitExceeded:
    return LimitExceeded(
        f"There are too many tokens that have not expired: {layout.TOKENS} would have more than {most_bytes} bytes;"
        " wait until some have, and give tokens a shorter life (ttlSeconds)",
        limit=layout.TOKENS,
        value=most_bytes,
    )


def _storage_refused(verb: str, error: OSError, then: str) -> StorageError:
    return StorageError(f"could not {verb} {layout.TOKENS} in the store: {reason_of(error)}; {then}")
