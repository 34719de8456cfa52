"""`sessions.heads`: how transcripts begin, hundreds in one answer; for programs that make copies of them elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from sessiond.errors import Forbidden, LimitExceeded
from sessiond.methods.params import Params, Result, clamp_to, says
from sessiond.methods.services import Context
from sessiond.ranges import HEAD_BYTES
from sessiond.rpc.method import Method
from sessiond.sessions.byte_ranges import ByteRange, read_beginnings
from sessiond.store.session import Session

# With heads of the default length an answer of a megabyte, which takes the thread that reads them some 30 ms.
MAX_HEADS = 400


class HeadWanted(Params, frozen=True, kw_only=True):
    """One transcript."""

    session_id: Annotated[str, says("The id of the transcript, which may be an archived one.")]
    cursor: Annotated[
        str | None, says("`cursor` of an earlier answer for it, as of `sessions.bytes`: whether it still holds.")
    ] = None


class SessionsHeadsParams(Params, frozen=True, kw_only=True):
    sessions: Annotated[
        list[HeadWanted],
        msgspec.Meta(min_length=1),
        says("Of which sessions: objects with `sessionId`, and with `cursor` if there is one.", maxItems=MAX_HEADS),
    ]
    max_bytes: Annotated[int, clamp_to(HEAD_BYTES, "How many bytes of each to return at most.")] = HEAD_BYTES.default


class Head(Result, frozen=True, kw_only=True, omit_defaults=False):
    """How one transcript begins. Members as of `sessions.bytes`, only where the status is `ok`."""

    session_id: Annotated[str, says("The id of the transcript.")]
    status: Annotated[
        Literal["ok", "missing", "stale", "busy"],
        says(
            "`missing`: there is no such session; `stale`: `cursor` is none, or the transcript is not what it was"
            " before it; `busy`: it cannot be read just now."
        ),
    ]
    size: Annotated[int | msgspec.UnsetType, says("How many bytes of the transcript there are so far.")] = msgspec.UNSET
    label: Annotated[str | msgspec.UnsetType, says("The label of the session as of these bytes.")] = msgspec.UNSET
    cwd: Annotated[str | msgspec.UnsetType, says("The folder in which its agent works, as of these bytes.")] = (
        msgspec.UNSET
    )
    cursor: Annotated[str | msgspec.UnsetType, says("The place behind them.")] = msgspec.UNSET
    data: Annotated[bytes | msgspec.UnsetType, says("The bytes, in base64; in CBOR a byte string.")] = msgspec.UNSET


class SessionsHeadsResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    heads: Annotated[list[Head], says("One for each session, in the order of the params.")]


async def handle(ctx: Context, params: SessionsHeadsParams) -> SessionsHeadsResult:
    # As `sessions.bytes`: with nothing masked.
    if ctx.caller.kind != "owner":
        raise Forbidden(f"`{METHOD.name}` is for the owner, on the owner's socket and without a token.")
    if len(params.sessions) > MAX_HEADS:
        raise LimitExceeded(
            f"`$.sessions` has {len(params.sessions)} sessions, the limit is {MAX_HEADS}.",
            limit="sessions",
            value=MAX_HEADS,
        )
    store = ctx.services.store
    await ctx.reserve(len(params.sessions) * params.max_bytes)
    by_id = store.catalog.by_id
    places: dict[int, int] = {}
    wanted: list[tuple[Session, str | None]] = []
    for place, one in enumerate(params.sessions):
        session = by_id.get(one.session_id)
        if session is not None and session.entry.attends is None:
            places[place] = len(wanted)
            wanted.append((session, one.cursor))
    entries = [session.entry for session, _ in wanted]
    found = await read_beginnings(store, wanted, params.max_bytes) if wanted else []

    def head_of(place: int, session_id: str) -> Head:
        at = places.get(place)
        if at is None:
            return Head(session_id=session_id, status="missing")
        one, entry = found[at], entries[at]
        if not isinstance(one, ByteRange):
            return Head(session_id=session_id, status=one)
        return Head(
            session_id=session_id,
            status="ok",
            size=one.size,
            label=msgspec.UNSET if entry.label is None else entry.label,
            cwd=msgspec.UNSET if entry.cwd is None else entry.cwd,
            cursor=one.cursor,
            data=one.data,
        )

    return SessionsHeadsResult(heads=[head_of(place, one.session_id) for place, one in enumerate(params.sessions)])


METHOD = Method(
    "sessions.heads",
    "admin",
    SessionsHeadsParams,
    SessionsHeadsResult,
    handle,
    "The first bytes of several of the store's own transcripts, exactly as they stand in their files.",
)
