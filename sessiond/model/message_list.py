"""The list of messages that a log of changes makes: for programs that replace messages, cut the list, or replace it.

Pure. Every message has a key: a message with a known key takes the place of the earlier one. Only hashes of the keys
are kept, those of the newest messages, so that each step takes the same time however long the list is. The fold and the
readers of such transcripts use the same steps, so that they agree on numbers.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import fold_foreign
from sessiond.model.record import Record
from sessiond.model.source_facts import OpenMessage, SourceFacts

_HASH_BYTES = 8
# A message that is further back cannot be replaced any more, and a rewind to it empties the list.
MAX_KEPT = 1024


class ListState(msgspec.Struct, frozen=True, gc=False):
    """`count` messages; `keys` are the hashes of the keys of the newest ones."""

    count: int = 0
    keys: bytes = b""


class ListChange(msgspec.Struct, frozen=True, gc=False):
    """What one line does: the first `kept` messages stay, then `placed` get their numbers (from 1).

    `is_cut`: messages that were there before are gone.
    """

    kept: int
    placed: list[tuple[int, Record]] = []
    is_cut: bool = False


def apply_line(state: ListState, record: Record) -> tuple[ListState, ListChange]:
    """The list after a line, and what changed."""
    before = state
    if record.replaces:
        state = ListState()
    elif record.marker == "rewind":
        number = _number_of(state, hash_key(record.rewind_to or ""))
        if number is not None or not record.is_addition:
            state = _cut_at(state, number)
        return state, ListChange(state.count, is_cut=state.count < before.count)
    placed: list[tuple[int, Record]] = []
    for message in messages_in(record):
        hashed = hash_key(message.message_id or "")
        number = _number_of(state, hashed)
        if number is None and message.is_addition:
            continue
        if number is None:
            state = ListState(state.count + 1, (state.keys + hashed)[-MAX_KEPT * _HASH_BYTES :])
            placed.append((state.count, message))
        elif not message.is_echo:
            placed.append((number, message))
    if record.replaces and state.keys.startswith(before.keys) and not before.count > MAX_KEPT:
        # The list as it was, perhaps written in another form, and what is new behind it.
        return state, ListChange(before.count, [one for one in placed if one[0] > before.count])
    kept = 0 if record.replaces else before.count
    return state, ListChange(kept, placed, is_cut=record.replaces and before.count > 0)


def messages_in(record: Record) -> tuple[Record, ...]:
    """All messages of a line."""
    return (record, *record.more) if record.message is not None else record.more


def state_of(entry: Entry) -> ListState:
    """The list of a session."""
    return ListState(entry.message_count, entry.source.keys if entry.source is not None else b"")


def fold_listed(entry: Entry, record: Record, offset: int, mtime_ms: int) -> Entry:
    """As `fold_foreign`, where the lines change a list of messages."""
    if record.message is None and not record.more and not record.replaces and record.marker is None:
        return fold_foreign(entry, record, offset, mtime_ms)
    before = entry.source.opened if entry.source is not None else None
    state, change = apply_line(state_of(entry), record)
    for one in (record, *record.more):
        entry = fold_foreign(entry, one, offset, mtime_ms)
    source = entry.source if entry.source is not None else SourceFacts(name="")
    source = replace(source, keys=state.keys, opened=_newest_with_parts(before, change, offset))
    return replace(entry, source=source, message_count=state.count)


def _newest_with_parts(opened: OpenMessage | None, change: ListChange, offset: int) -> OpenMessage | None:
    """The newest message that is written part by part, by which its earlier parts are found."""
    if opened is not None and opened.seq > change.kept:
        opened = None
    for number, message in change.placed:
        if message.part_key is not None and number > change.kept:
            opened = OpenMessage(message.message_id or "", offset, number, 1)
    return opened


def hash_key(key: str) -> bytes:
    """The hash of a message's key."""
    return blake2b(key.encode("utf-8", "replace"), digest_size=_HASH_BYTES).digest()


def _number_of(state: ListState, hashed: bytes) -> int | None:
    place = state.keys.rfind(hashed)
    while place >= 0 and place % _HASH_BYTES:
        place = state.keys.rfind(hashed, 0, place + _HASH_BYTES - 1)
    if place < 0:
        return None
    return state.count - (len(state.keys) - place) // _HASH_BYTES + 1


def _cut_at(state: ListState, number: int | None) -> ListState:
    if number is None:
        return ListState()
    gone = state.count - number + 1
    return ListState(number - 1, state.keys[: len(state.keys) - gone * _HASH_BYTES])
