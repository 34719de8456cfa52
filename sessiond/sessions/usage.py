"""Sum up tokens and costs over transcripts: by session, by model, by day, and by what sessions have in common.

The caller passes in which sessions to count and the prices for what has no cost. The sums are in the entries, by day
and model; a transcript is read only where they do not suffice: where sessions have usage in common, as forks have, and
where `since` or `until` divides a day on which the session was used before and after. Source: store.md, "What is used".
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec

from sessiond.clock import iso_ms
from sessiond.config.settings import Price
from sessiond.model.entry import Entry
from sessiond.model.keys import machine_of
from sessiond.model.usage import Usage
from sessiond.model.usage_rows import DAY_MS, NO_DAY, Counts, UsageFacts, UsageItem, UsageRow, added_costs
from sessiond.sessions.usage_families import UsedSession, group_families
from sessiond.sessions.usage_ledger import CostMark, UsageLedger, cost_after, read_ledger
from sessiond.store.catalog import Session

# No transcript has so many lines.
_POSITION_BITS = 40
# A usage takes up to 170 bytes while its group is counted, and 500 while its transcript is. Programs write one in 2 to
# 10 kB. A handler reserves three times what it asks for.
_BYTES_A_NOTED = 12


# A transcript may name another model or day in every line. Rows for so many are made without a pause of the event loop.
MOST_NAMES = 4000
OTHER = "other"


class UsageSum(msgspec.Struct):
    """A sum. `cost_usd` is None if nothing in it had a cost; of `unpriced_tokens` nothing says what they cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    cost_usd: float | None = None
    unpriced_tokens: int = 0

    def merge(self, other: UsageSum) -> None:
        """Add another sum."""
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cache_read += other.cache_read
        self.cache_write += other.cache_write
        self.total_tokens += other.total_tokens
        self.unpriced_tokens += other.unpriced_tokens
        if other.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + other.cost_usd


def sum_by(by_session: Mapping[Session, UsageSum], name_of: Callable[[Session], str]) -> dict[str, UsageSum]:
    """The sums of sessions with the same `name_of`, the most tokens first."""
    sums: dict[str, UsageSum] = {}
    for session, usage in by_session.items():
        sums.setdefault(name_of(session), UsageSum()).merge(usage)
    return dict(sorted(sums.items(), key=lambda item: -item[1].total_tokens))


def price_of(pricing: Mapping[str, Price], model: str, usage: Usage) -> float | None:
    """The cost in US dollars by `models.pricing`; None if it has no price for the model."""
    price = pricing.get(model)
    if price is None:
        return None
    cached = usage.cache_read * (price.cache_read if price.cache_read is not None else price.input)
    stored = usage.cache_write * (price.cache_write if price.cache_write is not None else price.input)
    return (usage.input * price.input + usage.output * price.output + cached + stored) / 1_000_000


def find_used(sessions: Iterable[Session]) -> list[UsedSession]:
    """Those of the sessions that used something, as they are now. Called on the event loop."""
    entries = [(session, session.entry) for session in sessions]
    return [UsedSession(session, entry, entry.usage) for session, entry in entries if entry.usage is not None]


class UsageCount:
    """Sums up the usage of sessions. What a fork or a copy repeats is counted once, for the oldest session that has it.

    `steps` counts from the entries; `to_read` are the others, in groups that may have usage in common, which
    `reading_steps` counts by reading them.
    """

    def __init__(
        self,
        record_limit: int,
        pricing: Mapping[str, Price],
        *,
        since_ms: int | None = None,
        until_ms: int | None = None,
    ) -> None:
        self._limit, self._pricing = record_limit, pricing
        self._since = since_ms if since_ms is not None else 0
        self._until = until_ms
        # Sessions whose program says what they have cost, its sub-agents included.
        self._stating: set[str] = set()
        self.to_read: list[list[UsedSession]] = []
        self.totals = UsageSum()
        self.by_session: dict[Session, UsageSum] = {}
        self.by_model: dict[str, UsageSum] = {}
        self.by_day: dict[str, UsageSum] = {}

    def steps(self, sessions: Iterable[UsedSession]) -> Iterator[None]:
        """Count those of the sessions that need not be read. Each step blocks briefly; runs in worker threads."""
        ordered = sorted(sessions, key=_age_of)
        self._stating = {used.session.key for used in ordered if used.facts.costs}
        yield
        for family in group_families(ordered):
            if all(self._is_outside(used) for used in family):
                continue
            if len(family) == 1 and self._suffices(family[0]):
                self._count_rows(family[0])
            else:
                self.to_read.append(family)
            yield

    def reading_steps(self) -> Iterator[None]:
        """Count the sessions that have to be read. As `steps`."""
        for family in self.to_read:
            yield from self._count_family(family)

    @property
    def reading_bytes(self) -> int:
        """About how much memory `reading_steps` takes: what is noted of each usage until its group is counted."""
        sizes = (sum(used.entry.file.folded_to for used in family) for family in self.to_read)
        return max(sizes, default=0) // _BYTES_A_NOTED

    def _is_outside(self, used: UsedSession) -> bool:
        """Whether nothing of the session was used within the time."""
        facts = used.facts
        return not self._needs_dropped(facts) and all(self._place_of(used, row) == "outside" for row in facts.rows)

    def _suffices(self, used: UsedSession) -> bool:
        """Whether the sums in the entry say what was used within the time."""
        facts = used.facts
        if facts.is_unsure or self._needs_dropped(facts):
            return False
        return all(self._place_of(used, row) != "across" for row in facts.rows)

    def _needs_dropped(self, facts: UsageFacts) -> bool:
        return bool(facts.dropped_to) and facts.dropped_to >= self._since

    def _place_of(self, used: UsedSession, row: UsageRow) -> str:
        first, last = _times_of(used.entry, row)
        if last < self._since or (self._until is not None and first >= self._until):
            return "outside"
        return "inside" if first >= self._since and (self._until is None or last < self._until) else "across"

    def _count_rows(self, used: UsedSession) -> None:
        for row in used.facts.rows:
            if self._place_of(used, row) == "inside" and (any(row.counts) or row.cost):
                day = row.day if row.day != NO_DAY else used.entry.updated_at // DAY_MS
                self._add(used, day, row.model, row.counts, row.cost)

    def _count_family(self, family: Sequence[UsedSession]) -> Generator[None, None, None]:
        """Count sessions that have usage in common, the oldest first, by reading them."""
        # Of each id the number of its session and its position in that, as one number: only these and the marks are
        # kept until all are counted.
        owners: dict[int, int] = {}
        marks: list[list[CostMark]] = []
        for used in family:
            ledger = yield from read_ledger(used.session, used.entry, self._limit)
            if ledger is None:
                # It cannot be read. Its sums are known, but not what it has in common with others: that counts twice.
                self._count_rows(used)
                continue
            first, copied = len(marks) << _POSITION_BITS, -1
            for place, item in enumerate(ledger.items, first):
                owner = owners.setdefault(item.id, place) if item.id is not None else place
                if owner < first:
                    copied = owner
                else:
                    self._add_item(used, item)
            costs = _costs_before(ledger, marks, copied)
            marks.append(ledger.marks)
            for item in ledger.cost_items(costs):
                self._add_item(used, item)

    def _add_item(self, used: UsedSession, item: UsageItem) -> None:
        # What has no time counts for the last day of its session.
        at_ms = item.at_ms if item.at_ms is not None else used.entry.updated_at
        if at_ms >= self._since and (self._until is None or at_ms < self._until):
            self._add(used, at_ms // DAY_MS, item.model, item.counts, item.cost)

    def _add(self, used: UsedSession, day: int, model: str, counts: Counts, cost: float | None) -> None:
        unpriced = 0
        if cost is None and not (used.session.key in self._stating or used.entry.spawned_by in self._stating):
            cost = price_of(self._pricing, model, Usage(*counts[:4]))
            unpriced = counts[4] if cost is None else 0
        more = UsageSum(*counts, cost, unpriced)
        self.totals.merge(more)
        for sums, name in ((self.by_model, model), (self.by_day, _name_day(day))):
            shown = name if name in sums or len(sums) < MOST_NAMES else OTHER
            sums.setdefault(shown, UsageSum()).merge(more)
        self.by_session.setdefault(used.session, UsageSum()).merge(more)


def _age_of(used: UsedSession) -> tuple[bool, int, bool, str]:
    # Copies of a conversation begin when that began. What another machine has counts for it where it is not here too.
    source, is_elsewhere = used.entry.source, machine_of(used.session.key) is not None
    is_fork = source is not None and source.forked_from is not None
    return is_elsewhere, used.entry.created_at, is_fork, used.session.session_id


def _costs_before(ledger: UsageLedger, marks: list[list[CostMark]], copied: int) -> dict[str, float]:
    """What the first mark of a ledger has of the session that it is a copy of, up to the last item copied: its place
    among those of `marks`, -1 for none.
    """
    if copied < 0 or not ledger.marks:
        return {}
    before = cost_after(marks[copied >> _POSITION_BITS], copied & ((1 << _POSITION_BITS) - 1))
    first = ledger.marks[0].costs
    # Where nothing says how much of it is the original's, none of it is counted.
    return first if before is None else before if added_costs(before, first) is not None else {}


def _times_of(entry: Entry, row: UsageRow) -> tuple[int, int]:
    return (entry.updated_at, entry.updated_at) if row.day == NO_DAY else (row.first_ms, row.last_ms)


@lru_cache(maxsize=4096)
def _name_day(day: int) -> str:
    return iso_ms(day * DAY_MS)[:10]
