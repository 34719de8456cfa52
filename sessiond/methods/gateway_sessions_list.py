"""`sessions.list`: the rows of sessions_list with a title and a glimpse of the last message. For people's clients.

The guess rule gives this file's place to the tool `sessions_list`; hence the prefix.
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
    store = ctx.services.store
    shown = ctx.services.masker_for(ctx.caller)
    rows = []
    for row in found.sessions:
        session = store.catalog.by_id.get(row.session_id)
        if session is not None:  # else it went while the ones before it were read
            glimpse = await preview.preview_text(store, session, shown=shown)
            row = msgspec.structs.replace(row, derived_title=glimpse.title, last_message_preview=glimpse.last)
        rows.append(row)
    return msgspec.structs.replace(found, sessions=rows)


METHOD = Method(
    "sessions.list",
    "list",
    SessionsListParams,
    SessionsListResult,
    handle,
    "List sessions with a title and the last message's beginning.",
)
