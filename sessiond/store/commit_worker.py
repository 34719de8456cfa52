"""Threads for commits as the other threads see them. Knows nothing of what they do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress


class CommitWorker:
    """It sleeps until somebody rings."""

    __slots__ = ("_bell",)

    def __init__(self) -> None:
        self._bell = threading.Lock()
        self._bell.acquire()

    def sleep(self, seconds: float = -1) -> bool:
        """Sleep; whether somebody rang before the time was over."""
        return self._bell.acquire(timeout=seconds)

    def ring(self) -> None:
        with suppress(RuntimeError):  # it was rung for already
            self._bell.release()


def start_thread(name: str, work: Callable[[], None], fail: Callable[[BaseException], None]) -> bool:
    """Start a thread; whether there can be one. `fail` gets what `work` raises."""

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whoever waits for a commit has to be told
            fail(error)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except (RuntimeError, MemoryError):
        return False
    return True
