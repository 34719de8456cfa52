"""`chat.inject` (`sessions.append`): append messages to a transcript without running an agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from sessiond.errors import Forbidden, StorageError
from sessiond.methods.params import Params, Result, SessionName, says
from sessiond.methods.services import Context
from sessiond.model.record import RecordDraft
from sessiond.rpc.method import Later, LongWork, Method
from sessiond.runtimes.message_check import check_message, redact_message
from sessiond.sessions.lifecycle import current_session
from sessiond.store.catalog import Session
from sessiond.store.committer import AppendPlace
from sessiond.store.store import Message
from sessiond.tasks import LONG_BYTES

# Up to these sizes the check takes one or two milliseconds on the event loop; a worker thread would not be faster.
QUICK_MESSAGES = 64
QUICK_BYTES = LONG_BYTES

Check = Callable[[msgspec.Raw, int], Message]


class ChatInjectParams(Params, frozen=True, kw_only=True):
    session_key: SessionName
    messages: Annotated[
        list[msgspec.Raw],
        Meta(min_length=1, max_length=1000),
        says("Message objects with `role` and `content`, appended in this order."),
    ]


class ChatInjectResult(Result, frozen=True, kw_only=True):
    ids: Annotated[list[str], says("The ids of the new records, in the order of the messages.")]
    cursor: Annotated[str, says("A cursor: the place in the transcript after the last of them.")]


def handle(ctx: Context, params: ChatInjectParams) -> Later | LongWork:
    session = _writable(ctx, params)
    if session.leaving is not None:
        return LongWork(partial(_append_behind_change, ctx, params, session), keeps_turn=True)
    return _begin(ctx, params, session)


async def _append_behind_change(ctx: Context, params: ChatInjectParams, session: Session) -> Later:
    """Append to the session that has the key once the reset or delete is over that is under way now."""
    outcome = _begin(ctx, params, await current_session(ctx.services.store.catalog, session))
    # They have their place, so what begins now comes behind them.
    ctx.release_next()
    return await outcome.perform() if isinstance(outcome, LongWork) else outcome


def _begin(ctx: Context, params: ChatInjectParams, session: Session) -> Later | LongWork:
    """Append the messages, or take their place among the appends to the session."""
    check = _check_for(ctx, session)
    if len(params.messages) <= QUICK_MESSAGES and sum(len(memoryview(raw)) for raw in params.messages) <= QUICK_BYTES:
        parts = [check(raw, place) for place, raw in enumerate(params.messages)]
        return _append(ctx, session, session, ctx.services.store.make_drafts(parts))
    place = ctx.services.store.committer.take_place(session)
    return LongWork(partial(_append_slowly, ctx, params, session, place, check))


def _writable(ctx: Context, params: ChatInjectParams) -> Session:
    services, caller = ctx.services, ctx.caller
    session = services.find_live(caller, params.session_key, field="$.sessionKey")
    # Writing into a session other than its own requires a caller with the scope `admin`.
    if not caller.has("admin") and session.key != caller.session_key:
        raise Forbidden("`chat.inject` into another session needs the scope `admin`.")
    return session


def _check_for(ctx: Context, session: Session) -> Check:
    services, caller = ctx.services, ctx.caller
    from_owner = services.sight_of(caller).unlimited
    source = services.stranger(caller, session.key) if session.key != caller.session_key else None
    provenance = services.provenance.signature(source, METHOD.name) if source is not None else None

    def check(raw: msgspec.Raw, place: int) -> Message:
        checked = check_message(raw, f"$.messages[{place}]", from_owner=from_owner, provenance=provenance)
        return Message(redact_message(checked))

    return check


async def _append_slowly(
    ctx: Context, params: ChatInjectParams, session: Session, place: AppendPlace, check: Check
) -> Later:
    """Check them in a worker thread: a thousand messages, or one of several megabytes, take up to 50 ms.

    Whatever is written to the session meanwhile comes behind `place`. Shielded: as with a few messages, a client that
    disconnects or cancels takes nothing back.
    """
    drafts: list[RecordDraft] = []

    def prepare() -> Iterator[None]:
        for number, raw in enumerate(params.messages):
            drafts.extend(ctx.services.store.make_drafts([check(raw, number)]))
            yield

    with place:
        with trio.CancelScope(shield=True):
            await ctx.services.time_slicer.run(prepare())
        return _append(ctx, session, place, drafts)


def _append(ctx: Context, session: Session, to: Session | AppendPlace, drafts: list[RecordDraft]) -> Later:
    services, later = ctx.services, Later()

    def settle(ids: list[str], error: StorageError | None) -> None:
        if error is not None:
            later.fail(error)
            return
        facts = session.entry.file
        cursor = services.store.cursor(session, facts.folded_to, session.entry.message_count)
        later.settle_with(ChatInjectResult(ids=ids, cursor=cursor))

    services.store.append_later(to, drafts, settle)
    return later


METHOD = Method(
    "chat.inject",
    "send",
    ChatInjectParams,
    ChatInjectResult,
    handle,
    "Append messages to a transcript without running an agent.",
    aliases=("sessions.append",),
    later=True,
    ordered=True,
)
