"""The one road: file -> tail -> fold -> entry -> event. For the daemon's own appends and for everyone else's.

The committer pokes the feed after each commit; the watcher tells it of strangers. Knows the store, the watcher and the
bus. Does not know subscribers' connections, runs or methods.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from sessiond.events.bus import EventBus, Place
from sessiond.events.replay import message_event
from sessiond.events.watch import Changed, Gone, Rescan, Watcher
from sessiond.model.event import ChangedEvent, Phase
from sessiond.model.record import ENTRY, FINAL, RUN, Record
from sessiond.store import folding, index, layout, scan
from sessiond.store.catalog import Folder, Session
from sessiond.store.folding import Advance, Step
from sessiond.store.store import SessionStore

# What is read and folded in one go on the loop: about 5 ms of work.
MAX_STEP_BYTES = 512 * 1024


class _Asked(msgspec.Struct, frozen=True, gc=False):
    message: msgspec.Raw = msgspec.Raw()


class _RunData(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    status: object = None
    request: _Asked = _Asked()


class TranscriptFeed:
    """Keeps entries up to their files and publishes what is new, each record once.

    `on_record(session, record)` sees every record after it was folded, before its events go out.
    """

    def __init__(self, store: SessionStore, bus: EventBus) -> None:
        self._store, self._bus = store, bus
        self._behind: dict[Session, None] = {}
        self._more = trio.Event()
        self._watcher: Watcher | None = None
        self.changed = trio.Event()
        self.on_entry: Callable[[Session], None] = _nothing
        store.on_committed = self.poke
        store.on_created = self.created
        store.on_folder = self._watch_folder

    @property
    def backend(self) -> str:
        """The watcher's backend, for daemon.status."""
        return self._watcher.backend if self._watcher is not None else "none"

    def poke(self, session: Session) -> None:
        """Read what the file has and the entry has not. Called on the loop, after a commit of the daemon's own."""
        if session.folder.archived:
            return
        try:
            got = folding.advance(
                session.folder.fd, session.entry, session.file_name, self._store.record_limit, max_bytes=MAX_STEP_BYTES
            )
        except OSError:
            return  # moved or removed; the watcher tells, and the caller of the append gets its own error
        self._take(session, got)
        if got.more:
            self._behind[session] = None
            self._more.set()

    def created(self, session: Session, steps: list[Step]) -> None:
        """A session was made by the daemon: announce it and what it began with."""
        self._dirty()
        self.publish(session, "create", None)
        self._announce(session, steps)

    def publish(self, session: Session, phase: Phase, reason: str | None, *, deleted: bool = False) -> None:
        """Tell of a change to a session that is no record of its transcript, such as a reset."""
        if self._bus.interested(session.key):
            entry = None if deleted else session.entry
            after = session.entry.file.folded_to
            self._bus.publish(ChangedEvent(session.key, session.session_id, phase, reason, entry, after))

    def restarted(self, session: Session, reason: str) -> None:
        """The session's transcript begins anew: let its followers read it from the start."""
        place = Place(session.session_id, 0, 0, "reset" if reason == "reset" else "rewritten")
        self._bus.fall_back(session.key, place)

    def _take(self, session: Session, got: Advance) -> None:
        if got.entry is session.entry or got.entry == session.entry:
            return
        self._dirty()
        if got.rewritten:
            self._rewritten(session, got)
            return
        self._store.catalog.replace(session, got.entry)
        if session.superseded:
            return
        self.on_entry(session)
        self._announce(session, got.steps)

    def _rewritten(self, session: Session, got: Advance) -> None:
        catalog = self._store.catalog
        entry = got.entry
        session.epoch += 1
        if not entry.session_key or entry.session_key != session.key:
            entry = msgspec.structs.replace(entry, session_key=session.key)
        catalog.replace(session, entry)
        self.on_entry(session)
        self.restarted(session, "rewritten")
        self.publish(session, "patch", "rewritten")

    def _announce(self, session: Session, steps: list[Step]) -> None:
        if not self._bus.interested(session.key):
            return
        for step in steps:
            record = step.line.record
            if record is None:
                continue
            if record.message is not None:
                self._bus.publish(message_event(self._store, session, step.line, step.seq))
            change = _change(record)
            if change is not None and self._bus.watched:
                phase, reason = change
                self._bus.publish(
                    ChangedEvent(session.key, session.session_id, phase, reason, step.entry, step.line.end)
                )

    def _dirty(self) -> None:
        self.changed.set()

    async def run(self, watcher: Watcher) -> None:
        """Follow the watcher until cancelled."""
        self._watcher = watcher
        await self._rescan()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._read_behind)
            async for batch in watcher:
                for event in batch:
                    match event:
                        case Changed(directory, name):
                            await self._seen(directory, name)
                        case Gone(directory, name):
                            self._gone(directory, name)
                        case Rescan():
                            await self._rescan()

    async def _read_behind(self) -> None:
        while True:
            while self._behind:
                session = next(iter(self._behind))
                del self._behind[session]
                if not session.in_flight:
                    self.poke(session)
                await trio.lowlevel.checkpoint()
            await self._more.wait()
            self._more = trio.Event()

    def _directory(self, agent_id: str) -> str:
        return str(self._store.path / layout.AGENTS / agent_id / layout.SESSIONS)

    def _watch_folder(self, folder: Folder) -> None:
        if self._watcher is not None:
            self._watcher.add(self._directory(folder.agent_id))

    async def _seen(self, directory: str, name: str) -> None:
        agents = self._store.path / layout.AGENTS
        if Path(directory) == agents:
            if layout.is_agent_folder(name):
                self._add_agent(name)
                await self._look_into(name)
            return
        if Path(directory).parent == agents:
            if name == layout.SESSIONS:
                await self._look_into(Path(directory).name)
            return
        folder = self._store.folders.get(Path(directory).parent.name)
        session_id = layout.session_id_of(name)
        if folder is not None and session_id is not None and name not in self._store.busy_names:
            await self._look_at(folder, name, session_id)

    async def _look_at(self, folder: Folder, name: str, session_id: str) -> None:
        session = self._store.catalog.by_id.get(session_id)
        if session is None or session.folder is not folder:
            await self._adopt(folder, name)
        elif not session.in_flight and not self._is_current(session):
            self.poke(session)

    @staticmethod
    def _is_current(session: Session) -> bool:
        with contextlib.suppress(OSError):
            status = os.stat(session.file_name, dir_fd=session.folder.fd, follow_symlinks=False)
            return folding.is_current(session.entry.file, status)
        return True

    async def _adopt(self, folder: Folder, name: str) -> None:
        def read() -> Session | None:
            if not stat.S_ISREG(os.stat(name, dir_fd=folder.fd, follow_symlinks=False).st_mode):
                return None
            foreign = index.load(folder.fd).foreign
            return scan.read_session(folder, name, None, foreign, self._store.settings)

        try:
            session = await self._store.run_sync(read)
        except OSError:
            return  # gone again, or not ours to read; doctor looks more closely
        if session is None or name in self._store.busy_names or self._store.catalog.by_id.get(session.session_id):
            return
        self._store.catalog.add(session)
        folder.dirty = True
        self._dirty()
        if session.superseded:
            return
        self.on_entry(session)
        self.publish(session, "create", "found")
        # Whoever follows the key already gets every record of it.
        self._bus.fall_back(session.key, Place(session.session_id, 0, 0))

    def _gone(self, directory: str, name: str) -> None:
        folder = self._store.folders.get(Path(directory).parent.name)
        session_id = layout.session_id_of(name)
        if folder is not None and not name:
            self._folder_gone(folder, directory)
        if folder is None or session_id is None or name in self._store.busy_names:
            return
        session = self._store.catalog.by_id.get(session_id)
        if session is None or session.folder is not folder or self._exists(folder, name):
            return
        self._store.catalog.remove(session)
        folder.dirty = True
        self._dirty()
        self.publish(session, "delete", "file removed", deleted=True)

    def _folder_gone(self, folder: Folder, directory: str) -> None:
        for session in list(self._store.catalog.by_id.values()):
            if session.folder is folder:
                self._gone(directory, session.file_name)
        del self._store.folders[folder.agent_id]
        os.close(folder.fd)

    @staticmethod
    def _exists(folder: Folder, name: str) -> bool:
        with contextlib.suppress(OSError):
            os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            return True
        return False

    def _add_agent(self, agent_id: str) -> None:
        if self._watcher is not None:
            with contextlib.suppress(OSError):
                self._watcher.add(str(self._store.path / layout.AGENTS / agent_id))

    async def _look_into(self, agent_id: str) -> None:
        """A sessions folder appeared, or may have changed unseen: watch it, then list it."""
        watcher = self._watcher
        assert watcher is not None
        with contextlib.suppress(OSError):
            watcher.add(self._directory(agent_id))
            folder = self._store.folder(agent_id)
            for count, name in enumerate(os.listdir(folder.fd)):
                if count % 256 == 0:
                    await trio.lowlevel.checkpoint()
                session_id = layout.session_id_of(name)
                if session_id is not None and name not in self._store.busy_names:
                    await self._look_at(folder, name, session_id)

    async def _rescan(self) -> None:
        """Add every folder and look at every file: at the start, and when the watcher says that it missed something."""
        assert self._watcher is not None
        agents = self._store.path / layout.AGENTS
        self._watcher.add(str(agents))
        for agent_id in sorted(os.listdir(agents)):
            if layout.is_agent_folder(agent_id):
                self._add_agent(agent_id)
                await self._look_into(agent_id)
        for session in list(self._store.catalog.by_id.values()):
            if not session.folder.archived and not self._exists(session.folder, session.file_name):
                self._gone(self._directory(session.folder.agent_id), session.file_name)


def _nothing(session: Session) -> None:
    pass


def _change(record: Record) -> tuple[Phase, str | None] | None:
    """The phase that a record means for `sessions.changed`, None where it changes no row."""
    if record.message is not None:
        return "message", None
    if record.custom_type == ENTRY or record.type in ("model_change", "thinking_level_change", "session_info"):
        return "patch", None
    if record.custom_type != RUN or record.data is None:
        return None
    try:
        data = msgspec.json.decode(record.data, type=_RunData)
    except msgspec.DecodeError:
        return None
    match data.status:
        case "running":
            return "start", None
        case "error" | "timeout":
            return "error", str(data.status)
        case str() as status if status in FINAL:
            return "end", status
        case "accepted" if bytes(data.request.message):
            # Only a run that has to wait carries its message; one that starts at once has it in the next record.
            return "patch", "queued"
        case _:
            return None
