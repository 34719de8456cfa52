"""`chat.inject` (`sessions.append`): messages into a transcript without running an agent."""

from __future__ import annotations

import msgspec

from sessiond.errors import Forbidden, InvalidParams
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.runs.sink import checked_message
from sessiond.store.store import Message

MAX_MESSAGES = 1000


class ChatInjectParams(Params, frozen=True, kw_only=True):
    session_key: str
    messages: list[msgspec.Raw]


class ChatInjectResult(Result, frozen=True, kw_only=True):
    ids: list[str]
    cursor: str


async def handle(ctx: Context, params: ChatInjectParams) -> ChatInjectResult:
    services, caller = ctx.services, ctx.caller
    session = services.find(caller, params.session_key, action="send")
    # An agent may write into its own session; into others only who administers them.
    if not caller.has("admin") and session.key != caller.session_key:
        raise Forbidden("`chat.inject` into another session needs the scope `admin`.")
    if not 1 <= len(params.messages) <= MAX_MESSAGES:
        raise InvalidParams(
            f"`$.messages` has {len(params.messages)} messages; 1 to {MAX_MESSAGES} go in one call.", field="$.messages"
        )
    parts = [Message(checked_message(raw, f"$.messages[{place}]")) for place, raw in enumerate(params.messages)]
    written = await services.store.append(session, parts)
    facts = session.entry.file
    cursor = services.store.cursor(session, facts.folded_to, session.entry.message_count)
    return ChatInjectResult(ids=[record.id for record in written], cursor=cursor)


METHOD = Method(
    "chat.inject",
    "send",
    ChatInjectParams,
    ChatInjectResult,
    handle,
    "Append messages to a transcript without running an agent.",
    aliases=("sessions.append",),
)
