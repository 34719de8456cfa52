"""`sessions.patch`: change what is known of a session. What is left out stays, null clears."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, UnsetType

from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.model.lax import MAX_WHOLE
from sessiond.model.row import Row
from sessiond.rpc.method import Method
from sessiond.sessions import listing, patch
from sessiond.sessions.patch import DeliveryContext


class SessionsPatchParams(Params, frozen=True, kw_only=True):
    key: str
    label: str | UnsetType | None = UNSET
    display_name: str | UnsetType | None = UNSET
    thinking_level: str | UnsetType | None = UNSET
    verbose_level: str | UnsetType | None = UNSET
    model: str | UnsetType | None = UNSET
    send_policy: str | UnsetType | None = UNSET
    context_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_WHOLE)] | UnsetType | None = UNSET
    delivery_context: DeliveryContext | UnsetType | None = UNSET


class SessionsPatchResult(Result, frozen=True, kw_only=True):
    key: str
    row: Row


# Asked for once: it takes longer than all else that a patch does before it is written.
_PATCHED = [
    (field.name, field.encode_name) for field in msgspec.structs.fields(SessionsPatchParams) if field.name != "key"
]


async def handle(ctx: Context, params: SessionsPatchParams) -> SessionsPatchResult:
    services = ctx.services
    session = services.find_live(ctx.caller, params.key)
    wanted = {wire_name: value for name, wire_name in _PATCHED if (value := getattr(params, name)) is not UNSET}
    session = await patch.apply(services.births, services.config, session, wanted, services.sees(ctx.caller))
    row = listing.row(services.store, session, ctx.caller.agent_id, services.sight_of(ctx.caller))
    return SessionsPatchResult(key=session.key, row=row)


METHOD = Method(
    "sessions.patch", "admin", SessionsPatchParams, SessionsPatchResult, handle, "Change the settings of a session."
)
