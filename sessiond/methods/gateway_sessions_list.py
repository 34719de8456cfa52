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
    found, sessions = await sessions_list.list_sessions(ctx, params)
    if not ctx.caller.has("read"):
        return found
    services = ctx.services
    shown = services.masker_for(ctx.caller) if services.masks(ctx.caller) else None
    async with services.reads(ctx.caller):
        previews = await preview.previews(services.store, sessions, shown=shown)
    rows = [
        msgspec.structs.replace(row, derived_title=texts.title, last_message_preview=texts.last)
        for row, texts in zip(found.sessions, previews, strict=True)
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
