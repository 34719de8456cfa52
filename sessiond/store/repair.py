"""Repair a store without changing any transcript, after a backup, with a report of what was done.

Narrows modes, rebuilds indexes that are damaged or outdated, and moves temporary files of interrupted writes to the
backup. Knows the store's files. The caller holds the store's lock.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import Literal

import msgspec

from sessiond.errors import pluralize
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.store import adoption, checks, dirfd, folding, index, inventory, layout, reading
from sessiond.store.catalog import Catalog, Folder, Session
from sessiond.store.inventory import StoredName

Action = Literal["narrow", "set aside", "make again"]
MANIFEST = "manifest.json"


class Repair(msgspec.Struct, frozen=True):
    """One repair: narrow the mode of a file, set it aside, or rebuild it (an index)."""

    action: Action
    thing: StoredName


class _Entry(msgspec.Struct, frozen=True):
    path: str
    action: Action
    mode: str


def plan(
    root_fd: int, now_ms: int, *, indexes: bool, record_limit: int, older_than_ns: int | None = None
) -> list[Repair]:
    """The repairs to be made. Temporary files that changed after `older_than_ns` are in use, and are left alone."""
    repairs: list[Repair] = []
    transcripts: dict[tuple[str, ...], list[StoredName]] = {}
    known: dict[tuple[str, ...], StoredName] = {}
    for thing in inventory.list_store(root_fd):
        if thing.kind == "temporary":
            if older_than_ns is None or thing.status.st_ctime_ns < older_than_ns:
                repairs.append(Repair("set aside", thing))
        elif checks.is_open_to_others(thing):
            repairs.append(Repair("narrow", thing))
        if thing.kind == "transcript":
            transcripts.setdefault(thing.parts, []).append(thing)
        elif thing.kind == "index":
            known[thing.parts] = thing
    if indexes:
        repairs += [
            Repair("make again", thing)
            for parts, thing in known.items()
            if _is_to_be_made_again(root_fd, now_ms, parts, transcripts.get(parts, []), record_limit)
        ]
    return repairs


def _is_to_be_made_again(
    root_fd: int, now_ms: int, parts: tuple[str, ...], transcripts: list[StoredName], record_limit: int
) -> bool:
    with dirfd.closing(dirfd.open_path_dir(root_fd, parts)) as fd:
        found = index.load(fd)
    # Rows of another program are the metadata of sessions that the next start adopts, so they are kept.
    if found.foreign or found.is_being_written_at(now_ms):
        return False
    if found.damaged or any(not checks.is_current(found, thing) for thing in transcripts):
        return True
    return any(_is_wrong(root_fd, thing, found, record_limit) for thing in transcripts)


def _is_wrong(root_fd: int, thing: StoredName, known: index.Index, record_limit: int) -> bool:
    steps = reading.read_transcript(root_fd, thing, record_limit)
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return bool(checks.differences_of(thing, end.value, known))
    except OSError:
        return False


def wrong_entries(root_fd: int, sessions: list[Session], record_limit: int) -> Iterator[Session | None]:
    """The sessions whose entry in memory is up to date with the transcript but differs from its fold. For a running
    daemon; yields None wherever it may be interrupted.
    """
    for session in sessions:
        *parts, name = session.path.split("/")
        entry = session.entry
        try:
            with dirfd.closing(dirfd.open_path_dir(root_fd, parts)) as fd:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            if not folding.is_current(entry.file, status, session.dialect):
                continue
            found = yield from reading.read_transcript(
                root_fd, StoredName(tuple(parts), name, "transcript", status), record_limit
            )
        except OSError:
            continue
        # An emptied transcript has no key, and its entry is the only source.
        if found.entry.session_key and found.differences(entry):
            yield session


def back_up(root_fd: int, repairs: list[Repair], stamp: str) -> int:
    """A descriptor of a new folder below `backups/`, with copies of the indexes and a list of the repairs."""
    fd = dirfd.open_path_dir(root_fd, (layout.BACKUPS,), create=True)
    with dirfd.closing(fd):
        backup_fd = dirfd.make_dir(fd, stamp)
        dirfd.fsync_dir(fd)
    listed = [_Entry(one.thing.path, one.action, f"{stat.S_IMODE(one.thing.status.st_mode):04o}") for one in repairs]
    for one in repairs:
        if one.action == "make again":
            with os.fdopen(reading.open_stored(root_fd, one.thing), "rb") as file:
                dirfd.write_atomic(backup_fd, _backup_name(one.thing), file.read())
    dirfd.write_atomic(backup_fd, MANIFEST, msgspec.json.format(msgspec.json.encode(listed), indent=1))
    return backup_fd


def apply(root_fd: int, backup_fd: int, repairs: list[Repair], record_limit: int) -> Iterator[str]:
    """Make the repairs; for each a sentence about what was done, or why not."""
    for one in repairs:
        try:
            with dirfd.closing(dirfd.open_path_dir(root_fd, one.thing.parts)) as folder_fd:
                yield _apply_one(folder_fd, backup_fd, one, record_limit)
        except OSError as error:
            yield f"{one.thing.path}: not repaired: {error.strerror}"


def _apply_one(folder_fd: int, backup_fd: int, one: Repair, record_limit: int) -> str:
    thing = one.thing
    match one.action:
        case "narrow":
            mode = 0o700 if thing.kind == "folder" else 0o600
            if thing.kind == "folder":
                dirfd.chmod_below(folder_fd, thing.name, mode)
            else:
                with dirfd.closing(dirfd.open_file(folder_fd, thing.name, os.O_RDONLY)) as fd:
                    os.fchmod(fd, mode)
            return f"{thing.path}: mode {stat.S_IMODE(thing.status.st_mode):04o} is {mode:04o} now"
        case "set aside":
            dirfd.rename(folder_fd, thing.name, backup_fd, _backup_name(thing), replace=False)
            return f"{thing.path}: moved to the backup"
        case "make again":
            sessions = _sessions(folder_fd, thing, record_limit)
            index.save(folder_fd, index.encode_index(sessions))
            return f"{thing.path}: made again from {pluralize(len(sessions), 'transcript')}"


def _sessions(folder_fd: int, thing: StoredName, record_limit: int) -> list[Session]:
    """The folder's sessions, read without writing. Files without a session key are left for the next start."""
    folder = Folder(thing.parts[1], folder_fd, thing.dialect, archived=thing.is_archived)
    known = index.load(folder_fd).ours
    sessions: list[Session] = []
    for name in sorted(os.listdir(folder_fd)):
        session_id = layout.session_id_of(name)
        if session_id is None:
            continue
        try:
            entry = _refold(folder_fd, name, known.get(session_id), record_limit, folder.dialect)
        except OSError:
            continue
        if adoption.is_own_key(entry.session_key, folder.agent_id):
            sessions.append(Session(key=entry.known_key, entry=entry, folder=folder))
    # The catalog marks the older of two sessions with the same key as superseded.
    Catalog().load(sessions)
    return sessions


def _refold(folder_fd: int, name: str, known: Entry | None, record_limit: int, dialect: TranscriptDialect) -> Entry:
    """The entry from folding the whole file, with the number of former messages, which only the index has."""
    entry = Entry(session_id=name.removesuffix(layout.SUFFIX))
    with dirfd.closing(dirfd.open_file(folder_fd, name, os.O_RDONLY)) as fd:
        if known is not None:
            status = os.fstat(fd)
            # Compared by content, because in a copy of the store the file has another inode.
            is_rewritten = not folding.holds(fd, known.file, status)
            entry = folding.begin_anew(known, rewritten_at=status.st_mtime_ns // 1_000_000 if is_rewritten else None)
        return folding.advance_open(fd, entry, record_limit, dialect=dialect, collect=False).entry


def _backup_name(thing: StoredName) -> str:
    # Never with a temporary file's prefix, or the next repair would set it aside again.
    return "__".join((*(thing.parts or ("store",)), thing.name))[-dirfd.MAX_COMPONENT_BYTES :]
