"""Cancel a call from another thread."""

from __future__ import annotations

import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Cancellation:
    """Passed to `Client.call`: `cancel()` asks the daemon to end that call, and later calls with the same object."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._action: Callable[[], object] | None = None

    @property
    def is_cancelled(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait up to `seconds`; whether it was cancelled by then."""
        return self._event.wait(seconds)

    def cancel(self) -> None:
        with self._lock:
            self._event.set()
            action = self._action
        if action is not None:
            action()

    def on_cancel(self, action: Callable[[], object] | None) -> None:
        """Call `action` on cancellation, at once if that has happened already. None removes the action."""
        with self._lock:
            self._action = action
            is_late = self._event.is_set()
        if action is not None and is_late:
            action()
