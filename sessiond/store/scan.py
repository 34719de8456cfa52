"""Find every session of the store at start: list the folders, trust the index where the file has not changed since, fold
what is new, and adopt what came from another program. Synchronous; runs in a worker thread before anything is served.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import msgspec

from sessiond.clock import Clock, Ids
from sessiond.errors import InvalidParams
from sessiond.model import record as records
from sessiond.model.entry import Entry
from sessiond.model.keys import SESSION_ID, KeyRules, agent_of, canonical
from sessiond.store import dirfd, folding, index, layout, transcript
from sessiond.store.catalog import Folder, Session

Progress = Callable[[int, int, str], None]
_INDEX_FIELDS = {field.encode_name for field in msgspec.structs.fields(Entry)}


class ScanSettings(msgspec.Struct, frozen=True):
    """What a scan needs besides the folder."""

    rules: KeyRules
    record_limit: int
    clock: Clock
    ids: Ids
    sync: bool = True


class Problem(msgspec.Struct, frozen=True):
    """Something a scan passed over: a symlink, a file that could not be read. `path` is relative to the store."""

    path: str
    reason: str


def scan_folder(folder: Folder, settings: ScanSettings, progress: Progress, problems: list[Problem]) -> list[Session]:
    """The sessions of one folder, folded up to their files. Foreign ones are adopted on the way."""
    known = index.load(folder.fd)
    names = _transcripts(folder, problems)
    sessions: list[Session] = []
    for done, (name, stat) in enumerate(names):
        session_id = name[: -len(layout.SUFFIX)]
        entry = known.ours.get(session_id)
        if entry is not None and folding.is_current(entry.file, stat):
            sessions.append(Session(key=entry.session_key, entry=entry, folder=folder))
            continue
        progress(done, len(names), folder.agent_id)
        folder.dirty = True
        try:
            made = read_session(folder, name, entry, known.foreign, settings)
        except OSError as error:
            problems.append(Problem(_path(folder, name), os.strerror(error.errno or 5)))
            continue
        if made is not None:
            sessions.append(made)
    if not folder.archived:
        sessions += _settings_only(folder, known, {session.session_id for session in sessions}, settings)
    folder.dirty = folder.dirty or known.damaged or len(known.ours) != len(sessions)
    return sessions


def read_session(
    folder: Folder, name: str, entry: Entry | None, foreign: dict[str, dict[str, Any]], settings: ScanSettings
) -> Session | None:
    """Fold one file, and adopt it where it does not say its key. None where it has no whole line yet."""
    session_id = name[: -len(layout.SUFFIX)]
    got = folding.advance(folder.fd, entry or Entry(session_id=session_id), name, settings.record_limit, collect=False)
    if got.entry.file.folded_to == 0:
        return None
    folded = got.entry
    if not _is_own_key(folded.session_key, folder.agent_id, settings.rules):
        folded = _adopt(folder, name, folded, foreign, settings)
    return Session(key=folded.session_key, entry=folded, folder=folder)


def _is_own_key(key: str, agent_id: str, rules: KeyRules) -> bool:
    # A file may claim any key; only one of the folder's own agent, spelt canonically, is believed.
    try:
        return bool(key) and canonical(key, rules) == key and agent_of(key) == agent_id
    except InvalidParams:
        return False


def _adopt(
    folder: Folder, name: str, entry: Entry, foreign: dict[str, dict[str, Any]], settings: ScanSettings
) -> Entry:
    key, fields = _foreign_entry(folder.agent_id, entry.session_id, foreign, settings.rules)
    data = {"sessionKey": key, **fields}
    now = settings.clock.wall_ms()
    line = records.custom_line(settings.ids.record(), entry.file.last_id, now, records.ENTRY, data)
    fd = dirfd.open_file(folder.fd, name, os.O_RDWR | os.O_APPEND)
    try:
        transcript.append(fd, line)
        if settings.sync:
            os.fdatasync(fd)
        return folding.advance_open(fd, entry, settings.record_limit).entry
    finally:
        os.close(fd)


def _foreign_entry(
    agent_id: str, session_id: str, foreign: dict[str, dict[str, Any]], rules: KeyRules
) -> tuple[str, dict[str, Any]]:
    fallback = f"agent:{agent_id}:import:{session_id.lower()}"
    best: tuple[str, dict[str, Any]] | None = None
    for key, fields in foreign.items():
        if fields.get("sessionId") != session_id:
            continue
        text = _foreign_key(key, agent_id, rules)
        if text is not None and (best is None or _updated(fields) > _updated(best[1])):
            best = text, fields
    if best is None:
        return fallback, {}
    kept = {name: value for name, value in best[1].items() if name not in ("sessionId", "file", "sessionKey")}
    return best[0], kept


def _updated(fields: dict[str, Any]) -> float:
    value = fields.get("updatedAt")
    return value if isinstance(value, (int, float)) else 0


def _foreign_key(key: str, agent_id: str, rules: KeyRules) -> str | None:
    try:
        text = canonical(key, msgspec.structs.replace(rules, default_agent=agent_id), agent_id=agent_id)
    except InvalidParams:
        return None
    return text if text is not None and agent_of(text) == agent_id else None


def _settings_only(folder: Folder, known: index.Index, present: set[str], settings: ScanSettings) -> list[Session]:
    """Foreign index entries without a transcript get one, so that their settings live on."""
    made: list[Session] = []
    for key, fields in known.foreign.items():
        session_id, text = fields.get("sessionId"), _foreign_key(key, folder.agent_id, settings.rules)
        if not isinstance(session_id, str) or session_id in present or text is None:
            continue
        name = session_id + layout.SUFFIX
        if not SESSION_ID.fullmatch(session_id.lower()) or _exists(folder.fd, name):
            continue
        created = int(_updated(fields)) or settings.clock.wall_ms()
        create_file(
            folder.fd, name, records.header_line(session_id, text, folder.agent_id, created, cwd=""), settings.sync
        )
        adopted = Entry(session_id=session_id)
        adopted = folding.advance(folder.fd, adopted, name, settings.record_limit).entry
        adopted = _adopt(folder, name, adopted, {key: fields}, settings)
        present.add(session_id)
        made.append(Session(key=adopted.session_key, entry=adopted, folder=folder))
    return made


def _exists(folder_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def create_file(folder_fd: int, name: str, data: bytes, sync: bool) -> None:
    """Make a transcript that is there whole or not at all, and on disk when this returns (with `sync`)."""
    fd = dirfd.open_file(folder_fd, name, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL)
    try:
        transcript.append(fd, data)
        if sync:
            os.fdatasync(fd)
            dirfd.fsync_dir(folder_fd)
    except OSError:
        os.unlink(name, dir_fd=folder_fd)
        raise
    finally:
        os.close(fd)


def _transcripts(folder: Folder, problems: list[Problem]) -> list[tuple[str, os.stat_result]]:
    found: list[tuple[str, os.stat_result]] = []
    with os.scandir(folder.fd) as entries:
        for item in entries:
            if layout.session_id_of(item.name) is None:
                continue
            if item.is_symlink():
                problems.append(Problem(_path(folder, item.name), "a symlink; it is not followed"))
            elif item.is_file(follow_symlinks=False):
                found.append((item.name, os.stat(item.name, dir_fd=folder.fd, follow_symlinks=False)))
    return found


def _path(folder: Folder, name: str) -> str:
    middle = f"{layout.ARCHIVE}/" if folder.archived else ""
    return f"{layout.AGENTS}/{folder.agent_id}/{layout.SESSIONS}/{middle}{name}"
