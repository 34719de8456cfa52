"""A progress line on stderr, if that is a terminal; it is removed at the end."""

from __future__ import annotations

import sys
import time
from contextlib import contextmanager

from sessiond.cli.terminal.times import duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator
    from typing import Self

# Shorter work shows no line; the line is updated at this interval.
TICK_S = 1.0
CLEAR = "\r\x1b[K"


class ProgressLine:
    """A line on a terminal that says how far something is, until it is cleared. Elsewhere nothing is written."""

    def __init__(self) -> None:
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, text: str) -> None:
        """Show the text in place of what is shown."""
        if sys.stderr.isatty():
            sys.stderr.write(f"{CLEAR}{text}")
            sys.stderr.flush()
            self._is_shown = True

    def clear(self) -> None:
        """Remove the line, so that other output may come."""
        if self._is_shown:
            sys.stderr.write(CLEAR)
            sys.stderr.flush()
            self._is_shown = False


@contextmanager
def show_progress(what: str) -> Iterator[None]:
    """Show `what … 3s` on a terminal while the body runs."""
    if not sys.stderr.isatty():
        yield
        return
    import threading

    done = threading.Event()
    drawer = threading.Thread(target=_draw_until, args=(what, done), daemon=True)
    drawer.start()
    try:
        yield
    finally:
        done.set()
        drawer.join()


def _draw_until(what: str, done: threading.Event) -> None:
    began = time.monotonic()
    shown = False
    while not done.wait(TICK_S):
        sys.stderr.write(f"{CLEAR}{what} … {duration((time.monotonic() - began) * 1000)}")
        sys.stderr.flush()
        shown = True
    if shown:
        sys.stderr.write(CLEAR)
        sys.stderr.flush()
