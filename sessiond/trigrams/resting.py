"""Sessions to which something was added just now: they rest for a while before that is indexed.

After a start there may be 100,000. They are kept in small groups, in a fraction of the memory of a table; each session
is to be removed from its group by whoever knows it.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from sessiond.store.catalog import Session

# Removing a session from its group takes longer, the larger it is.
_MOST_IN_GROUP = 64


class RestingGroup(msgspec.Struct, eq=False, gc=False):
    """Sessions that have rested at the same time; none is empty."""

    due: float
    sessions: list[Session]


class RestingSessions:
    """The groups, that which is due next first."""

    def __init__(self) -> None:
        self._groups: dict[RestingGroup, None] = {}

    def __bool__(self) -> bool:
        return bool(self._groups)

    @property
    def next_due(self) -> float | None:
        """When the next session has rested; None where none does."""
        group = next(iter(self._groups), None)
        return None if group is None else group.due

    def add(self, session: Session, due: float) -> RestingGroup:
        """Its group. It is due no sooner than all that are there."""
        group = next(reversed(self._groups), None)
        if group is None or group.due != due or len(group.sessions) >= _MOST_IN_GROUP:
            group = RestingGroup(due, [])
            self._groups[group] = None
        group.sessions.append(session)
        return group

    def remove(self, session: Session, group: RestingGroup) -> None:
        """It does not rest any more."""
        group.sessions.remove(session)
        if not group.sessions:
            del self._groups[group]

    def take(self, now: float, most: int) -> list[Session]:
        """At most so many that have rested by now; they are removed."""
        taken: list[Session] = []
        for group in list(islice(self._groups, most)):
            room = most - len(taken)
            if group.due > now or not room:
                break
            taken += group.sessions[:room]
            del group.sessions[:room]
            if not group.sessions:
                del self._groups[group]
        # An empty table keeps the memory of what it had.
        self._groups = self._groups or {}
        return taken
