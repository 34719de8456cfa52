"""`sessions_history`: the newest messages of a session, byte for byte, and the way to older ones."""

from __future__ import annotations

import msgspec

from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context, clamp
from sessiond.rpc.method import Method
from sessiond.sessions import history
from sessiond.sessions.history import AttachedFile, AttachedFiles, MessagePosition, RunEnding

MAX_LIMIT = 1000
DEFAULT_BYTES = 1 << 20
MAX_BYTES = 16 << 20


class SessionsHistoryParams(Params, frozen=True, kw_only=True):
    session_key: str
    limit: float | None = None
    include_tools: bool = False
    cursor: str | None = None
    max_bytes: float | None = None
    include_runs: bool = False


class SessionsHistoryResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    session_key: str
    session_id: str
    messages: list[msgspec.Raw]
    positions: list[MessagePosition]
    has_more: bool
    next_cursor: str | msgspec.UnsetType = msgspec.UNSET
    cursor: str
    skipped: int
    content_redacted: bool
    bytes: int
    runs: list[RunEnding] | msgspec.UnsetType = msgspec.UNSET
    attachments: list[AttachedFiles] | msgspec.UnsetType = msgspec.UNSET


async def handle(ctx: Context, params: SessionsHistoryParams) -> SessionsHistoryResult:
    services = ctx.services
    session = services.find(ctx.caller, params.session_key)
    max_bytes = clamp(params.max_bytes, DEFAULT_BYTES, MAX_BYTES)
    await ctx.reserve(max_bytes)
    async with services.reads(ctx.caller):
        page = await history.page(
            services.store,
            session,
            limit=clamp(params.limit, 50, MAX_LIMIT),
            include_tools=params.include_tools,
            max_bytes=max_bytes,
            before=params.cursor,
            include_runs=params.include_runs,
        )
    messages, redacted = await services.mask_messages(ctx.caller, page.messages)
    return SessionsHistoryResult(
        session_key=session.key,
        session_id=session.session_id,
        messages=messages,
        positions=page.positions,
        has_more=page.has_more,
        next_cursor=page.next_cursor if page.next_cursor is not None else msgspec.UNSET,
        cursor=page.cursor,
        skipped=page.skipped,
        content_redacted=redacted,
        bytes=page.bytes,
        runs=_mask_errors(ctx, page.runs) if params.include_runs else msgspec.UNSET,
        attachments=_with_masked_names(ctx, page.attachments) or msgspec.UNSET,
    )


def _mask_errors(ctx: Context, runs: list[RunEnding]) -> list[RunEnding]:
    """An error may repeat what the agent printed."""
    return [
        msgspec.structs.replace(run, error=ctx.services.masked_text(ctx.caller, run.error)) if run.error else run
        for run in runs
    ]


def _with_masked_names(ctx: Context, attachments: list[AttachedFiles]) -> list[AttachedFiles]:
    def mask_name(file: AttachedFile) -> AttachedFile:
        return AttachedFile(ctx.services.masked_text(ctx.caller, file.name) or "", file.bytes)

    return [AttachedFiles(one.seq, [mask_name(file) for file in one.files]) for one in attachments]


METHOD = Method(
    "sessions_history",
    "read",
    SessionsHistoryParams,
    SessionsHistoryResult,
    handle,
    "The newest messages of a session, oldest first; tool results where asked for.",
)
