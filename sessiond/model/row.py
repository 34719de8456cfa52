"""What sessions_list returns for a session. Source: protocol.md, "The agents' tools" (Row)."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.model.entry import Entry
from sessiond.model.keys import KeyRules, Kind, display_key, group_part, kind_of


class Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One session; times are milliseconds since 1970. Fields that are not known are absent."""

    key: str
    kind: Kind
    channel: str
    display_name: str | None = None
    subject: str | None = None
    label: str | None = None
    updated_at: int
    created_at: int
    session_id: str
    model: str | None = None
    model_provider: str | None = None
    context_tokens: int | None = None
    total_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    estimated_cost_usd: float | None = None
    thinking_level: str | None = None
    verbose_level: str | None = None
    system_sent: bool | None = None
    aborted_last_run: bool | None = None
    send_policy: str | None = None
    last_channel: str | None = None
    last_to: str | None = None
    last_account_id: str | None = None
    delivery_context: dict[str, Any] | None = None
    status: str | None = None
    queued_runs: int = 0
    started_at: int | None = None
    ended_at: int | None = None
    runtime_ms: int | None = None
    spawned_by: str | None = None
    spawn_depth: int | None = None
    sandboxed: bool | None = None
    child_sessions: list[str] | None = None
    message_count: int | None = None
    corrupt_records: int = 0
    transcript_path: str
    archived: bool = False
    derived_title: str | None = None
    last_message_preview: str | None = None
    messages: list[msgspec.Raw] | None = None
    # The place behind its newest record, where it was asked for.
    cursor: str | None = None


class CurrentRow(msgspec.Struct, frozen=True, gc=False):
    """A row and what it was made from: while that is the same, so is the row."""

    entry: Entry
    path: str
    rules: KeyRules
    caller_agent: str | None
    archived: bool
    row: Row


# The fields that stand in the row as they stand in the entry.
_SAME = tuple(
    field.name
    for field in msgspec.structs.fields(Row)
    if field.name in {other.name for other in msgspec.structs.fields(Entry)} - {"channel", "message_count"}
)


def channel_of(key: str, kind: Kind, entry: Entry) -> str:
    """The channel of a session. Source: protocol.md, "Keys"."""
    if kind in ("cron", "hook", "node"):
        return "internal"
    group = group_part(key)
    if group is not None or kind == "group":
        return entry.channel or (group[0] if group is not None else None) or "unknown"
    delivery = entry.delivery_context or {}
    through = delivery.get("channel")
    return entry.last_channel or (through if isinstance(through, str) else None) or entry.channel or "unknown"


def row_of(
    key: str,
    entry: Entry,
    *,
    path: str,
    rules: KeyRules,
    caller_agent: str | None,
    children: list[str],
    archived: bool = False,
) -> Row:
    """The row of a session, as a caller of `caller_agent` sees it."""
    kind = kind_of(key, rules, entry.chat_type)
    return Row(
        key=display_key(key, rules, caller_agent),
        kind=kind,
        channel=channel_of(key, kind, entry),
        queued_runs=sum(run.started_at is None for run in entry.runs),
        child_sessions=children or None,
        message_count=entry.message_count,
        transcript_path=path,
        archived=archived,
        **{name: getattr(entry, name) for name in _SAME},
    )
