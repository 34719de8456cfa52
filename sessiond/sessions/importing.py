"""Import sessions of another program into the store. The source is only read, and no session is imported twice.

Each session is copied and adopted under a temporary name and then renamed, so that it is complete or absent. Knows the
store and the plan of a source (`openclaw`). Source: store.md, "Adoption".
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

import msgspec

from sessiond.errors import InvalidParams, reason_of
from sessiond.events.feed import TranscriptFeed
from sessiond.model.dialects import V3
from sessiond.model.entry import Entry
from sessiond.sessions import openclaw
from sessiond.sessions.openclaw import ImportPlan, PlannedSession, SkippedFile
from sessiond.store import adoption, blocks, dirfd, folding, layout, making, scan, transcript
from sessiond.store.catalog import Folder, Session
from sessiond.store.refusals import storage_error
from sessiond.store.store import SessionStore
from sessiond.store.time_slicer import TimeSlicer

_CHUNK = 1 << 20
# How much is folded in one step: a few milliseconds of work.
_FOLD_BYTES = 256 * 1024


class ImportedSession(msgspec.Struct, frozen=True):
    """An imported session, and the path of its file relative to the source."""

    session: Session
    path: str


async def openclaw_folder(
    store: SessionStore, feed: TranscriptFeed, time_slicer: TimeSlicer, root_fd: int
) -> tuple[list[ImportedSession], list[SkippedFile]]:
    """Import the OpenClaw state folder open at `root_fd`: `(imported, skipped)`.

    A session whose id is in the store already is skipped. One whose key has a session here is put into the archive, as
    an older transcript of that key. StorageError if the store cannot be written; sessions imported before that stay.
    """
    imported: list[ImportedSession] = []
    skipped: list[SkippedFile] = []
    if os.path.samestat(os.fstat(root_fd), os.fstat(store.root_fd)):
        raise InvalidParams("`$.path` is this store itself.", field="$.path")
    try:
        names = await store.run_sync(openclaw.agents, root_fd, skipped)
    except OSError as error:
        raise InvalidParams(
            f"`$.path` holds no folder `{layout.AGENTS}` that can be read ({error.strerror}); name an OpenClaw state"
            " folder, as ~/.openclaw.",
            field="$.path",
        ) from None
    for name in names:
        plan = await store.run_sync(openclaw.plan, root_fd, name, skipped)
        if plan is None:
            continue
        with dirfd.closing(plan.fd):
            for item in plan.items:
                path = f"{plan.path}/{item.name or layout.INDEX}"
                got = await _import(store, feed, time_slicer, plan, item)
                if isinstance(got, Session):
                    imported.append(ImportedSession(got, path))
                else:
                    skipped.append(SkippedFile(path, got))
    return imported, skipped


async def _import(
    store: SessionStore, feed: TranscriptFeed, time_slicer: TimeSlicer, plan: ImportPlan, item: PlannedSession
) -> Session | str:
    """The imported session, or the reason why it was not imported."""
    if item.session_id in store.catalog.by_id:
        return "a session with this id is here already"
    name = item.session_id + layout.SUFFIX
    store.busy_names.add(name)
    copy = None
    try:
        copy = TranscriptCopy(plan, item, store.folder(plan.agent_id), store.settings)
        await time_slicer.run(copy.steps())
        if copy.entry is None:
            return copy.refused or "nothing in it"
        taken = copy.entry.session_key in store.catalog.by_key
        if taken and item.name is None:
            return "its key has a session here, with settings of its own"
        folder = store.archive_folder(plan.agent_id) if taken or item.archived else store.folder(plan.agent_id)
        session: Session = await store.run_sync(copy.place, folder)
        store.catalog.add(session)
        folder.dirty = True
    except FileExistsError:
        return "a file of this name is here already"
    except OSError as error:
        raise storage_error(error, item.session_id) from None
    finally:
        if copy is not None:
            copy.discard()
        store.busy_names.discard(name)
    feed.changed.set()
    if not session.archived:
        feed.publish(session, "create", "imported")
    return session


class TranscriptCopy:
    """A copy of one session in a temporary file, until `place` renames it into its folder.

    After `steps`, `entry` is the entry of the session, or `refused` the reason why it is not one.
    """

    def __init__(self, plan: ImportPlan, item: PlannedSession, target: Folder, settings: scan.ScanSettings) -> None:
        self.entry: Entry | None = None
        self.refused: str | None = None
        self._plan, self._item, self._settings, self._target_fd = plan, item, settings, target.fd
        self._temporary = making.temporary_name()

    def steps(self) -> Iterator[None]:
        """Copy, fold and adopt; runs in worker threads. OSError if the store cannot be written."""
        with contextlib.ExitStack() as stack:
            try:
                chunks, mtime_ns = self._source(stack)
            except OSError as error:
                self.refused = reason_of(error)
                return
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
            fd = stack.enter_context(dirfd.closing(dirfd.open_file(self._target_fd, self._temporary, flags)))
            for chunk in chunks:
                dirfd.write_all(fd, chunk)
                yield
            yield from self._adopt(fd, mtime_ns)

    def _source(self, stack: contextlib.ExitStack) -> tuple[Iterable[bytes], int]:
        item = self._item
        if item.name is None:
            created_ms = item.created_ms or self._settings.clock.wall_ms()
            header = adoption.bare_header(item.session_id, self._plan.agent_id, created_ms)
            return (header,), created_ms * 1_000_000
        fd = stack.enter_context(dirfd.closing(dirfd.open_file(self._plan.fd, item.name, os.O_RDONLY)))
        status = os.fstat(fd)
        # An incomplete last line is being written or torn, and is not copied.
        return _chunks(fd, blocks.line_start(fd, status.st_size)), status.st_mtime_ns

    def _adopt(self, fd: int, mtime_ns: int) -> Iterator[None]:
        entry = Entry(session_id=self._item.session_id)
        limit, more = self._settings.record_limit, True
        while more:
            got = folding.advance_open(fd, entry, limit, dialect=V3, max_bytes=_FOLD_BYTES, collect=False)
            entry, more = got.entry, got.more
            yield
        if not scan.is_transcript(fd, limit, V3):
            self.refused = "no transcript: it does not begin with the header of a session"
            return
        if not adoption.is_own_key(entry.session_key, self._plan.agent_id):
            plan, rules = self._plan, self._settings.rules
            claim = adoption.claim(plan.agent_id, self._item.key_id, None, plan.foreign, rules)
            now = self._settings.clock.wall_ms()
            line = claim.line(self._settings.ids.record(), entry.file.last_id, now, limit)
            transcript.append(fd, line)
        # Keep the modification time: prune decides by it.
        os.utime(fd, ns=(mtime_ns, mtime_ns))
        if self._settings.sync:
            os.fsync(fd)
        self.entry = folding.advance_open(fd, entry, limit, dialect=V3, collect=False).entry

    def place(self, folder: Folder) -> Session:
        """Rename the file to its name in `folder`. FileExistsError if the name is taken."""
        assert self.entry is not None
        session = Session(key=self.entry.known_key, entry=self.entry, folder=folder)
        with dirfd.closing(dirfd.open_file(self._target_fd, self._temporary, os.O_RDWR)) as fd:
            making.put_in_place(
                self._target_fd, self._temporary, folder, session.file_name, fd, sync=self._settings.sync
            )
        return session

    def discard(self) -> None:
        """Remove the temporary file, if there is one. If that fails, the next start of the daemon removes it."""
        with contextlib.suppress(OSError):
            os.unlink(self._temporary, dir_fd=self._target_fd)


def _chunks(fd: int, end: int) -> Iterator[bytes]:
    position = 0
    while position < end:
        chunk = os.pread(fd, min(_CHUNK, end - position), position)
        if not chunk:
            return  # it shrank meanwhile
        position += len(chunk)
        yield chunk
