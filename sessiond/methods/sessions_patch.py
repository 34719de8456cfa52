"""`sessions.patch`: change settings of a session. Omitted ones stay as they are, null clears."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sessiond.errors import StorageError
from sessiond.methods.params import Line, Params, Result, SessionName, ThinkingLevel, allow_words, says
from sessiond.methods.services import Context
from sessiond.model.lax import MAX_WHOLE
from sessiond.model.row import Row
from sessiond.ranges import SEND_POLICIES, VERBOSE_LEVELS
from sessiond.rpc.method import Later, LongWork, Method
from sessiond.sessions import patch
from sessiond.sessions.lifecycle import current_session
from sessiond.sessions.patch import DeliveryContext
from sessiond.store.catalog import Session


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


def handle(ctx: Context, params: SessionsPatchParams) -> Later | LongWork:
    session = ctx.services.find_live(ctx.caller, params.key)
    if session.leaving is not None:
        return LongWork(partial(_patch_behind_change, ctx, params, session), keeps_turn=True)
    return _patch(ctx, params, session)


async def _patch_behind_change(ctx: Context, params: SessionsPatchParams, session: Session) -> Later:
    """Patch the session that has the key once the reset or delete is over that is under way now."""
    later = _patch(ctx, params, await current_session(ctx.services.store.catalog, session))
    # The record has its place, so what begins now comes behind it.
    ctx.release_next()
    return later


def _patch(ctx: Context, params: SessionsPatchParams, session: Session) -> Later:
    services, later = ctx.services, Later()
    wanted = {wire_name: value for name, wire_name in _PATCHED if (value := getattr(params, name)) is not UNSET}

    def settle(error: StorageError | None) -> None:
        if error is not None:
            later.fail(error)
            return
        [row] = services.rows(ctx.caller, [session])
        later.settle_with(SessionsPatchResult(key=session.key, row=row))

    patch.apply(services.store, services.config, session, wanted, sees=services.sees(ctx.caller), tell=settle)
    return later


METHOD = Method(
    "sessions.patch",
    "admin",
    SessionsPatchParams,
    SessionsPatchResult,
    handle,
    "Change the settings of a session.",
    later=True,
    ordered=True,
)
