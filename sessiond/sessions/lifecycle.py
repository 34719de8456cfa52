"""The beginnings and ends of sessions: made on the first message, reset, deleted. Moves files through the store."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from sessiond.store.catalog import Session
from sessiond.store.store import Part, SessionStore


class Births:
    """Makes the session of a key once, however many ask for it at the same time."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._under_way: dict[str, trio.Lock] = {}

    async def ensure(self, key: str, agent_id: str, *, cwd: str, parts: Sequence[Part] = ()) -> tuple[Session, bool]:
        """The session of the key, and whether it was made just now (with `parts` after its header)."""
        found = self._store.catalog.by_key.get(key)
        if found is not None:
            return found, False
        lock = self._under_way.setdefault(key, trio.Lock())
        try:
            async with lock:
                found = self._store.catalog.by_key.get(key)
                if found is not None:
                    return found, False
                session, _ = await self._store.create(key, agent_id, parts, cwd=cwd)
                return session, True
        finally:
            if not lock.statistics().tasks_waiting:
                self._under_way.pop(key, None)
