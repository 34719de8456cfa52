"""The one retry loop of runs: what was decided is written, however long the disk refuses.

Starts, ends, steps and announcements all go through it. Knows refusals of the disk; not what is written.
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
# A disk that refuses is tried again at this pace, the last pause for ever.
RETRY_S: Final = (0.5, 1.0, 2.0, 5.0)


Refused = Callable[[StorageError], None]


def _tell_nobody(_error: StorageError) -> None:
    pass


class TranscriptGone(NotFound):
    """The transcript was taken away by another program: there is nothing to write into any more."""


class Persistence:
    """Belongs to the supervisor. After `stop` nothing is tried again: the next start finds what is undone."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._stopped = trio.Event()
        self._missing: dict[Session, trio.Event] = {}

    @contextmanager
    def missing(self, session: Session) -> Iterator[trio.Event]:
        """While this lasts the transcript is away, and may come back: what is to be written waits for it.

        The event is set when it is there again.
        """
        back = self._missing[session] = trio.Event()
        try:
            yield back
        finally:
            del self._missing[session]

    def regain(self, session: Session) -> None:
        """The transcript is there."""
        if session in self._missing:
            self._missing[session].set()

    def is_missing(self, session: Session) -> bool:
        """Whether the transcript is away, and may come back."""
        return session in self._missing

    @property
    def stopping(self) -> bool:
        """Whether the daemon is on its way down."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """The daemon ends: what waits for the disk is tried once more, and left."""
        self._stopped.set()

    async def retry_until_stored(
        self, work: Callable[[], Awaitable[T]], what: str, *, refused: Refused = _tell_nobody, **about: str
    ) -> T:
        """The result of `work`, which is done again while it raises StorageError. Stopping where the daemon ends first.

        `what` names it in the log, with `about`; `refused` is told of each refusal.
        """
        for pause_s in chain(RETRY_S, repeat(RETRY_S[-1])):
            last = self.stopping
            try:
                return await work()
            except StorageError as error:
                log.warning("the disk refuses; tried again", what=what, reason=error.message, **about)
                refused(error)
            if last:
                break
            with trio.move_on_after(pause_s):
                await self._stopped.wait()
        raise Stopping("sessiond is stopping; the next start goes on with this")

    async def append(
        self,
        session: Session,
        compose: Callable[[], Sequence[Part]],
        what: str,
        *,
        refused: Refused = _tell_nobody,
        **about: str,
    ) -> None:
        """Have the records in the transcript. TranscriptGone where there is none any more, Stopping as above."""

        async def write() -> None:
            await self._store.append(session, compose())

        await self.retry_until_stored(self.tell_when_gone(session, write), what, refused=refused, **about)

    def tell_when_gone(self, session: Session, write: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """`write`, which raises TranscriptGone where the disk refuses because the transcript was taken away."""

        async def write_or_raise_gone() -> None:
            try:
                await write()
            except StorageError:
                if not self._store.catalog.has(session) and not self.is_missing(session):
                    raise TranscriptGone(f"the transcript of {session.key} was removed") from None
                raise

        return write_or_raise_gone
