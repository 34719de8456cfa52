"""Sum up tokens and costs over transcripts: by session, by model, by day, and by what sessions have in common.

The caller passes in which sessions to count and the prices for messages without a cost. Every transcript is read, also
archived ones, because the sums in the entries are not split by time and model. Source: protocol.md, "The gateway's
calls".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from sessiond.clock import iso_ms
from sessiond.config.settings import Price
from sessiond.model.entry import Entry
from sessiond.model.line_facts import LineFacts
from sessiond.model.message import UNKNOWN_MODEL
from sessiond.model.record import BadLine, Record
from sessiond.model.usage import Usage, cost_of, read_usage
from sessiond.store import blocks
from sessiond.store.catalog import Session


class UsageSum(msgspec.Struct):
    """A sum. `cost_usd` is None if no message in it had a cost."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read: int = 0
    cache_write: int = 0
    total_tokens: int = 0
    cost_usd: float | None = None

    def add(self, usage: Usage, cost: float | None) -> None:
        """Add the usage of one message."""
        parts = [int(usage.input), int(usage.output), int(usage.cache_read), int(usage.cache_write)]
        self.input_tokens += parts[0]
        self.output_tokens += parts[1]
        self.cache_read += parts[2]
        self.cache_write += parts[3]
        self.total_tokens += int(usage.total_tokens) or sum(parts)
        if cost is not None:
            self.cost_usd = (self.cost_usd or 0.0) + cost

    def merge(self, other: UsageSum) -> None:
        """Add another sum."""
        self.input_tokens += other.input_tokens
        self.output_tokens += other.output_tokens
        self.cache_read += other.cache_read
        self.cache_write += other.cache_write
        self.total_tokens += other.total_tokens
        if other.cost_usd is not None:
            self.cost_usd = (self.cost_usd or 0.0) + other.cost_usd


def sum_by(by_session: Mapping[Session, UsageSum], name_of: Callable[[Session], str]) -> dict[str, UsageSum]:
    """The sums of sessions with the same `name_of`, the most tokens first."""
    sums: dict[str, UsageSum] = {}
    for session, usage in by_session.items():
        sums.setdefault(name_of(session), UsageSum()).merge(usage)
    return dict(sorted(sums.items(), key=lambda item: -item[1].total_tokens))


class _AssistantHead(msgspec.Struct, frozen=True, gc=False):
    usage: msgspec.Raw = msgspec.Raw()
    model: object = None


_decode_head = msgspec.json.Decoder(_AssistantHead).decode


def price_of(pricing: Mapping[str, Price], model: str, usage: Usage) -> float | None:
    """The cost in US dollars by `models.pricing`; None if it has no price for the model."""
    price = pricing.get(model)
    if price is None:
        return None
    cached = usage.cache_read * (price.cache_read if price.cache_read is not None else price.input)
    stored = usage.cache_write * (price.cache_write if price.cache_write is not None else price.input)
    return (usage.input * price.input + usage.output * price.output + cached + stored) / 1_000_000


def _usage_in(record: Record) -> tuple[Usage | None, str]:
    """The usage in a message of an assistant, and its model."""
    if record.role != "assistant" or record.message is None:
        return None, UNKNOWN_MODEL
    head = _decode_head(record.message)
    return read_usage(head.usage), head.model if isinstance(head.model, str) and head.model else UNKNOWN_MODEL


def _usage_stated(facts: LineFacts, entry: Entry, offset: int) -> tuple[Usage | None, str]:
    """The usage that a line of another program states, and the model. `offset` is that of the line."""
    records_from = entry.source.usage_records_from if entry.source is not None else None
    is_repeated = facts.usage_may_repeat and records_from is not None and offset > records_from
    return None if is_repeated else facts.usage, facts.model or entry.model or UNKNOWN_MODEL


class UsageCount:
    """Sums up the usage of sessions. A message that a fork or a copy repeats is counted once."""

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
        self._seen: set[int] = set()
        self.totals = UsageSum()
        self.by_session: dict[Session, UsageSum] = {}
        self.by_model: dict[str, UsageSum] = {}
        self.by_day: dict[str, UsageSum] = {}

    def steps(self, sessions: Iterable[Session]) -> Iterator[None]:
        """Count the sessions. Each step blocks briefly; runs in worker threads."""
        # The oldest first: a message that occurs twice is counted for its oldest session.
        for session in sorted(sessions, key=lambda one: (one.entry.created_at, one.session_id)):
            if session.entry.updated_at >= self._since:
                yield from self._session(session)

    def _session(self, session: Session) -> Iterator[None]:
        end, inode = session.entry.file.folded_to, session.entry.file.inode
        while end > 0:
            block = blocks.read_block_of_file(session.folder, session.file_name, inode, end, self._limit)
            if block is None:
                return
            self._block(session, block.data, block.start)
            end = block.start
            yield

    def _block(self, session: Session, data: bytes, start: int) -> None:
        # Every line of an assistant message with usage contains this, however it is formatted.
        sign = session.dialect.usage_sign
        at = data.rfind(sign)
        while at >= 0:
            begin = data.rfind(b"\n", 0, at) + 1
            line = data[begin : data.find(b"\n", at)]
            if len(line) <= self._limit:
                self._line(session, line, start + begin)
            # The newest first: of lines that repeat the usage of a message it has the last word.
            at = data.rfind(sign, 0, begin)

    def _line(self, session: Session, line: bytes, offset: int) -> None:
        try:
            record = session.dialect.parse(line)
        except BadLine:
            return
        facts = record.facts
        usage, model = _usage_in(record) if facts is None else _usage_stated(facts, session.entry, offset)
        # A message without a time is counted for the last day of its session.
        stamp = record.timestamp_ms if record.timestamp_ms is not None else session.entry.updated_at
        if usage is None or stamp < self._since or (self._until is not None and stamp >= self._until):
            return
        if self._is_copy(session, record, stamp):
            return
        cost = cost_of(usage)
        if cost is None:
            cost = price_of(self._pricing, model, usage)
        for usage_sum in (
            self.totals,
            self.by_session.setdefault(session, UsageSum()),
            self.by_model.setdefault(model, UsageSum()),
            self.by_day.setdefault(iso_ms(stamp)[:10], UsageSum()),
        ):
            usage_sum.add(usage, cost)

    def _is_copy(self, session: Session, record: Record, stamp: int) -> bool:
        # Each line of a message in parts repeats its usage, and forks copy the message.
        facts = record.facts
        usage_id = facts.usage_id or record.message_id if facts is not None else None
        if usage_id is None and record.id is None:
            return False
        if facts is not None and facts.usage_may_repeat:
            # Made of sums, which tell the requests of one session apart.
            key = hash((session.key, usage_id))
        else:
            # Record ids of pi are short; id and time together identify a record.
            key = hash(usage_id) if usage_id is not None else hash((record.id, stamp))
        if key in self._seen:
            return True
        self._seen.add(key)
        return False
