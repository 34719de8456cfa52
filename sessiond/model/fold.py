"""The fold that makes an entry: entry x record -> entry.

Pure: the same lines always give the same entry, whoever wrote them and however often the daemon was started between.
Source: store.md, "The fold".
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec.structs import replace

from sessiond.model import lax
from sessiond.model import record as records
from sessiond.model.entry import MAX_OPEN_RUNS, MAX_QUESTION_REFS, ConversationRef, Entry, KeyedRun, LiveRun, RunId
from sessiond.model.hook import fold_hook, read_hook
from sessiond.model.keys import ForeignKey
from sessiond.model.lax import MAX_WHOLE, amount, decoder_of, whole_ms
from sessiond.model.message import UNKNOWN_MODEL, text_of
from sessiond.model.patching import is_settable, patch_entry
from sessiond.model.question import read_question
from sessiond.model.question_fold import fold_answer, fold_question, is_full
from sessiond.model.record import FINAL, Record
from sessiond.model.title import first_words
from sessiond.model.usage import Usage, usage_id_of, usage_in
from sessiond.model.usage_rows import NOTHING_USED, OWN_RECENT, UsageItem, count_item, item_of, note_summary

# Raise it whenever the same lines give another entry than before: entries in an index with an older version are folded
# again. tests/model/test_fold_version.py checks it.
FOLD_VERSION = 21

# An entry keeps so many of its newest idempotency keys: enough for any retry, and it stays small.
MAX_KEYED_RUNS = 1000


class RunNote(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The part of a `sessiond/run` record that the fold uses."""

    run_id: RunId
    status: str
    at: object
    idempotency_key: str | None = None
    payload: str | None = None
    usage: object = None
    model: str | None = None
    estimated_cost_usd: object = None
    step: object = None


class ConversationNote(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The part of a `sessiond/talk` record, which opens or closes a conversation, that the fold uses."""

    talk_id: RunId
    status: str


class NativeNote(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """The part of a `sessiond/native` record, about the agent program's own session, that the fold uses."""

    native_id: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    required: object = None
    cost_usd: object = None
    context_tokens: object = None


_decode_run = decoder_of(RunNote).decode
_NOTES: dict[str, type[msgspec.Struct]] = {
    records.RUN: RunNote,
    records.CONVERSATION: ConversationNote,
    records.NATIVE: NativeNote,
}


def ineffective_reason(entry: Entry, record: Record) -> str | None:
    """Why a `sessiond/...` record had no effect on `entry`, None where that is no mistake.

    For the log and for `sessiond doctor`.
    """
    kind = _NOTES.get(record.custom_type or "")
    if record.custom_type == records.ENTRY:
        wrong = [name for name, value in lax.decode_dict(record.data).items() if not is_settable(name, value)]
        return f"a {records.ENTRY} record with {', '.join(wrong[:5])} of no use" if wrong else None
    if record.custom_type == records.QUESTION:
        if is_full(entry):
            return f"a question asked while {MAX_QUESTION_REFS} were open already, as many as a session may have"
        return f"a {records.QUESTION} record that asks nothing" if read_question(record.data) is None else None
    if record.custom_type == records.HOOK:
        return f"a {records.HOOK} record that says nothing" if read_hook(record.data, 0) is None else None
    note = lax.decode_fitting(record.data, kind) if kind is not None else None
    if isinstance(note, RunNote) and note.status == "accepted" and len(entry.runs) >= MAX_OPEN_RUNS:
        return f"a run accepted while {MAX_OPEN_RUNS} were open already, as many as a session may have"
    if kind is None or (note is not None and whole_ms(getattr(note, "at", 0)) is not None):
        return None
    return f"a {record.custom_type} record that says nothing"


def fold(entry: Entry, record: Record, offset: int, mtime_ms: int) -> Entry:
    """The entry after `record`, whose line begins at `offset`. `mtime_ms` is used for records without a timestamp.

    Never raises: a field with an unusable value is ignored.
    """
    if record.message is not None:
        return _fold_message(entry, record, mtime_ms)
    match record.type, record.custom_type:
        case "session", _:
            # A header at any other offset is part of another file that was inserted.
            return _fold_header(entry, record, mtime_ms) if offset == 0 else entry
        case "custom", records.ENTRY:
            return patch_entry(entry, lax.decode_dict(record.data))
        case "custom", records.RUN:
            run = _run_note(record.data)
            return entry if run is None else _fold_run(entry, run, offset)
        case "custom", records.CONVERSATION:
            note = lax.decode_fitting(record.data, ConversationNote)
            return entry if note is None else _fold_conversation(entry, note, offset)
        case "custom", records.NATIVE:
            native = lax.decode_fitting(record.data, NativeNote)
            return entry if native is None else _fold_native(entry, native)
        case "custom", records.QUESTION:
            return fold_question(entry, record.data, offset)
        case "custom", records.ANSWER:
            return fold_answer(entry, record.data, offset)
        case "custom", records.HOOK:
            return fold_hook(entry, record.data, offset)
        case "model_change", _:
            body = record.body()
            return replace(entry, model=_text(body.get("modelId")), model_provider=_text(body.get("provider")))
        case "thinking_level_change", _:
            return replace(entry, thinking_level=_text(record.body().get("thinkingLevel")))
        case "session_info", _:
            name = _text(record.body().get("name"))
            return replace(entry, display_name=name) if name else entry
        case "compaction", _ if entry.usage is not None:
            return replace(entry, usage=note_summary(entry.usage))
        case _:
            return entry


def _run_note(data: bytes | None) -> RunNote | None:
    try:
        return _decode_run(data) if data else None
    except (msgspec.DecodeError, ValueError, RecursionError):
        return lax.decode_fitting(data, RunNote)


def fold_bad_line(entry: Entry) -> Entry:
    """The entry after a line that is no record (BadLine)."""
    return replace(entry, corrupt_records=entry.corrupt_records + 1)


def _fold_header(entry: Entry, record: Record, mtime_ms: int) -> Entry:
    body = record.body()
    key = _text(body.get("sessionKey"))
    is_named_otherwise = record.id is not None and record.id != entry.session_id
    created = record.timestamp_ms if record.timestamp_ms is not None else mtime_ms
    return replace(
        entry,
        session_key=key or entry.session_key,
        spawned_by=_text(body.get("spawnedBy")) or entry.spawned_by,
        cwd=_text(body.get("cwd")) or entry.cwd,
        attends=_foreign_key(body.get("attends")) or entry.attends,
        is_named_otherwise=is_named_otherwise,
        is_copy=is_named_otherwise and key is not None,
        created_at=entry.created_at or created,
        updated_at=entry.updated_at or created,
    )


def _fold_message(entry: Entry, record: Record, mtime_ms: int) -> Entry:
    stamp = record.timestamp_ms if record.timestamp_ms is not None else mtime_ms
    # Until the first message `updated_at` is the time in the header.
    updated = max(entry.updated_at, stamp) if entry.message_count else stamp
    entry = note_disorder(entry, record, updated)
    count = entry.message_count + 1
    if record.role != "assistant":
        said = _first_words(entry, record) if record.role == "user" else {}
        return replace(entry, message_count=count, updated_at=updated, **said)
    message = _decode_message(record)
    usage = usage_in(message.get("usage"))
    if usage is None:
        return replace(entry, message_count=count, updated_at=updated)
    changes = _add_usage(entry, usage, _message_item(record, message, usage))
    # Only messages with usage say which model the session uses; others were injected.
    model = _text(message.get("model"))
    if model is not None and model != UNKNOWN_MODEL:
        changes["model"] = model
        changes["model_provider"] = _text(message.get("provider")) or entry.model_provider
    return replace(entry, message_count=count, updated_at=updated, **changes)


def note_disorder(entry: Entry, record: Record, newest_ms: int) -> Entry:
    """The entry after a message, of which the newest so far has the time `newest_ms`.

    Whoever reads a file backwards knows by it what may still come. A message without a time counts as if it were of the
    session's beginning.
    """
    behind = newest_ms - (record.timestamp_ms if record.timestamp_ms is not None else entry.created_at)
    return replace(entry, disorder_ms=behind) if behind > entry.disorder_ms else entry


def _first_words(entry: Entry, record: Record) -> dict[str, str | None]:
    """The field of the entry that the beginning of a message gives: `title` where a person typed it, `task` where it is
    that of a sub-agent, or of another session.
    """
    message = record.message or b""
    is_task = entry.spawned_by is not None or b'"inter_session"' in message
    if entry.title is not None or (is_task and entry.task is not None) or (not is_task and b'"provenance"' in message):
        return {}
    return {"task" if is_task else "title": first_words(text_of(message, "\n"))}


def used_item(entry: Entry, record: Record) -> UsageItem | None:
    """What a record adds to the usage of the session, whose entry before it is `entry`; None where it adds nothing."""
    if record.message is not None and record.role == "assistant":
        message = _decode_message(record)
        usage = usage_in(message.get("usage"))
        return _message_item(record, message, usage) if usage is not None else None
    if record.custom_type != records.RUN:
        return None
    run = _run_note(record.data)
    if run is None or run.status not in FINAL or whole_ms(run.at) is None or _index_of(entry.runs, run.run_id) is None:
        return None
    usage = usage_in(run.usage)
    return _run_item(entry, run, usage) if usage is not None else None


def _decode_message(record: Record) -> dict[str, Any]:
    return record.decoded if record.decoded is not None else lax.decode_dict(record.message)


def _message_item(record: Record, message: dict[str, Any], usage: Usage) -> UsageItem:
    usage_id = usage_id_of(message, record.id, record.timestamp_ms)
    return item_of(usage, usage_id, record.timestamp_ms, _text(message.get("model")))


def _run_item(entry: Entry, run: RunNote, usage: Usage) -> UsageItem:
    return item_of(usage, f"run:{run.run_id}", whole_ms(run.at), _text(run.model) or entry.model)


def _add_usage(entry: Entry, usage: Usage, item: UsageItem) -> dict[str, Any]:
    used, replaced = count_item(entry.usage or NOTHING_USED, item, OWN_RECENT)
    more = (
        item.counts if replaced is None else [new - old for new, old in zip(item.counts, replaced.counts, strict=True)]
    )
    parts = usage.input, usage.output, usage.cache_read, usage.cache_write
    added: dict[str, Any] = {
        "input_tokens": _sum(entry.input_tokens, more[0]),
        "output_tokens": _sum(entry.output_tokens, more[1]),
        "cache_read": _sum(entry.cache_read, more[2]),
        "cache_write": _sum(entry.cache_write, more[3]),
        # The newest total is the size of the context. A sum would count the conversation again with each turn.
        "total_tokens": int(usage.total_tokens) or _sum(0, sum(parts)),
        "usage": used,
    }
    cost = (item.cost or 0.0) - ((replaced.cost or 0.0) if replaced is not None else 0.0)
    if cost:
        added["estimated_cost_usd"] = _sum_usd(entry.estimated_cost_usd, cost)
    return added


def _sum(before: int | None, more: float) -> int:
    count = (before or 0) + int(more)
    return count if 0 <= count <= MAX_WHOLE else max(0, min(MAX_WHOLE, count))


def _sum_usd(before: float | None, more: float) -> float:
    return max(0.0, min(float(MAX_WHOLE), (before or 0.0) + more))


def _fold_run(entry: Entry, run: RunNote, offset: int) -> Entry:
    run_id, status, at = run.run_id, run.status, whole_ms(run.at)
    if at is None:
        return entry
    if status == "accepted":
        # The bound is checked first, so that runs beyond it cost no search.
        if len(entry.runs) >= MAX_OPEN_RUNS or _index_of(entry.runs, run_id) is not None:
            return entry
        # The row of a child shows its task, not the announce step afterwards.
        aside = run.step == "announce" and entry.spawn is not None
        waiting = LiveRun(run_id=run_id, offset=offset, accepted_at=at, aside=aside)
        entry = replace(entry, runs=(*entry.runs, waiting), keyed=_add_key(entry.keyed, run))
        if aside:
            return entry
        return replace(
            entry,
            status=entry.status if entry.status == "running" else "queued",
        )
    place = _index_of(entry.runs, run_id) if status == "running" or status in FINAL else None
    if status == "running" and place is not None:
        begun = replace(entry.runs[place], started_at=at)
        entry = replace(entry, runs=(*entry.runs[:place], begun, *entry.runs[place + 1 :]))
        if begun.aside:
            return entry
        return replace(
            entry,
            status="running",
            started_at=at,
            ended_at=None,
            runtime_ms=None,
            aborted_last_run=False,
        )
    if place is not None:
        return _fold_end(entry, run, place, at)
    # A message given to a live run, and one that was stored without starting a run.
    if status in ("steered", "noted"):
        return replace(entry, keyed=_add_key(entry.keyed, run))
    return entry


def _index_of(runs: tuple[LiveRun, ...], run_id: str) -> int | None:
    # A search is enough: runs end in about the order of their acceptance, so it is one of the first.
    for place, one in enumerate(runs):
        if one.run_id == run_id:
            return place
    return None


def _fold_end(entry: Entry, run: RunNote, place: int, at: int) -> Entry:
    ended = entry.runs[place]
    # The record of the end has the usage only if no message of the run has it.
    usage = usage_in(run.usage)
    if usage is not None:
        changes = _add_usage(entry, usage, _run_item(entry, run, usage))
        entry = replace(entry, **changes, model=_text(run.model) or entry.model)
    cost = amount(run.estimated_cost_usd)
    cost_usd = entry.estimated_cost_usd if cost is None else _sum_usd(entry.estimated_cost_usd, cost)
    entry = replace(entry, runs=(*entry.runs[:place], *entry.runs[place + 1 :]), estimated_cost_usd=cost_usd)
    if ended.aside:
        return entry
    return replace(
        entry,
        status=run.status,
        started_at=ended.started_at if ended.started_at is not None else at,
        ended_at=at,
        runtime_ms=max(0, at - ended.started_at) if ended.started_at is not None else 0,
        aborted_last_run=run.status == "aborted",
    )


def _fold_conversation(entry: Entry, note: ConversationNote, offset: int) -> Entry:
    others = tuple(one for one in entry.talks if one.talk_id != note.talk_id)
    if note.status == "open" and others == entry.talks:
        return replace(entry, talks=(*others, ConversationRef(note.talk_id, offset)))
    if note.status == "closed" and others != entry.talks:
        return replace(entry, talks=others)
    return entry


def _fold_native(entry: Entry, note: NativeNote) -> Entry:
    is_new = note.native_id != entry.native_session_id
    cost_usd, context = amount(note.cost_usd), whole_ms(note.context_tokens)
    if cost_usd is None and not is_new:
        cost_usd = entry.native_cost_usd
    return replace(
        entry,
        native_session_id=note.native_id,
        native_required=note.required is True,
        native_cost_usd=cost_usd,
        context_tokens=context or entry.context_tokens,
    )


def _add_key(keyed: tuple[KeyedRun, ...], run: RunNote) -> tuple[KeyedRun, ...]:
    if run.idempotency_key is None or run.payload is None:
        return keyed
    return (*keyed[-(MAX_KEYED_RUNS - 1) :], KeyedRun(run.idempotency_key, run.run_id, run.payload))


_FOREIGN_KEY: Any = ForeignKey


def _foreign_key(value: object) -> str | None:
    key: str | None = lax.convert(value, _FOREIGN_KEY)
    return key


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
