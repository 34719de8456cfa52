"""The thread that loads the sessions: what comes of its failure, also where nobody wants them any more."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
import trio

from sessiond.errors import ConfigError
from sessiond.store.loading import load_sessions
from sessiond.store.scan import Progress
from sessiond.tasks import RunSync, run_in_thread


class UnreadableStore:
    """Fails when `go` is set."""

    run_sync: RunSync = staticmethod(run_in_thread)

    def __init__(self, path: Path) -> None:
        self.path = path
        self.go = threading.Event()
        self.is_reading = trio.Event()

    def load(self, progress: Progress | None) -> None:
        trio.from_thread.run_sync(self.is_reading.set)
        self.go.wait()
        raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_a_store_that_cannot_be_read_is_a_configuration_error(tmp_path: Path) -> None:
    store = UnreadableStore(tmp_path)
    store.go.set()
    with pytest.raises(ConfigError, match=f"the store {tmp_path} cannot be read"):
        await load_sessions(store, None)


async def test_the_failure_of_a_cancelled_loading_is_no_error(tmp_path: Path) -> None:
    """The daemon stops for another reason, whose exit code it would hide."""
    store = UnreadableStore(tmp_path)

    async def fail_when_cancelled() -> None:
        try:
            await trio.sleep_forever()
        finally:
            store.go.set()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail_when_cancelled)
            nursery.start_soon(load_sessions, store, None)
            await store.is_reading.wait()
            scope.cancel()
    assert scope.cancelled_caught
