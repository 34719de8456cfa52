"""`sessions.preview`: the last messages of several sessions, shortened. For lists that people look at."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sessiond.errors import Forbidden, LimitExceeded, NotFound, ReadShortage, StorageError, TranscriptMissing
from sessiond.methods.params import Params, Result, clamp_to, says
from sessiond.methods.services import Context
from sessiond.ranges import PREVIEW_CHARS, PREVIEW_LIMIT
from sessiond.rpc.method import Method
from sessiond.sessions import preview
from sessiond.sessions.preview import PreviewItem

# The limit of the OpenClaw gateway.
MAX_KEYS = 64


class SessionsPreviewParams(Params, frozen=True, kw_only=True):
    keys: Annotated[
        list[str], Meta(min_length=1), says("The sessions: keys, aliases or session ids.", maxItems=MAX_KEYS)
    ]
    limit: Annotated[int, clamp_to(PREVIEW_LIMIT, "How many messages of each session to return at most.")] = (
        PREVIEW_LIMIT.default
    )
    max_chars: Annotated[int, clamp_to(PREVIEW_CHARS, "How many characters of each message to return at most.")] = (
        PREVIEW_CHARS.default
    )


class Preview(Result, frozen=True, kw_only=True, omit_defaults=False):
    """The last messages of one session."""

    key: Annotated[str, says("The session, as named in the params.")]
    status: Annotated[
        Literal["ok", "empty", "missing", "error"],
        says("`missing`: it does not exist, or the caller may not see it. `error`: its transcript cannot be read."),
    ]
    items: Annotated[list[PreviewItem], says("Its last messages, oldest first.")]
    error: Annotated[str | msgspec.UnsetType, says("Why it cannot be read, and what to do.")] = msgspec.UNSET


class SessionsPreviewResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    previews: Annotated[list[Preview], says("One preview for each key, in the order of the keys.")]


async def handle(ctx: Context, params: SessionsPreviewParams) -> SessionsPreviewResult:
    if not ctx.caller.has("read"):
        raise Forbidden("`sessions.preview` needs the scope `read`.")
    if len(params.keys) > MAX_KEYS:
        raise LimitExceeded(
            f"`$.keys` has {len(params.keys)} keys, the limit is {MAX_KEYS}.", limit="keys", value=MAX_KEYS
        )
    limit, max_chars = params.limit, params.max_chars
    previews = [await _preview(ctx, key, f"$.keys[{place}]", limit, max_chars) for place, key in enumerate(params.keys)]
    return SessionsPreviewResult(previews=previews)


async def _preview(ctx: Context, key: str, field: str, limit: int, max_chars: int) -> Preview:
    services = ctx.services
    shown = services.masker_for(ctx.caller)
    try:
        session = await services.find_whole(ctx.caller, key, field=field)
        items = await preview.items(services.store, session, limit=limit, max_chars=max_chars, shown=shown)
    except ReadShortage:
        raise  # it is there
    except (NotFound, TranscriptMissing):
        # A session that is missing, hidden or was removed meanwhile does not fail the whole call.
        return Preview(key=key, status="missing", items=[])
    except StorageError as error:  # nor does one whose file is there and cannot be read
        return Preview(key=key, status="error", items=[], error=error.message)
    return Preview(key=key, status="ok" if items else "empty", items=items)


METHOD = Method(
    "sessions.preview",
    "list",
    SessionsPreviewParams,
    SessionsPreviewResult,
    handle,
    "The last messages of some sessions, cut short.",
)
