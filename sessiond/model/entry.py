"""The entry of a session and the fold that makes it: entry x record -> entry.

Pure: the same lines always give the same entry, whoever wrote them and however often the daemon was started between.
Source: store.md, "The index"; shapes.md, "Settled readings" (`updatedAt`, adoption, foreign status words).
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from sessiond.model import record as records
from sessiond.model.record import FINAL, Record

# A session remembers this many of its newest idempotency keys: enough for any retry, and the entry stays small.
MAX_KEYED_RUNS = 1000
# A foreign `running` ended with the program that wrote it; how is not known.
_FOREIGN_STATUS = {"done": "ok", "failed": "error", "killed": "aborted", "running": None}
_FOREIGN_NAMES = {"provider": "channel", "surface": "channel", "lastProvider": "lastChannel", "room": "groupId"}


class FileFacts(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """How far the fold has read which file. `folded_to` is the offset behind the last whole line."""

    bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    folded_to: int = 0
    last_id: str | None = None


class LiveRun(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A run that has not ended. `offset` is where its accepted record stands."""

    run_id: str
    offset: int
    accepted_at: int = 0
    started_at: int | None = None


class KeyedRun(msgspec.Struct, frozen=True, rename="camel", gc=False, array_like=True):
    """An idempotency key that was used: `[key, runId, hash of the payload]`."""

    key: str
    run_id: str
    payload: str


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What is known of a session; times are milliseconds since 1970. Unset fields are absent on disk."""

    session_id: str
    session_key: str = ""
    updated_at: int = 0
    created_at: int = 0
    cwd: str | None = None
    channel: str | None = None
    group_id: str | None = None
    chat_type: str | None = None
    display_name: str | None = None
    subject: str | None = None
    last_channel: str | None = None
    last_to: str | None = None
    last_account_id: str | None = None
    delivery_context: dict[str, Any] | None = None
    model: str | None = None
    model_provider: str | None = None
    model_override: str | None = None
    thinking_level: str | None = None
    verbose_level: str | None = None
    system_sent: bool | None = None
    aborted_last_run: bool | None = None
    send_policy: str | None = None
    label: str | None = None
    spawned_by: str | None = None
    spawn_depth: int | None = None
    sandboxed: bool | None = None
    spawn: dict[str, Any] | None = None
    native_session_id: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None
    context_tokens: int | None = None
    estimated_cost_usd: float | None = None
    status: str | None = None
    started_at: int | None = None
    ended_at: int | None = None
    runtime_ms: int | None = None
    message_count: int = 0
    corrupt_records: int = 0
    runs: tuple[LiveRun, ...] = ()
    keyed: tuple[KeyedRun, ...] = ()
    file: FileFacts = FileFacts()


# What a `sessiond/entry` record may set, by wire name. The rest of its data stays in the file and does nothing.
_PATCHABLE: dict[str, tuple[str, Any]] = {
    field.encode_name: (field.name, field.type)
    for field in msgspec.structs.fields(Entry)
    if field.name not in {"session_id", "session_key", "runs", "keyed", "file", "message_count", "corrupt_records"}
}
_DEFAULTS = {
    field.name: (None if field.default is msgspec.NODEFAULT else field.default)
    for field in msgspec.structs.fields(Entry)
}


class _Usage(msgspec.Struct, frozen=True, rename="camel", gc=False):
    input: float = 0
    output: float = 0
    cache_read: float = 0
    cache_write: float = 0
    total_tokens: float = 0
    cost: Any = None


class _AssistantHead(msgspec.Struct, frozen=True, gc=False):
    usage: msgspec.Raw = msgspec.Raw()
    model: object = None
    provider: object = None


_decode_assistant = msgspec.json.Decoder(_AssistantHead).decode
_decode_usage = msgspec.json.Decoder(_Usage, strict=False).decode


def fold(entry: Entry, record: Record, offset: int, mtime_ms: int) -> Entry:
    """The entry after `record`, which stands at `offset`. `mtime_ms` serves records without any time of their own."""
    if record.message is not None:
        return _fold_message(entry, record, mtime_ms)
    match record.type, record.custom_type:
        case "session", _:
            return _fold_header(entry, record, mtime_ms)
        case "custom", records.ENTRY:
            return _fold_patch(entry, _data(record))
        case "custom", records.RUN:
            return _fold_run(entry, _data(record), offset)
        case "model_change", _:
            body = record.body()
            return replace(entry, model=_text(body.get("modelId")), model_provider=_text(body.get("provider")))
        case "thinking_level_change", _:
            return replace(entry, thinking_level=_text(record.body().get("thinkingLevel")))
        case "session_info", _:
            name = _text(record.body().get("name"))
            return replace(entry, display_name=name) if name else entry
        case _:
            return entry


def fold_bad(entry: Entry) -> Entry:
    """The entry after a line that is no record."""
    return replace(entry, corrupt_records=entry.corrupt_records + 1)


def _fold_header(entry: Entry, record: Record, mtime_ms: int) -> Entry:
    body = record.body()
    created = record.timestamp_ms if record.timestamp_ms is not None else mtime_ms
    return replace(
        entry,
        session_key=_text(body.get("sessionKey")) or entry.session_key,
        spawned_by=_text(body.get("spawnedBy")) or entry.spawned_by,
        cwd=_text(body.get("cwd")) or entry.cwd,
        created_at=entry.created_at or created,
        updated_at=entry.updated_at or created,
    )


def _fold_message(entry: Entry, record: Record, mtime_ms: int) -> Entry:
    stamp = record.timestamp_ms if record.timestamp_ms is not None else mtime_ms
    count, updated = entry.message_count + 1, max(entry.updated_at, stamp)
    if record.role != "assistant":
        return replace(entry, message_count=count, updated_at=updated)
    assert record.message is not None
    head = _decode_assistant(record.message)
    changes: dict[str, Any] = {"message_count": count, "updated_at": updated}
    usage = read_usage(head.usage)
    if usage is not None:
        changes |= _add_usage(entry, usage)
        # A message without usage is a note somebody injected; it does not say which model the session runs on.
        if usage.total_tokens and isinstance(head.model, str):
            changes["model"] = head.model
            changes["model_provider"] = _text(head.provider) or entry.model_provider
    return replace(entry, **changes)


def read_usage(raw: msgspec.Raw | bytes) -> _Usage | None:
    """The usage object of an assistant message, None where there is none or it is not one."""
    try:
        usage = _decode_usage(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return usage if usage.total_tokens or usage.input or usage.output else None


def cost_of(usage: _Usage) -> float | None:
    """USD, where the usage says so."""
    total = usage.cost.get("total") if isinstance(usage.cost, dict) else usage.cost
    return float(total) if isinstance(total, (int, float)) and not isinstance(total, bool) else None


def _add_usage(entry: Entry, usage: _Usage) -> dict[str, Any]:
    added: dict[str, Any] = {
        "input_tokens": (entry.input_tokens or 0) + int(usage.input),
        "output_tokens": (entry.output_tokens or 0) + int(usage.output),
        "cache_read": (entry.cache_read or 0) + int(usage.cache_read),
        "cache_write": (entry.cache_write or 0) + int(usage.cache_write),
        # The last total is how full the context is; adding them up would count the conversation again each turn.
        "total_tokens": int(usage.total_tokens)
        or int(usage.input + usage.output + usage.cache_read + usage.cache_write),
    }
    cost = cost_of(usage)
    if cost is not None:
        added["estimated_cost_usd"] = (entry.estimated_cost_usd or 0.0) + cost
    return added


def _fold_patch(entry: Entry, data: dict[str, Any]) -> Entry:
    changes: dict[str, Any] = {}
    for name, value in data.items():
        name = _FOREIGN_NAMES.get(name, name)
        if name == "sessionKey" and isinstance(value, str):
            changes["session_key"] = value
        if name not in _PATCHABLE:
            continue
        field, kind = _PATCHABLE[name]
        if value is None:
            changes[field] = _DEFAULTS[field]
            continue
        if name == "status":
            value = _FOREIGN_STATUS.get(value, value) if isinstance(value, str) else value
        try:
            changes[field] = msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
    return replace(entry, **changes) if changes else entry


def _fold_run(entry: Entry, data: dict[str, Any], offset: int) -> Entry:
    run_id, status, at = data.get("runId"), data.get("status"), data.get("at")
    if not isinstance(run_id, str) or not isinstance(at, int):
        return entry
    if status == "accepted":
        if any(run.run_id == run_id for run in entry.runs):
            return entry
        waiting = LiveRun(run_id=run_id, offset=offset, accepted_at=at)
        return replace(
            entry,
            runs=(*entry.runs, waiting),
            keyed=_remember(entry.keyed, data, run_id),
            status=entry.status if entry.status == "running" else "queued",
        )
    live = {run.run_id: run for run in entry.runs}
    if status == "running" and run_id in live:
        live[run_id] = replace(live[run_id], started_at=at)
        return replace(
            entry,
            runs=tuple(live.values()),
            status="running",
            started_at=at,
            ended_at=None,
            runtime_ms=None,
            aborted_last_run=False,
        )
    if status in FINAL and run_id in live:
        return _fold_end(entry, data, live, status, at)
    return entry


def _fold_end(entry: Entry, data: dict[str, Any], live: dict[str, LiveRun], status: str, at: int) -> Entry:
    ended = live.pop(data["runId"])
    cost = data.get("estimatedCostUsd")
    return replace(
        entry,
        runs=tuple(live.values()),
        status=status,
        started_at=ended.started_at if ended.started_at is not None else at,
        ended_at=at,
        runtime_ms=max(0, at - ended.started_at) if ended.started_at is not None else 0,
        aborted_last_run=status == "aborted",
        estimated_cost_usd=(entry.estimated_cost_usd or 0.0) + cost
        if isinstance(cost, (int, float))
        else entry.estimated_cost_usd,
    )


def _remember(keyed: tuple[KeyedRun, ...], data: dict[str, Any], run_id: str) -> tuple[KeyedRun, ...]:
    key, payload = data.get("idempotencyKey"), data.get("payload")
    if not isinstance(key, str) or not isinstance(payload, str):
        return keyed
    return (*keyed[-(MAX_KEYED_RUNS - 1) :], KeyedRun(key, run_id, payload))


def _data(record: Record) -> dict[str, Any]:
    if record.data is None or record.data[:1] != b"{":
        return {}
    decoded: dict[str, Any] = msgspec.json.decode(record.data)
    return decoded


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
