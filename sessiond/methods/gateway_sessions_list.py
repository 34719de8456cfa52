"""`sessions.list`: the rows of sessions_list with a title and a preview of the last message. For clients of people.

`sessions_list.py` has the tool `sessions_list`, whose name gives the same module name; hence the prefix.
"""

from __future__ import annotations

import msgspec

from sessiond.methods import sessions_list
from sessiond.methods.services import Context
from sessiond.methods.sessions_list import SessionsListParams, SessionsListResult
from sessiond.rpc.method import Method
from sessiond.sessions import preview


async def handle(ctx: Context, params: SessionsListParams) -> SessionsListResult:
    found = await sessions_list.handle(ctx, params)
    if not ctx.caller.has("read"):
        return found
    services = ctx.services
    # Sessions that were removed meanwhile have no texts to show.
    there = [services.store.catalog.by_id.get(row.session_id) for row in found.sessions]
    sessions = [session for session in there if session is not None]
    shown = services.masker_for(ctx.caller) if services.masks(ctx.caller) else None
    async with services.reads(ctx.caller):
        previews = await preview.previews(services.store, sessions, shown=shown)
    texts = dict(zip(sessions, previews, strict=True))
    rows = [
        row
        if session is None
        else msgspec.structs.replace(row, derived_title=texts[session].title, last_message_preview=texts[session].last)
        for row, session in zip(found.sessions, there, strict=True)
    ]
    return msgspec.structs.replace(found, sessions=rows)


METHOD = Method(
    "sessions.list",
    "list",
    SessionsListParams,
    SessionsListResult,
    handle,
    "List sessions with a title and the last message's beginning.",
)
