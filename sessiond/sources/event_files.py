"""The sessions in a program's SQLite database as files: the rows of its event log are their lines.

A session is put together in memory when it is opened, and what was appended to the log since is appended to it. The
same rows always give the same bytes, so that a place in such a file means the same after a restart. The database is
opened for reading only; of its tables event, session, message and part only the first three are read. Knows SQLite and
the tables of opencode. Does not know what the lines mean.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

import msgspec

from sessiond.sources.memory_files import MemoryFile, MemoryFiles
from sessiond.store import dirfd

_ROWS_AT_ONCE = 256
# A writer holds the lock of the database for less than that.
_BUSY_S = 1.0

_PASSING_CODES = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_IOERR})

_ROWS = """
select e.seq, e.type, e.data, case when json_valid(m.data) then json_extract(m.data, '$.role') end
from event e left join message m
on m.id = case when e.type like 'message.part.updated%' and json_valid(e.data)
          then json_extract(e.data, '$.part.messageID') end
where e.aggregate_id = ? and e.seq > ? order by e.seq
"""
_encode = msgspec.json.Encoder().encode


class EventSession(msgspec.Struct, frozen=True, gc=False):
    """A session of the database: its id, and when it was changed last."""

    session_id: str
    mtime_ns: int


class EventFiles:
    """The sessions of the database `name` in a folder. Its methods may be called in any thread; they raise OSError."""

    def __init__(self, root_fd: int, folder: str, name: str) -> None:
        self._root_fd, self._folder, self.name = root_fd, folder, name
        self._lock = threading.Lock()
        # By the ids of sessions, up to the newest row that is in them.
        self._kept = MemoryFiles[int]()
        self._database: tuple[int, int] | None = None
        # The newest row and the sessions when `find_changed` looked last.
        self._newest_row = 0
        self._known: set[str] = set()

    def holds(self, name: str) -> bool:
        """Whether a file in the folder is the database, or what SQLite keeps beside it."""
        return name in (self.name, f"{self.name}-wal")

    def makes(self, place: str) -> bool:  # noqa: ARG002
        """True: all of them are put together."""
        return True

    def open(self, place: str) -> int:
        """A descriptor of a session's file, which the caller closes. FileNotFoundError if there is no such session."""
        with self._lock, self._connect() as connection:
            return os.dup(self._put_together(connection, place))

    def status(self, place: str) -> os.stat_result:
        """The status of a session's file."""
        with self._lock, self._connect() as connection:
            return os.fstat(self._put_together(connection, place))

    def list_sessions(self) -> list[EventSession]:
        """All sessions."""
        with self._lock, self._connect() as connection:
            self._newest_row = _newest_row(connection)
            found = [
                EventSession(session_id, _nanoseconds(updated))
                for session_id, updated in connection.execute("select id, time_updated from session")
                if isinstance(session_id, str)
            ]
            self._known = {session.session_id for session in found}
            return found

    def find_changed(self) -> list[str]:
        """The places of sessions that were changed, made or removed since this, or the list, was asked for last."""
        with self._lock, self._connect() as connection:
            newest = _newest_row(connection)
            rows = connection.execute("select distinct aggregate_id from event where rowid > ?", (self._newest_row,))
            changed = {one for (one,) in rows if isinstance(one, str)}
            present = {one for (one,) in connection.execute("select id from session") if isinstance(one, str)}
            changed |= self._known ^ present
            if newest < self._newest_row:
                changed |= present  # rows were taken away
            self._newest_row, self._known = newest, present
        return [f"{self.name}/{session_id}" for session_id in sorted(changed)]

    def is_kept(self, place: str) -> bool:
        """Whether it is put together just now, so that opening it reads no more than what is new."""
        with self._lock:
            return self._kept.find(place.removeprefix(f"{self.name}/")) is not None

    def close(self) -> None:
        """Forget what was put together."""
        with self._lock:
            self._kept.forget_all()

    def _put_together(self, connection: sqlite3.Connection, place: str) -> int:
        session_id = place.removeprefix(f"{self.name}/")
        row = connection.execute("select time_updated from session where id = ?", (session_id,)).fetchone()
        if row is None:
            self._kept.forget(session_id)
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), place)
        file = self._kept.find(session_id)
        if file is None:
            file = MemoryFile(session_id, -1)
            self._kept.keep(session_id, file)
        try:
            _append_rows(connection, session_id, file)
            os.utime(file.fd, ns=(_nanoseconds(row[0]),) * 2)
        except BaseException:
            self._kept.forget(session_id)
            raise
        self._kept.keep(session_id, file)
        return file.fd

    @contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        """The database, for reading only. A writer's log beside it belongs to it."""
        look = self._look_at(self.name)
        if look is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.name)
        if (look.st_dev, look.st_ino) != self._database:
            self._database = look.st_dev, look.st_ino
            self._newest_row = 0
            self._kept.forget_all()
        has_log = self._look_at(f"{self.name}-wal") is not None
        if has_log:
            self._look_at(f"{self.name}-shm")
        mode = "mode=ro" if has_log else "mode=ro&immutable=1"
        try:
            connection = sqlite3.connect(
                f"file:{quote(f'{self._folder}/{self.name}')}?{mode}", uri=True, timeout=_BUSY_S
            )
            try:
                connection.text_factory = _decode_text
                yield connection
            finally:
                connection.close()
        except sqlite3.Error as error:
            raise self._describe_failure(error) from None

    def _describe_failure(self, error: sqlite3.Error) -> OSError:
        """What is raised for an error of SQLite: one that passes only where it may, or it is retried for ever."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        what = f"the database cannot be read: {error}"
        if code in _PASSING_CODES:
            return OSError(errno.EBUSY, what)
        if code == sqlite3.SQLITE_CANTOPEN:
            try:
                os.close(dirfd.open_file(self._root_fd, self.name, os.O_RDONLY))
            except OSError as reason:
                return reason
        return OSError(errno.EINVAL, what)

    def _look_at(self, name: str) -> os.stat_result | None:
        """The status of a regular file in the folder, None where there is none. OSError where it is something else."""
        try:
            look = os.stat(name, dir_fd=self._root_fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(look.st_mode):
            raise dirfd.SymlinkRefused(name)
        return look


def _append_rows(connection: sqlite3.Connection, session_id: str, file: MemoryFile[int]) -> None:
    rows = connection.execute(_ROWS, (session_id, file.mark))
    while batch := rows.fetchmany(_ROWS_AT_ONCE):
        file.append(b"".join(_line_of(row) for row in batch))
        file.mark = batch[-1][0]


def _line_of(row: tuple[object, object, object, object]) -> bytes:
    seq, kind, data, role = row
    told = b',"role":' + _encode(role) if isinstance(role, str) else b""
    body = str(data).encode("utf-8", "replace").replace(b"\n", b" ").replace(b"\r", b" ")
    return b'{"seq":%d,"type":%b%b,"data":%b}\n' % (
        seq if isinstance(seq, int) else 0,
        _encode(str(kind)),
        told,
        body or b"null",
    )


def _newest_row(connection: sqlite3.Connection) -> int:
    (newest,) = connection.execute("select max(rowid) from event").fetchone()
    return newest if isinstance(newest, int) else 0


def _nanoseconds(milliseconds: object) -> int:
    is_time = isinstance(milliseconds, int) and 0 <= milliseconds < 2**43
    return milliseconds * 1_000_000 if isinstance(milliseconds, int) and is_time else 0


def _decode_text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
