"""Group commit: many appends, few fdatasyncs.

Appends to one transcript are written in the order they were asked for. What waits while a sync is under way goes to the
next one together. Knows files and bytes; knows nothing of what the lines say.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from sessiond.errors import Stopping, StorageError
from sessiond.store import dirfd, transcript
from sessiond.store.catalog import Session

RunSync = Callable[..., Awaitable[Any]]
# Journalling file systems merge the syncs of several files that run at once; more than this gains nothing.
LANES = 4


class _Waiting:
    __slots__ = ("data", "done", "error", "offset")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.done = trio.Event()
        self.offset = 0
        self.error: OSError | None = None


_Batch = list[tuple[Session, list[_Waiting]]]


class Committer:
    """`append` returns when the bytes are on disk. `run` does the work and belongs to the background nursery.

    `on_committed(session)` is called on the loop after every commit, before the callers go on.
    """

    def __init__(self, *, sync: bool, run_sync: RunSync, on_committed: Callable[[Session], None]) -> None:
        self._sync = sync
        self._run_sync = run_sync
        self._on_committed = on_committed
        self._pending: dict[Session, list[_Waiting]] = {}
        self._busy: set[Session] = set()
        self._work = trio.Event()
        self._free_lanes = LANES
        self._closed = False
        self.syncs = 0

    async def append(self, session: Session, data: bytes) -> int:
        """The offset where `data` (whole lines) now stands. StorageError where it could not be written and synced.

        Once asked for, an append is not undone by cancelling the wait for it.
        """
        if self._closed:
            raise Stopping(
                "sessiond is stopping and takes no more messages; try again when it is back", retryAfterMs=1000
            )
        waiting = _Waiting(data)
        self._pending.setdefault(session, []).append(waiting)
        session.in_flight += 1
        self._work.set()
        await waiting.done.wait()
        if waiting.error is not None:
            raise storage_error(waiting.error, session.key)
        return waiting.offset

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit until cancelled. What was asked for before the cancellation is still written."""
        async with trio.open_nursery() as lanes:
            lanes.cancel_scope.shield = True
            task_status.started()
            try:
                while True:
                    await self._work.wait()
                    self._work = trio.Event()
                    self._start_lanes(lanes)
            finally:
                self._closed = True
                self._start_lanes(lanes)

    def _start_lanes(self, lanes: trio.Nursery) -> None:
        ready = [session for session in self._pending if session not in self._busy]
        if not ready or not self._free_lanes:
            return
        used = min(self._free_lanes, len(ready))
        for lane in range(used):
            batch = [(session, self._pending.pop(session)) for session in ready[lane::used]]
            self._busy.update(session for session, _ in batch)
            self._free_lanes -= 1
            lanes.start_soon(self._lane, lanes, batch)

    async def _lane(self, lanes: trio.Nursery, batch: _Batch) -> None:
        try:
            await self._run_sync(_commit, batch, self._sync)
        finally:
            self._free_lanes += 1
            for session, waiters in batch:
                self.syncs += 1
                self._busy.discard(session)
                session.in_flight -= len(waiters)
                self._on_committed(session)
                for waiting in waiters:
                    waiting.done.set()
            self._start_lanes(lanes)


def _commit(batch: _Batch, sync: bool) -> None:
    for session, waiters in batch:
        try:
            _commit_one(session, waiters, sync)
        except OSError as error:
            for waiting in waiters:
                waiting.error = waiting.error or error


def _commit_one(session: Session, waiters: list[_Waiting], sync: bool) -> None:
    fd = dirfd.open_file(session.folder.fd, session.file_name, os.O_RDWR | os.O_APPEND)
    try:
        try:
            _write(fd, waiters)
        except OSError:
            if len(waiters) == 1:
                raise
            # One of them may be too large for the room that is left; the others need not suffer for it.
            for waiting in waiters:
                try:
                    _write(fd, [waiting])
                except OSError as error:
                    waiting.error = error
        if sync:
            _sync(fd, waiters)
    finally:
        os.close(fd)


def _write(fd: int, waiters: list[_Waiting]) -> None:
    offset = transcript.append(fd, b"".join(waiting.data for waiting in waiters))
    for waiting in waiters:
        waiting.offset = offset
        offset += len(waiting.data)


def _sync(fd: int, waiters: list[_Waiting]) -> None:
    written = [waiting for waiting in waiters if waiting.error is None]
    if not written:
        return
    try:
        os.fdatasync(fd)
    except OSError as error:
        for waiting in written:
            waiting.error = error
            transcript.blank_out(fd, waiting.offset, len(waiting.data))
        raise


def storage_error(error: OSError, key: str) -> StorageError:
    """What a caller is told when the disk refuses."""
    reason = os.strerror(error.errno) if error.errno else "input/output error"
    return StorageError(
        f"could not write to the transcript of {key}: {reason}; nothing was stored. Make room or check the disk, then send again",
        sessionKey=key,
        reason=reason,
    )
