"""Steer a session: give its agent a message in the middle of a run, or interrupt the run and start one with it.

Whichever it is, the message is on disk before anything is touched, and before everything else that waits.
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
    """`run_id` is the run that has the message: the live one where its agent took it, else a new one."""

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
    in_line: Callable[[], None],
) -> SteerResult:
    """Bring the message to the session's agent now. `in_line` is called once it has its place."""
    session = await current_session(store.catalog, session)
    known = await supervisor.find_accepted(session, request, in_line)
    if known is not None:
        return SteerResult(known, [])
    live = supervisor.current(session.key)
    request = replace(request, first=True)
    if live is not None and attached.can_steer(live.run_id):
        # Written first: whatever becomes of the agent now, the message stands where it was said.
        await store.append(session, [Message(request.message), _steer_record(live, request, clock)])
        in_line()
        # Of another session's message the agent has to know whose it is; a steer has one text for both.
        told = "\n\n".join(filter(None, (request.context, request.text)))
        if await attached.steer(live.run_id, told):
            return SteerResult(live.run_id, [])
        request = replace(request, in_transcript=True)
    run = await supervisor.accept(session, request, in_line=in_line)
    return SteerResult(run.run_id, [] if live is None else await _interrupt(supervisor, session, live))


async def _interrupt(supervisor: RunSupervisor, session: Session, live: Run) -> list[str]:
    try:
        return await supervisor.stop(session, live.run_id)
    except StorageError:
        return [live.run_id]  # it is stopped, and the message is accepted: the answer may not say that nothing was


def _steer_record(live: Run, request: RunRequest, clock: Clock) -> Custom:
    data: dict[str, Any] = {"runId": live.run_id, "status": "steered", "at": clock.wall_ms()}
    if request.idempotency_key is not None:
        data |= {"idempotencyKey": request.idempotency_key, "payload": request.payload}
    return Custom(RUN, data)
