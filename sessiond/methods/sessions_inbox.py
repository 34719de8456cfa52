"""`sessions_inbox`: the unread messages of a session; can wait for the next one.

The session is the caller's own. The owner may name any session whose messages are kept for a program, and one of
another program in a terminal, whose messages lie in the session of ours that attends it.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import trio

from sessiond.errors import Forbidden, InvalidParams
from sessiond.events.wake_up import follow_quietly
from sessiond.methods.params import Params, Result, clamp_to, says
from sessiond.methods.services import Context, Services
from sessiond.model.keys import is_inbox, machine_of
from sessiond.ranges import INBOX_WAIT_S
from sessiond.rpc.method import Method
from sessiond.runs import inbox
from sessiond.runs.inbox import KeptMessage
from sessiond.store.catalog import Session
from sessiond.store.cursor import Position


class SessionsInboxParams(Params, frozen=True, kw_only=True):
    session_key: Annotated[
        str | None, says("The session whose messages are read.", default="the caller's own; the owner has to name one")
    ] = None
    cursor: Annotated[str | None, says("Marks everything up to this place as read.", default="no change")] = None
    wait: Annotated[int, clamp_to(INBOX_WAIT_S, "How many seconds to wait at most for a message if there is none.")] = (
        INBOX_WAIT_S.default
    )


class SessionsInboxResult(Result, frozen=True, kw_only=True):
    session_key: Annotated[str, says("The canonical key of the session.")]
    messages: Annotated[list[KeptMessage], says("The unread messages, oldest first.")]
    cursor: Annotated[str, says("A cursor after the last of them; passed to the next call, it marks them as read.")]
    has_more: Annotated[bool, says("Whether there are more unread messages.")]


async def handle(ctx: Context, params: SessionsInboxParams) -> SessionsInboxResult:
    services = ctx.services
    session = _session_of(ctx, params.session_key)
    start = await inbox.find_read_position(services.store, session)
    if params.cursor is not None:
        start = await inbox.mark_read(services.store, session, params.cursor, start)
    page = await _page(services, session, start, params.wait)
    messages = [
        msgspec.structs.replace(message, text=services.masked_text(ctx.caller, message.text))
        for message in page.messages
    ]
    return SessionsInboxResult(
        session_key=session.key,
        messages=messages,
        cursor=services.store.cursor(session, page.end.offset, page.end.seq),
        has_more=page.has_more,
    )


def _session_of(ctx: Context, named: str | None) -> Session:
    """The session whose inbox is read."""
    own = ctx.caller.session_key
    if named is None and own is None:
        raise InvalidParams(
            "`sessions_inbox` reads the caller's own session, and this caller has none; `$.sessionKey` names that of a"
            " program, and `sessions_history` reads any session",
            code="no_session",
        )
    session = ctx.services.find(ctx.caller, named or "current")
    if session.key == own:
        return session
    # Reading an inbox marks its messages as read, so only its own session and the owner may do it.
    if not ctx.services.sight_of(ctx.caller).unlimited:
        raise Forbidden(f"the inbox of {session.key} is its own and the owner's; `sessions_history` reads the session")
    if session.folder.source is not None:
        attending = ctx.services.attending.find(session.key)
        if attending is None:
            machine = machine_of(session.key)
            why = "no hook has told of it, so a message goes to a session that goes on with a copy of it"
            raise InvalidParams(
                f"nothing waits for {session.key}: {why if machine is None else f'messages to it go to {machine}'}",
                field="$.sessionKey",
                code="no_inbox",
            )
        return attending
    if not is_inbox(session.key):
        raise InvalidParams(
            f"nothing is kept unread for {session.key}: an agent runs on its messages; `sessions_history` reads them",
            field="$.sessionKey",
            code="no_inbox",
        )
    return session


async def _page(services: Services, session: Session, start: Position, wait_s: float) -> inbox.InboxPage:
    # The caller was checked in `_session_of`.
    with follow_quietly(services.bus, session.key) as wake_up:
        with trio.move_on_after(wait_s):
            while True:
                wake_up.event = trio.Event()
                page = await inbox.page(services.store, session, start)
                if page.messages or session.archived:
                    return page
                await wake_up.event.wait()
        return await inbox.page(services.store, session, start)


METHOD = Method(
    "sessions_inbox",
    "read",
    SessionsInboxParams,
    SessionsInboxResult,
    handle,
    "The unread messages of the caller's own session, or for the owner of a program's, oldest first.",
)
