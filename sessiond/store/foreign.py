"""The sessions of other programs and machines in the catalog, and which of them are shown as sessions of ours.

Knows keys and native ids. Knows no files.
"""

from __future__ import annotations

from collections.abc import Callable, ValuesView
from typing import Generic, TypeVar

T = TypeVar("T")


class ForeignKeys(Generic[T]):
    """The sessions of other programs and machines by key, found as well where the letters of a key differ in case, and
    by other names of theirs.
    """

    def __init__(self) -> None:
        self._by_key: dict[str, T] = {}
        self._by_low: dict[str, dict[str, None]] = {}
        self._by_alias: dict[str, dict[str, None]] = {}
        self._aliases: dict[str, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def values(self) -> ValuesView[T]:
        """All of them."""
        return self._by_key.values()

    def add(self, key: str, session: T, aliases: tuple[str, ...] = ()) -> None:
        """Add a session under its key. It may have other names, in lower case, that are found while no two have one."""
        self._by_key[key] = session
        self._by_low.setdefault(key.lower(), {})[key] = None
        if aliases:
            self._aliases[key] = aliases
        for alias in aliases:
            self._by_alias.setdefault(alias, {})[key] = None

    def drop(self, key: str) -> None:
        """Remove the session of a key."""
        self._by_key.pop(key, None)
        _drop_name(self._by_low, key.lower(), key)
        for alias in self._aliases.pop(key, ()):
            _drop_name(self._by_alias, alias, key)

    def find_alias(self, text: str) -> T | None:
        """The one session that has this other name."""
        keys = self._by_alias.get(text.lower(), {})
        return self._by_key[next(iter(keys))] if len(keys) == 1 else None

    def find_spelling(self, key: str) -> str:
        """The key as its session has it: exact, else without case where one fits; `key` itself where none does."""
        if key in self._by_key:
            return key
        keys = self._by_low.get(key.lower(), {})
        return next(iter(keys)) if len(keys) == 1 else key


def _drop_name(names: dict[str, dict[str, None]], name: str, key: str) -> None:
    keys = names.get(name)
    if keys is not None:
        keys.pop(key, None)
        if not keys:
            del names[name]


class NativeIds(Generic[T]):
    """Which of our sessions carries the id of another program's session, because our run of that program wrote it.

    `changed(native_id)` is called when the first carrier of an id came or the last one went.
    """

    def __init__(self) -> None:
        self._carriers: dict[str, dict[T, None]] = {}
        self.changed: Callable[[str], None] = lambda _: None

    def carriers(self, native_id: str) -> list[T]:
        """The sessions that carry the id."""
        return list(self._carriers.get(native_id, ()))

    def move(self, old: str | None, new: str | None, session: T) -> None:
        """The session carries another id than before."""
        if new is not None:
            self.add(new, session)
        if old is not None and (new is None or _native_id(old) != _native_id(new)):
            self.drop(old, session)

    def add(self, stored: str, session: T) -> None:
        """The session carries the id in what a runtime stored."""
        native_id = _native_id(stored)
        known = self._carriers.get(native_id)
        if known is not None:
            known[session] = None
            return
        self._carriers[native_id] = {session: None}
        self.changed(native_id)

    def drop(self, stored: str, session: T) -> None:
        """The session does not carry the id any more, or is gone."""
        native_id = _native_id(stored)
        known = self._carriers.get(native_id)
        if known is None or session not in known:
            return
        del known[session]
        if not known:
            del self._carriers[native_id]
            self.changed(native_id)


def _native_id(stored: str) -> str:
    # The preset of Codex stores the id and what it has counted, separated by a space.
    return stored.partition(" ")[0]
