"""The dialect of Codex. Of the two logs in its files (`response_item`, `event_msg`) the first has the conversation."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sessiond.model.dialects.codex_items import CodexItem, message_of
from sessiond.model.dialects.foreign_line import (
    ABSENT,
    iso_or_none,
    known_text,
    message_bytes,
    open_line,
    open_mended,
    open_part,
    token_count,
    type_in,
    unknown_record,
)
from sessiond.model.dialects.generic import foreign_dialect
from sessiond.model.lax import decoder_of
from sessiond.model.line_facts import GIVEN, LineFacts
from sessiond.model.record import Record
from sessiond.model.usage import Usage

# Lines and items that say nothing about the conversation. Other types are counted and shown by `doctor`.
_BOOKKEEPING = frozenset({"world_state", "inter_agent_communication", "inter_agent_communication_metadata"})
_ITEMS = frozenset(
    {
        *("message", "reasoning", "ghost_snapshot", "other"),
        *("compaction", "compaction_trigger", "compaction_summary", "context_compaction"),
    }
)


class _CodexLine(msgspec.Struct, frozen=True, gc=False):
    type: object = None
    timestamp: object = None
    payload: msgspec.Raw = ABSENT
    metadata: msgspec.Raw = ABSENT
    # The first line of old files is only this.
    id: object = None
    record_type: object = None


class _ItemMetadata(msgspec.Struct, frozen=True, gc=False):
    compaction_output: object = None


class _Meta(msgspec.Struct, frozen=True, gc=False):
    id: object = None
    timestamp: object = None
    cwd: object = None
    forked_from_id: object = None
    parent_thread_id: object = None
    model_provider: object = None
    source: msgspec.Raw = ABSENT


class _ThreadSpawn(msgspec.Struct, frozen=True, gc=False):
    parent_thread_id: object = None


class _SubagentSource(msgspec.Struct, frozen=True, gc=False):
    thread_spawn: _ThreadSpawn = _ThreadSpawn()


class _ThreadSource(msgspec.Struct, frozen=True, gc=False):
    subagent: _SubagentSource = _SubagentSource()


class _Turn(msgspec.Struct, frozen=True, gc=False):
    cwd: object = None
    model: object = None


class _Event(msgspec.Struct, frozen=True, gc=False):
    type: object = None
    info: msgspec.Raw = ABSENT
    thread_name: object = None


class _Tokens(msgspec.Struct, frozen=True, gc=False):
    input_tokens: object = None
    cached_input_tokens: object = None
    cache_write_input_tokens: object = None
    output_tokens: object = None
    total_tokens: object = None


class _TokenInfo(msgspec.Struct, frozen=True, gc=False):
    total_token_usage: msgspec.Raw = ABSENT
    last_token_usage: msgspec.Raw = ABSENT


class _UsageRecord(msgspec.Struct, frozen=True, gc=False):
    usage: msgspec.Raw = ABSENT
    response_id: object = None


_decode_line = decoder_of(_CodexLine).decode
_decode_item = decoder_of(CodexItem).decode
_decode_metadata = decoder_of(_ItemMetadata).decode
_decode_meta = decoder_of(_Meta).decode
_decode_source = decoder_of(_ThreadSource).decode
_decode_turn = decoder_of(_Turn).decode
_decode_event = decoder_of(_Event).decode
_decode_tokens = decoder_of(_Tokens).decode
_decode_info = decoder_of(_TokenInfo).decode
_decode_usage_record = decoder_of(_UsageRecord).decode


def parse(line: bytes) -> Record:
    """The record in a line (without newline). Raises BadLine where it is no JSON object."""
    opened, text = open_mended(_decode_line, line)
    kind = opened.type
    stamp = iso_or_none(opened.timestamp)
    if not isinstance(kind, str):
        return _untyped_record(opened, stamp, line)
    if kind == "response_item":
        return _item_record(kind, opened, open_part(_decode_item, opened.payload), stamp, line)
    read = _READERS.get(kind)
    if read is not None:
        return Record(kind, line, timestamp_ms=stamp, facts=read(opened.payload))
    if kind == "compacted":
        return Record(kind, line, timestamp_ms=stamp, marker="compaction")
    if kind in _BOOKKEEPING:
        return Record(kind, line, timestamp_ms=stamp)
    if not bytes(opened.payload):
        # The lines of old files are items themselves.
        return _item_record(kind, opened, open_line(_decode_item, text), stamp, line)
    return unknown_record(kind, line, stamp)


def _untyped_record(opened: _CodexLine, stamp: int | None, line: bytes) -> Record:
    """The first line of an old file, with the id of the session; others note that something was stored."""
    if opened.record_type is not None:
        return Record("", line, timestamp_ms=stamp)
    native = known_text(opened.id) if stamp is not None else None
    unknown = "" if native is None else None
    return Record("", line, timestamp_ms=stamp, facts=LineFacts(native_id=native, unknown_type=unknown))


def _item_record(kind: str, opened: _CodexLine, item: CodexItem | None, stamp: int | None, line: bytes) -> Record:
    if item is None:
        return Record(kind, line, timestamp_ms=stamp)
    metadata = open_part(_decode_metadata, opened.metadata)
    if metadata is not None and metadata.compaction_output is True:
        return Record(kind, line, timestamp_ms=stamp)
    message = message_of(item)
    own_id = known_text(item.id)
    if message is None:
        name = type_in(item.type)
        if name in _ITEMS or name.endswith(("_call", "_output")):
            return Record(kind, line, own_id, stamp)
        unknown = kind if name == kind else f"{kind}/{name}"
        return Record(kind, line, own_id, stamp, facts=LineFacts(unknown_type=unknown))
    is_typed = message["role"] == "user"
    return Record(kind, line, own_id, stamp, message["role"], message_bytes(message, stamp), is_typed=is_typed)


def _meta_facts(payload: msgspec.Raw) -> LineFacts | None:
    meta = open_part(_decode_meta, payload)
    if meta is None:
        return None
    source = open_part(_decode_source, meta.source)
    parent = meta.parent_thread_id or (source.subagent.thread_spawn.parent_thread_id if source else None)
    return LineFacts(
        native_id=known_text(meta.id),
        cwd=known_text(meta.cwd),
        created_ms=iso_or_none(meta.timestamp),
        provider=known_text(meta.model_provider),
        forked_from=known_text(meta.forked_from_id),
        spawned_by=known_text(parent),
    )


def _turn_facts(payload: msgspec.Raw) -> LineFacts | None:
    turn = open_part(_decode_turn, payload)
    return LineFacts(cwd=known_text(turn.cwd), model=known_text(turn.model)) if turn else None


def _event_facts(payload: msgspec.Raw) -> LineFacts | None:
    event = open_part(_decode_event, payload)
    if event is None:
        return None
    if event.type == "thread_name_updated":
        return LineFacts(title=known_text(event.thread_name), title_rank=GIVEN)
    if event.type != "token_count":
        return None
    info = open_part(_decode_info, event.info)
    usage = _usage(info.last_token_usage) if info is not None else None
    total = open_part(_decode_tokens, info.total_token_usage) if info is not None else None
    if usage is None or total is None:
        return None
    # Written again, unchanged, when the next request begins: the sum so far tells whether it is the same.
    sums = (total.input_tokens, total.cached_input_tokens, total.output_tokens, total.total_tokens)
    usage_id = "total:" + "/".join(str(token_count(number)) for number in sums)
    return LineFacts(usage=usage, usage_id=usage_id, usage_may_repeat=True)


def _usage_record_facts(payload: msgspec.Raw) -> LineFacts | None:
    record = open_part(_decode_usage_record, payload)
    usage = _usage(record.usage) if record is not None else None
    if record is None or usage is None:
        return None
    return LineFacts(usage=usage, usage_id=known_text(record.response_id))


def _usage(part: msgspec.Raw) -> Usage | None:
    """The usage of one request, None where nothing was used. Its input is without what came from the cache."""
    tokens = open_part(_decode_tokens, part)
    if tokens is None:
        return None
    sent, cached = token_count(tokens.input_tokens), token_count(tokens.cached_input_tokens)
    received, written = token_count(tokens.output_tokens), token_count(tokens.cache_write_input_tokens)
    if not (sent or received):
        return None
    return Usage(max(0, sent - cached), received, cached, written, token_count(tokens.total_tokens))


_READERS: dict[str, Callable[[msgspec.Raw], LineFacts | None]] = {
    "session_meta": _meta_facts,
    "turn_context": _turn_facts,
    "event_msg": _event_facts,
    "token_usage_record": _usage_record_facts,
}

DIALECT = foreign_dialect("codex", parse, usage_sign=b"token_usage", usage_signs=(b"turn_context",), dates_copies=True)
