"""The loopback port of the owner's page, where the configuration has none.

Opened when a page is asked for, on a free port, and closed when the last page has ended. A note beside the sockets says
which port it was: a daemon that starts again listens there, so that open pages go on. Source: security.md, "The page".
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import structlog
import trio

from sessiond.errors import ConfigError, Overloaded
from sessiond.transports.listener import Listener, bind_tcp
from sessiond.transports.serve import Server

log = structlog.get_logger("sessiond")

NOTE = "page-port"
_MAX_NOTE_BYTES = 1024


class _Note(msgspec.Struct, frozen=True, rename="camel"):
    port: int
    until_ms: int


class PagePort:
    """The `sessions.page_access.PageListener` of a daemon. `folder` is that of its sockets."""

    def __init__(self, server: Server, listeners: Sequence[Listener], folder: Path, wall_ms: Callable[[], int]) -> None:
        self._server, self._wall_ms, self._note = server, wall_ms, folder / NOTE
        self._configured = next((one for one in listeners if one.name == "http"), None)
        self._opened: tuple[Listener, Callable[[], None]] | None = None
        self._until_ms = 0
        self._changed = trio.Event()

    def open(self, until_ms: int) -> str:
        """The address of the page; listens there until then at least. Overloaded where no port can be had."""
        if self._configured is not None:
            return _address_of(self._configured)
        if self._opened is None:
            try:
                self._listen(0)
            except ConfigError as error:
                raise Overloaded(f"there is no port for the page: {_reason(error)}", retryAfterMs=1000) from None
        self._until_ms = max(self._until_ms, until_ms)
        self._changed.set()
        assert self._opened is not None
        listener = self._opened[0]
        self._write_note(_Note(listener.address[1], self._until_ms))
        return _address_of(listener)

    def close(self) -> bool:
        """Stop listening, if it was opened for the page; whether it was."""
        self._until_ms = 0
        with suppress(OSError):
            self._note.unlink()
        if self._opened is None:
            return False
        self._opened[1]()
        self._opened = None
        return True

    async def run(self) -> None:
        """Listen again where an earlier daemon did; close the port when the last page has ended. Until cancelled."""
        self._reopen()
        while True:
            self._changed = trio.Event()
            left_ms = self._until_ms - self._wall_ms()
            if self._opened is None:
                await self._changed.wait()
            elif left_ms > 0:
                # A day at most: the clock may have been set.
                with trio.move_on_after(min(left_ms / 1000, 86_400)):
                    await self._changed.wait()
            else:
                self.close()

    def _reopen(self) -> None:
        note = self._read_note()
        if note is None or self._configured is not None or self._opened is not None:
            return
        if note.until_ms <= self._wall_ms():
            self.close()
            return
        try:
            self._listen(note.port)
        except ConfigError as error:
            log.warning(
                "the port of the page is not free; run `sessiond web` again", port=note.port, reason=_reason(error)
            )
            return
        self._until_ms = note.until_ms

    def _listen(self, port: int) -> None:
        listener = bind_tcp(f"127.0.0.1:{port}")
        self._opened = listener, self._server.serve_also(listener)

    def _write_note(self, note: _Note) -> None:
        # Without it pages end with this daemon; nothing else depends on it.
        written = self._note.with_name(f".{NOTE}")
        with suppress(OSError):
            written.write_bytes(msgspec.json.encode(note))
            written.replace(self._note)

    def _read_note(self) -> _Note | None:
        try:
            fd = os.open(self._note, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with os.fdopen(fd, "rb") as file:
                note = msgspec.json.decode(file.read(_MAX_NOTE_BYTES), type=_Note)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None
        return note if 0 < note.port <= 65535 else None


def _reason(error: ConfigError) -> str:
    """Why a port cannot be had; the sentence names the key of the configuration, which has no port."""
    return str(error).rpartition(": ")[2]


def _address_of(listener: Listener) -> str:
    host, port = listener.address
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"
