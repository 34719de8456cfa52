"""`sessions.bytes`: the bytes of one of our transcripts, for programs that keep exact copies of it elsewhere."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sessiond.errors import Forbidden
from sessiond.methods.params import Params, Result, clamp_to, says
from sessiond.methods.services import Context
from sessiond.ranges import TRANSCRIPT_BYTES
from sessiond.rpc.method import Method
from sessiond.sessions.byte_ranges import read_range
from sessiond.sessions.resolve import no_such_session


class SessionsBytesParams(Params, frozen=True, kw_only=True):
    session_id: Annotated[str, says("The id of the transcript, which may be an archived one.")]
    cursor: Annotated[
        str | None, says("`cursor` of an earlier answer, for what comes behind it.", default="the first byte")
    ] = None
    at: Annotated[
        Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None,
        says("The byte to begin with, while `cursor` is valid.", default="the place of `cursor`"),
    ] = None
    max_bytes: Annotated[int, clamp_to(TRANSCRIPT_BYTES, "How many bytes to return at most.")] = (
        TRANSCRIPT_BYTES.default
    )


class SessionsBytesResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    """`from` to `to` are byte offsets. Nothing is returned that may still be taken back."""

    session_id: Annotated[str, says("The id of the transcript.")]
    session_key: Annotated[str, says("The canonical key of the session.")]
    begin: Annotated[int, says("Where the bytes begin.")] = msgspec.field(name="from")
    to: Annotated[int, says("Where they end, which may be within a line.")]
    size: Annotated[int, says("How many bytes of the transcript there are so far.")]
    label: Annotated[str | msgspec.UnsetType, says("The label of the session as of these bytes.")] = msgspec.UNSET
    cwd: Annotated[str | msgspec.UnsetType, says("The folder in which its agent works, as of these bytes.")] = (
        msgspec.UNSET
    )
    cursor: Annotated[str, says("The place behind them.")]
    data: Annotated[bytes, says("The bytes, in base64; in CBOR a byte string.")]


async def handle(ctx: Context, params: SessionsBytesParams) -> SessionsBytesResult:
    # The bytes are those of the file, with nothing masked.
    if ctx.caller.kind != "owner":
        raise Forbidden(f"`{METHOD.name}` is for the owner, on the owner's socket and without a token.")
    store = ctx.services.store
    session = store.catalog.by_id.get(params.session_id)
    if session is None or session.entry.attends is not None:
        raise no_such_session(params.session_id)
    await ctx.reserve(params.max_bytes)
    ctx.services.search_index.note_copying()
    entry = session.entry
    found = await read_range(store, session, params.cursor, params.max_bytes, params.at)
    return SessionsBytesResult(
        session_id=session.session_id,
        session_key=session.key,
        begin=found.begin,
        to=found.end,
        size=found.size,
        label=msgspec.UNSET if entry.label is None else entry.label,
        cwd=msgspec.UNSET if entry.cwd is None else entry.cwd,
        cursor=found.cursor,
        data=found.data,
    )


METHOD = Method(
    "sessions.bytes",
    "admin",
    SessionsBytesParams,
    SessionsBytesResult,
    handle,
    "Bytes of one of the store's own transcripts, from a place on: exactly as they stand in its file.",
)
