"""`sessions_list`: the newest sessions that the caller may see, after every filter.

Source: protocol.md, "The agents' tools".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from sessiond.methods.params import FolderName, OfMachine, Params, Result, SourceNames, clamp_to, says
from sessiond.methods.services import Context
from sessiond.model.keys import canonical_key
from sessiond.model.row import Row
from sessiond.policy.visibility import Visibility
from sessiond.ranges import LIST_LIMIT, LIST_MESSAGES, SESSION_KINDS
from sessiond.rpc.method import Method
from sessiond.sessions import history, listing
from sessiond.store.catalog import Session

# Longer than any age; in milliseconds still an exact number.
MAX_MINUTES = 10**9
# A bound for the messages of all rows together; messages that do not fit are shown as omitted.
MAX_MESSAGES_BYTES = 8 << 20
_KINDS = frozenset(SESSION_KINDS)


class SessionsListParams(Params, frozen=True, kw_only=True):
    kinds: Annotated[
        list[str] | None,
        says(f"Only sessions of these kinds: {', '.join(SESSION_KINDS)}.", default="every kind"),
    ] = None
    limit: Annotated[int, clamp_to(LIST_LIMIT, "How many sessions to return at most.")] = LIST_LIMIT.default
    active_minutes: Annotated[
        Annotated[float, Meta(ge=1, le=MAX_MINUTES, extra={"clamped": True})] | None,
        says("Only sessions with a message in the last so many minutes."),
    ] = None
    message_limit: Annotated[
        int, clamp_to(LIST_MESSAGES, "How many of the last messages of each session to include.")
    ] = LIST_MESSAGES.default
    search: Annotated[
        str | None,
        says("Only sessions whose key, label, name, title or id contains this text; case is ignored."),
    ] = None
    label: Annotated[str | None, says("Only sessions with this label.")] = None
    sources: SourceNames = None
    machine: OfMachine = None
    cwd: FolderName = None
    spawned_by: Annotated[str | None, says("Only the sub-agents of the session with this key.")] = None
    agent_id: Annotated[str | None, says("Only sessions of this agent.")] = None
    include_archived: Annotated[bool, says("Whether to list archived sessions too.")] = False
    include_cursors: Annotated[bool, says("Whether to include in each row the `cursor` after its newest record.")] = (
        False
    )
    cursor: Annotated[str | None, says("`nextCursor` of a page, for the next one.", default="the newest")] = None


class SessionsListResult(Result, frozen=True, kw_only=True):
    count: Annotated[int, says("How many sessions are in this answer.")]
    sessions: Annotated[list[Row], says("The sessions, newest message first.")]
    visibility: Annotated[
        Visibility, says("The visibility of the caller; unless it is `all`, there may be sessions that are not shown.")
    ]
    has_more: Annotated[bool, says("Whether more sessions match the filters.")]
    next_cursor: Annotated[str | None, says("A cursor for the next page.")] = None
    partial: Annotated[
        int,
        says("How many sessions `search`, `cwd` or `spawnedBy` may have missed: they have not been read whole yet."),
    ] = 0


class SessionsListAnswer(Result, frozen=True, kw_only=True):
    """A `SessionsListResult` as it is sent: rows that are kept as JSON are not made anew."""

    count: int
    sessions: Sequence[Row | msgspec.Raw]
    visibility: Visibility
    has_more: bool
    next_cursor: str | None = None
    partial: int = 0


def to_filter(ctx: Context, params: SessionsListParams) -> listing.Filter:
    """The params as a filter. Unknown kinds are ignored, as documented."""
    kinds = frozenset(kind.strip().lower() for kind in params.kinds or ()) & _KINDS
    spawned_by = params.spawned_by
    if spawned_by is not None:
        rules = ctx.services.rules
        spawned_by = canonical_key(spawned_by, rules, agent_id=ctx.caller.agent_id, field="$.spawnedBy") or spawned_by
    minutes = params.active_minutes
    return listing.Filter(
        kinds=kinds or None,  # type: ignore[arg-type]
        since_ms=None if minutes is None else ctx.services.clock.wall_ms() - int(minutes * 60_000),
        search=params.search.strip().lower() or None if params.search is not None else None,
        label=params.label,
        spawned_by=spawned_by,
        agent_id=params.agent_id,
        sources=frozenset(params.sources) if params.sources is not None else None,
        machine=params.machine,
        cwd=listing.normalize_folder(params.cwd) if params.cwd is not None else None,
        titles=ctx.services.titles_for(ctx.caller),
        names=ctx.services.masker_for(ctx.caller),
        include_archived=params.include_archived,
        after=listing.read_cursor(params.cursor) if params.cursor is not None else None,
    )


async def handle(ctx: Context, params: SessionsListParams) -> SessionsListAnswer:
    answer, _ = await list_sessions(ctx, params)
    return answer


async def list_sessions(ctx: Context, params: SessionsListParams) -> tuple[SessionsListAnswer, list[Session]]:
    """The answer, and the session of each of its rows."""
    store, sight = ctx.services.store, ctx.services.sight_of(ctx.caller)
    found = listing.select(store, sight, to_filter(ctx, params), params.limit)
    with_messages = params.message_limit > 0 and ctx.caller.has("read")
    if not (params.include_cursors or with_messages):
        return _answer(sight.level, found, ctx.services.kept_rows(ctx.caller, found.sessions)), found.sessions
    rows = ctx.services.rows(ctx.caller, found.sessions)
    if params.include_cursors:
        for place, session in enumerate(found.sessions):
            end = store.cursor(session, session.entry.file.folded_to, session.entry.message_count)
            rows[place] = msgspec.structs.replace(rows[place], cursor=end)
    # The list needs the scope `list` only; messages in it need `read`.
    if with_messages:
        await ctx.reserve(MAX_MESSAGES_BYTES)
        left = MAX_MESSAGES_BYTES
        for place, session in enumerate(found.sessions):
            most = min(1 << 20, max(left, 1))
            async with ctx.services.reads(ctx.caller):
                page = await history.page(
                    store, session, limit=params.message_limit, include_tools=False, max_bytes=most
                )
            left -= page.bytes
            shown, _ = await ctx.services.mask_messages(ctx.caller, page.messages)
            rows[place] = msgspec.structs.replace(rows[place], messages=shown)
    return _answer(sight.level, found, rows), found.sessions


def _answer(visibility: Visibility, found: listing.ListPage, rows: Sequence[Row | msgspec.Raw]) -> SessionsListAnswer:
    return SessionsListAnswer(
        count=len(rows),
        sessions=rows,
        visibility=visibility,
        has_more=found.next_place is not None,
        next_cursor=listing.cursor_text(found.next_place) if found.next_place is not None else None,
        partial=found.partial,
    )


METHOD = Method(
    "sessions_list", "list", SessionsListParams, SessionsListResult, handle, "List sessions, newest message first."
)
