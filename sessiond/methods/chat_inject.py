"""`chat.inject` (`sessions.append`): messages into a transcript without running an agent."""

from __future__ import annotations

import msgspec

from sessiond.errors import Forbidden, InvalidParams
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.runs.sink import redacted
from sessiond.store.store import Message

MAX_MESSAGES = 1000


class ChatInjectParams(Params, frozen=True, kw_only=True):
    session_key: str
    messages: list[msgspec.Raw]


class ChatInjectResult(Result, frozen=True, kw_only=True):
    ids: list[str]
    cursor: str


class _Shape(msgspec.Struct, frozen=True):
    role: str
    content: msgspec.Raw


_decode_shape = msgspec.json.Decoder(_Shape).decode


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
    parts = [Message(_checked(raw, place)) for place, raw in enumerate(params.messages)]
    written = await services.store.append(session, parts)
    facts = session.entry.file
    cursor = services.store.cursor(session, facts.folded_to, session.entry.message_count)
    return ChatInjectResult(ids=[record.id for record in written], cursor=cursor)


def _checked(raw: msgspec.Raw, place: int) -> msgspec.Raw:
    field = f"$.messages[{place}]"
    try:
        shape = _decode_shape(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidParams(
            f"`{field}` is not a message: an object with a `role` and `content`.", field=field
        ) from None
    if not shape.role:
        raise InvalidParams(f"`{field}.role` is empty.", field=f"{field}.role")
    if bytes(shape.content)[:1] not in (b'"', b"["):
        raise InvalidParams(f"`{field}.content` is neither text nor a list of blocks.", field=f"{field}.content")
    # One line a record: white space between tokens may hold newlines, and those end a line.
    compact = msgspec.Raw(msgspec.json.format(raw, indent=-1)) if b"\n" in bytes(raw) else raw
    changed = redacted(compact)
    return changed if isinstance(changed, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(changed))


METHOD = Method(
    "chat.inject",
    "send",
    ChatInjectParams,
    ChatInjectResult,
    handle,
    "Append messages to a transcript without running an agent.",
    aliases=("sessions.append",),
)
