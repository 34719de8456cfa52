"""Where a document goes. Does not know what is in it."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from sessiond.cli.frame.failures import FAILED, CommandFailed
from sessiond.errors import reason_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import BinaryIO


@contextmanager
def open_output(path: str | None) -> Iterator[BinaryIO]:
    """Standard output, also for `-`; a file that appears under its name only when it is whole; a pipe or a device."""
    if path is None or path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        mode = _mode_of(path)
        if mode is not None and stat.S_ISDIR(mode):
            raise IsADirectoryError(None, "it is a folder")
        if mode is not None and not stat.S_ISREG(mode):
            with open(path, "wb") as file:
                yield file
            return
        with _whole_or_not_at_all(path, mode) as file:
            yield file
    except OSError as error:
        raise CommandFailed(f"{path} cannot be written: {reason_of(error)}", status=FAILED) from None


@contextmanager
def _whole_or_not_at_all(path: str, mode: int | None) -> Iterator[BinaryIO]:
    """A file beside, which takes the name in the end. What a link leads to is replaced, not the link."""
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}")
    try:
        with _ended_in_order(), beside.open("xb") as file:
            if mode is not None:  # that nobody may read it who could not
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            yield file
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Where SIGTERM or SIGHUP would end the program, they end the block first, as an error does."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)  # as shells say it

    ours = [one for one in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(one) is signal.SIG_DFL]
    if threading.current_thread() is not threading.main_thread():
        ours = []  # only the main one may set them
    for one in ours:
        signal.signal(one, end)
    try:
        yield
    finally:
        for one in ours:
            signal.signal(one, signal.SIG_DFL)


def _mode_of(path: str) -> int | None:
    try:
        return os.stat(path).st_mode
    except FileNotFoundError:
        return None
