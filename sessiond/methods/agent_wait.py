"""`agent.wait`: how a run ended, or that it has not yet. Answers for runs of any time, also after a restart."""

from __future__ import annotations

from typing import Annotated, Literal

import trio

from sessiond.conversations.wait_cycle import waits_on
from sessiond.errors import NotFound, quote
from sessiond.methods.params import Params, Result, clamp_to, says
from sessiond.methods.services import Context
from sessiond.ranges import WAIT_MS
from sessiond.rpc.method import Method
from sessiond.runs.run import Run, RunView, view
from sessiond.sessions.resolve import may_name


class AgentWaitParams(Params, frozen=True, kw_only=True):
    run_id: Annotated[str, says("The run id, as returned when the run was accepted.")]
    timeout_ms: Annotated[int, clamp_to(WAIT_MS, "How many milliseconds to wait for its end at most.")] = (
        WAIT_MS.default
    )


class AgentWaitResult(Result, frozen=True, kw_only=True):
    run_id: Annotated[str, says("The run.")]
    status: Annotated[
        Literal["ok", "error", "timeout", "aborted", "running"],
        says("How it ended; `running`: it has not ended yet; `timeout`: it exceeded its own time limit."),
    ]
    reply: Annotated[str | None, says("The agent's reply, with status `ok`.")] = None
    error: Annotated[str | None, says("Why it failed, in a sentence.")] = None
    started_at: Annotated[int | None, says("When it started, in milliseconds since 1970.")] = None
    ended_at: Annotated[int | None, says("When it ended, in milliseconds since 1970.")] = None
    stop_reason: Annotated[
        str | None, says("Why the agent stopped, in the words of ACP: `end_turn`, `max_tokens`, `refusal` ...")
    ] = None
    session_key: Annotated[str, says("The canonical key of its session.")]
    reason: Annotated[
        Literal["ancestor_busy"] | None,
        says("`ancestor_busy`: the run waits for the caller's own run, so the call did not wait."),
    ] = None


async def handle(ctx: Context, params: AgentWaitParams) -> AgentWaitResult:
    services = ctx.services
    registry = services.supervisor.registry
    session = registry.session_of(params.run_id)
    # Also checked for a missing session, so that the answer takes as long as for a hidden one.
    if not may_name(services.store.catalog, services.sight_of(ctx.caller), session) or session is None:
        raise _no_such_run(params.run_id)
    run = registry.get(params.run_id)
    # If the run waits for the caller's own run, directly or not, neither could end: do not wait.
    in_circle = run is not None and not run.done.is_set() and _waits_on_caller(ctx, run)
    if run is not None and not in_circle:
        listening = run.note_listener(ctx.caller.session_key)
        with trio.move_on_after(params.timeout_ms / 1000), services.park_run(ctx, params.run_id), listening:
            await run.done.wait()
        found: RunView | None = view(run)
    elif run is not None:
        found = view(run)
    else:
        found = await registry.find(params.run_id)
    if found is None:
        raise _no_such_run(params.run_id)
    return AgentWaitResult(
        run_id=found.run_id,
        status="running" if found.status == "queued" else found.status,
        reply=services.masked_text(ctx.caller, found.reply),
        # An error may quote the program's stderr, which may contain secrets.
        error=services.masked_text(ctx.caller, found.error),
        started_at=found.started_at,
        ended_at=found.ended_at,
        stop_reason=found.stop_reason,
        session_key=found.key,
        reason="ancestor_busy" if in_circle else None,
    )


def _waits_on_caller(ctx: Context, run: Run) -> bool:
    own = ctx.services.acting_run(ctx.caller)
    return own is not None and waits_on(ctx.services.supervisor, run, own)


def _no_such_run(run_id: str) -> NotFound:
    return NotFound(f"no run {quote(run_id[:120])}; a run's id is in the answer that accepted it", code="run_not_found")


METHOD = Method("agent.wait", "read", AgentWaitParams, AgentWaitResult, handle, "Wait for the end of a run.")
