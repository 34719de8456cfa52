"""Steer a session: pass a message to its agent during a run, or else interrupt the run and start one with the message.

The message is written to disk before anything else is done, and comes before all queued messages.
Source: runs.md, "Steering".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from sessiond.clock import Clock
from sessiond.errors import StorageError
from sessiond.model.record import RUN
from sessiond.runs.run import Run, RunRequest
from sessiond.runs.supervisor import RunSupervisor
from sessiond.runtimes.attached import AttachedAgents
from sessiond.sessions.lifecycle import current_session
from sessiond.store.catalog import Session
from sessiond.store.store import Custom, Message, SessionStore


class SteerResult(msgspec.Struct, frozen=True):
    """`run_id` is the run with the message: the live one if its agent accepted the steer, else a new one."""

    run_id: str
    interrupted: list[str]


async def steer(
    store: SessionStore,
    supervisor: RunSupervisor,
    attached: AttachedAgents,
    clock: Clock,
    *,
    session: Session,
    request: RunRequest,
    on_queued: Callable[[], None],
) -> SteerResult:
    """Pass the message to the session's agent now. `on_queued` is called once it has its place."""
    session = await current_session(store.catalog, session)
    known = await supervisor.find_accepted(session, request, on_queued)
    if known is not None:
        return SteerResult(known, [])
    live = supervisor.current(session.key)
    request = replace(request, first=True)
    if live is not None and attached.can_steer(live.run_id):
        # Written first, so that the message is in the transcript even if the agent fails to accept it.
        await store.append(session, [Message(request.message), _steer_record(live, request, clock)])
        on_queued()
        # A steer has no separate context, so the text of a message from another session begins with it.
        text = "\n\n".join(filter(None, (request.context, request.text)))
        if await attached.steer(live.run_id, text):
            return SteerResult(live.run_id, [])
        request = replace(request, in_transcript=True)
    run = await supervisor.accept(session, request, on_queued=on_queued)
    return SteerResult(run.run_id, [] if live is None else await _interrupt(supervisor, session, live))


async def _interrupt(supervisor: RunSupervisor, session: Session, live: Run) -> list[str]:
    try:
        return await supervisor.stop(session, live.run_id)
    except StorageError:
        return [live.run_id]  # the run is stopped and the message accepted, although its end is not on disk yet


def _steer_record(live: Run, request: RunRequest, clock: Clock) -> Custom:
    data: dict[str, Any] = {"runId": live.run_id, "status": "steered", "at": clock.wall_ms()}
    if request.idempotency_key is not None:
        data |= {"idempotencyKey": request.idempotency_key, "payload": request.payload}
    return Custom(RUN, data)
