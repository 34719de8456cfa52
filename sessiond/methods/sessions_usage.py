"""`sessions.usage`: tokens and cost of what the caller may see, by session, model and day (UTC)."""

from __future__ import annotations

from typing import Any

import trio
from msgspec import UNSET, UnsetType

from sessiond.config.clamps import Clamp
from sessiond.errors import InvalidParams
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context
from sessiond.model.keys import is_listed
from sessiond.model.lax import MAX_MS
from sessiond.rpc.method import Method
from sessiond.sessions.resolve import reaches
from sessiond.sessions.usage import UsageCount, UsageSum
from sessiond.store.catalog import Session

_TIME = Clamp(default=0, maximum=MAX_MS, minimum=0)
# Looking at this many sessions takes about half a millisecond; then others get their turn.
_CHUNK = 500
# A millionth of a cent: sums of floats are not exact, and nobody wants to see by how much.
_DIGITS = 8


class SessionsUsageParams(Params, frozen=True, kw_only=True):
    """`since` is the first millisecond that counts, `until` the first that does not."""

    key: str | None = None
    since: float | None = None
    until: float | None = None


class UsageFields(Result, frozen=True, kw_only=True, omit_defaults=False):
    input_tokens: int
    output_tokens: int
    cache_read: int
    cache_write: int
    total_tokens: int
    cost_usd: float | UnsetType


class SessionUsage(UsageFields, frozen=True, kw_only=True):
    """An archived transcript has a row of its own, by the key that it had."""

    key: str
    session_id: str
    archived: bool


class ModelUsage(UsageFields, frozen=True, kw_only=True):
    model: str


class DayUsage(UsageFields, frozen=True, kw_only=True):
    """`day` is `YYYY-MM-DD`."""

    day: str


class SessionsUsageResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    """Sessions and models in the order of their tokens, the most first; days in theirs."""

    totals: UsageFields
    by_session: list[SessionUsage]
    by_model: list[ModelUsage]
    by_day: list[DayUsage]


async def handle(ctx: Context, params: SessionsUsageParams) -> SessionsUsageResult:
    services = ctx.services
    since = None if params.since is None else _TIME.apply(params.since, "$.since")
    until = None if params.until is None else _TIME.apply(params.until, "$.until")
    if since is not None and until is not None and until < since:
        raise InvalidParams("`$.until` is before `$.since`.", field="$.until")
    key = None if params.key is None else services.find(ctx.caller, params.key, field="$.key").key
    sessions = await _visible(ctx, key)
    count = UsageCount(services.store.record_limit, services.config.models.pricing, since_ms=since, until_ms=until)
    await services.slices.run(count.steps(sessions))
    return SessionsUsageResult(
        totals=UsageFields(**_fields(count.totals)),
        by_session=[
            SessionUsage(key=one.key, session_id=one.session_id, archived=one.archived, **_fields(tally))
            for one, tally in sorted(count.by_session.items(), key=lambda item: -item[1].total_tokens)
        ],
        by_model=[
            ModelUsage(model=model, **_fields(tally))
            for model, tally in sorted(count.by_model.items(), key=lambda item: -item[1].total_tokens)
        ],
        by_day=[DayUsage(day=day, **_fields(tally)) for day, tally in sorted(count.by_day.items())],
    )


async def _visible(ctx: Context, key: str | None) -> list[Session]:
    """The transcripts that count, the archived ones too."""
    services = ctx.services
    catalog, sight = services.store.catalog, services.sight_of(ctx.caller)
    found: list[Session] = []
    for count, session in enumerate(list(catalog.by_id.values()), 1):
        if count % _CHUNK == 0:
            await trio.lowlevel.checkpoint()
        if key in (None, session.key) and is_listed(session.key) and reaches(catalog, sight, session.key):
            found.append(session)
    return found


def _fields(tally: UsageSum) -> dict[str, Any]:
    return {
        "input_tokens": tally.input_tokens,
        "output_tokens": tally.output_tokens,
        "cache_read": tally.cache_read,
        "cache_write": tally.cache_write,
        "total_tokens": tally.total_tokens,
        "cost_usd": UNSET if tally.cost_usd is None else round(tally.cost_usd, _DIGITS),
    }


METHOD = Method(
    "sessions.usage",
    "list",
    SessionsUsageParams,
    SessionsUsageResult,
    handle,
    "Tokens and cost by session, model and day.",
)
