"""What sessions_list returns for a session. Source: protocol.md, "The agents' tools" (Row)."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from sessiond.model.entry import Entry
from sessiond.model.keys import KeyRules, Kind, display_key, group_part, kind_of


class Row(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One session; times are milliseconds since 1970. Fields that are not known are absent."""

    key: Annotated[
        str,
        Meta(description="The session's key as it is displayed: `main` for the main session of the caller's agent."),
    ]
    kind: Annotated[Kind, Meta(description="What kind of session it is, by its key.")]
    channel: Annotated[
        str,
        Meta(description="The channel it belongs to, or `internal`, or `unknown`."),
    ]
    display_name: Annotated[str | None, Meta(description="The name that lists show.")] = None
    subject: Annotated[str | None, Meta(description="What a group is about.")] = None
    label: Annotated[str | None, Meta(description="The label that it is found by.")] = None
    updated_at: Annotated[int, Meta(description="When its newest message was, in milliseconds since 1970.")]
    created_at: Annotated[int, Meta(description="When it was made, in milliseconds since 1970.")]
    session_id: Annotated[str, Meta(description="The id of its transcript.")]
    model: Annotated[str | None, Meta(description="The model that answers.")] = None
    model_provider: Annotated[str | None, Meta(description="Who provides the model.")] = None
    context_tokens: Annotated[int | None, Meta(description="How many tokens its context can have.")] = None
    total_tokens: Annotated[int | None, Meta(description="How many tokens its context had with the last answer.")] = (
        None
    )
    input_tokens: Annotated[int | None, Meta(description="How many tokens went in, over its whole life.")] = None
    output_tokens: Annotated[int | None, Meta(description="How many tokens came out, over its whole life.")] = None
    estimated_cost_usd: Annotated[float | None, Meta(description="What they cost, in US dollars.")] = None
    thinking_level: Annotated[str | None, Meta(description="How much its agent thinks.")] = None
    verbose_level: Annotated[str | None, Meta(description="How much of its work its agent shows.")] = None
    system_sent: Annotated[bool | None, Meta(description="Whether the agent has had its system prompt.")] = None
    aborted_last_run: Annotated[bool | None, Meta(description="Whether its last run was aborted.")] = None
    send_policy: Annotated[str | None, Meta(description="Whether messages may be sent to it: `allow` or `deny`.")] = (
        None
    )
    last_channel: Annotated[str | None, Meta(description="The channel that it was written to from last.")] = None
    last_to: Annotated[str | None, Meta(description="The address on that channel.")] = None
    last_account_id: Annotated[str | None, Meta(description="The account on that channel.")] = None
    delivery_context: Annotated[dict[str, Any] | None, Meta(description="Where its answers go.")] = None
    status: Annotated[
        str | None, Meta(description="How its last run is or ended: queued, running, ok, error, timeout or aborted.")
    ] = None
    queued_runs: Annotated[int, Meta(description="How many accepted runs wait.")] = 0
    started_at: Annotated[int | None, Meta(description="When its last run started, in milliseconds since 1970.")] = None
    ended_at: Annotated[int | None, Meta(description="When its last run ended, in milliseconds since 1970.")] = None
    runtime_ms: Annotated[int | None, Meta(description="How long its last run took, in milliseconds.")] = None
    spawned_by: Annotated[
        str | None, Meta(description="The canonical key of the session that it is a sub-agent of.")
    ] = None
    spawn_depth: Annotated[int | None, Meta(description="How many sessions are above it.")] = None
    sandboxed: Annotated[bool | None, Meta(description="Whether it runs in a sandbox.")] = None
    child_sessions: Annotated[
        list[str] | None, Meta(description="The canonical keys of its sub-agents that the caller may see.")
    ] = None
    message_count: Annotated[int | None, Meta(description="How many messages it has, tool results too.")] = None
    corrupt_records: Annotated[int, Meta(description="How many lines of its transcript are no records.")] = 0
    transcript_path: Annotated[str, Meta(description="The path of its transcript.")]
    archived: Annotated[bool, Meta(description="Whether it is in the archive.")] = False
    derived_title: Annotated[str | None, Meta(description="A title made of its beginning.")] = None
    last_message_preview: Annotated[str | None, Meta(description="The beginning of its last message.")] = None
    messages: Annotated[list[msgspec.Raw] | None, Meta(description="Its last messages, where they were asked for.")] = (
        None
    )
    cursor: Annotated[str | None, Meta(description="The place behind its newest record, where it was asked for.")] = (
        None
    )


class CachedRow(msgspec.Struct, frozen=True, gc=False):
    """A row and its inputs: while they are the same, the row is valid."""

    entry: Entry
    path: str
    rules: KeyRules
    caller_agent: str | None
    archived: bool
    row: Row


# The fields of the row that are copied from the entry.
_COPIED_FIELDS = tuple(
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
        **{name: getattr(entry, name) for name in _COPIED_FIELDS},
    )
