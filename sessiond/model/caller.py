"""The caller of a method: the verified identity of a connection or a token."""

from __future__ import annotations

from typing import Literal

import msgspec

Scope = Literal["list", "read", "send", "spawn", "answer", "admin"]
SCOPES: tuple[Scope, ...] = ("list", "read", "send", "spawn", "answer", "admin")
# What an agent gets unless the configuration says less: a run answers no questions and administers nothing.
RUN_SCOPES: frozenset[Scope] = frozenset({"list", "read", "send", "spawn"})


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """The identity that every authorization check uses. Source: security.md, "Callers".

    `kind` is `owner` (same uid on sessiond.sock, no token), `token`, or `nobody` (not authenticated yet).
    `session_key` is canonical. The owner has no session and every scope. `is_page`: the owner's own page, which
    sees all and does what its scopes permit. `is_machine`: another machine, which does what `[[link.peers]]` says.
    """

    kind: Literal["owner", "token", "nobody"]
    scopes: frozenset[str] = frozenset()
    session_key: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    sandboxed: bool = False
    is_page: bool = False
    is_machine: bool = False
    token_id: str | None = None
    expires_at_ms: int | None = None

    def has(self, scope: str) -> bool:
        """Whether the caller holds `scope`. `admin` implies all but `answer`, which is held by name only.

        Another machine has neither of the two, whatever its token says.
        """
        if self.is_machine and scope not in RUN_SCOPES:
            return False
        return scope in self.scopes or ("admin" in self.scopes and scope != "answer")


OWNER = Caller(kind="owner", scopes=frozenset(SCOPES))
NOBODY = Caller(kind="nobody")
