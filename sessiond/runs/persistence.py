"""The retry loop for writes that must not be lost: retried for as long as the disk refuses them.

Used for the starts and ends of runs, steps of conversations and announcements.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Final, TypeVar

import structlog
import trio

from sessiond.errors import NotFound, Stopping, StorageError
from sessiond.store.catalog import Session
from sessiond.store.store import Part, SessionStore

log = structlog.get_logger("sessiond.runs")

T = TypeVar("T")
# The pauses between retries; the last one repeats.
RETRY_S: Final = (0.5, 1.0, 2.0, 5.0)


Refused = Callable[[StorageError], None]


def _ignore_refusal(_error: StorageError) -> None:
    pass


class TranscriptGone(NotFound):
    """The transcript was removed by another program, so there is nothing to write to."""


class Persistence:
    """Retries writes until `stop`. What is not written then is found by recovery at the next start of the daemon."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._stopped = trio.Event()
        self._missing: dict[Session, trio.Event] = {}

    @contextmanager
    def expect_back(self, session: Session) -> Iterator[trio.Event]:
        """Mark the transcript as missing while the context lasts: it may come back, so writes to it are retried.

        The event is set when it is back.
        """
        back = self._missing[session] = trio.Event()
        try:
            yield back
        finally:
            del self._missing[session]

    def note_back(self, session: Session) -> None:
        """Report that the transcript is back."""
        if session in self._missing:
            self._missing[session].set()

    def is_missing(self, session: Session) -> bool:
        """Whether the transcript is missing and may come back."""
        return session in self._missing

    @property
    def stopping(self) -> bool:
        """Whether the daemon is shutting down."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """Stop retrying: each pending write is tried once more and then given up with Stopping."""
        self._stopped.set()

    async def retry_until_stored(
        self, work: Callable[[], Awaitable[T]], what: str, *, refused: Refused = _ignore_refusal, **about: str
    ) -> T:
        """The result of `work`, which is retried while it raises StorageError. Stopping if the daemon shuts down first.

        `what` and `about` describe it in the log; `refused` is called with each error.
        """
        for pause_s in chain(RETRY_S, repeat(RETRY_S[-1])):
            last = self.stopping
            try:
                return await work()
            except StorageError as error:
                log.warning("the disk refuses a write; it is retried", what=what, reason=error.message, **about)
                refused(error)
            if last:
                break
            with trio.move_on_after(pause_s):
                await self._stopped.wait()
        raise Stopping("sessiond is stopping; its next start continues this")

    async def append(
        self,
        session: Session,
        compose: Callable[[], Sequence[Part]],
        what: str,
        *,
        refused: Refused = _ignore_refusal,
        **about: str,
    ) -> None:
        """Append the records, retrying. TranscriptGone if the transcript was removed; Stopping as above."""

        async def write() -> None:
            await self._store.append(session, compose())

        await self.retry_until_stored(self.raise_when_gone(session, write), what, refused=refused, **about)

    def raise_when_gone(self, session: Session, write: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """`write`, changed to raise TranscriptGone instead of StorageError if the transcript was removed."""

        async def write_or_raise_gone() -> None:
            try:
                await write()
            except StorageError:
                if not self._store.catalog.has(session) and not self.is_missing(session):
                    raise TranscriptGone(f"the transcript of {session.key} was removed") from None
                raise

        return write_or_raise_gone
