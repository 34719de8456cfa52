"""`sessions_history`: the newest messages of a session as they are stored, and a cursor for older ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import msgspec

from sessiond.methods.params import Params, Result, SessionName, clamp_to, says
from sessiond.methods.services import Context
from sessiond.ranges import HISTORY_BYTES, HISTORY_LIMIT
from sessiond.rpc.method import Method
from sessiond.sessions import history, raw_history
from sessiond.sessions.history import AttachedFile, AttachedFiles, History, Marker, MessagePosition, RunEnding
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore


class SessionsHistoryParams(Params, frozen=True, kw_only=True):
    session_key: SessionName
    limit: Annotated[int, clamp_to(HISTORY_LIMIT, "How many messages to return at most.")] = HISTORY_LIMIT.default
    include_tools: Annotated[bool, says("Whether to include tool results.")] = False
    cursor: Annotated[str | None, says("`nextCursor` of a page, for the messages before it.", default="the newest")] = (
        None
    )
    max_bytes: Annotated[int, clamp_to(HISTORY_BYTES, "How many bytes of messages to return at most.")] = (
        HISTORY_BYTES.default
    )
    include_runs: Annotated[
        bool,
        says(
            "Whether to include `runs`, `attachments`, `currentRun` and `queued`: how runs ended, the files that came"
            " with messages, the run that works just now, and the messages that wait for their turn."
        ),
    ] = False
    include_system: Annotated[
        bool,
        says("Whether to include messages of the role `system`; each has the number of the message before it."),
    ] = False
    raw: Annotated[
        bool,
        says("Whether to return the lines of the file as objects, of all types, each with the number of its line."),
    ] = False


class QueuedMessage(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A message that was accepted and is not in the transcript yet: its run waits for its turn."""

    run_id: Annotated[str, says("Its run.")]
    message: Annotated[msgspec.Raw, says("The message object, as it will be stored.")]


class SessionsHistoryResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    session_key: Annotated[str, says("The canonical key of the session.")]
    session_id: Annotated[str, says("The id of its transcript.")]
    messages: Annotated[list[msgspec.Raw], says("The message objects as they are stored, oldest first.")]
    positions: Annotated[
        list[MessagePosition], says("Record id, number and cursor of each message, in the same order.")
    ]
    has_more: Annotated[bool, says("Whether there are older ones.")]
    next_cursor: Annotated[str | msgspec.UnsetType, says("A cursor for the next older page.")] = msgspec.UNSET
    cursor: Annotated[str, says("A cursor: the place after this page, from which the session can be followed.")]
    skipped: Annotated[int, says("How many unreadable lines were skipped.")]
    content_redacted: Annotated[bool, says("Whether secrets were masked.")]
    bytes: Annotated[int, says("The size of the messages in bytes.")]
    runs: Annotated[
        list[RunEnding] | msgspec.UnsetType, says("How the runs among the messages ended, with `includeRuns`.")
    ] = msgspec.UNSET
    attachments: Annotated[
        list[AttachedFiles] | msgspec.UnsetType, says("Which files came with messages, with `includeRuns`.")
    ] = msgspec.UNSET
    current_run: Annotated[
        str | msgspec.UnsetType, says("The run that works just now, with `includeRuns` on the newest page.")
    ] = msgspec.UNSET
    queued: Annotated[
        list[QueuedMessage] | msgspec.UnsetType,
        says("The messages that wait for their turn, oldest first, with `includeRuns` on the newest page."),
    ] = msgspec.UNSET
    markers: Annotated[
        list[Marker] | msgspec.UnsetType, says("Where the conversation was summed up or went back; the newest 200.")
    ] = msgspec.UNSET


async def handle(ctx: Context, params: SessionsHistoryParams) -> SessionsHistoryResult:
    services = ctx.services
    session = await services.find_whole(ctx.caller, params.session_key)
    await services.store.reading.wait_for_place(session)
    await ctx.reserve(params.max_bytes)
    async with services.reads(ctx.caller):
        page = await _page(services.store, session, params)
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
        runs=_mask_output(ctx, page.runs) if params.include_runs else msgspec.UNSET,
        attachments=_with_masked_names(ctx, page.attachments) or msgspec.UNSET,
        current_run=_current_run(ctx, session, params) or msgspec.UNSET,
        queued=await _list_queued(ctx, session, params, page) or msgspec.UNSET,
        markers=page.markers or msgspec.UNSET,
    )


async def _page(store: SessionStore, session: Session, params: SessionsHistoryParams) -> History:
    if params.raw:
        return await raw_history.page(
            store, session, limit=params.limit, max_bytes=params.max_bytes, before=params.cursor
        )
    return await history.page(
        store,
        session,
        limit=params.limit,
        include_tools=params.include_tools,
        max_bytes=params.max_bytes,
        before=params.cursor,
        include_runs=params.include_runs,
        include_system=params.include_system,
    )


def _tells_of_now(params: SessionsHistoryParams) -> bool:
    return params.include_runs and params.cursor is None and not params.raw


def _current_run(ctx: Context, session: Session, params: SessionsHistoryParams) -> str | None:
    run = ctx.services.supervisor.current(session.key) if _tells_of_now(params) else None
    return run.run_id if run is not None and not run.ended else None


async def _list_queued(
    ctx: Context, session: Session, params: SessionsHistoryParams, page: History
) -> list[QueuedMessage]:
    """The messages that wait, as far as they fit into what is left of the page."""
    if not _tells_of_now(params):
        return []
    waiting = ctx.services.supervisor.waiting_messages(session.key)
    if not waiting:
        return []
    ids: list[str] = []
    messages: list[msgspec.Raw] = []

    def encode_each() -> Iterator[None]:
        left = params.max_bytes - page.bytes
        for run in waiting:
            message = msgspec.json.encode(run.request.message)
            if len(message) > left:
                message = history.omit_large(message)
            left -= len(message)
            if left < 0:
                return
            ids.append(run.run_id)
            messages.append(msgspec.Raw(message))
            yield

    # In a thread: a message of 15 MB takes 12 ms.
    await ctx.services.masking.run(encode_each())
    shown, _ = await ctx.services.mask_messages(ctx.caller, messages)
    return [QueuedMessage(run_id, message) for run_id, message in zip(ids, shown, strict=True)]


def _mask_output(ctx: Context, runs: list[RunEnding]) -> list[RunEnding]:
    """The run ends with secrets masked in the printed output, and in errors, which may quote it."""

    def mask(text: str | None) -> str | None:
        return ctx.services.masked_text(ctx.caller, text)

    return [
        msgspec.structs.replace(run, error=mask(run.error), printed=mask(run.printed))
        if run.error is not None or run.printed is not None
        else run
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
    "The newest messages of a session, oldest first.",
)
