"""`sessions_search`: where something was said, newest first, in what the caller may read."""

from __future__ import annotations

import trio

from sessiond.config.clamps import SEARCH_LIMIT, Clamp
from sessiond.errors import InvalidParams
from sessiond.methods.params import Params, Result
from sessiond.methods.services import Context, Services
from sessiond.model.keys import is_listed
from sessiond.model.lax import MAX_MS
from sessiond.rpc.method import Method
from sessiond.sessions import search
from sessiond.sessions.resolve import reaches
from sessiond.store.catalog import Session

# Looking at this many sessions takes about half a millisecond; then others get their turn.
_CHUNK = 500
_SINCE = Clamp(default=0, maximum=MAX_MS, minimum=0)


class SessionsSearchParams(Params, frozen=True, kw_only=True):
    query: str
    limit: float | None = None
    session_key: str | None = None
    role: str | None = None
    since: float | None = None


class SearchMatch(Result, frozen=True, kw_only=True):
    """`timestamp` is milliseconds since 1970; `cursor` is behind the message, for sessions_history."""

    session_key: str
    cursor: str
    timestamp: int
    role: str
    snippet: str


class SessionsSearchResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    matches: list[SearchMatch]
    has_more: bool
    content_redacted: bool


async def handle(ctx: Context, params: SessionsSearchParams) -> SessionsSearchResult:
    services, caller = ctx.services, ctx.caller
    if params.session_key is not None:
        sessions = [services.find(caller, params.session_key)]
    else:
        sessions = await _readable(ctx)
    query = search.Query(
        text=_text(params.query),
        limit=SEARCH_LIMIT.apply(params.limit),
        role=params.role,
        since_ms=None if params.since is None else _SINCE.apply(params.since, "$.since"),
        shown=services.masker_for(caller),
    )
    found, has_more = await search.search(services.store, services.slices, sessions, query)
    # It may have taken a while: what was reset, deleted or hidden since is not shown.
    shown = [(match, cursor) for match, cursor in found if _is_still_readable(ctx, match.session, params.session_key)]
    return SessionsSearchResult(
        matches=[
            SearchMatch(
                session_key=match.session.key,
                cursor=cursor,
                timestamp=match.timestamp,
                role=match.role,
                snippet=match.snippet,
            )
            for match, cursor in shown
        ],
        has_more=has_more,
        content_redacted=any(match.masked for match, _ in shown),
    )


def _text(query: str) -> str:
    if not query.strip():
        raise InvalidParams("`$.query` is empty: say what to look for.", field="$.query")
    if len(query) > search.MAX_QUERY_CHARS:
        raise InvalidParams(
            f"`$.query` has {len(query)} characters, the limit is {search.MAX_QUERY_CHARS}.", field="$.query"
        )
    return query


async def _readable(ctx: Context) -> list[Session]:
    services = ctx.services
    catalog, sight = services.store.catalog, services.sight_of(ctx.caller)
    found: list[Session] = []
    for count, session in enumerate(list(catalog.by_key.values()), 1):
        if count % _CHUNK == 0:
            await trio.lowlevel.checkpoint()
        if is_listed(session.key) and reaches(catalog, sight, session.key):
            found.append(session)
    return found


def _is_still_readable(ctx: Context, session: Session, asked_for: str | None) -> bool:
    services: Services = ctx.services
    catalog = services.store.catalog
    # Without a name only live sessions are looked through: their keys are what the cursors belong to.
    current = catalog.by_id.get(session.session_id) if asked_for is not None else catalog.by_key.get(session.key)
    return current is session and reaches(catalog, services.sight_of(ctx.caller), session.key)


METHOD = Method(
    "sessions_search",
    "read",
    SessionsSearchParams,
    SessionsSearchResult,
    handle,
    "Find messages by their text, newest first.",
)
