"""`sessions.preview`: the last few things said in each of some sessions, cut short. For lists that people look at."""

from __future__ import annotations

from typing import Literal

from sessiond.config.clamps import Clamp
from sessiond.errors import Forbidden, InvalidParams, LimitExceeded, NotFound, StorageError
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.rpc.method import Method
from sessiond.sessions import preview
from sessiond.sessions.preview import PreviewItem

# As the gateway has it.
MAX_KEYS = 64
_LIMIT = Clamp(default=12, maximum=50)
_CHARS = Clamp(default=240, maximum=2000, minimum=20)


class SessionsPreviewParams(Params, frozen=True, kw_only=True):
    keys: list[str]
    limit: float | None = None
    max_chars: float | None = None


class Preview(Result, frozen=True, kw_only=True, omit_defaults=False):
    """`key` is as it was asked for, so that the answer is found again."""

    key: str
    status: Literal["ok", "empty", "missing"]
    items: list[PreviewItem]


class SessionsPreviewResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    previews: list[Preview]


async def handle(ctx: Context, params: SessionsPreviewParams) -> SessionsPreviewResult:
    if not ctx.caller.has("read"):
        raise Forbidden("`sessions.preview` needs the scope `read`.")
    if not params.keys:
        raise InvalidParams("`$.keys` is empty: name the sessions to preview.", field="$.keys")
    if len(params.keys) > MAX_KEYS:
        raise LimitExceeded(
            f"`$.keys` has {len(params.keys)} keys, the limit is {MAX_KEYS}.", limit="keys", value=MAX_KEYS
        )
    limit, max_chars = _LIMIT.apply(params.limit), _CHARS.apply(params.max_chars, "$.maxChars")
    previews = [await _preview(ctx, key, f"$.keys[{place}]", limit, max_chars) for place, key in enumerate(params.keys)]
    return SessionsPreviewResult(previews=previews)


async def _preview(ctx: Context, key: str, field: str, limit: int, max_chars: int) -> Preview:
    services = ctx.services
    shown = services.masker_for(ctx.caller)
    try:
        session = services.find(ctx.caller, key, field=field)
        items = await preview.items(services.store, session, limit=limit, max_chars=max_chars, shown=shown)
    except (NotFound, StorageError):
        # One that is not there, not to be seen, or went away meanwhile: the others are shown all the same.
        return Preview(key=key, status="missing", items=[])
    return Preview(key=key, status="ok" if items else "empty", items=items)


METHOD = Method(
    "sessions.preview",
    "list",
    SessionsPreviewParams,
    SessionsPreviewResult,
    handle,
    "The last messages of some sessions, cut short.",
)
