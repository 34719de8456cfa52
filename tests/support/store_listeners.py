"""Listeners of a store for tests without a feed, or for tests that check the store at each commit."""

from __future__ import annotations

from collections.abc import Callable

from sessiond.store import folding
from sessiond.store.catalog import Folder, Session
from sessiond.store.folded_steps import FoldedLine
from sessiond.store.listener import StoreListener
from sessiond.store.store import SessionStore


class SilentListener:
    """Ignores every change; nothing is folded."""

    def poke(self, session: Session) -> bool:
        return False

    def session_created(self, session: Session, steps: list[FoldedLine]) -> None:
        pass

    def folder_opened(self, folder: Folder) -> None:
        pass

    def store_displaced(self) -> None:
        pass


class FoldingListener(SilentListener):
    """Folds what is appended, as the feed does, and sends no events."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    def poke(self, session: Session) -> bool:
        if not session.folder.archived:
            fold_new(self._store, session)
        return False


class ObservedListener:
    """A listener with callbacks before and after it is told of a commit."""

    def __init__(self, listener: StoreListener) -> None:
        self._listener = listener
        self.before_poke: list[Callable[[], object]] = []
        self.after_poke: list[Callable[[], object]] = []
        self.session_created = listener.session_created
        self.folder_opened = listener.folder_opened
        self.store_displaced = listener.store_displaced

    def poke(self, session: Session) -> bool:
        for look in self.before_poke:
            look()
        more = self._listener.poke(session)
        for look in self.after_poke:
            look()
        return more


def fold_new(store: SessionStore, session: Session) -> None:
    """Fold what was added to the session's file since its entry was folded."""
    limit, dialect = store.record_limit, session.dialect
    got = folding.advance(session.folder.fd, session.entry, session.file_name, limit, dialect=dialect)
    store.catalog.replace(session, got.entry)
