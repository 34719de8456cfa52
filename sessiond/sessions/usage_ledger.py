"""All that one transcript says was used, in order: read from the file where the sums in the entry do not suffice.

The same code decides as for the entry (`used_item` of the dialect). Only lines that can say something are parsed; what
was read of the files that were asked for last is kept in memory. Synchronous. Knows no other sessions.
"""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from collections.abc import Generator
from typing import NamedTuple

from msgspec.structs import replace

from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import Entry, FileFacts
from sessiond.model.record import BadLine, Record
from sessiond.model.usage_rows import UsageItem, added_costs
from sessiond.store import dirfd, folding, transcript
from sessiond.store.catalog import Session

# Of all sessions together so many items and costs are kept, some ten megabytes: those of the forks and the long days of
# a year. A transcript that has more is read whenever it is asked for.
MOST_KEPT = 20_000
_LINES_A_STEP = 16
_BLOCK = 64 * 1024


class CostMark(NamedTuple):
    """A line that says what the session has cost so far: behind how many items it stands, its time, cost by model."""

    position: int
    at_ms: int | None
    costs: dict[str, float]


def cost_after(marks: list[CostMark], position: int) -> dict[str, float] | None:
    """What a session had cost when the item at `position` was used; None where nothing says it."""
    return next((mark.costs for mark in marks if mark.position > position), None)


class UsageLedger(NamedTuple):
    """The items of a transcript, each id once with what was said of it last, and the marks between them."""

    items: list[UsageItem]
    marks: list[CostMark]

    @property
    def size(self) -> int:
        """How much there is of it: items and costs, and itself."""
        return 1 + len(self.items) + sum(1 + len(mark.costs) for mark in self.marks)

    def cost_items(self, before: dict[str, float]) -> list[UsageItem]:
        """What the marks say, as items without tokens. `before` is what the first of them has of another session."""
        items: list[UsageItem] = []
        for mark in self.marks:
            more = added_costs(before, mark.costs)
            if more is None:
                items, more = [], mark.costs
            items += [UsageItem(None, mark.at_ms, model, (0, 0, 0, 0, 0), cost) for model, cost in more.items() if cost]
            before = mark.costs
        return items


class KeptLedgers:
    """What was read of the files that were asked for last, `MOST_KEPT` items and costs in all."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[tuple[int, ...], UsageLedger]] = OrderedDict()
        self._size = 0

    def find(self, path: str, state: tuple[int, ...]) -> UsageLedger | None:
        """The ledger of this file in this state, if it is kept."""
        with self._lock:
            known, ledger = self._kept.get(path, (None, None))
            if known != state:
                return None
            self._kept.move_to_end(path)
            return ledger

    def put(self, path: str, state: tuple[int, ...], ledger: UsageLedger) -> None:
        """Keep the ledger of a file, instead of those that nobody asked for for longest."""
        with self._lock:
            self._drop(path)
            if ledger.size > MOST_KEPT:
                return
            self._kept[path] = (state, ledger)
            self._size += ledger.size
            while self._size > MOST_KEPT:
                self._drop(next(iter(self._kept)))

    def _drop(self, path: str) -> None:
        _, ledger = self._kept.pop(path, (None, None))
        self._size -= ledger.size if ledger is not None else 0


def _state_of(session: Session, facts: FileFacts) -> tuple[int, ...]:
    return session.folder.fd, facts.inode, facts.mtime_ns, facts.folded_to, facts.check


_KEPT = KeptLedgers()


def read_ledger(session: Session, entry: Entry, record_limit: int) -> Generator[None, None, UsageLedger | None]:
    """The ledger of a transcript, as far as it was folded into `entry`; None where it cannot be read. Yields every few
    lines.
    """
    path, state = session.path, _state_of(session, entry.file)
    ledger = _KEPT.find(path, state)
    if ledger is not None:
        return ledger
    try:
        fd = session.folder.open_file(session.file_name)
    except OSError:
        return None
    with dirfd.closing(fd):
        if dirfd.inode_of(os.fstat(fd)) != entry.file.inode:
            return None
        ledger = yield from _read_open(fd, session, entry, record_limit)
    _KEPT.put(path, state, ledger)
    return ledger


def _read_open(fd: int, session: Session, known: Entry, record_limit: int) -> Generator[None, None, UsageLedger]:
    dialect, stop = session.dialect, known.file.folded_to
    entry = folding.begin_anew(known)
    if session.folder.source is not None:
        entry = folding.keep_identity(entry, known)
    ledger, places = UsageLedger([], []), dict[int, int]()
    lines = transcript.read_lines(fd, 0, record_limit, dialect=_only_with_signs(dialect), stop=stop, block=_BLOCK)
    for number, line in enumerate(lines):
        if number % _LINES_A_STEP == 0:
            yield
        if line.record is None:
            continue
        item = dialect.used_item(entry, line.record)
        entry = dialect.fold(entry, line.record, line.offset, 0)
        if item is not None:
            place = places.setdefault(item.id, len(ledger.items)) if item.id is not None else len(ledger.items)
            ledger.items[place : place + 1] = [item]
        facts = line.record.facts
        if facts is not None and facts.total_cost_usd is not None and entry.usage is not None:
            ledger.marks.append(CostMark(len(ledger.items), entry.usage.last_ms, entry.usage.costs or {}))
    return ledger


def _only_with_signs(dialect: TranscriptDialect) -> TranscriptDialect:
    """The dialect, to which all lines but those on which usage depends are bad."""
    has_sign = re.compile(b"|".join(map(re.escape, dialect.usage_signs))).search

    def parse(line: bytes) -> Record:
        if has_sign(line) is None:
            raise BadLine("it says nothing of usage")
        return dialect.parse(line)

    return replace(dialect, parse=parse)
