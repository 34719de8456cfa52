"""What is known of the copies of other machines' sessions, besides their bytes: `<store>/link/copies.db`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sessiond.link.database import begin_change, open_database
from sessiond.link.ranges import CopyState

NAME = "copies.db"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS copy (
  machine TEXT NOT NULL, session TEXT NOT NULL, agent TEXT NOT NULL, generation TEXT NOT NULL,
  begun INTEGER NOT NULL, gone INTEGER NOT NULL, counter INTEGER NOT NULL,
  PRIMARY KEY (machine, session)
) WITHOUT ROWID
"""
_WRITE = "INSERT OR REPLACE INTO copy VALUES (?, ?, ?, ?, ?, ?, ?)"

Change = tuple[str, str, CopyState]


class CopyStates:
    """All of them in memory, each change on disk when `write` returns. LinkError where another link has the file."""

    def __init__(self, store: Path) -> None:
        self._database, rows = open_database(store, NAME, _SCHEMA, "SELECT * FROM copy")
        self._states: dict[str, dict[str, CopyState]] = {}
        for machine, session, agent, generation, begun, gone, counter in rows:
            state = CopyState(agent, generation, bool(begun), bool(gone), counter)
            self._states.setdefault(machine, {})[session] = state

    def of_machine(self, machine: str) -> dict[str, CopyState]:
        """Session id -> state; to be changed by `write` alone."""
        return self._states.setdefault(machine, {})

    def write(self, changes: Iterable[Change]) -> None:
        """All of them or, after a crash, none. StorageError where the disk refuses."""
        rows = [
            (machine, session, one.agent, one.generation, one.is_begun, one.is_gone, one.counter)
            for machine, session, one in changes
        ]
        if not rows:
            return
        with begin_change(self._database, NAME):
            self._database.executemany(_WRITE, rows)
        for machine, session, *values in rows:
            self.of_machine(str(machine))[str(session)] = CopyState(*values)  # type: ignore[arg-type]

    def close(self) -> None:
        self._database.close()
