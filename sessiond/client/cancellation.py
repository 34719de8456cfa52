"""Calling off a call from another thread."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Cancellation:
    """Handed to `Client.call`: after `cancel()` the daemon is asked to end that call, and those made later too."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._action: Callable[[], object] | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it was called off within so many seconds."""
        return self._event.wait(seconds)

    def cancel(self) -> None:
        with self._lock:
            self._event.set()
            action = self._action
        if action is not None:
            action()

    def follow(self, action: Callable[[], object] | None) -> None:
        """`action` is called at the cancellation, at once where that has been; None: nothing is any more."""
        with self._lock:
            self._action = action
            is_late = self._event.is_set()
        if action is not None and is_late:
            action()
