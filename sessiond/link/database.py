"""Small SQLite files of the link, in `<store>/link/`. What is in them can be found out anew from other machines, so one
that is damaged is begun again. Synchronous; one thread at a time.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sessiond.errors import StorageError, reason_of
from sessiond.link.failures import LinkError
from sessiond.store import dirfd, layout, opening

Row = tuple[Any, ...]


def open_database(store: Path, name: str, schema: str, query: str) -> tuple[sqlite3.Connection, list[Row]]:
    """The database, with its tables, and the rows of the query. LinkError where it cannot be used, as when another link
    has it.
    """
    try:
        with dirfd.closing(dirfd.open_root(store)) as root_fd:
            with dirfd.closing(opening.open_folder(root_fd, (layout.LINK,))) as folder_fd:
                # SQLite would follow a link that stands here.
                with dirfd.closing(dirfd.open_file(folder_fd, name, os.O_RDWR | os.O_CREAT)):
                    pass
    except OSError as error:
        raise LinkError(f"{layout.LINK}/{name} in the store {store} cannot be opened: {reason_of(error)}") from None
    path = store / layout.LINK / name
    try:
        return _connect(path, schema, query)
    except sqlite3.OperationalError as error:
        if "locked" in str(error):
            raise LinkError(f'another "sessiond link run" uses the store {store}; end it first') from None
        raise LinkError(f"{path} cannot be used: {error}") from None
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm", "-journal"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(name + suffix).unlink()
        return _connect(path, schema, query)


def _connect(path: Path, schema: str, query: str) -> tuple[sqlite3.Connection, list[Row]]:
    # Transactions are begun and ended by hand; calls come from worker threads, one after the other.
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        # Exclusive: nobody else may write, and there is no file of shared memory that another program could cut.
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute(schema)
        connection.execute("COMMIT")
        return connection, connection.execute(query).fetchall()  # all of it, so that damage is found where it is
    except BaseException:
        connection.close()
        raise


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
