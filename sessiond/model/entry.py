"""The entry of a session: what is known of it without reading its transcript. Shapes only; `fold.py` makes them.

Source: store.md, "The index".
"""

from __future__ import annotations

from typing import Any

import msgspec


class FileFacts(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """How far the fold has read which file. `folded_to` is the offset behind the last whole line.

    `check` is a checksum of the bytes before `folded_to`, which tells a file that grew from one that was written anew.
    `passed_to` is how far an unfinished line over the size limit was read already, else 0.
    """

    bytes: int = 0
    mtime_ns: int = 0
    inode: int = 0
    folded_to: int = 0
    last_id: str | None = None
    check: int = 0
    passed_to: int = 0


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


class OpenTalk(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """Something that goes on after a run: a reply-back, a delivery. `offset` is where its opening record stands."""

    talk_id: str
    offset: int


class Entry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, gc=False):
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
    inbox_cursor: str | None = None
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
    talks: tuple[OpenTalk, ...] = ()
    file: FileFacts = FileFacts()
