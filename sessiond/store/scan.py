"""Find every session of the store at the start. Synchronous; runs in a worker thread before the daemon serves.

Lists the folders, takes the entries of unchanged files from the index, and folds the others. Does not know what the
sessions are used for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import msgspec

from sessiond.clock import Clock, Ids
from sessiond.errors import pluralize, reason_of
from sessiond.model import record as records
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry
from sessiond.model.keys import KeyRules
from sessiond.store import adoption, dirfd, folding, index, layout, making, transcript
from sessiond.store.catalog import Folder, Session

# In a file without a header, the record with its session key is looked for in so many bytes.
_MARKED_BYTES = 1 << 20
# An incomplete line that has not grown for so long is torn and will never be completed.
HALF_LINE_MS = 60_000
Progress = Callable[[int, int, str], None]


class ScanSettings(msgspec.Struct, frozen=True):
    """What a scan needs besides the folder."""

    rules: KeyRules
    record_limit: int
    clock: Clock
    ids: Ids
    sync: bool = True


class Problem(msgspec.Struct, frozen=True):
    """Something that a scan skipped: a symlink, an unreadable file, a line. `path` is relative to the store."""

    path: str
    reason: str


def problem_of(path: str, error: OSError) -> Problem:
    """The problem of a file that could not be read."""
    return Problem(path, reason_of(error))


def scan_folder(
    folder: Folder, settings: ScanSettings, progress: Progress | None, problems: list[Problem]
) -> list[Session]:
    """The sessions of one folder with up-to-date entries. Sessions of other programs are adopted."""
    left_out: set[str] = set()
    known = index.load(folder.fd)
    folder.has_torn_index = known.torn
    foreign = foreign_of(known, folder, settings)
    if foreign is None:
        folder.waiting.add(layout.INDEX)
    damaged = list(known.damaged)
    if known.more_damaged:
        damaged.append(pluralize(known.more_damaged, "more entry", "more entries"))
    problems += [Problem(path_of(folder, layout.INDEX), f"cannot be used: {what}") for what in damaged]
    sessions, changed = _find_sessions(folder, known, left_out, problems)
    for done, (name, entry) in enumerate(changed):
        if progress is not None:
            progress(done, len(changed), folder.agent_id)
        folder.dirty = True
        try:
            made = read_session(folder, name, entry, foreign, settings, problems=problems)
        except OSError as error:
            problems.append(problem_of(path_of(folder, name), error))
            left_out.add(name)
            if dirfd.is_passing(error) and foreign != {} and not folder.archived:
                folder.waiting.add(name)
            continue
        if made is not None:
            sessions.append(made)
        else:
            left_out.add(name)
    if foreign and not folder.archived:
        sessions += create_settings_only_sessions(folder, foreign, settings, problems)
    folder.dirty = folder.dirty or bool(known.damaged) or len(known.ours) != len(sessions)
    folder.left_out = left_out
    return sessions


def read_session(
    folder: Folder,
    name: str,
    entry: Entry | None,
    foreign: adoption.Foreign | None,
    settings: ScanSettings,
    *,
    problems: list[Problem],
) -> Session | None:
    """Fold one file, and adopt it if it has no session key. None where it is no transcript, or is still empty.

    Lines without effect are added to `problems`. `foreign` is None while the index of another program cannot be read;
    a file that needs it then raises IndexUnknown. Raises OSError where the file cannot be read or adopted.
    """
    session_id = name[: -len(layout.SUFFIX)]
    fd = dirfd.open_file(folder.fd, name, os.O_RDONLY)
    try:
        if not is_transcript(fd, settings.record_limit, folder.dialect):
            return None
        empty = Entry(session_id=session_id)
        got = folding.advance_open(fd, entry or empty, settings.record_limit, dialect=folder.dialect, collect=False)
    finally:
        os.close(fd)
    problems += line_problems(path_of(folder, name), got)
    folded = got.entry
    if not adoption.is_own_key(folded.session_key, folder.agent_id):
        if foreign is None:
            raise IndexUnknown(name)
        claim = adoption.claim(folder.agent_id, session_id, entry, foreign, settings.rules)
        folded = _adopt(folder, name, folded, claim, settings)
        if not adoption.is_own_key(folded.session_key, folder.agent_id):
            # Another program changed the file meanwhile; it is read again from the start next time.
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG), name)
    elif entry is not None and got.rewritten:
        lost = adoption.claim_to_restore(folded, entry, folded.session_key, folder.agent_id)
        folded = folded if lost is None else _adopt(folder, name, folded, lost, settings)
    return Session(key=folded.known_key, entry=folded, folder=folder)


def is_transcript(fd: int, record_limit: int, dialect: TranscriptDialect) -> bool:
    """Whether the file begins with a session header, or has a record with a session key near its beginning."""
    # Other programs keep other JSON Lines files beside their transcripts, which are left alone. A file with an
    # unreadable first line counts, and one that was emptied and continued without a header if it has a key.
    first = next(transcript.read_lines(fd, 0, record_limit, dialect=dialect, block=4096), None)
    if first is None or first.record is None or first.record.type == "session":
        return first is not None
    if records.ENTRY.encode() not in os.pread(fd, _MARKED_BYTES, 0):
        return False
    lines = transcript.read_lines(fd, 0, record_limit, dialect=dialect, stop=_MARKED_BYTES)
    return any(line.record is not None and adoption.says_key(line.record) for line in lines)


class HalfLine(OSError):
    """A file to be adopted ends with a line that another program is still writing. Temporary: retry in a second."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EAGAIN, "another program is in the middle of a line", name)


class IndexUnknown(OSError):
    """A file cannot be adopted because the index beside it cannot be read yet. Temporary: retry in a second."""

    def __init__(self, name: str) -> None:
        super().__init__(errno.EAGAIN, "the index beside it, which may name it, cannot be read yet", name)


def foreign_of(known: index.Index, folder: Folder, settings: ScanSettings) -> adoption.Foreign | None:
    """The rows of another program in the index of a folder; None where they cannot be read yet."""
    # In an archive nothing is waited for, because its sessions are not in use.
    is_unknown = not folder.archived and known.is_unknown_at(settings.clock.wall_ms())
    return None if is_unknown else known.foreign


def _adopt(folder: Folder, name: str, entry: Entry, claim: adoption.Claim, settings: ScanSettings) -> Entry:
    with dirfd.closing(dirfd.open_file(folder.fd, name, os.O_RDWR | os.O_APPEND)) as fd:
        status, now_ms = os.fstat(fd), settings.clock.wall_ms()
        end = transcript.end_of(fd, status)
        if end.torn and abs(now_ms - status.st_mtime_ns // 1_000_000) < HALF_LINE_MS:
            raise HalfLine(name)
        line = claim.line(settings.ids.record(), entry.file.last_id, now_ms, settings.record_limit)
        offset = transcript.append(fd, line, end)
        if not transcript.is_line_start(fd, offset):
            # Another program wrote half a line in between. Blank ours out without a newline, so that it can go on.
            transcript.blank_out(fd, offset, len(line), ending=b" ")
            raise HalfLine(name)
        if settings.sync:
            os.fdatasync(fd)
        return folding.advance_open(fd, entry, settings.record_limit, dialect=folder.dialect, collect=False).entry


def create_settings_only_sessions(
    folder: Folder, foreign: adoption.Foreign, settings: ScanSettings, problems: list[Problem]
) -> list[Session]:
    """Create a transcript for each row of another program's index without one, so that its settings are kept."""
    made: list[Session] = []
    for session_id, created in adoption.session_ids(foreign):
        name = session_id + layout.SUFFIX
        if layout.session_id_of(name) is None or _exists(folder.fd, name):
            continue
        # Without a key, as pi writes it: if the adoption is interrupted, the next start adopts the file.
        header = adoption.bare_header(session_id, folder.agent_id, created or settings.clock.wall_ms())
        try:
            making.create_file(folder, name, header, settings.record_limit, settings.sync)
            session = read_session(folder, name, None, foreign, settings, problems=problems)
        except OSError as error:
            problems.append(problem_of(path_of(folder, name), error))
            continue
        if session is not None:
            folder.dirty = True
            made.append(session)
    return made


def _exists(folder_fd: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=folder_fd, follow_symlinks=False)
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return True


def _find_sessions(
    folder: Folder, known: index.Index, left_out: set[str], problems: list[Problem]
) -> tuple[list[Session], list[tuple[str, Entry | None]]]:
    """The sessions of the files that have not changed since the index was saved; and the other transcripts by name,
    each with its entry in the index, if it has one. Those that cannot be looked at go to `left_out`.
    """
    sessions: list[Session] = []
    changed: list[tuple[str, Entry | None]] = []
    prefix = f"agent:{folder.agent_id}:"
    with os.scandir(folder.fd) as items:
        for item in items:
            name = item.name
            session_id = layout.session_id_of(name)
            if session_id is None:
                making.remove_if_leftover(folder.fd, item)
                continue
            entry = known.ours.get(session_id)
            if entry is not None and not entry.session_key.startswith(prefix):
                entry = None  # the index is of another folder, or was forged
            try:
                if item.is_symlink():
                    problems.append(Problem(path_of(folder, name), "a symlink; it is not followed"))
                    continue
                if not item.is_file(follow_symlinks=False):
                    continue
                stat = os.stat(name, dir_fd=folder.fd, follow_symlinks=False)
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as error:
                problems.append(problem_of(path_of(folder, name), error))
                left_out.add(name)
                continue
            if entry is not None and folding.is_current(entry.file, stat, folder.dialect):
                sessions.append(Session(key=entry.known_key, entry=entry, folder=folder))
            else:
                changed.append((name, entry))
    return sessions, changed


def line_problems(path: str, got: folding.Advance) -> list[Problem]:
    """Problems for lines without effect: the first few of them, and the number of the others."""
    named = [Problem(path, str(one)) for one in got.odd]
    more = got.odd_count - len(got.odd)
    return [*named, Problem(path, f"{more} more lines like that")] if more else named


def path_of(folder: Folder, name: str) -> str:
    """The path of a file relative to the store."""
    middle = f"{layout.ARCHIVE}/" if folder.archived else ""
    return f"{layout.AGENTS}/{folder.agent_id}/{layout.SESSIONS}/{middle}{name}"
