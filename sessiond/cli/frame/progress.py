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

# Shorter work shows no line; the line is updated at this interval.
TICK_S = 1.0
CLEAR = "\r\x1b[K"


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
