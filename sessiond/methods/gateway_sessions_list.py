"""`sessions.list`: the rows of sessions_list with a title and a preview of the last message. For clients of people.

`sessions_list.py` has the tool `sessions_list`, whose name gives the same module name; hence the prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sessiond.methods import sessions_list
from sessiond.methods.services import Context, Services
from sessiond.methods.sessions_list import SessionsListAnswer, SessionsListParams, SessionsListResult
from sessiond.model.caller import Caller
from sessiond.model.row import Row, add_texts
from sessiond.rpc.method import Method
from sessiond.sessions import preview
from sessiond.store.catalog import Session


async def handle(ctx: Context, params: SessionsListParams) -> SessionsListAnswer:
    found, sessions = await sessions_list.list_sessions(ctx, params)
    if not ctx.caller.has("read"):
        return found
    rows = await add_previews(ctx.services, ctx.caller, found.sessions, sessions)
    return msgspec.structs.replace(found, sessions=rows)


async def add_previews(
    services: Services, caller: Caller, rows: Sequence[Row | msgspec.Raw], sessions: Sequence[Session]
) -> list[Row | msgspec.Raw]:
    """The rows of these sessions with their titles and last messages, as the caller, who may read, sees them."""
    shown = services.masker_for(caller) if services.masks(caller) else None
    async with services.reads(caller):
        previews = await preview.previews(services.store, sessions, shown=shown)
    return [
        add_texts(row, texts.text)
        if isinstance(row, msgspec.Raw)
        else msgspec.structs.replace(row, derived_title=texts.title, last_message_preview=texts.last)
        for row, texts in zip(rows, previews, strict=True)
    ]


METHOD = Method(
    "sessions.list",
    "list",
    SessionsListParams,
    SessionsListResult,
    handle,
    "List sessions with a title and the last message's beginning.",
)
