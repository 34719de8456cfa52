"""What a session used, by day and model: the part of its entry from which `sessions.usage` is answered. Pure.

Every usage is counted once: a line that repeats one of the newest takes its place. So little is kept that an entry
stays small however long its transcript is; where that is too little, it says so (`is_unsure`, `dropped_to`), and the
transcript is read. Source: store.md, "What is used".
"""

from __future__ import annotations

from hashlib import blake2b
from math import isnan, nan
from struct import Struct
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from sessiond.model.lax import MAX_WHOLE, Count, Milliseconds
from sessiond.model.message import UNKNOWN_MODEL
from sessiond.model.usage import Usage, cost_of

DAY_MS = 86_400_000
# The day of what has no time.
NO_DAY = -1
# A session has a row for each day and model. Of one that is used every day for longer only the newest are kept.
MAX_ROWS = 128
# So many of the newest usages may be repeated by a later line. Programs write the lines of one answer one after the
# other, those of agents at work side by side in turn. In our own transcripts an answer has one line.
MAX_RECENT = 8
OWN_RECENT = 2
# A copy of a conversation begins where that begins, or behind one of its newest summaries.
MAX_HEADS = 8
# Of so many usages before those it is known that they were there, by a piece of their ids, 1 kB in all. Most
# transcripts have fewer. One usage in 50,000 is taken for another's repetition, and the transcript is read in vain.
MAX_PASSED = 340
_PIECE_BYTES = 3
_MAX_MODEL_CHARS = 128
_MAX_MODELS = 16
_ID_BYTES = 6
# A usage that may be repeated: its id, the number of its row, its five counts, its cost (NaN where it has none).
_RECENT = Struct(f"<{_ID_BYTES}sH5Id")
_GONE = 0xFFFF
_MAX_COUNT = 0xFFFF_FFFF

Counts = tuple[int, int, int, int, int]


class UsageItem(NamedTuple):
    """One usage: the id under which it counts once (None: it is never repeated), its time, its counts: tokens of input,
    output, from and to the cache, and all.
    """

    id: int | None
    at_ms: int | None
    model: str
    counts: Counts
    cost: float | None


class UsageRow(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The sums of one day (days since 1970, UTC) and one model, apart for what has a cost and what has none.

    `first_ms` and `last_ms`: when the first and the last of it was used at the earliest and at the latest.
    """

    day: int
    model: str
    cost: float | None
    first_ms: Milliseconds
    last_ms: Milliseconds
    input: Count = 0
    output: Count = 0
    cache_read: Count = 0
    cache_write: Count = 0
    total: Count = 0

    @property
    def counts(self) -> Counts:
        return self.input, self.output, self.cache_read, self.cache_write, self.total


class UsageFacts(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """What a session used.

    `heads` are ids with which a copy of the conversation may begin: of the first usage, and of those behind the newest
    summaries; `at_head`: the next one is such. `recent` are the newest usages with an id. `costs` is what the program
    said last that the session has cost, by model; where it says so, nothing else is a cost. `dropped_to`: rows up to
    this time are not here. `is_unsure`: something was repeated that is not among the newest. `passed` are pieces of the
    ids of usages before `recent`, by which that is noticed.
    """

    rows: tuple[UsageRow, ...] = ()
    heads: tuple[int, ...] = ()
    recent: bytes = b""
    at_head: bool = False
    costs: dict[str, float] | None = None
    dropped_to: Milliseconds = 0
    is_unsure: bool = False
    passed: bytes = b""

    @property
    def is_plausible(self) -> bool:
        """Whether it can be from here. For what is read from an index."""
        size, odd = divmod(len(self.recent), _RECENT.size)
        passed, more = divmod(len(self.passed), _PIECE_BYTES)
        is_few = len(self.rows) <= MAX_ROWS and len(self.heads) <= MAX_HEADS and passed <= MAX_PASSED
        return not (odd or more) and size <= MAX_RECENT and is_few

    @property
    def last_ms(self) -> int | None:
        """When the last of it was used, as far as it has a time."""
        return max((row.last_ms for row in self.rows if row.day != NO_DAY), default=None)

    @property
    def recent_ids(self) -> list[int]:
        """The ids of the newest usages."""
        return [int.from_bytes(one[0], "big") for one in _RECENT.iter_unpack(self.recent)]


NOTHING_USED = UsageFacts()


def hash_id(text: str) -> int:
    """The id in an entry of what has this id in a transcript."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=_ID_BYTES).digest(), "big")


def item_of(usage: Usage, usage_id: str | None, at_ms: int | None, model: str | None) -> UsageItem:
    """One usage as it is counted."""
    parts = int(usage.input), int(usage.output), int(usage.cache_read), int(usage.cache_write)
    counts = (*parts, min(MAX_WHOLE, int(usage.total_tokens) or sum(parts)))
    hashed = hash_id(usage_id) if usage_id is not None else None
    return UsageItem(hashed, at_ms, (model or UNKNOWN_MODEL)[:_MAX_MODEL_CHARS], counts, cost_of(usage))


def day_of(at_ms: int | None) -> int:
    """The day of a time."""
    return at_ms // DAY_MS if at_ms is not None else NO_DAY


def count_item(
    facts: UsageFacts, item: UsageItem, most_recent: int = MAX_RECENT
) -> tuple[UsageFacts, UsageItem | None]:
    """The facts with an item, and the one that it takes the place of, with its counts and cost. Of the newest,
    `most_recent` may be repeated; in our own transcripts (`OWN_RECENT`) nothing else is.
    """
    rows, recent, replaced, is_unsure = facts.rows, facts.recent, None, facts.is_unsure
    heads, at_head, passed = facts.heads, facts.at_head, facts.passed
    if item.id is not None:
        packed = item.id.to_bytes(_ID_BYTES, "big")
        place = _find(recent, packed, _RECENT.size)
        if place is not None:
            _, row, *counts, cost = _RECENT.unpack_from(recent, place)
            recent = recent[:place] + recent[place + _RECENT.size :]
            replaced = UsageItem(item.id, None, item.model, tuple(counts), None if isnan(cost) else cost)
            if row < len(rows):
                rows = (*rows[:row], _take_from(rows[row], replaced), *rows[row + 1 :])
            is_unsure = is_unsure or row == _GONE
        elif item.id in heads or _find(passed, packed[-_PIECE_BYTES:], _PIECE_BYTES) is not None:
            is_unsure = True
        elif at_head or not heads:
            heads, at_head = (*heads[:1], *heads[1:][-(MAX_HEADS - 2) :], item.id), False
    rows, number = _add_to(rows, item)
    if item.id is not None:
        if max(item.counts) <= _MAX_COUNT:
            cost = nan if item.cost is None else item.cost
            gone = max(0, len(recent) - (most_recent - 1) * _RECENT.size)
            if most_recent > OWN_RECENT:
                passed += b"".join(one[0][-_PIECE_BYTES:] for one in _RECENT.iter_unpack(recent[:gone]))
            recent = recent[gone:] + _RECENT.pack(packed, number, *item.counts, cost)
        else:
            is_unsure = True
    passed = b"" if is_unsure else passed[-MAX_PASSED * _PIECE_BYTES :]
    facts = UsageFacts(rows, heads, recent, at_head, facts.costs, facts.dropped_to, is_unsure, passed)
    return (facts if len(rows) <= MAX_ROWS else _drop_oldest(facts)), replaced


def note_summary(facts: UsageFacts) -> UsageFacts:
    """The facts behind a place where the conversation was summed up: a copy may begin here."""
    return facts if facts.at_head else replace(facts, at_head=True)


def count_costs(facts: UsageFacts, costs: dict[str, float]) -> UsageFacts:
    """The facts after a line that says what the session has cost so far, by model: what it says last is what counts."""
    if len(costs) > _MAX_MODELS:
        costs = {UNKNOWN_MODEL: sum(costs.values())}
    rows = facts.rows
    more = added_costs(facts.costs or {}, costs)
    if more is None:
        rows = tuple(replace(row, cost=0.0) if row.cost is not None else row for row in rows)
        more = costs
    for model, cost in more.items():
        if cost:
            item = UsageItem(None, facts.last_ms, model[:_MAX_MODEL_CHARS], (0, 0, 0, 0, 0), cost)
            rows, _ = _add_to(rows, item)
    facts = replace(facts, rows=rows, costs=costs)
    while len(facts.rows) > MAX_ROWS:
        facts = _drop_oldest(facts)
    return facts


def added_costs(before: dict[str, float], costs: dict[str, float]) -> dict[str, float] | None:
    """What was added to what the program said before; None where it counts anew."""
    more = {model: cost - before.get(model, 0.0) for model, cost in costs.items()}
    is_anew = any(cost < 0 for cost in more.values()) or not before.keys() <= costs.keys()
    return None if is_anew else more


def _find(among: bytes, packed: bytes, size: int) -> int | None:
    """Where one of the parts of this size begins so; None where none does."""
    place = among.find(packed)
    while place > 0 and place % size:
        place = among.find(packed, place + 1)
    return place if place >= 0 else None


def _take_from(row: UsageRow, item: UsageItem) -> UsageRow:
    counts = (max(0, had - less) for had, less in zip(row.counts, item.counts, strict=True))
    cost = None if row.cost is None else max(0.0, row.cost - (item.cost or 0.0))
    return UsageRow(row.day, row.model, cost, row.first_ms, row.last_ms, *counts)


def _add_to(rows: tuple[UsageRow, ...], item: UsageItem) -> tuple[tuple[UsageRow, ...], int]:
    """The rows with an item, and the number of its row."""
    day, at_ms = day_of(item.at_ms), item.at_ms or 0
    for number in range(len(rows) - 1, -1, -1):
        row = rows[number]
        if row.day == day and row.model == item.model and (row.cost is None) == (item.cost is None):
            break
    else:
        return (*rows, UsageRow(day, item.model, item.cost, at_ms, at_ms, *item.counts)), len(rows)
    sent, received, read, written, total = item.counts
    first, last = row.first_ms, row.last_ms
    added = UsageRow(
        day,
        row.model,
        None if row.cost is None else row.cost + (item.cost or 0.0),
        min(first, at_ms),
        max(last, at_ms),
        _limit_count(row.input + sent),
        _limit_count(row.output + received),
        _limit_count(row.cache_read + read),
        _limit_count(row.cache_write + written),
        _limit_count(row.total + total),
    )
    return (*rows[:number], added, *rows[number + 1 :]), number


def _limit_count(count: int) -> int:
    return min(MAX_WHOLE, count)


def _drop_oldest(facts: UsageFacts) -> UsageFacts:
    """The facts without the row whose last usage is the oldest."""
    rows = facts.rows
    number = min(range(len(rows)), key=lambda one: rows[one].last_ms)
    recent = b""
    for packed, row, *more in _RECENT.iter_unpack(facts.recent):
        moved = _GONE if row in (number, _GONE) else row - (row > number)
        recent += _RECENT.pack(packed, moved, *more)
    # What has no time may be of any.
    to_ms = rows[number].last_ms if rows[number].day != NO_DAY else facts.last_ms or 0
    dropped_to = max(facts.dropped_to, to_ms, 1)
    return replace(facts, rows=(*rows[:number], *rows[number + 1 :]), recent=recent, dropped_to=dropped_to)
