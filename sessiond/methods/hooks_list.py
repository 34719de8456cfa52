"""`hooks.list`: the sessions in terminals for which messages wait. Reading them here marks nothing as read."""

from __future__ import annotations

from typing import Annotated

import msgspec
import structlog
from msgspec import Meta

from sessiond.errors import Forbidden, InvalidParams, StorageError
from sessiond.methods.params import NoParams, Result, says
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.runs import inbox

log = structlog.get_logger("sessiond.methods")


class WaitingMessages(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What waits for one session. `oldest` is when the first of them came, as ISO 8601."""

    session_key: Annotated[str, Meta(description="The key of the session.")]
    unread: Annotated[int, Meta(description="How many messages the first page has.")]
    has_more: Annotated[bool, Meta(description="Whether there are more than these.")]
    oldest: Annotated[str | None, Meta(description="When the oldest was written, as ISO 8601.")] = None


class HooksListResult(Result, frozen=True, kw_only=True):
    waiting: Annotated[list[WaitingMessages], says("Each session for which messages wait, by its key.")]


async def handle(ctx: Context, params: NoParams) -> HooksListResult:  # noqa: ARG001
    if ctx.caller.kind != "owner":
        raise Forbidden(f"`{METHOD.name}` is for the owner, on the owner's socket and without a token.")
    store, waiting = ctx.services.store, []
    for key, session in store.catalog.attending_sessions():
        try:
            start = await inbox.find_read_position(store, session)
            if session.entry.message_count <= start.seq:
                continue  # without a look into the file
            page = await inbox.page(store, session, start)
        except (StorageError, InvalidParams) as error:
            # One that cannot be read hides no other; who asks for it by its key is told.
            log.warning("an inbox cannot be read", session_key=key, error=str(error))
            continue
        if page.messages:
            oldest = page.messages[0].timestamp
            unread = len(page.messages)
            waiting.append(WaitingMessages(session_key=key, unread=unread, has_more=page.has_more, oldest=oldest))
    return HooksListResult(waiting=waiting)


METHOD = Method(
    "hooks.list",
    "admin",
    NoParams,
    HooksListResult,
    handle,
    "List the sessions of programs in terminals for which messages wait.",
)
