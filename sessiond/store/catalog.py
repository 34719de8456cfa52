"""The sessions in memory: by key, by id, by label, by parent, and in order of their last message.

Knows entries and the folders of transcripts. Reads and writes no files. Listing the newest sessions costs the same with
200 and with 200,000 of them, because they are kept sorted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import nlargest
from itertools import chain
from operator import attrgetter
from typing import Any, Protocol

from sortedcontainers import SortedList

from sessiond.model.entry import Entry
from sessiond.model.keys import agent_of, is_inbox, machine_of, rest_of
from sessiond.store.folder import Folder
from sessiond.store.foreign import ForeignKeys, NativeIds
from sessiond.store.session import CurrentTexts, Remnant, Session, make_place

__all__ = ["Catalog", "CurrentTexts", "Folder", "Remnant", "Session"]


class CatalogWatcher(Protocol):
    """Who is told what happens to sessions that are not loaded at the start. Called on the event loop."""

    def entry_changed(self, session: Session) -> None:
        """A session was added, or its entry changed."""

    def session_removed(self, session: Session) -> None:
        """A session is gone."""


class Catalog:
    """All sessions of the store. `by_key` holds the live ones; archived and superseded ones are found by their id.

    Those of other programs and machines are in `by_key` and `foreign`, and never in `by_id`: their ids may be those of
    ours. Their labels name nothing here, their runs are never continued, their questions never answered here. One
    whose native id a session of ours carries is kept out by whoever adds it (`natives`). A session of ours that attends
    one of those is in `by_id` and found with `attending`; it has the same key, and is never in `by_key` or listed.
    """

    def __init__(self) -> None:
        self.by_key: dict[str, Session] = {}
        self.by_id: dict[str, Session] = {}
        self.corrupt_records = 0
        self._order: SortedList[Session] = SortedList()
        self._labels: dict[tuple[str, str], dict[str, None]] = {}
        self._inboxes: dict[str, dict[str, None]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._superseded: dict[str, list[Session]] = {}
        self._archived: dict[str, dict[Session, None]] = {}
        self._unsettled: dict[Session, None] = {}
        self._asking: dict[Session, None] = {}
        self._attending: dict[str, dict[Session, None]] = {}
        # Labels that are being set: (agent, label, key) -> the session that is to get it.
        self.claims: dict[tuple[str, str, str], str] = {}
        self.foreign = ForeignKeys[Session]()
        self.natives = NativeIds[Session]()
        self.watcher: CatalogWatcher | None = None

    def __len__(self) -> int:
        return len(self.by_key)

    def load(self, sessions: list[Session]) -> None:
        """Add many sessions at once, which is faster than inserting each into the order."""
        attending = [session for session in sessions if session.entry.attends is not None]
        if attending:
            for session in attending:
                self._claim(session)
            sessions = [session for session in sessions if session.entry.attends is None]
        live = sessions
        if not self._claim_distinct(sessions):
            for session in sessions:
                self._claim(session)
            live = [session for session in sessions if not session.archived]
        for session in live:
            self._index(session)
        # Comparing sessions takes longer than comparing what they are ordered by.
        live = sorted(live, key=attrgetter("key"))
        live.sort(key=attrgetter("entry.updated_at"), reverse=True)
        self._order.update(live)

    def add(self, session: Session) -> None:
        """Add a session. If its key is taken, the one with the newer header is current and the other superseded.

        One of another program replaces the one that has its key.
        """
        if session.folder.source is not None:
            self._unindex_foreign(session.key)
            self.foreign.add(session.key, session, _aliases_of(session))
            self.by_key[session.key] = session
            if session.entry.questions:
                self._asking[session] = None
            self._index(session)
            self._order.add(session)
        elif self._claim(session):
            self._index(session)
            self._order.add(session)
        if self.watcher is not None and session.entry.attends is None:
            self.watcher.entry_changed(session)

    def _claim_distinct(self, sessions: list[Session]) -> bool:
        """Register the sessions at once; False, and none of them, where any two have a key or an id in common."""
        by_key = {session.key: session for session in sessions}
        by_id = {session.entry.session_id: session for session in sessions}
        folders = {session.folder for session in sessions}
        if not len(by_key) == len(by_id) == len(sessions) or any(folder.archived for folder in folders):
            return False
        if not (self.by_key.keys().isdisjoint(by_key.keys()) and self.by_id.keys().isdisjoint(by_id.keys())):
            return False
        self.by_key.update(by_key)
        self.by_id.update(by_id)
        for session in sessions:
            entry = session.entry
            if entry.own_native_id is not None:
                self.natives.add(entry.own_native_id, session)
            if _is_unsettled(entry):
                self._unsettled[session] = None
            if entry.questions:
                self._asking[session] = None
        return True

    def _claim(self, session: Session) -> bool:
        """Register the session under its key; whether it is the current one."""
        if session.entry.own_native_id is not None:
            self.natives.add(session.entry.own_native_id, session)
        namesake = self.by_id.get(session.session_id)
        if namesake is None or namesake.archived or not session.folder.archived:
            self.by_id[session.session_id] = session
        if _is_unsettled(session.entry):
            self._unsettled[session] = None
        if session.entry.questions:
            self._asking[session] = None
        session.superseded = False
        if session.entry.attends is not None:
            self._attending.setdefault(session.entry.attends, {})[session] = None
            return False
        if session.folder.archived:
            self._archived.setdefault(session.key, {})[session] = None
            return False
        rival = self.by_key.get(session.key)
        if rival is not None and rival is not session:
            if rival._age > session._age:
                self._supersede(session)
                return False
            self._unindex(rival)
            self._supersede(rival)
        self.by_key[session.key] = session
        return True

    def _supersede(self, session: Session) -> None:
        session.superseded = True
        self._superseded.setdefault(session.key, []).append(session)

    def remove(self, session: Session) -> None:
        """Remove a session. If an older one had its key, that one is current again, as after a restart."""
        self._unsettled.pop(session, None)
        self._asking.pop(session, None)
        if session.folder.source is not None:
            if self.by_key.get(session.key) is session:
                self._unindex_foreign(session.key)
            return
        if self.watcher is not None:
            self.watcher.session_removed(session)
        if self.by_id.get(session.session_id) is session:
            del self.by_id[session.session_id]
        self._drop(self._archived, session.key, session)
        self._drop(self._attending, session.entry.attends or "", session)
        older = self._superseded.get(session.key, [])
        if session in older:
            older.remove(session)
        if self.by_key.get(session.key) is session:
            self._unindex(session)
            del self.by_key[session.key]
            if older:
                heir = max(older, key=lambda other: other._age)
                older.remove(heir)
                self.add(heir)
        if not older:
            self._superseded.pop(session.key, None)
        # Last: whoever hears of it finds the catalog as it is from now on.
        if session.entry.own_native_id is not None:
            self.natives.drop(session.entry.own_native_id, session)

    def _unindex_foreign(self, key: str) -> None:
        known = self.by_key.pop(key, None)
        if known is not None:
            self.foreign.drop(key)
            self._asking.pop(known, None)
            self._unindex(known)
            if self.watcher is not None:
                self.watcher.session_removed(known)

    def every(self) -> Iterator[Session]:
        """Every session: live, archived and superseded ones, and those of other programs. Not those that only attend
        one.
        """
        yield from (session for session in self.by_id.values() if session.entry.attends is None)
        yield from self.foreign.values()

    def carrier_of(self, native_id: str) -> Session | None:
        """The session of ours that is shown in the place of another program's session with this id."""
        carriers = self.natives.carriers(native_id)
        current = (one for one in carriers if self.by_key.get(one.key) is one)
        return next(current, next(iter(carriers), None))

    def has(self, session: Session) -> bool:
        """Whether the session is in the catalog: current, archived or superseded."""
        return self._is_found(session) or session in self._superseded.get(session.key, ())

    def _is_found(self, session: Session) -> bool:
        return self.by_id.get(session.session_id) is session or self.by_key.get(session.key) is session

    def replace(self, session: Session, entry: Entry) -> None:
        """Set the session's entry and update the indexes."""
        old = session.entry
        is_moved = session.is_ordered and old.updated_at != entry.updated_at
        if is_moved:
            self._order.remove(session)
        session.entry = entry
        if is_moved:
            self._order.add(session)
        if session.folder.source is None:
            session.folder.dirty = True
            if old.own_native_id != entry.own_native_id:
                self.natives.move(old.own_native_id, entry.own_native_id, session)
        if entry.file.folded_to < old.file.folded_to:
            session.forget_written()
        if not _is_unsettled(entry):
            self._unsettled.pop(session, None)
        elif session.folder.source is None and self._is_found(session):
            self._unsettled[session] = None
        if old.questions is not entry.questions:
            self._note_questions(session)
        if self.watcher is not None and entry.attends is None and self.has(session):
            self.watcher.entry_changed(session)
        if not session.is_ordered:
            return
        self.corrupt_records += entry.corrupt_records - old.corrupt_records
        if old.label != entry.label:
            self._drop(self._labels, (agent_of(session.key), old.label or ""), session.key)
            self._put_label(session)
        if old.spawned_by != entry.spawned_by:
            self._drop(self._children, old.spawned_by or "", session.key)
            self._put_child(session)

    def attending(self, key: str) -> Session | None:
        """The session of ours that attends another program's session: it has what that one asks and is to be told."""
        attending = self._attending.get(key)
        return max(attending, key=lambda session: session._age) if attending else None

    def attending_sessions(self) -> list[tuple[str, Session]]:
        """The sessions of ours that attend others, by the keys of those, which are there."""
        found = ((key, self.attending(key)) for key in sorted(self._attending) if key in self.by_key)
        return [(key, session) for key, session in found if session is not None]

    def is_current(self, session: Session) -> bool:
        """Whether the session is the live one of its key, or the one that attends the session of that key."""
        if session.entry.attends is not None:
            return self.attending(session.entry.attends) is session
        return self.by_key.get(session.key) is session

    def superseded_sessions(self, key: str) -> list[Session]:
        """The older sessions of a key that were not moved to the archive."""
        return list(self._superseded.get(key, ()))

    def older(self, key: str) -> list[Session]:
        """The sessions that had the key before its live one, in the archive or not, oldest first."""
        found = [*self._superseded.get(key, ()), *self._archived.get(key, ())]
        found.sort(key=lambda session: session._age)
        return found

    def newest_of(self, key: str) -> int:
        """When the newest of the older sessions of a key began, 0 where there are none."""
        older = self.older(key)
        return older[-1].entry.created_at if older else 0

    def newest(self, after: tuple[int, str] | None = None) -> Iterator[Session]:
        """The live sessions, newest message first, from a place in the order on. Do not await while iterating."""
        found: Iterator[Session] = self._order.irange(minimum=make_place(after) if after is not None else None)
        return found

    def unsettled_sessions(self) -> list[Session]:
        """The sessions that a start may have to continue, live or not: with open runs or conversations, or children."""
        return [session for session in self._unsettled if self._is_found(session)]

    def asking_sessions(self) -> list[Session]:
        """The live sessions of ours in which questions were asked, whether they are open or not."""
        return [session for session in self._asking if session.folder.source is None and self.is_current(session)]

    def asking_elsewhere(self) -> list[Session]:
        """The sessions of other machines in which questions were asked: they are answered there."""
        return [session for session in self._asking if session.folder.source is not None and self.is_current(session)]

    def _note_questions(self, session: Session) -> None:
        if not session.entry.questions:
            self._asking.pop(session, None)
        elif self._is_found(session):
            self._asking[session] = None

    def spawned_sessions(self) -> list[Session]:
        """The children among all sessions, live or not; of copies under several agents the one found by its id."""
        children = [session for session in self._unsettled if session.entry.spawn is not None]
        return [child for child in children if self.by_id.get(child.session_id) is child]

    @property
    def has_twins(self) -> bool:
        """Whether two sessions may have one id, as copies of a transcript under several agents do."""
        put_away = sum(map(len, self._superseded.values())) + sum(map(len, self._archived.values()))
        return len(self.by_key) - len(self.foreign) + put_away != len(self.by_id)

    def keys_with_label(self, agent_id: str, label: str) -> list[str]:
        """The keys of an agent's sessions with that label."""
        return list(self._labels.get((agent_id, label), ()))

    def with_label(self, label: str) -> list[str]:
        """The keys of all sessions with that label, of whichever agent."""
        return [key for (_, text), keys in self._labels.items() if text == label for key in keys]

    def inbox(self, rest: str) -> str | None:
        """The key of the inbox `mcp:<program>`, the oldest one where several agents have one."""
        keys = self._inboxes.get(rest, ())
        return min(keys, key=lambda key: (self.by_key[key].entry.created_at, key), default=None)

    def children_of(self, key: str) -> list[str]:
        """The keys of the sessions that `key` spawned, oldest first."""
        return sorted(self._children.get(key, ()), key=self._age)

    def has_children(self, keys: Iterable[str]) -> bool:
        """Whether one of `keys` spawned a session."""
        return not self._children.keys().isdisjoint(keys)

    def newest_children(self, keys: Iterable[str], most: int, is_wanted: Callable[[str], bool]) -> list[str]:
        """The newest of the sessions that `keys` spawned and that are wanted, the oldest of these first."""
        found = [self._children[key] for key in keys if key in self._children]
        if not found:
            return []  # as of most sessions: a list asks for the children of each
        return nlargest(most, filter(is_wanted, chain.from_iterable(found)), key=self._age)[::-1]

    def _age(self, key: str) -> tuple[int, str]:
        return self.by_key[key].entry.created_at, key

    def _index(self, session: Session) -> None:
        entry, key = session.entry, session.key
        session.is_ordered = True
        self.corrupt_records += entry.corrupt_records
        if entry.label:
            self._put_label(session)
        if entry.spawned_by:
            self._put_child(session)
        if ":mcp:" in key and is_inbox(key):
            self._inboxes.setdefault(rest_of(key), {})[key] = None

    def _unindex(self, session: Session) -> None:
        if not session.is_ordered:
            return
        self._order.discard(session)
        session.is_ordered = False
        self.corrupt_records -= session.entry.corrupt_records
        self._drop(self._labels, (agent_of(session.key), session.entry.label or ""), session.key)
        self._drop(self._children, session.entry.spawned_by or "", session.key)
        self._drop(self._inboxes, rest_of(session.key), session.key)

    def _put_label(self, session: Session) -> None:
        if session.entry.label and session.folder.source is None:
            self._labels.setdefault((agent_of(session.key), session.entry.label), {})[session.key] = None

    def _put_child(self, session: Session) -> None:
        if session.entry.spawned_by:
            self._children.setdefault(session.entry.spawned_by, {})[session.key] = None

    @staticmethod
    def _drop(table: dict[Any, dict[Any, None]], group: object, key: object) -> None:
        keys = table.get(group)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del table[group]


def _aliases_of(session: Session) -> tuple[str, ...]:
    """What a session of another machine may be called besides its key: its id, and what it is called there."""
    machine = machine_of(session.key)
    if machine is None:
        return ()
    session_id = session.session_id.lower()
    return session_id, f"{machine}/{session_id}", f"{machine}/{rest_of(rest_of(session.key))}"


def _is_unsettled(entry: Entry) -> bool:
    return bool(entry.runs or entry.talks) or entry.spawn is not None
