"""`chat.inject` (`sessions.append`): messages into a transcript without running an agent."""

from __future__ import annotations

import msgspec

from sessiond.errors import Forbidden, InvalidParams, StorageError
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Later, Method
from sessiond.runtimes.message_check import check_message
from sessiond.store.store import Message

MAX_MESSAGES = 1000


class ChatInjectParams(Params, frozen=True, kw_only=True):
    session_key: str
    messages: list[msgspec.Raw]


class ChatInjectResult(Result, frozen=True, kw_only=True):
    ids: list[str]
    cursor: str


def handle(ctx: Context, params: ChatInjectParams) -> Later:
    services, caller = ctx.services, ctx.caller
    session = services.find_live(caller, params.session_key, field="$.sessionKey")
    # An agent may write into its own session; into others only who administers them.
    if not caller.has("admin") and session.key != caller.session_key:
        raise Forbidden("`chat.inject` into another session needs the scope `admin`.")
    if not 1 <= len(params.messages) <= MAX_MESSAGES:
        raise InvalidParams(
            f"`$.messages` has {len(params.messages)} messages; 1 to {MAX_MESSAGES} go in one call.", field="$.messages"
        )
    from_owner = services.sight_of(caller).unlimited
    source = services.stranger(caller, session.key) if session.key != caller.session_key else None
    provenance = services.provenance.signature(source, METHOD.name) if source is not None else None
    parts = [
        Message(check_message(raw, f"$.messages[{place}]", from_owner=from_owner, provenance=provenance))
        for place, raw in enumerate(params.messages)
    ]
    later = Later()

    def settle(ids: list[str], error: StorageError | None) -> None:
        if error is not None:
            later.fail(error)
            return
        facts = session.entry.file
        cursor = services.store.cursor(session, facts.folded_to, session.entry.message_count)
        later.settle_with(ChatInjectResult(ids=ids, cursor=cursor))

    services.store.append_later(session, parts, settle)
    return later


METHOD = Method(
    "chat.inject",
    "send",
    ChatInjectParams,
    ChatInjectResult,
    handle,
    "Append messages to a transcript without running an agent.",
    aliases=("sessions.append",),
    later=True,
    ordered=True,
)
