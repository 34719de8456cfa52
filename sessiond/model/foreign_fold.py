"""The fold for transcripts of other programs: entry x record -> entry. All their dialects use it.

Pure, as `fold.py`: the same lines always give the same entry. A message may be written in several lines (parts); this
module decides which lines belong to one message.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sessiond.model.entry import Entry
from sessiond.model.keys import MACHINE
from sessiond.model.lax import MAX_WHOLE, amount
from sessiond.model.line_facts import CHOSEN, FIRST_WORDS, SUMMARY, LineFacts
from sessiond.model.message import UNKNOWN_MODEL, text_of
from sessiond.model.record import TOOL_ROLES, Record
from sessiond.model.source_facts import FoundFacts, OpenMessage, SourceFacts
from sessiond.model.title import MAX_TITLE_CHARS, UNSHOWN, clean_title, first_words
from sessiond.model.usage import Usage, usage_id_of
from sessiond.model.usage_rows import NOTHING_USED, UsageItem, count_costs, count_item, item_of, note_summary

# Raise it whenever the same lines give another entry than before.
FOREIGN_FOLD_VERSION = 1_000_019

# A message has at most so many parts, within so many bytes of the file: what is written behind that is another message,
# since each part publishes the whole message anew.
MAX_PARTS = 64
MAX_SPAN_BYTES = 8 * 2**20

_MAX_UNKNOWN_TYPES = 20
_MAX_TYPE_CHARS = 64
# Titles of lines that did not come yet. Files begin with those of all conversations that were open at the time.
_MAX_TITLES_OF = 16
_MAX_ID_CHARS = 128


def begin_foreign(source: SourceFacts, native_id: str) -> Entry:
    """The entry of a session of which no line was read yet: of `source` it has the name and what the finder found."""
    name, found = source.name, source.found
    return Entry(
        session_id=native_id,
        session_key=key_of_found(name, found, native_id),
        spawned_by=f"{name}:{found.parent}" if found.parent else None,
        cwd=found.cwd,
        source=SourceFacts(
            name=name,
            found=found,
            title=clean_title(found.title, MAX_TITLE_CHARS) if found.title else None,
            title_rank=CHOSEN if found.title else FIRST_WORDS,
        ),
    )


def key_of_found(name: str, found: FoundFacts, native_id: str) -> str:
    """The key of a session with this id. Only on another machine it is not made of that."""
    return found.key if name == MACHINE and found.key is not None else f"{name}:{native_id}"


def fold_foreign(entry: Entry, record: Record, offset: int, mtime_ms: int) -> Entry:
    """The entry after `record`, whose line begins at `offset`. `mtime_ms` is used for messages without a timestamp.

    Never raises. `entry` is one of `begin_foreign`; any other is folded as one of a source without a name.
    """
    source = before = entry.source if entry.source is not None else SourceFacts(name="")
    changes: dict[str, Any] = {}
    stamp = record.timestamp_ms
    if record.message is not None:
        newest = changes["updated_at"] = _newest(entry, stamp if stamp is not None else mtime_ms)
        behind = newest - (stamp if stamp is not None else entry.created_at)
        if behind > entry.disorder_ms:
            changes["disorder_ms"] = behind
        source, count = _fold_message(entry, source, record, offset)
        if count != entry.message_count:
            changes["message_count"] = count
        if record.is_typed and entry.spawned_by is not None and entry.task is None:
            # The first line of a sub-agent is its parent's prompt, which is no title.
            changes["task"] = first_words(text_of(record.message, "\n"))
    if record.id is not None:
        source = _fold_id(source, record.id)
    if record.marker is not None:
        source = replace(source, markers=source.markers + 1)
        if record.marker == "compaction" and entry.usage is not None:
            changes["usage"] = note_summary(entry.usage)
    facts = record.facts
    created = facts.created_ms if facts is not None and facts.created_ms is not None else stamp
    if not entry.created_at and created:
        changes["created_at"] = created
    source = _fold_facts(entry, source, record, offset, changes)
    if source is not before or entry.source is None:
        changes["source"] = source
    return replace(entry, **changes) if changes else entry


def is_later_part(opened: OpenMessage | None, record: Record, offset: int) -> bool:
    """Whether the message in a line at `offset` is a part of the message that is open there."""
    return (
        opened is not None
        and record.message_id == opened.id
        and record.message is not None
        and record.role not in TOOL_ROLES
        and opened.parts < MAX_PARTS
        and offset - opened.begin <= MAX_SPAN_BYTES
    )


def open_after(opened: OpenMessage | None, record: Record, offset: int, count: int) -> OpenMessage | None:
    """The message that is open behind a line at `offset`, where `count` messages stand before that line."""
    if record.message is None or record.role in TOOL_ROLES:
        return opened
    if opened is not None and is_later_part(opened, record, offset):
        return replace(opened, parts=opened.parts + 1)
    return OpenMessage(record.message_id, offset, count + 1, 1) if record.message_id is not None else None


def _newest(entry: Entry, stamp: int) -> int:
    return max(entry.updated_at, stamp) if entry.message_count else stamp


def _fold_message(entry: Entry, source: SourceFacts, record: Record, offset: int) -> tuple[SourceFacts, int]:
    count = entry.message_count
    opened = open_after(source.opened, record, offset, count)
    if not is_later_part(source.opened, record, offset):
        count += 1
    if opened is not source.opened:
        source = replace(source, opened=opened)
    if record.is_typed and source.title is None and entry.spawned_by is None:
        words = first_words(text_of(record.message or b"", "\n"))
        if words is not None:
            source = replace(source, title=words, title_rank=FIRST_WORDS)
    return source, count


def _fold_facts(entry: Entry, source: SourceFacts, record: Record, offset: int, changes: dict[str, Any]) -> SourceFacts:
    facts = record.facts
    if facts is None:
        return source
    if facts.cwd and entry.cwd is None:
        changes["cwd"] = facts.cwd
    if facts.spawned_by and entry.spawned_by is None:
        changes["spawned_by"] = f"{source.name}:{facts.spawned_by}"
    if facts.model:
        changes["model"] = facts.model
    if facts.provider:
        changes["model_provider"] = facts.provider
    if facts.usage is not None and not (facts.usage_may_repeat and source.usage_records_from is not None):
        _fold_usage(entry, record, facts, facts.usage, changes)
        if facts.usage_id is not None and not facts.usage_may_repeat and source.usage_records_from is None:
            source = replace(source, usage_records_from=offset)
    cost = amount(facts.total_cost_usd)
    if cost is not None:
        changes["estimated_cost_usd"] = cost
        used = changes.get("usage", entry.usage) or NOTHING_USED
        changes["usage"] = count_costs(used, stated_costs(facts, cost))
    if facts.title:
        source = _fold_title(source, facts.title, facts.title_rank, facts.title_of)
    if facts.forked_from and source.forked_from is None:
        source = replace(source, forked_from=facts.forked_from)
    if facts.unknown_type is not None:
        source = replace(source, unknown=_count_type(source.unknown, facts.unknown_type))
    return source


def _fold_title(source: SourceFacts, text: str, rank: int, line_id: str | None) -> SourceFacts:
    if line_id is not None and line_id != source.last_id:
        kept = list(source.titles_of.items())[1 - _MAX_TITLES_OF :]
        return replace(source, titles_of={**dict(kept), line_id[:_MAX_ID_CHARS]: text[:MAX_TITLE_CHARS]})
    title = clean_title(text, MAX_TITLE_CHARS)
    if title is None or (source.title is not None and rank < source.title_rank):
        return source
    return replace(source, title=title, title_rank=rank)


def _fold_id(source: SourceFacts, line_id: str) -> SourceFacts:
    source = replace(source, last_id=line_id[:_MAX_ID_CHARS])
    title = source.titles_of.get(line_id)
    return _fold_title(source, title, SUMMARY, None) if title is not None else source


def used_foreign_item(entry: Entry, record: Record) -> UsageItem | None:
    """What a record adds to the usage of the session, whose entry before it is `entry`; None where it adds nothing."""
    facts, source = record.facts, entry.source
    if facts is None or facts.usage is None:
        return None
    if facts.usage_may_repeat and source is not None and source.usage_records_from is not None:
        return None
    return _item_of(entry, record, facts, facts.usage)


def _item_of(entry: Entry, record: Record, facts: LineFacts, usage: Usage) -> UsageItem:
    usage_id = facts.usage_id or record.message_id
    if usage_id is None:
        usage_id = usage_id_of({}, record.id, record.timestamp_ms)
    elif facts.usage_may_repeat:
        # Made of sums, which tell the requests of one session apart.
        usage_id = f"{entry.session_key} {usage_id}"
    return item_of(usage, usage_id, record.timestamp_ms, facts.usage_model or facts.model or entry.model)


def stated_costs(facts: LineFacts, total: float) -> dict[str, float]:
    """What a line says that the session has cost so far, by model."""
    costs = {model: cost for model, cost in facts.model_costs.items() if cost}
    rest = total - sum(costs.values())
    if abs(rest) <= total / 1e6:
        return costs
    return {**costs, UNKNOWN_MODEL: rest} if rest > 0 else {UNKNOWN_MODEL: total}


def _fold_usage(entry: Entry, record: Record, facts: LineFacts, usage: Usage, changes: dict[str, Any]) -> None:
    item = _item_of(entry, record, facts, usage)
    changes["usage"], replaced = count_item(changes.get("usage", entry.usage) or NOTHING_USED, item)
    for place, name in enumerate(("input_tokens", "output_tokens", "cache_read", "cache_write")):
        more = item.counts[place] - (replaced.counts[place] if replaced is not None else 0)
        changes[name] = max(0, min(MAX_WHOLE, (getattr(entry, name) or 0) + more))
    if facts.usage_model is None:
        changes["total_tokens"] = item.counts[4]
    cost = (item.cost or 0.0) - ((replaced.cost or 0.0) if replaced is not None else 0.0)
    if cost:
        changes["estimated_cost_usd"] = max(0.0, min(float(MAX_WHOLE), (entry.estimated_cost_usd or 0.0) + cost))


def _count_type(unknown: dict[str, int], kind: str) -> dict[str, int]:
    kind = UNSHOWN.sub("", kind)[:_MAX_TYPE_CHARS] or "none"
    if kind not in unknown and len(unknown) >= _MAX_UNKNOWN_TYPES - 1:
        kind = "others"
    return {**unknown, kind: unknown.get(kind, 0) + 1}
