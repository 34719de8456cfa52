"""The fold that makes an entry: entry x record -> entry.

Pure: the same lines always give the same entry, whoever wrote them and however often the daemon was started between.
Source: store.md, "A transcript"; shapes.md, "Settled readings" (`updatedAt`, adoption, foreign status words).
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
from msgspec.structs import replace

from sessiond.model import record as records
from sessiond.model.entry import Entry, KeyedRun, LiveRun, OpenTalk
from sessiond.model.record import FINAL, Record, whole_ms
from sessiond.model.usage import MAX_WHOLE, Usage, amount, cost_of, usage_in

# A session remembers this many of its newest idempotency keys: enough for any retry, and the entry stays small.
MAX_KEYED_RUNS = 1000
# A foreign `running` ended with the program that wrote it; how is not known.
_FOREIGN_STATUS = {"done": "ok", "failed": "error", "killed": "aborted", "running": None}
_FOREIGN_NAMES = {"provider": "channel", "surface": "channel", "lastProvider": "lastChannel", "room": "groupId"}

# What a `sessiond/entry` record may set, by wire name. The rest of its data stays in the file and does nothing.
# When a session began and when something was last said in it are told by its header and its messages alone.
_PATCHABLE: dict[str, tuple[str, Any]] = {
    field.encode_name: (field.name, field.type)
    for field in msgspec.structs.fields(Entry)
    if field.name
    not in {
        "session_id",
        "session_key",
        "updated_at",
        "created_at",
        "runs",
        "keyed",
        "talks",
        "file",
        "message_count",
        "corrupt_records",
    }
}


def fold(entry: Entry, record: Record, offset: int, mtime_ms: int) -> Entry:
    """The entry after `record`, which stands at `offset`. `mtime_ms` serves records without any time of their own."""
    if record.message is not None:
        return _fold_message(entry, record, mtime_ms)
    match record.type, record.custom_type:
        case "session", _:
            # A header anywhere else is another file's, spliced in.
            return _fold_header(entry, record, mtime_ms) if offset == 0 else entry
        case "custom", records.ENTRY:
            return _fold_patch(entry, _data(record))
        case "custom", records.RUN:
            return _fold_run(entry, _data(record), offset)
        case "custom", records.TALK:
            return _fold_talk(entry, _data(record), offset)
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
    # Until the first message the header's time stands in.
    updated = max(entry.updated_at, stamp) if entry.message_count else stamp
    count = entry.message_count + 1
    if record.role != "assistant":
        return replace(entry, message_count=count, updated_at=updated)
    message = record.decoded if record.decoded is not None else msgspec.json.decode(record.message or b"{}")
    usage = usage_in(message.get("usage"))
    if usage is None:
        return replace(entry, message_count=count, updated_at=updated)
    changes = _add_usage(entry, usage)
    # A message without usage is a note somebody injected; it does not say which model the session runs on.
    model = _text(message.get("model"))
    if model is not None:
        changes["model"] = model
        changes["model_provider"] = _text(message.get("provider")) or entry.model_provider
    return replace(entry, message_count=count, updated_at=updated, **changes)


def _add_usage(entry: Entry, usage: Usage) -> dict[str, Any]:
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
        if name in _FOREIGN_NAMES:
            name = _FOREIGN_NAMES[name]
            if name in data:
                continue  # the new name says it already
        if name == "sessionKey" and isinstance(value, str) and value.startswith("agent:"):
            changes["session_key"] = value
        if name not in _PATCHABLE:
            continue
        field, kind = _PATCHABLE[name]
        if name == "status" and isinstance(value, str):
            value = _FOREIGN_STATUS.get(value, value)
        try:
            changes[field] = _patched(getattr(entry, field), value, kind)
        except msgspec.ValidationError:
            continue
    return replace(entry, **changes) if changes else entry


def _patched(old: Any, patch: Any, kind: Any) -> Any:
    """The value of a field after a merge patch. ValidationError where it would be none."""
    value = msgspec.convert(merge_patch(old, patch), kind)
    if isinstance(value, (int, float)) and not (math.isfinite(value) and abs(value) <= MAX_WHOLE):
        raise msgspec.ValidationError("out of range")
    return value


def merge_patch(target: Any, patch: Any) -> Any:
    """`target` after a JSON merge patch. Source: RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def _fold_run(entry: Entry, data: dict[str, Any], offset: int) -> Entry:
    run_id, status, at = data.get("runId"), data.get("status"), whole_ms(data.get("at"))
    if not isinstance(run_id, str) or at is None:
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
    # A message that came in the middle of a run, and one that was written down and started none.
    if status in ("steered", "noted"):
        return replace(entry, keyed=_remember(entry.keyed, data, run_id))
    return entry


def _fold_end(entry: Entry, data: dict[str, Any], live: dict[str, LiveRun], status: str, at: int) -> Entry:
    ended = live.pop(data["runId"])
    # Here where no message of the run carries it.
    usage = usage_in(data.get("usage"))
    if usage is not None:
        entry = replace(entry, **_add_usage(entry, usage), model=_text(data.get("model")) or entry.model)
    cost = amount(data.get("estimatedCostUsd"))
    return replace(
        entry,
        runs=tuple(live.values()),
        status=status,
        started_at=ended.started_at if ended.started_at is not None else at,
        ended_at=at,
        runtime_ms=max(0, at - ended.started_at) if ended.started_at is not None else 0,
        aborted_last_run=status == "aborted",
        estimated_cost_usd=entry.estimated_cost_usd if cost is None else (entry.estimated_cost_usd or 0.0) + cost,
    )


def _fold_talk(entry: Entry, data: dict[str, Any], offset: int) -> Entry:
    talk_id, status = data.get("talkId"), data.get("status")
    others = tuple(talk for talk in entry.talks if talk.talk_id != talk_id)
    if status == "open" and isinstance(talk_id, str) and others == entry.talks:
        return replace(entry, talks=(*others, OpenTalk(talk_id, offset)))
    if status == "closed" and others != entry.talks:
        return replace(entry, talks=others)
    return entry


def _remember(keyed: tuple[KeyedRun, ...], data: dict[str, Any], run_id: str) -> tuple[KeyedRun, ...]:
    key, payload = data.get("idempotencyKey"), data.get("payload")
    if not isinstance(key, str) or not isinstance(payload, str):
        return keyed
    return (*keyed[-(MAX_KEYED_RUNS - 1) :], KeyedRun(key, run_id, payload))


def _data(record: Record) -> dict[str, Any]:
    if not record.data:
        return {}
    decoded = msgspec.json.decode(record.data)
    return decoded if isinstance(decoded, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
