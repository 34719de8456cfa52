"""`sessions.patch`: change settings of a session. Omitted ones stay as they are, null clears."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sessiond.methods.params import Line, Params, Result, SessionName, ThinkingLevel, allow_words, says
from sessiond.methods.services import Context
from sessiond.model.lax import MAX_WHOLE
from sessiond.model.row import Row
from sessiond.ranges import SEND_POLICIES, VERBOSE_LEVELS
from sessiond.rpc.method import Method
from sessiond.sessions import patch
from sessiond.sessions.patch import DeliveryContext


class SessionsPatchParams(Params, frozen=True, kw_only=True):
    key: SessionName
    label: Annotated[Line | UnsetType | None, says("Its label, unique among the sessions of the agent.")] = UNSET
    display_name: Annotated[Line | UnsetType | None, says("The name that lists show.")] = UNSET
    thinking_level: Annotated[ThinkingLevel | UnsetType | None, says("Its thinking level.")] = UNSET
    verbose_level: Annotated[
        Annotated[str, allow_words(VERBOSE_LEVELS)] | UnsetType | None,
        says("Its verbosity: how much of its work the agent shows."),
    ] = UNSET
    model: Annotated[str | UnsetType | None, says("Its model; null for the agent's default.")] = UNSET
    send_policy: Annotated[
        Annotated[str, allow_words(SEND_POLICIES)] | UnsetType | None, says("Whether messages may be sent to it.")
    ] = UNSET
    notify: Annotated[bool | UnsetType | None, says("Whether its owner is told of the end of each of its runs.")] = (
        UNSET
    )
    context_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_WHOLE)] | UnsetType | None, says("The size of its context window in tokens.")
    ] = UNSET
    delivery_context: Annotated[
        DeliveryContext | UnsetType | None,
        says("Its delivery target; an omitted field stays as it is, null clears it."),
    ] = UNSET


class SessionsPatchResult(Result, frozen=True, kw_only=True):
    key: Annotated[str, says("The canonical key of the session.")]
    row: Annotated[Row, says("The row of the session after the change.")]


# Computed once, because it takes longer than the rest of a patch before its write.
_PATCHED = [
    (field.name, field.encode_name) for field in msgspec.structs.fields(SessionsPatchParams) if field.name != "key"
]


async def handle(ctx: Context, params: SessionsPatchParams) -> SessionsPatchResult:
    services = ctx.services
    session = services.find_live(ctx.caller, params.key)
    wanted = {wire_name: value for name, wire_name in _PATCHED if (value := getattr(params, name)) is not UNSET}
    session = await patch.apply(
        services.session_changes,
        services.config,
        session,
        wanted,
        services.sees(ctx.caller),
        on_queued=ctx.release_next,
    )
    [row] = services.rows(ctx.caller, [session])
    return SessionsPatchResult(key=session.key, row=row)


METHOD = Method(
    "sessions.patch",
    "admin",
    SessionsPatchParams,
    SessionsPatchResult,
    handle,
    "Change the settings of a session.",
    ordered=True,
)
