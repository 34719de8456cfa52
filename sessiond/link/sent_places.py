"""How far each session was published to each machine: `<store>/link/positions.db`.

A place that was not stored yet does no harm: what is published again has been had, and is compared with what is there.
So places are stored together, a moment later. Where the file is lost, every session gets a new generation.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from sessiond.link.database import begin_change, open_database

NAME = "positions.db"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS place (
  peer TEXT NOT NULL, session TEXT NOT NULL, agent TEXT NOT NULL, generation TEXT NOT NULL,
  upto INTEGER NOT NULL, cursor TEXT, seen TEXT NOT NULL, gone INTEGER NOT NULL,
  PRIMARY KEY (peer, session)
) WITHOUT ROWID
"""
# With the names of the columns: another file than was written here has others.
_QUERY = "SELECT peer, session, agent, generation, upto, cursor, seen, gone FROM place"
_WRITE = (
    "INSERT OR REPLACE INTO place (peer, session, agent, generation, upto, cursor, seen, gone)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)


class _PlaceColumns(NamedTuple):
    peer: str
    session: str
    agent: str
    generation: str
    upto: int
    cursor: str | None
    seen: str
    gone: bool


class SentPlace(msgspec.Struct, frozen=True):
    """Bytes up to `to` were published; `cursor` is that place in the transcript, None before the first. `seen` is the
    cursor that the list of sessions showed when all was published. `is_gone`: the peer was told so.
    """

    agent: str
    generation: str
    to: int = 0
    cursor: str | None = None
    seen: str = ""
    is_gone: bool = False


class SentPlaces:
    """All of them in memory. `store` is for a worker thread, all else for the event loop; `changed` is set while there
    is something to store. LinkError where another link has the file.
    """

    def __init__(self, store: Path) -> None:
        self._database, rows = open_database(store, NAME, _SCHEMA, _QUERY, _PlaceColumns)
        self._places: dict[str, dict[str, SentPlace]] = {}
        self.changed = asyncio.Event()
        self._unstored: dict[tuple[str, str], SentPlace] = {}
        for peer, session, agent, generation, upto, cursor, seen, gone in rows:
            # Without a cursor something may have been sent, of which nothing is known: nothing goes on from there.
            is_over = gone or cursor is None
            self._places.setdefault(peer, {})[session] = SentPlace(agent, generation, upto, cursor, seen, is_over)

    def of_peer(self, peer: str) -> Mapping[str, SentPlace]:
        return self._places.setdefault(peer, {})

    def put(self, peer: str, session: str, place: SentPlace) -> None:
        self._places.setdefault(peer, {})[session] = place
        self._unstored[peer, session] = place
        self.changed.set()

    def take_unstored(self) -> list[tuple[object, ...]]:
        """What `store` has to be given, once."""
        taken, self._unstored = self._unstored, {}
        self.changed.clear()
        return [
            (peer, session, one.agent, one.generation, one.to, one.cursor, one.seen, one.is_gone)
            for (peer, session), one in taken.items()
        ]

    def store(self, rows: list[tuple[object, ...]]) -> None:
        """On disk when it returns. StorageError where the disk refuses."""
        with begin_change(self._database, NAME):
            self._database.executemany(_WRITE, rows)

    def close(self) -> None:
        self._database.close()
