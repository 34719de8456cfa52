"""Small SQLite files of the link, in `<store>/link/`. What is in them can be found out anew from other machines, so one
that is damaged is begun again. Synchronous; one thread at a time.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from sessiond.errors import StorageError, reason_of
from sessiond.link.failures import LinkError
from sessiond.store import dirfd, layout, opening

Row = TypeVar("Row")
_PASSING = frozenset({sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_NOMEM})


def open_database(
    store: Path, name: str, schema: str, query: str, row: type[Row]
) -> tuple[sqlite3.Connection, list[Row]]:
    """The database, with its tables, and the rows of the query, as `row`. LinkError where it cannot be used, as when
    another link has it; StorageError where that may pass.
    """
    place = f"{layout.LINK}/{name} in the store {store}"
    try:
        with dirfd.closing(dirfd.open_root(store)) as root_fd:
            with dirfd.closing(opening.open_folder(root_fd, (layout.LINK,))) as folder_fd:
                # SQLite would follow a link that stands here.
                with dirfd.closing(dirfd.open_file(folder_fd, name, os.O_RDWR | os.O_CREAT)):
                    pass
        return _open_or_renew(store / layout.LINK / name, schema, query, row)
    except (OSError, sqlite3.Error) as error:
        if may_pass(error):
            raise StorageError(f"{place} cannot be opened: {reason_of(error)}") from None
        if is_in_use(error):
            raise LinkError(f'another "sessiond link run" uses the store {store}; end it first') from None
        raise LinkError(f"{place} cannot be opened: {reason_of(error)}") from None


def _open_or_renew(path: Path, schema: str, query: str, row: type[Row]) -> tuple[sqlite3.Connection, list[Row]]:
    """The database; where it is damaged, or has other tables or values than it had from here, a new one."""
    try:
        return _connect(path, schema, query, row)
    except (sqlite3.DatabaseError, msgspec.ValidationError) as error:
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        for suffix in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).unlink()
        return _connect(path, schema, query, row)


def _connect(path: Path, schema: str, query: str, row: type[Row]) -> tuple[sqlite3.Connection, list[Row]]:
    connection = open_alone(path, timeout_s=0)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute(schema)
        connection.execute("COMMIT")
        found = connection.execute(query).fetchall()  # all of it, so that damage is found where it is
        return connection, [msgspec.convert(one, row, strict=False) for one in found]
    except BaseException:
        connection.close()
        raise


def open_alone(path: Path, timeout_s: float = 5.0) -> sqlite3.Connection:
    """A connection that lets no other one write, and syncs every change. Transactions are begun and ended by hand;
    calls come from worker threads, one after the other.
    """
    connection = sqlite3.connect(path, timeout=timeout_s, isolation_level=None, check_same_thread=False)
    try:
        # Exclusive: there is no file of shared memory then, and a program whose shared memory is cut is killed.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    except BaseException:
        connection.close()
        raise
    return connection


def may_pass(error: OSError | sqlite3.Error) -> bool:
    """Whether it is for want of room, descriptors or memory, or the disk cannot be read now."""
    if isinstance(error, OSError):
        return dirfd.is_passing(error) or error.errno in (errno.ENOSPC, errno.EDQUOT)
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in _PASSING


def is_in_use(error: OSError | sqlite3.Error) -> bool:
    """Whether another program has the database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


@contextlib.contextmanager
def begin_change(connection: sqlite3.Connection, name: str) -> Iterator[None]:
    """A transaction, on disk when the block ends. StorageError where the disk refuses."""
    try:
        connection.execute("BEGIN")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:  # SQLite may have rolled back already
                connection.execute("ROLLBACK")
            raise
    except sqlite3.Error as error:
        raise StorageError(f"{layout.LINK}/{name} cannot be written: {error}") from None
