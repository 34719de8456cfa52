"""`sessions.usage`: tokens and cost of the sessions that the caller may see, by session, model, day (UTC), and more."""

from __future__ import annotations

from typing import Annotated, Any

import trio
from msgspec import UNSET, UnsetType

from sessiond.errors import InvalidParams
from sessiond.methods.params import TIMES, Params, Result, clamp_to, says
from sessiond.methods.services import Context
from sessiond.model.keys import agent_of, is_foreign, is_listed
from sessiond.rpc.method import Method
from sessiond.sessions.listing import source_of
from sessiond.sessions.resolve import reaches
from sessiond.sessions.usage import UsageCount, UsageSum, find_used, sum_by
from sessiond.store.catalog import Session

# Checking the visibility of this many sessions takes half a millisecond; then other tasks run.
_CHUNK = 500
# Sums are rounded to a millionth of a cent, which hides the inexactness of floats.
_DIGITS = 8


class SessionsUsageParams(Params, frozen=True, kw_only=True):
    key: Annotated[str | None, says("Only this session.", default="all that the caller may see")] = None
    since: Annotated[
        Annotated[int, clamp_to(TIMES)] | None, says("Count from this time on, in milliseconds since 1970.")
    ] = None
    until: Annotated[
        Annotated[int, clamp_to(TIMES)] | None,
        says("Count up to this time, exclusive, in milliseconds since 1970.", takes="not before `since`"),
    ] = None


class UsageFields(Result, frozen=True, kw_only=True, omit_defaults=False):
    """Counts of tokens, and their cost."""

    input_tokens: Annotated[int, says("Input tokens.")]
    output_tokens: Annotated[int, says("Output tokens.")]
    cache_read: Annotated[int, says("Tokens read from a cache.")]
    cache_write: Annotated[int, says("Tokens written to a cache.")]
    total_tokens: Annotated[int, says("Their sum.")]
    cost_usd: Annotated[float | UnsetType, says("Their cost in US dollars, if known.")] = UNSET
    unpriced_tokens: Annotated[
        int | UnsetType, says("How many of the tokens have no known cost: `costUsd` is without theirs. Absent if none.")
    ] = UNSET


class SessionUsage(UsageFields, frozen=True, kw_only=True):
    """The usage of one transcript. An archived one has a row of its own, with the key that it had."""

    key: Annotated[str, says("The canonical key of the session.")]
    session_id: Annotated[str, says("The id of its transcript.")]
    archived: Annotated[bool, says("Whether it is in the archive.")]


class ModelUsage(UsageFields, frozen=True, kw_only=True):
    """The usage of one model."""

    model: Annotated[str, says("The model.")]


class DayUsage(UsageFields, frozen=True, kw_only=True):
    """The usage of one day."""

    day: Annotated[str, says("The day in UTC, such as `2026-01-31`.")]


class ProjectUsage(UsageFields, frozen=True, kw_only=True):
    """The usage of the sessions that worked in one folder."""

    cwd: Annotated[str, says("The folder; empty for sessions of which it is not known.")]


class AgentUsage(UsageFields, frozen=True, kw_only=True):
    """The usage of one agent of ours."""

    agent_id: Annotated[str, says("The agent; empty for sessions of other programs.")]


class SourceUsage(UsageFields, frozen=True, kw_only=True):
    """The usage of the sessions of one program."""

    source: Annotated[str, says("The program; `sessiond` for our own sessions.")]


class SessionsUsageResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    totals: Annotated[UsageFields, says("The total.")]
    by_session: Annotated[list[SessionUsage], says("By session, the most tokens first.")]
    by_model: Annotated[list[ModelUsage], says("By model, the most tokens first.")]
    by_day: Annotated[list[DayUsage], says("By day, the earliest first.")]
    by_project: Annotated[list[ProjectUsage], says("By folder, the most tokens first.")]
    by_agent: Annotated[list[AgentUsage], says("By agent, the most tokens first.")]
    by_source: Annotated[list[SourceUsage], says("By program, the most tokens first.")]
    partial: Annotated[
        int | UnsetType, says("How many of the sessions are not read whole yet, and count for nothing; absent if none.")
    ] = UNSET


async def handle(ctx: Context, params: SessionsUsageParams) -> SessionsUsageResult:
    services = ctx.services
    since, until = params.since, params.until
    if since is not None and until is not None and until < since:
        raise InvalidParams("`$.until` is before `$.since`.", field="$.until")
    key = None if params.key is None else services.find(ctx.caller, params.key, field="$.key").key
    sessions = await _visible(ctx, key)
    # Before they are counted: what is read whole meanwhile may not be counted any more.
    sessions, known = [session for session in sessions if session.is_whole], len(sessions)
    partial = known - len(sessions)
    count = UsageCount(services.store.record_limit, services.config.models.pricing, since_ms=since, until_ms=until)
    await services.time_slicer.run(count.steps(find_used(sessions)))
    if count.to_read:
        await ctx.reserve(count.reading_bytes)
        await services.time_slicer.run(count.reading_steps())
    return SessionsUsageResult(
        totals=UsageFields(**_fields(count.totals)),
        by_session=[
            SessionUsage(key=one.key, session_id=one.session_id, archived=one.archived, **_fields(usage))
            for one, usage in sorted(count.by_session.items(), key=lambda item: -item[1].total_tokens)
        ],
        by_model=[
            ModelUsage(model=model, **_fields(usage))
            for model, usage in sorted(count.by_model.items(), key=lambda item: -item[1].total_tokens)
        ],
        by_day=[DayUsage(day=day, **_fields(usage)) for day, usage in sorted(count.by_day.items())],
        by_project=[
            ProjectUsage(cwd=cwd, **_fields(usage))
            for cwd, usage in sum_by(count.by_session, lambda one: one.entry.cwd or "").items()
        ],
        by_agent=[
            AgentUsage(agent_id=agent, **_fields(usage)) for agent, usage in sum_by(count.by_session, _agent_of).items()
        ],
        by_source=[
            SourceUsage(source=source, **_fields(usage))
            for source, usage in sum_by(count.by_session, lambda one: source_of(one.key)).items()
        ],
        partial=partial or UNSET,
    )


def _agent_of(session: Session) -> str:
    return "" if is_foreign(session.key) else agent_of(session.key)


async def _visible(ctx: Context, key: str | None) -> list[Session]:
    """The transcripts to count, archived ones included."""
    services = ctx.services
    catalog, sight = services.store.catalog, services.sight_of(ctx.caller)
    found: list[Session] = []
    for count, session in enumerate(list(catalog.every()), 1):
        if count % _CHUNK == 0:
            await trio.lowlevel.checkpoint()
        if key in (None, session.key) and is_listed(session.key) and reaches(catalog, sight, session.key):
            found.append(session)
    return found


def _fields(usage: UsageSum) -> dict[str, Any]:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_read": usage.cache_read,
        "cache_write": usage.cache_write,
        "total_tokens": usage.total_tokens,
        "cost_usd": UNSET if usage.cost_usd is None else round(usage.cost_usd, _DIGITS),
        "unpriced_tokens": usage.unpriced_tokens or UNSET,
    }


METHOD = Method(
    "sessions.usage",
    "list",
    SessionsUsageParams,
    SessionsUsageResult,
    handle,
    "Tokens and cost by session, model, day, folder, agent and program.",
)
