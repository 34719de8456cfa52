"""The sessions in memory: by key, by id, by label, by parent, and in order of their last message.

Knows entries and which folder a transcript lies in. Reads and writes no files. Listing the newest sessions costs the
same with 200 of them and 200,000, because the order is kept and not made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from sortedcontainers import SortedList

from sessiond.model.entry import Entry
from sessiond.model.keys import agent_of
from sessiond.store import layout


@dataclass(slots=True, eq=False)
class Folder:
    """One `sessions` folder, or the `archive` folder in one. `fd` is open for the daemon's life."""

    agent_id: str
    fd: int
    archived: bool = False
    dirty: bool = False


@dataclass(slots=True, eq=False)
class Session:
    """One transcript and its entry. `in_flight` counts appends under way; while there are any nothing else reads on.

    `epoch` changes whenever the file has to be read again from the start. `names_next_parent` is the id of the newest
    record handed to the committer, which the next one names as its parent.
    """

    key: str
    entry: Entry
    folder: Folder
    superseded: bool = False
    in_flight: int = 0
    names_next_parent: str | None = None
    epoch: int = 0
    stale: bool = False
    _order: tuple[int, str] = field(default=(0, ""))

    @property
    def session_id(self) -> str:
        return self.entry.session_id

    @property
    def file_name(self) -> str:
        return self.entry.session_id + layout.SUFFIX

    @property
    def archived(self) -> bool:
        return self.folder.archived or self.superseded

    @property
    def path(self) -> str:
        """The transcript's path relative to the store."""
        return layout.transcript_path(self.folder.agent_id, self.session_id, archived=self.folder.archived)


class Catalog:
    """All sessions of the store. `by_key` holds the live ones; archived and superseded ones are found by their id."""

    def __init__(self) -> None:
        self.by_key: dict[str, Session] = {}
        self.by_id: dict[str, Session] = {}
        self.corrupt_records = 0
        self._order: SortedList[tuple[int, str]] = SortedList()
        self._labels: dict[tuple[str, str], dict[str, None]] = {}
        self._children: dict[str, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self.by_key)

    def load(self, sessions: list[Session]) -> None:
        """Take in many sessions at once, which is quicker than adding each to the order."""
        for session in sessions:
            if self._claim(session):
                self._index(session, ordered=False)
        self._order.update(session._order for session in sessions if not session.archived)

    def add(self, session: Session) -> None:
        """Take in a session. Where its key is taken the newer header wins; the other is history of that key."""
        if self._claim(session):
            self._index(session, ordered=True)

    def _claim(self, session: Session) -> bool:
        self.by_id[session.session_id] = session
        if session.folder.archived:
            return False
        rival = self.by_key.get(session.key)
        if rival is None or rival is session:
            self.by_key[session.key] = session
            return True
        if (rival.entry.created_at, rival.session_id) > (session.entry.created_at, session.session_id):
            session.superseded = True
            return False
        if rival._order in self._order:
            self._unindex(rival)
        rival.superseded = True
        self.by_key[session.key] = session
        return True

    def remove(self, session: Session) -> None:
        """Forget a session."""
        if self.by_id.get(session.session_id) is session:
            del self.by_id[session.session_id]
        if self.by_key.get(session.key) is session:
            self._unindex(session)
            del self.by_key[session.key]

    def replace(self, session: Session, entry: Entry) -> None:
        """Put the folded entry in the place of the old one."""
        old = session.entry
        session.entry = entry
        session.folder.dirty = True
        self.corrupt_records += entry.corrupt_records - old.corrupt_records
        if session.archived or self.by_key.get(session.key) is not session:
            return
        if old.updated_at != entry.updated_at:
            self._order.remove(session._order)
            session._order = (-entry.updated_at, session.key)
            self._order.add(session._order)
        if old.label != entry.label:
            self._drop(self._labels, (agent_of(session.key), old.label or ""), session.key)
            self._put_label(session)
        if old.spawned_by != entry.spawned_by:
            self._drop(self._children, old.spawned_by or "", session.key)
            self._put_child(session)

    def newest(self, after: tuple[int, str] | None = None) -> Iterator[Session]:
        """The live sessions, newest message first, from a place in the order on. Do not await while iterating."""
        by_key = self.by_key
        for _, key in self._order.irange(minimum=after):
            yield by_key[key]

    def labelled(self, agent_id: str, label: str) -> list[str]:
        """The keys of an agent's sessions with that label."""
        return list(self._labels.get((agent_id, label), ()))

    def with_label(self, label: str) -> list[str]:
        """The keys of all sessions with that label, of whichever agent."""
        return [key for (_, text), keys in self._labels.items() if text == label for key in keys]

    def children(self, key: str) -> list[str]:
        """The keys of the sessions that `key` spawned, oldest first."""
        return list(self._children.get(key, ()))

    def _index(self, session: Session, *, ordered: bool) -> None:
        session._order = (-session.entry.updated_at, session.key)
        if ordered:
            self._order.add(session._order)
        self.corrupt_records += session.entry.corrupt_records
        self._put_label(session)
        self._put_child(session)

    def _unindex(self, session: Session) -> None:
        self._order.discard(session._order)
        self.corrupt_records -= session.entry.corrupt_records
        self._drop(self._labels, (agent_of(session.key), session.entry.label or ""), session.key)
        self._drop(self._children, session.entry.spawned_by or "", session.key)

    def _put_label(self, session: Session) -> None:
        if session.entry.label:
            self._labels.setdefault((agent_of(session.key), session.entry.label), {})[session.key] = None

    def _put_child(self, session: Session) -> None:
        if session.entry.spawned_by:
            self._children.setdefault(session.entry.spawned_by, {})[session.key] = None

    @staticmethod
    def _drop(table: dict[Any, dict[str, None]], group: object, key: str) -> None:
        keys = table.get(group)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del table[group]
