"""What is known of the copies of other machines' sessions, besides their bytes: `<store>/link/copies.db`."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from sessiond.link.database import begin_change, open_database
from sessiond.link.ranges import AgentId, CopyState, SessionId

NAME = "copies.db"
_SCHEMA = """
CREATE TABLE IF NOT EXISTS copy (
  machine TEXT NOT NULL, session TEXT NOT NULL, agent TEXT NOT NULL, generation TEXT NOT NULL,
  begun INTEGER NOT NULL, gone INTEGER NOT NULL, counter INTEGER NOT NULL,
  PRIMARY KEY (machine, session)
) WITHOUT ROWID
"""
_FORGET = "DELETE FROM copy WHERE machine = ? AND session = ?"
# With the names of the columns: another file than was written here has others.
_QUERY = "SELECT machine, session, agent, generation, begun, gone, counter FROM copy"
_WRITE = (
    "INSERT OR REPLACE INTO copy (machine, session, agent, generation, begun, gone, counter)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)

Change = tuple[str, str, CopyState]


class _CopyColumns(NamedTuple):
    machine: str
    session: SessionId
    agent: AgentId
    generation: str
    begun: bool
    gone: bool
    counter: int


class CopyStates:
    """All of them in memory, each change on disk when `write` returns. LinkError where another link has the file."""

    def __init__(self, store: Path) -> None:
        self._database, rows = open_database(store, NAME, _SCHEMA, _QUERY, _CopyColumns)
        self._states: dict[str, dict[str, CopyState]] = {}
        self._gone: Counter[str] = Counter()
        for machine, session, agent, generation, begun, gone, counter in rows:
            self.note(machine, session, CopyState(agent, generation, begun, gone, counter))

    def of_machine(self, machine: str) -> Mapping[str, CopyState]:
        """Session id -> state."""
        return self._states.setdefault(machine, {})

    def count_gone(self, machine: str) -> int:
        """How many of them are of sessions that are gone."""
        return self._gone[machine]

    def note(self, machine: str, session: str, state: CopyState) -> None:
        """In memory; `write` is on disk as well."""
        known = self._states.setdefault(machine, {})
        before = known.get(session)
        self._gone[machine] += state.is_gone - (before is not None and before.is_gone)
        known[session] = state

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
            self.note(str(machine), str(session), CopyState(*values))  # type: ignore[arg-type]

    def forget_gone(self, machine: str, most: int) -> None:
        """Forget the sessions that have been gone for longest. StorageError.

        What an old message of theirs would bring back, the next row of them ends again.
        """
        known = self._states.setdefault(machine, {})
        oldest = heapq.nsmallest(most, ((one.counter, session) for session, one in known.items() if one.is_gone))
        with begin_change(self._database, NAME):
            self._database.executemany(_FORGET, [(machine, session) for _, session in oldest])
        for _, session in oldest:
            del known[session]
        self._gone[machine] -= len(oldest)

    def close(self) -> None:
        self._database.close()
