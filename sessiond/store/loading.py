"""Load the sessions of an open store in a worker thread, while the event loop goes on.

Decides when the thread ends early. Does not know what is read: `scan.py` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import trio

from sessiond.errors import ConfigError, NoThread, reason_of
from sessiond.store.scan import Progress
from sessiond.tasks import RunSync


class LoadableStore(Protocol):
    """What is needed of the store."""

    path: Path
    run_sync: RunSync

    def load(self, progress: Progress | None) -> None:
        """Find every session. Blocks."""


class _LoadingOver(Exception):
    """Raised in the thread when the sessions are not wanted any more."""


async def load_sessions(store: LoadableStore, progress: Progress | None) -> None:
    """Find every session of the store; nothing may use them before. ConfigError where the store cannot be read,
    NoThread where no thread can be started to read it in.

    If cancelled, it ends before the next file is folded. `progress` is called in the thread.
    """
    is_wanted = True
    failure: OSError | None = None

    def report(done: int, total: int, agent_id: str) -> None:
        if not is_wanted:
            raise _LoadingOver
        if progress is not None:
            progress(done, total, agent_id)

    async def note_cancellation() -> None:
        nonlocal is_wanted
        try:
            await trio.sleep_forever()
        finally:
            is_wanted = False

    async with trio.open_nursery() as nursery:
        nursery.start_soon(note_cancellation)
        try:
            await store.run_sync(store.load, report)
        except _LoadingOver:
            await trio.lowlevel.checkpoint()  # it raises the cancellation
        except OSError as error:
            failure = error
        nursery.cancel_scope.cancel()
    if isinstance(failure, NoThread):
        raise failure
    if failure is not None:
        raise ConfigError(f"the store {store.path} cannot be read: {reason_of(failure)}")
