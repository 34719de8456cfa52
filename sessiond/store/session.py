"""One transcript and what the daemon knows of it in memory.

Knows its entry and its folder. Reads and writes no files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import trio

from sessiond.model.dialects import V3, TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.row import CachedRow
from sessiond.store import layout
from sessiond.store.folder import Folder
from sessiond.store.transcript import Line, WrittenBytes


class CurrentTexts(NamedTuple):
    """Title and preview for lists, valid while the session's entry is `entry`. `text` are both, as in a row's JSON."""

    entry: Entry
    title: str
    last: str | None
    text: bytes


class Remnant(NamedTuple):
    """Bytes of a failed append that could not be blanked out yet, in the file with this inode."""

    inode: int
    offset: int
    data: bytes


class SessionActivity(msgspec.Struct, eq=False, gc=False):
    """What is done with a session, and was since the start. Of 100,000 most are neither listed nor written to, and have
    none.

    `row` and `texts` are what lists show. `in_flight` counts unfinished appends, during which only the committer reads
    on. `leaving` exists while the session is being reset or deleted, and is set at the end. `epoch` changes whenever
    the file has to be read again from the start; in `keyed_epoch` it was seen to have its session key. `written_id` is
    the id of the newest record written by the daemon, and `written_end` the offset behind it; the fold may not be that
    far yet. `remnants` are blanked out before the next append. `parsed` are lines parsed ahead, by offset; `written` is
    what the newest commit wrote, for the fold.
    """

    row: CachedRow | None = None
    texts: CurrentTexts | None = None
    in_flight: int = 0
    leaving: trio.Event | None = None
    epoch: int = 0
    keyed_epoch: int = -1
    written_id: str | None = None
    written_end: int = 0
    remnants: tuple[Remnant, ...] = ()
    parsed: Mapping[int, Line] | None = None
    written: WrittenBytes | None = None


class Session(msgspec.Struct, eq=False, weakref=True):
    """One transcript and its entry. `is_ordered` says that the catalog has it in its order. `place` is the path of
    another program's file below its folder.

    The garbage collector does not track a session, as long as it refers to nothing that it tracks: else it would look
    at each of 100,000 when a start ends.
    """

    key: str
    entry: Entry
    folder: Folder
    superseded: bool = False
    place: str = ""
    is_ordered: bool = False
    _activity: SessionActivity | None = None

    @property
    def activity(self) -> SessionActivity:
        """For whoever changes it; made when it is first asked for. On the loop: a thread that writes finds it made by
        the committer.
        """
        if self._activity is None:
            self._activity = SessionActivity()
        return self._activity

    @property
    def in_flight(self) -> int:
        return 0 if self._activity is None else self._activity.in_flight

    @property
    def leaving(self) -> trio.Event | None:
        return None if self._activity is None else self._activity.leaving

    @property
    def epoch(self) -> int:
        return 0 if self._activity is None else self._activity.epoch

    @property
    def parsed(self) -> Mapping[int, Line] | None:
        return None if self._activity is None else self._activity.parsed

    @property
    def stored_key(self) -> str:
        """The key in its transcript: another one than that under which it is known, where it attends a session."""
        return self.entry.session_key or self.key

    def __lt__(self, other: Session) -> bool:
        """Whether it comes first among the live sessions: that with the newest message does, and of one time the keys
        say.
        """
        mine, theirs = self.entry.updated_at, other.entry.updated_at
        return mine > theirs or (mine == theirs and self.key < other.key)

    def restore_from(self, read: Session) -> None:
        """Take over entry and folder of `read`: the file was removed and is back, perhaps with another content."""
        self.entry, self.folder = read.entry, read.folder
        self.forget_written()
        self.activity.written_id = None
        self.activity.epoch += 1

    def forget_written(self) -> None:
        """The file was rewritten: the last record written is no parent any more, and no line is where it was."""
        if self._activity is not None:
            self._activity.parsed, self._activity.written_end = None, 0

    def keep_parsed(self, lines: Iterable[Line]) -> None:
        """Add lines parsed ahead, and drop those that were folded meanwhile."""
        folded_to = self.entry.file.folded_to
        known = self.parsed.values() if self.parsed else ()
        self.activity.parsed = {line.offset: line for line in (*known, *lines) if line.offset >= folded_to} or None

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
    def is_partial(self) -> bool:
        """Whether only the ends of its file were read, which is another program's."""
        return self.entry.source is not None and self.entry.source.partial

    @property
    def is_whole(self) -> bool:
        """Whether its figures are those of the whole file, as far as it was looked at."""
        return not (self.entry.is_incomplete or self.is_partial)

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
        facts, activity = self.entry.file, self._activity
        is_behind = activity is not None and activity.written_end > facts.folded_to
        return activity.written_id if activity is not None and is_behind else facts.last_id

    @property
    def _age(self) -> tuple[bool, int, bool, int, str]:
        # The session with the greatest value gets the key, and copies have the smallest ones. A copy has the header of
        # its original, and usually a longer name (`<name> copy.jsonl`).
        entry = self.entry
        name = self.session_id
        return not entry.is_copy, entry.created_at, not entry.is_named_otherwise, -len(name), name


_NOWHERE = Folder("", -1, dialect=V3)


def make_place(place: tuple[int, str]) -> Session:
    """What compares to sessions as one with that time, below zero, and that key: a place in their order."""
    return Session(key=place[1], entry=Entry(session_id="", updated_at=-place[0]), folder=_NOWHERE)
