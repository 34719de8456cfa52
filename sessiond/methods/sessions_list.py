"""`sessions_list`: the newest sessions that the caller may see, after every filter.

Source: protocol.md, "The agents' tools".
"""

from __future__ import annotations

import msgspec

from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context, clamp
from sessiond.model.keys import canonical
from sessiond.model.row import Row
from sessiond.policy.visibility import Visibility
from sessiond.rpc.method import Method
from sessiond.sessions import history, listing

# Further back than any clock; the number still fits what it is reckoned with.
MAX_MINUTES = 1e9
# Of all rows together; what does not fit is shown as omitted.
MAX_MESSAGES_BYTES = 8 << 20
_KINDS = frozenset({"main", "group", "cron", "hook", "node", "other"})


class SessionsListParams(Params, frozen=True, kw_only=True):
    kinds: list[str] | None = None
    limit: float | None = None
    active_minutes: float | None = None
    message_limit: float | None = None
    search: str | None = None
    label: str | None = None
    spawned_by: str | None = None
    agent_id: str | None = None
    include_archived: bool = False
    include_cursors: bool = False
    cursor: str | None = None


class SessionsListResult(Result, frozen=True, kw_only=True):
    count: int
    sessions: list[Row]
    visibility: Visibility
    has_more: bool
    next_cursor: str | None = None


def to_filter(ctx: Context, params: SessionsListParams) -> listing.Filter:
    """The params as a filter. Kinds that do not exist filter nothing, as in the documents."""
    kinds = frozenset(kind.strip().lower() for kind in params.kinds or ()) & _KINDS
    spawned_by = params.spawned_by
    if spawned_by is not None:
        rules = ctx.services.rules
        spawned_by = canonical(spawned_by, rules, agent_id=ctx.caller.agent_id, field="$.spawnedBy") or spawned_by
    minutes = None if params.active_minutes is None else min(max(1.0, params.active_minutes), MAX_MINUTES)
    return listing.Filter(
        kinds=kinds or None,  # type: ignore[arg-type]
        since_ms=None if minutes is None else ctx.services.clock.wall_ms() - int(minutes * 60_000),
        search=params.search.strip().lower() or None if params.search is not None else None,
        label=params.label,
        spawned_by=spawned_by,
        agent_id=params.agent_id,
        include_archived=params.include_archived,
        after=listing.read_cursor(params.cursor) if params.cursor is not None else None,
    )


async def handle(ctx: Context, params: SessionsListParams) -> SessionsListResult:
    store, sight = ctx.services.store, ctx.services.sight_of(ctx.caller)
    found = listing.select(store, sight, to_filter(ctx, params), clamp(params.limit, 50, 200))
    rows = [listing.row(store, session, ctx.caller.agent_id, sight) for session in found.sessions]
    if params.include_cursors:
        for place, session in enumerate(found.sessions):
            end = store.cursor(session, session.entry.file.folded_to, session.entry.message_count)
            rows[place] = msgspec.structs.replace(rows[place], cursor=end)
    messages = clamp(params.message_limit, 0, 20, least=0)
    # Message text is for those who may read; the list itself is not.
    if messages and ctx.caller.has("read"):
        await ctx.reserve(MAX_MESSAGES_BYTES)
        left = MAX_MESSAGES_BYTES
        for place, session in enumerate(found.sessions):
            most = min(1 << 20, max(left, 1))
            async with ctx.services.reads(ctx.caller):
                page = await history.page(store, session, limit=messages, include_tools=False, max_bytes=most)
            left -= page.bytes
            shown, _ = await ctx.services.mask_messages(ctx.caller, page.messages)
            rows[place] = msgspec.structs.replace(rows[place], messages=shown)
    return SessionsListResult(
        count=len(rows),
        sessions=rows,
        visibility=sight.level,
        has_more=found.next_place is not None,
        next_cursor=listing.cursor_text(found.next_place) if found.next_place is not None else None,
    )


METHOD = Method(
    "sessions_list", "list", SessionsListParams, SessionsListResult, handle, "List sessions, newest message first."
)
