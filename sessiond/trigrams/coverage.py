"""Which transcripts are indexed, up to where, and which of them have to be read next. Lives on the event loop.

Reads no files. Knows entries: an entry says how a file was when the fold read it, and what is indexed is as of that.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from struct import Struct

import msgspec
from msgspec.structs import replace

from sessiond.model.entry import FileFacts
from sessiond.store.catalog import Session
from sessiond.store.folder import Folder
from sessiond.trigrams.resting import RestingGroup, RestingSessions
from sessiond.trigrams.rows import FileRow

# What is shorter is looked through in a moment. It is indexed when nothing was added for a while: a block for each
# message would make the index as large as the text.
TAIL_BYTES = 64 * 1024
REST_S = 60.0
# A new session that is longer was found, and not begun just now.
_FOUND_BYTES = 4 * 1024
# So many files are indexed in one go.
_MOST_JOBS = 64
# What is needed of a `FileRow`: all of it are numbers of SQLite.
_PACKED = Struct("<6q")


class IndexedFile(msgspec.Struct, frozen=True, gc=False):
    """What is indexed of a session's file: up to `indexed_to`, `chars` of text, under `file_id` (0: nothing).

    `facts`, which the entry has as well, are how the file was when that was known last. While the session rests, it is
    in the group `rests_in`.
    """

    file_id: int
    indexed_to: int
    chars: int
    epoch: int
    facts: FileFacts
    rests_in: RestingGroup | None = None


class IndexJob(msgspec.Struct, frozen=True, gc=False):
    """A file to be indexed up to where its entry is. `is_doubted`: what is indexed of it is not to be used."""

    session: Session
    folder: Folder
    file_name: str
    path: str
    facts: FileFacts
    epoch: int
    is_doubted: bool


class Coverage:
    """What one database has of all sessions. `due` are to be read as soon as there is time."""

    def __init__(self, rows: Iterable[FileRow] = ()) -> None:
        """`rows` are the files that the database has."""
        # By the names of the files. Packed, since there may be 100,000.
        self._rows = {row.name: _pack(row) for row in rows}
        self.due: dict[Session, None] = {}
        self.total_bytes = self.indexed_bytes = self.chars = 0
        self._known: dict[Session, IndexedFile] = {}
        self._doubted: dict[Session, None] = {}
        self._resting = RestingSessions()

    @property
    def next_due(self) -> float | None:
        """When the next session has rested; None where none does."""
        return self._resting.next_due

    def note(self, session: Session, now: float) -> bool:
        """A session was added, or its entry changed. Whether something is to be done sooner than before."""
        facts, known = session.entry.file, self._known.get(session)
        if not session.is_whole or not facts.inode:
            self.drop(session)
            return False
        if known is None:
            state = self._find_claimed(session)
        elif _continues(known, session):
            state = replace(known, facts=facts)
        else:
            state = replace(_begin(session), rests_in=known.rests_in)
            self._doubted[session] = None
        self._put(session, state)
        missing = facts.folded_to - state.indexed_to
        if not missing or session in self.due:
            return False
        if session in self._doubted or missing >= (_FOUND_BYTES if known is None else TAIL_BYTES):
            self._stop_resting(session, state)
            self.due[session] = None
            return True
        return self._rest(session, state, now)

    def forget_rows(self) -> None:
        """All sessions were noted: what the database has of others is not waited for."""
        self._rows = {}

    def _find_claimed(self, session: Session) -> IndexedFile:
        """What the database has of the file of a new session, where nothing happened to the file since."""
        facts, state = session.entry.file, _begin(session)
        packed = self._rows.get(name_file(session, session.folder.identity[0], facts.inode)) if self._rows else None
        if packed is None:
            return state
        file_id, chars, *found = _PACKED.unpack(packed)
        if found != [facts.folded_to, facts.check, facts.bytes, facts.mtime_ns]:
            return state
        return replace(state, file_id=file_id, indexed_to=facts.folded_to, chars=chars)

    def put_back(self, jobs: Iterable[IndexJob]) -> None:
        """These were not done, or not all of them."""
        for job in jobs:
            known = self._known.get(job.session)
            if known is not None and known.indexed_to < known.facts.folded_to:
                self.due[job.session] = None
                if job.is_doubted and not known.indexed_to:
                    self._doubted[job.session] = None

    def rest(self, session: Session, now: float) -> None:
        """Try it again later: its file could not be read just now."""
        known = self._known.get(session)
        if known is not None:
            self._rest(session, known, now)

    def _rest(self, session: Session, state: IndexedFile, now: float) -> bool:
        # Those of one second are due together.
        due = now // 1 + REST_S
        if state.rests_in is not None and state.rests_in.due == due:
            return False
        is_first = not self._resting
        self._stop_resting(session, state)
        self._known[session] = replace(state, rests_in=self._resting.add(session, due))
        # One that rests again is due later than before.
        return is_first

    def _stop_resting(self, session: Session, state: IndexedFile) -> None:
        if state.rests_in is not None:
            self._resting.remove(session, state.rests_in)
            self._known[session] = replace(state, rests_in=None)

    def drop(self, session: Session) -> None:
        """The session is gone."""
        for waiting in (self.due, self._doubted):
            waiting.pop(session, None)
        known = self._known.get(session)
        if known is not None:
            self._stop_resting(session, known)
            del self._known[session]
            self._count(known, -1)

    def take(self, now: float) -> list[IndexJob]:
        """The files to be indexed next; none where nothing is due."""
        for session in self._resting.take(now, _MOST_JOBS):
            self._known[session] = replace(self._known[session], rests_in=None)
            self.due[session] = None
        jobs: list[IndexJob] = []
        # As many as are taken, and the table is gone over once: its beginning may be 100,000 that were deleted.
        for session in list(islice(self.due, _MOST_JOBS)):
            del self.due[session]
            is_doubted = session in self._doubted
            self._doubted.pop(session, None)
            entry, path = session.entry, session.path
            jobs.append(
                IndexJob(session, session.folder, session.file_name, path, entry.file, session.epoch, is_doubted)
            )
        # An empty table keeps the memory of what it had.
        self.due = self.due or {}
        return jobs

    def apply(self, job: IndexJob, row: FileRow) -> None:
        """A file was indexed as far as `row` says, if it is still the same."""
        session, known = job.session, self._known.get(job.session)
        if known is None or session in self._doubted:
            return
        if (known.epoch, known.facts.inode) != (job.epoch, job.facts.inode):
            return
        folded_to = known.facts.folded_to
        if row.indexed_to <= folded_to:
            # Where all is indexed, with the number that the entry has: there may be 100,000.
            indexed_to = folded_to if row.indexed_to == folded_to else row.indexed_to
            state = replace(known, file_id=row.id, indexed_to=indexed_to, chars=row.chars)
            self._put(session, state)

    def copy_known(self) -> dict[Session, IndexedFile]:
        """What is indexed of every session by now. It counts as far as `is_current`. May be called in any thread."""
        return self._known.copy()

    def _put(self, session: Session, state: IndexedFile) -> None:
        known = self._known.get(session)
        if known is not None:
            self._count(known, -1)
        self._known[session] = state
        self._count(state, 1)

    def _count(self, known: IndexedFile, sign: int) -> None:
        self.total_bytes += sign * known.facts.folded_to
        self.indexed_bytes += sign * known.indexed_to
        self.chars += sign * known.chars


def name_file(session: Session, device: int, inode: int) -> str:
    """What a file is known by: wherever it is moved to, it is the same. One that is put together in memory is known by
    its path.
    """
    return session.path if session.folder.makes(session.file_name) else f"{device}:{inode}"


def is_current(known: IndexedFile, session: Session) -> bool:
    """Whether what is indexed is of the file as the session's entry has it, or as it was before it grew."""
    return known.file_id > 0 and is_of_file(known, session)


def _pack(row: FileRow) -> bytes:
    return _PACKED.pack(row.id, row.chars, row.indexed_to, row.checksum, row.bytes, row.mtime_ns)


def _begin(session: Session) -> IndexedFile:
    return IndexedFile(0, 0, 0, session.epoch, session.entry.file)


def is_of_file(known: IndexedFile, session: Session) -> bool:
    """As `is_current`, also where nothing is indexed of the file yet."""
    facts = session.entry.file
    is_same = known.epoch == session.epoch and known.facts.inode == facts.inode
    return is_same and known.indexed_to <= facts.folded_to and known.facts.bytes <= facts.bytes


def _continues(known: IndexedFile, session: Session) -> bool:
    """Whether the file has what it had, and perhaps more. One that was written to without growing is another."""
    facts = session.entry.file
    is_touched = (
        facts.bytes == known.facts.bytes
        and facts.mtime_ns != known.facts.mtime_ns
        and not session.folder.makes(session.file_name)
    )
    return is_of_file(known, session) and not is_touched
