"""The index on disk: one SQLite database in `<store>/cache/`, which may be deleted at any time.

Synchronous. Knows SQLite and its own file. Does not know sessions. Whatever is not exactly as this program left it
raises `IndexDoubt`, and the caller begins again with an empty one: what the index does not know is looked through.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sessiond.errors import reason_of
from sessiond.store import dirfd

VERSION = sqlite3.sqlite_version
NAME = "search.sqlite"
# What is built beside the index that is in use.
NEXT_NAME = "search-next.sqlite"
_BESIDE = ("-wal", "-shm", "-journal")
# So much of the log is kept beside the database before it is moved into it.
_MOST_LOG_BYTES = 4 * 2**20

TABLES = """
create table about (name text primary key, value) without rowid;
create table files (
    id integer primary key autoincrement, name text not null, indexed_to integer not null, checksum integer not null,
    bytes integer not null, mtime_ns integer not null, messages integer not null, chars integer not null
);
create table blocks (
    id integer primary key autoincrement, file_id integer not null, begin_at integer not null, end_at integer not null,
    oldest_ms integer, newest_ms integer, messages_before integer, chars integer not null, marks text not null
);
create index files_by_name on files (name);
create index blocks_of_file on blocks (file_id, begin_at);
create view block_facts as select id, file_id, ',' || begin_at || ',' || end_at || ',' || ifnull(oldest_ms, '') || ','
    || ifnull(newest_ms, '') || ',' || ifnull(messages_before, '') || ',' || marks as facts from blocks;
create virtual table texts using fts5(
    text, content='', detail=none, columnsize=0, tokenize='trigram case_sensitive 1'
);
"""
_CACHE_KB, _SMALL_CACHE_KB = 8192, 512
# Errors after which the same may succeed later. Any other means that the file is damaged, or not ours.
_PASSING = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_INTERRUPT,
    }
)


class IndexDoubt(Exception):
    """The index may not be what it was: it is deleted, and begun again."""


class IndexTrouble(Exception):
    """It cannot be read or written just now; later it may. The message says why."""


def has_trigrams() -> bool:
    """Whether this SQLite can make such an index."""
    try:
        with contextlib.closing(sqlite3.connect(":memory:")) as connection:
            connection.executescript(TABLES)
    except sqlite3.Error:
        return False
    return True


def exists(folder_fd: int) -> bool:
    """Whether there is a database."""
    try:
        os.stat(NAME, dir_fd=folder_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def remove(folder_fd: int, name: str) -> None:
    """Remove a database and what SQLite keeps beside it. Raises OSError."""
    for suffix in ("", *_BESIDE):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name + suffix, dir_fd=folder_fd)


class IndexDatabase:
    """An open database. Its methods raise IndexDoubt, or IndexTrouble for what may pass.

    `lock` is held by whoever calls them, but for `interrupt`. `made_with` is everything on which the content depends
    besides the transcripts.
    """

    def __init__(self, folder_fd: int, folder: Path, made_with: str, name: str = NAME) -> None:
        """Open it, or make it."""
        self.lock = threading.Lock()
        self.name = name
        self._is_broken = self._is_stamped = self._is_closed = False
        with contextlib.ExitStack() as opened:
            with _translate_errors():
                self._folder_fd = os.dup(folder_fd)
                opened.callback(os.close, self._folder_fd)
                self._fd = dirfd.open_file(folder_fd, name, os.O_RDWR | os.O_CREAT)
                opened.callback(os.close, self._fd)
                is_new = not os.fstat(self._fd).st_size
                if is_new:
                    self._remove_beside()
                self._connection = _connect(folder / name)
                opened.callback(self._connection.close)
                self._fill(made_with) if is_new else self._check(made_with)
                self._note()
            self._held = opened.pop_all()

    def _remove_beside(self) -> None:
        for suffix in _BESIDE:  # a log without its database is that of another one
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.name + suffix, dir_fd=self._folder_fd)

    def _fill(self, made_with: str) -> None:
        self._connection.executescript(f"begin; {TABLES}")
        self.put_about(madeWith=made_with, boot=_boot_id(), isClosed=0, chars=0)
        self._commit()
        self.checkpoint()

    def _check(self, made_with: str) -> None:
        about = dict(self._connection.execute("select name, value from about").fetchall())
        if about.get("madeWith") != made_with:
            raise IndexDoubt("it was made by another version")
        if os.fstat(self._fd).st_mtime_ns not in (_nanoseconds(about.get("stamp")), _nanoseconds(about.get("before"))):
            raise IndexDoubt("it was changed by another program, or cut off while it was written")
        boot = _boot_id()
        if not about.get("isClosed") and (not boot or about.get("boot") != boot):
            raise IndexDoubt("the machine went down while it was in use")
        self._is_closed = bool(about.get("isClosed"))

    # What others do to its files.

    def check_intact(self) -> None:
        """IndexDoubt where anybody else has touched its files."""
        found = self._look()
        # The log may have more than it had: a long transaction goes there before it ends.
        if self._is_broken or found[:4] != self._noted[:4] or found[4] < self._noted[4]:
            self._is_broken = True
            raise IndexDoubt("it was changed or removed by another program")

    def _look(self) -> tuple[int, int, int, int, int]:
        """By what it is noticed that others change its files."""
        try:
            look = os.stat(self.name, dir_fd=self._folder_fd, follow_symlinks=False)
            log_bytes = os.stat(f"{self.name}-wal", dir_fd=self._folder_fd, follow_symlinks=False).st_size
        except OSError:
            return 0, 0, 0, 0, 0
        return look.st_dev, look.st_ino, look.st_size, look.st_mtime_ns, log_bytes

    def _note(self) -> None:
        self._noted, own = self._look(), os.fstat(self._fd)
        if self._noted[:2] != (own.st_dev, own.st_ino):
            raise IndexDoubt("it was removed by another program")

    def _put_stamp(self) -> None:
        """Choose the time that its file gets when the log is moved into it; until then it has that from before.

        It is a time long ago: whoever changes the file gives it another. Whole seconds, which any file system keeps.
        """
        if not self._is_stamped:
            found = self._connection.execute("select value from about where name = 'stamp'").fetchone()
            stamp = random.SystemRandom().randrange(1_000_000_000, 1_500_000_000, 2)
            self.put_about(before=found[0] if found else None, stamp=stamp)
            self._is_stamped = True

    def checkpoint(self) -> None:
        """Move the log into the database."""
        with _translate_errors():
            try:
                self._connection.execute("pragma wal_checkpoint(truncate)").fetchall()
                (stamp,) = self._connection.execute("select value from about where name = 'stamp'").fetchone()
                os.utime(self._fd, ns=(_nanoseconds(stamp), _nanoseconds(stamp)))
                self._is_stamped = False
            finally:
                self._note()

    # Statements.

    def run(self, statement: str, *values: object) -> list[Any]:
        """The rows that a statement gives."""
        with _translate_errors():
            return self._connection.execute(statement, values).fetchall()

    @contextlib.contextmanager
    def reading_once(self) -> Iterator[None]:
        """What is read within is not needed again soon, and takes no memory."""
        self.run(f"pragma cache_size = -{_SMALL_CACHE_KB}")
        try:
            yield
        finally:
            self.run(f"pragma cache_size = -{_CACHE_KB}")

    def put_about(self, **facts: object) -> None:
        """Set what it says about itself."""
        with _translate_errors():
            self._connection.executemany("insert or replace into about values (?, ?)", facts.items())

    def number_about(self, name: str) -> int:
        """A number that it says about itself."""
        ((value,),) = self.run("select value from about where name = ?", name)
        if not isinstance(value, int):
            raise IndexDoubt("it says something else about itself")
        return value

    def begin(self) -> None:
        """Begin a transaction, unless one is under way."""
        if self._connection.in_transaction:
            return
        self.check_intact()
        with _translate_errors():
            if self._is_closed:
                # On disk before anything else is: what a power cut leaves then is known to be half written.
                self._connection.execute("begin immediate")
                self.put_about(isClosed=0, boot=_boot_id())
                self._commit()
                self.checkpoint()
                os.fsync(self._fd)
                self._is_closed = False
            self._connection.execute("begin immediate")

    def commit(self) -> None:
        """Keep what the transaction did. After an error nothing of it is kept."""
        with _translate_errors():
            self._commit()
            self._note()
        if self._noted[4] > _MOST_LOG_BYTES:
            self.checkpoint()

    def _commit(self) -> None:
        try:
            self._put_stamp()
            self._connection.execute("commit")
        except BaseException:
            self._is_stamped = False
            self.rollback()
            raise

    def rollback(self) -> None:
        """Undo what the transaction did, if there is one."""
        with _translate_errors():
            if self._connection.in_transaction:
                self._connection.execute("rollback")

    def interrupt(self) -> None:
        """Let a statement that runs just now in another thread fail."""
        with contextlib.suppress(sqlite3.ProgrammingError):  # it is being closed
            self._connection.interrupt()

    def close(self, *, keep: bool) -> None:
        """Close it; with `keep` so that the next start can trust it, also after a power cut."""
        with self._held:
            if self._is_broken or not keep:
                return
            self.rollback()
            self.check_intact()
            if not self._is_closed:
                with _translate_errors():
                    self._connection.execute("begin immediate")
                    self.put_about(isClosed=1)
                    self._commit()
                self.checkpoint()
                with _translate_errors():
                    os.fsync(self._fd)
            self._is_broken = True


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        # Else SQLite would share memory with other programs, by a file that they may cut.
        connection.execute("pragma locking_mode = exclusive")
        # What a power cut leaves is not used.
        connection.execute("pragma synchronous = off")
        connection.execute("pragma secure_delete = off")
        connection.execute("pragma temp_store = memory")
        connection.execute(f"pragma cache_size = -{_CACHE_KB}")
        connection.execute("pragma wal_autocheckpoint = 0")
        if connection.execute("pragma journal_mode = wal").fetchone()[0] != "wal":
            raise IndexTrouble("SQLite keeps no log beside it")
        connection.execute("begin immediate")
        connection.execute("rollback")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _translate_errors() -> Iterator[None]:
    """Errors of SQLite and the kernel as IndexDoubt, or as IndexTrouble where they may pass."""
    try:
        yield
    except (dirfd.SymlinkRefused, dirfd.NotRegularFile) as error:
        raise IndexDoubt(reason_of(error)) from None
    except OSError as error:
        raise IndexTrouble(reason_of(error)) from None
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in _PASSING:
            raise IndexTrouble(str(error)) from None
        raise IndexDoubt(f"SQLite says of it: {error}") from None
    except (TypeError, ValueError, OverflowError):  # a value of another type than was written
        raise IndexDoubt("it has values of another type") from None


def _nanoseconds(stamp: object) -> int:
    return stamp * 1_000_000_000 if isinstance(stamp, int) else -1


def _boot_id() -> str:
    """Which start of the machine this is; empty where it does not say."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except (OSError, ValueError):
        return ""
