"""`hooks.report`: a program in a terminal tells what it does, and gets what waits for its session."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sessiond.errors import Forbidden
from sessiond.methods.params import Params, Result, says
from sessiond.methods.services import Context
from sessiond.model.hook import HANDING_OVER
from sessiond.rpc.method import Method

Event = Annotated[str, Meta(max_length=200)]
SessionId = Annotated[str, Meta(max_length=200)]
TranscriptPath = Annotated[str, Meta(max_length=4096)]


class HookParams(Params, frozen=True, kw_only=True):
    """Which hook of which session calls."""

    event: Annotated[Event, says("The program's name of the hook, such as `SessionStart`.")]
    session_id: Annotated[SessionId, says("The program's id of its session.")]
    transcript_path: Annotated[TranscriptPath, says("The absolute path of the file that it keeps of the session.")]


class HooksReportParams(HookParams, frozen=True, kw_only=True):
    receipt: Annotated[
        str | None, says("What was handed over with this receipt has reached the program; nothing else is noted.")
    ] = None


class HooksReportResult(Result, frozen=True, kw_only=True):
    known: Annotated[bool, says("Whether this is a session of a program that is followed here.")]
    context: Annotated[str | None, says("Words for the agent: messages that wait for it.")] = None
    receipt: Annotated[str | None, says("To be passed to the next call once they have reached the program.")] = None


def hooked_key(ctx: Context, params: HookParams, method: str) -> str | None:
    """The key of the session that a hook is about; None for one that is not followed, or shown as one of ours.

    Forbidden for callers with a token: a hook speaks for the owner's terminal.
    """
    if ctx.caller.kind != "owner":
        raise Forbidden(f"`{method}` is for the owner, on the owner's socket and without a token.")
    services = ctx.services
    key = services.sources.key_of(params.transcript_path, params.session_id)
    return key if key is not None and services.store.catalog.carrier_of(params.session_id) is None else None


async def handle(ctx: Context, params: HooksReportParams) -> HooksReportResult:
    services = ctx.services
    key = hooked_key(ctx, params, METHOD.name)
    if key is None:
        return HooksReportResult(known=False)
    if params.receipt is not None:
        await services.handover.confirm(params.receipt)
        return HooksReportResult(known=True)
    await services.attending.note(key, params.event)
    handed = await services.handover.begin(key) if params.event in HANDING_OVER else None
    if handed is None:
        return HooksReportResult(known=True)
    return HooksReportResult(known=True, context=handed.context, receipt=handed.receipt)


METHOD = Method(
    "hooks.report",
    "admin",
    HooksReportParams,
    HooksReportResult,
    handle,
    "Tell what a program in a terminal does with its session, and get the messages that wait for it.",
)
