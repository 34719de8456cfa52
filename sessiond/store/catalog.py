"""The sessions in memory: by key, by id, by label, by parent, and in order of their last message.

Knows entries and the folders of transcripts. Reads and writes no files. Listing the newest sessions costs the same with
200 and with 200,000 of them, because they are kept sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import trio
from sortedcontainers import SortedList

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.keys import agent_of, is_inbox, rest_of
from sessiond.model.row import CachedRow
from sessiond.store import layout
from sessiond.store.folder import Folder
from sessiond.store.foreign import ForeignKeys, NativeIds
from sessiond.store.transcript import Line, WrittenBytes

__all__ = ["Catalog", "CurrentTexts", "Folder", "Remnant", "Session"]

# Shared by all sessions, since hardly any ever has a long line.
_NO_LINES: Mapping[int, Line] = MappingProxyType({})


class CurrentTexts(NamedTuple):
    """Title and preview for lists, valid while the session's entry is `entry`."""

    entry: Entry
    title: str
    last: str | None


class Remnant(NamedTuple):
    """Bytes of a failed append that could not be blanked out yet, in the file with this inode."""

    inode: int
    offset: int
    data: bytes


@dataclass(slots=True, eq=False, weakref_slot=True)
class Session:
    """One transcript and its entry. `in_flight` counts unfinished appends, during which only the committer reads on.

    `leaving` exists while the session is being reset or deleted, and is set at the end. `epoch` changes whenever the
    file has to be read again from the start; in `keyed_epoch` it was seen to have its session key. `written_id` is the
    id of the newest record written by the daemon, and `written_end` the offset behind it; the fold may not be that far
    yet. `remnants` are blanked out before the next append. `parsed` are lines parsed ahead, by offset; `written` is
    what the newest commit wrote, for the fold. `place` is the path of another program's file below its folder.
    """

    key: str
    entry: Entry
    folder: Folder
    superseded: bool = False
    in_flight: int = 0
    written_id: str | None = None
    written_end: int = 0
    epoch: int = 0
    keyed_epoch: int = -1
    remnants: tuple[Remnant, ...] = ()
    leaving: trio.Event | None = None
    parsed: Mapping[int, Line] = field(default_factory=lambda: _NO_LINES)
    written: WrittenBytes | None = None
    row: CachedRow | None = None
    texts: CurrentTexts | None = None
    place: str = ""
    _order: tuple[int, str] | None = None

    def restore_from(self, read: Session) -> None:
        """Take over entry and folder of `read`: the file was removed and is back, perhaps with another content."""
        self.entry, self.folder = read.entry, read.folder
        self.written_id, self.written_end = None, 0
        self.parsed = _NO_LINES
        self.epoch += 1

    def keep_parsed(self, lines: Iterable[Line]) -> None:
        """Add lines parsed ahead, and drop those that were folded meanwhile."""
        folded_to = self.entry.file.folded_to
        kept = {line.offset: line for line in (*self.parsed.values(), *lines) if line.offset >= folded_to}
        self.parsed = kept or _NO_LINES

    @property
    def session_id(self) -> str:
        return self.entry.session_id

    @property
    def file_name(self) -> str:
        return self.place or self.entry.session_id + layout.SUFFIX

    @property
    def dialect(self) -> TranscriptDialect:
        """The format of its transcript."""
        return self.folder.dialect

    @property
    def archived(self) -> bool:
        return self.folder.archived or self.superseded

    @property
    def path(self) -> str:
        """The transcript's path relative to the store; that of another program's session is absolute."""
        if self.folder.source is not None:
            return f"{self.folder.path}/{self.place}"
        return layout.transcript_path(self.folder.agent_id, self.session_id, archived=self.folder.archived)

    @property
    def last_id(self) -> str | None:
        """The id of the newest record, which the next one names as its parent."""
        facts = self.entry.file
        return self.written_id if self.written_end > facts.folded_to else facts.last_id

    @property
    def _age(self) -> tuple[bool, int, bool, int, str]:
        # The session with the greatest value gets the key, and copies have the smallest ones. A copy has the header of
        # its original, and usually a longer name (`<name> copy.jsonl`).
        entry = self.entry
        name = self.session_id
        return not entry.is_copy, entry.created_at, not entry.is_named_otherwise, -len(name), name


class Catalog:
    """All sessions of the store. `by_key` holds the live ones; archived and superseded ones are found by their id.

    Those of other programs are in `by_key` and `foreign`, and never in `by_id`: their ids may be those of ours. One
    whose native id a session of ours carries is kept out by whoever adds it (`natives`).
    """

    def __init__(self) -> None:
        self.by_key: dict[str, Session] = {}
        self.by_id: dict[str, Session] = {}
        self.corrupt_records = 0
        self._order: SortedList[tuple[int, str]] = SortedList()
        self._labels: dict[tuple[str, str], dict[str, None]] = {}
        self._inboxes: dict[str, dict[str, None]] = {}
        self._children: dict[str, dict[str, None]] = {}
        self._superseded: dict[str, list[Session]] = {}
        self._archived: dict[str, dict[Session, None]] = {}
        # Labels that are being set: (agent, label, key) -> the session that is to get it.
        self.claims: dict[tuple[str, str, str], str] = {}
        self.foreign = ForeignKeys[Session]()
        self.natives = NativeIds[Session]()

    def __len__(self) -> int:
        return len(self.by_key)

    def load(self, sessions: list[Session]) -> None:
        """Add many sessions at once, which is faster than inserting each into the order."""
        if not self._claim_distinct(sessions):
            for session in sessions:
                self._claim(session)
        live = [session for session in sessions if not session.archived]
        for session in live:
            self._index(session)
        self._order.update(session._order for session in live)

    def add(self, session: Session) -> None:
        """Add a session. If its key is taken, the one with the newer header is current and the other superseded.

        One of another program replaces the one that has its key.
        """
        if session.folder.source is not None:
            self._unindex_foreign(session.key)
            self.foreign.add(session.key, session)
            self.by_key[session.key] = session
            self._index(session)
            self._order.add(session._order)
        elif self._claim(session):
            self._index(session)
            self._order.add(session._order)

    def _claim_distinct(self, sessions: list[Session]) -> bool:
        """Register the sessions at once; False, and none of them, where any two have a key or an id in common."""
        by_key = {session.key: session for session in sessions}
        by_id = {session.entry.session_id: session for session in sessions}
        if any(session.archived for session in sessions) or not len(by_key) == len(by_id) == len(sessions):
            return False
        if not (self.by_key.keys().isdisjoint(by_key) and self.by_id.keys().isdisjoint(by_id)):
            return False
        self.by_key.update(by_key)
        self.by_id.update(by_id)
        for session in sessions:
            if session.entry.native_session_id is not None:
                self.natives.add(session.entry.native_session_id, session)
        return True

    def _claim(self, session: Session) -> bool:
        """Register the session under its key; whether it is the current one."""
        if session.entry.native_session_id is not None:
            self.natives.add(session.entry.native_session_id, session)
        namesake = self.by_id.get(session.session_id)
        if namesake is None or namesake.archived or not session.folder.archived:
            self.by_id[session.session_id] = session
        session.superseded = False
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
        if session.folder.source is not None:
            if self.by_key.get(session.key) is session:
                self._unindex_foreign(session.key)
            return
        if self.by_id.get(session.session_id) is session:
            del self.by_id[session.session_id]
        self._drop(self._archived, session.key, session)
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
        if session.entry.native_session_id is not None:
            self.natives.drop(session.entry.native_session_id, session)

    def _unindex_foreign(self, key: str) -> None:
        known = self.by_key.pop(key, None)
        if known is not None:
            self.foreign.drop(key)
            self._unindex(known)

    def every(self) -> Iterator[Session]:
        """Every session: live, archived and superseded ones, and those of other programs."""
        yield from self.by_id.values()
        yield from self.foreign.values()

    def carrier_of(self, native_id: str) -> Session | None:
        """The session of ours that is shown in the place of another program's session with this id."""
        carriers = self.natives.carriers(native_id)
        current = (one for one in carriers if self.by_key.get(one.key) is one)
        return next(current, next(iter(carriers), None))

    def has(self, session: Session) -> bool:
        """Whether the session is in the catalog: current, archived or superseded."""
        return session in (self.by_id.get(session.session_id), self.by_key.get(session.key)) or (
            session in self._superseded.get(session.key, ())
        )

    def replace(self, session: Session, entry: Entry) -> None:
        """Set the session's entry and update the indexes."""
        old = session.entry
        session.entry = entry
        if session.folder.source is None:
            session.folder.dirty = True
            if old.native_session_id != entry.native_session_id:
                self.natives.move(old.native_session_id, entry.native_session_id, session)
        if entry.file.folded_to < old.file.folded_to:
            session.parsed = _NO_LINES
            session.written_end = 0  # the file was rewritten, so the last record written is no parent any more
        if session._order is None:
            return
        self.corrupt_records += entry.corrupt_records - old.corrupt_records
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
        by_key = self.by_key
        for _, key in self._order.irange(minimum=after):
            yield by_key[key]

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
        found = self._children.get(key, ())
        return sorted(found, key=lambda child: (self.by_key[child].entry.created_at, child))

    def _index(self, session: Session) -> None:
        session._order = (-session.entry.updated_at, session.key)
        self.corrupt_records += session.entry.corrupt_records
        self._put_label(session)
        self._put_child(session)
        if ":mcp:" in session.key and is_inbox(session.key):
            self._inboxes.setdefault(rest_of(session.key), {})[session.key] = None

    def _unindex(self, session: Session) -> None:
        if session._order is None:
            return
        self._order.discard(session._order)
        session._order = None
        self.corrupt_records -= session.entry.corrupt_records
        self._drop(self._labels, (agent_of(session.key), session.entry.label or ""), session.key)
        self._drop(self._children, session.entry.spawned_by or "", session.key)
        self._drop(self._inboxes, rest_of(session.key), session.key)

    def _put_label(self, session: Session) -> None:
        if session.entry.label:
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
