"""`sessions_search`: search the messages that the caller may read for a text, newest first."""

from __future__ import annotations

from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from sessiond.methods.params import TIMES, FolderName, Params, Result, SourceNames, clamp_to, says
from sessiond.methods.services import Context, Services
from sessiond.model.keys import is_listed
from sessiond.ranges import SEARCH_LIMIT
from sessiond.rpc.method import Method
from sessiond.sessions import listing, search
from sessiond.sessions.resolve import reaches
from sessiond.store.catalog import Session

# Checking the visibility of this many sessions takes half a millisecond; then other tasks run.
_CHUNK = 500


class SessionsSearchParams(Params, frozen=True, kw_only=True):
    query: Annotated[
        str,
        Meta(
            pattern=r"\S",
            max_length=search.MAX_QUERY_CHARS,
            extra={"expected": f"text of at most {search.MAX_QUERY_CHARS} characters that is not blank"},
        ),
        says("The text to search for; case is ignored.", takes="not blank"),
    ]
    limit: Annotated[int, clamp_to(SEARCH_LIMIT, "How many messages to return at most.")] = SEARCH_LIMIT.default
    session_key: Annotated[str | None, says("Only in this session.", default="all that the caller may read")] = None
    role: Annotated[str | None, says("Only messages with this role, such as `user` or `assistant`.")] = None
    since: Annotated[
        Annotated[int, clamp_to(TIMES)] | None, says("Only messages from this time on, in milliseconds since 1970.")
    ] = None
    until: Annotated[
        Annotated[int, clamp_to(TIMES)] | None, says("Only messages up to this time, in milliseconds since 1970.")
    ] = None
    sources: SourceNames = None
    cwd: FolderName = None


class SearchMatch(Result, frozen=True, kw_only=True):
    """A message that contains the text."""

    session_key: Annotated[str, says("The canonical key of its session.")]
    cursor: Annotated[str, says("A cursor: the place after the message, for sessions_history.")]
    timestamp: Annotated[int, says("The time of the message, in milliseconds since 1970.")]
    role: Annotated[str, says("The role of the message.")]
    snippet: Annotated[str, says("The text around the match.")]


class SessionsSearchResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    matches: Annotated[list[SearchMatch], says("The messages, newest first.")]
    has_more: Annotated[bool, says("Whether there are more than `limit`.")]
    content_redacted: Annotated[bool, says("Whether secrets were masked in the snippets.")]
    partial: Annotated[
        int | msgspec.UnsetType,
        says("How many sessions were not searched, because only their ends have been read so far; absent if none."),
    ] = msgspec.UNSET


async def handle(ctx: Context, params: SessionsSearchParams) -> SessionsSearchResult:
    services, caller = ctx.services, ctx.caller
    if params.session_key is not None:
        sessions = [await services.find_whole(caller, params.session_key)]
    else:
        sessions = await _readable(ctx)
    sessions, partial = _choose(sessions, params)
    query = search.Query(
        text=params.query,
        limit=params.limit,
        role=params.role,
        since_ms=params.since,
        until_ms=params.until,
        shown=services.masker_for(caller),
    )
    found, has_more = await search.search(services.store, services.time_slicer, sessions, query)
    # Checked again, because a search takes time: sessions may have been reset, deleted or hidden meanwhile.
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
        partial=partial or msgspec.UNSET,
    )


def _choose(sessions: list[Session], params: SessionsSearchParams) -> tuple[list[Session], int]:
    """The sessions that fit the params, and how many of them were not read whole yet."""
    if params.sources is not None:
        sources = frozenset[str](params.sources)
        sessions = [session for session in sessions if listing.source_of(session.key) in sources]
    partial = sum(session.is_partial for session in sessions)
    if params.cwd is not None:
        folder = listing.normalize_folder(params.cwd)
        known = [(session, session.entry.cwd) for session in sessions]
        partial = sum(session.is_partial and (cwd is None or listing.is_below(cwd, folder)) for session, cwd in known)
        sessions = [session for session, cwd in known if cwd is not None and listing.is_below(cwd, folder)]
    return sessions, partial


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
    # Without a session in the params only live sessions are searched, because cursors belong to the key.
    is_archived = asked_for is not None and session.folder.source is None
    current = catalog.by_id.get(session.session_id) if is_archived else catalog.by_key.get(session.key)
    return current is session and reaches(catalog, services.sight_of(ctx.caller), session.key)


METHOD = Method(
    "sessions_search",
    "read",
    SessionsSearchParams,
    SessionsSearchResult,
    handle,
    "Find messages by their text, newest first.",
)
