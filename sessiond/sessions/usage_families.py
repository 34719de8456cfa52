"""Which sessions may have usage in common: forks, copies, and sessions that a program continued in a new file. Pure.

A copy of a conversation begins where that begins, or behind a summary of it (`UsageFacts.heads`), or its program says
what it was forked from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sessiond.model.entry import Entry
from sessiond.model.usage_rows import UsageFacts
from sessiond.store.catalog import Session


class UsedSession(NamedTuple):
    """A session that used something, with its entry of one moment: while it is counted it may change."""

    session: Session
    entry: Entry
    facts: UsageFacts


def group_families(sessions: Sequence[UsedSession]) -> list[list[UsedSession]]:
    """The sessions in groups that have no usage in common, in the order of the first of each."""
    groups = _Groups(len(sessions))
    heads: dict[int, int] = {}
    for number, used in enumerate(sessions):
        for head in used.facts.heads:
            groups.join(heads.setdefault(head, number), number)
    for number, used in enumerate(sessions):
        for one in used.facts.recent_ids:
            if one in heads:
                groups.join(heads[one], number)
    keys = {used.session.key: number for number, used in enumerate(sessions)}
    for number, used in enumerate(sessions):
        source = used.entry.source
        if source is not None and source.forked_from is not None:
            groups.join(keys.get(f"{source.name}:{source.forked_from}", number), number)
    found: dict[int, list[UsedSession]] = {}
    for number, used in enumerate(sessions):
        found.setdefault(groups.first_of(number), []).append(used)
    return list(found.values())


class _Groups:
    """Numbers in disjoint groups, each known by its least number."""

    def __init__(self, count: int) -> None:
        self._before = list(range(count))

    def first_of(self, number: int) -> int:
        before = self._before
        while before[number] != number:
            before[number] = before[before[number]]
            number = before[number]
        return number

    def join(self, one: int, other: int) -> None:
        one, other = self.first_of(one), self.first_of(other)
        self._before[max(one, other)] = min(one, other)
