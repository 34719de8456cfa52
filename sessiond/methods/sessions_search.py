"""`sessions_search`: search the messages that the caller may read for a text, newest first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import msgspec
import trio
from msgspec import Meta

from sessiond.methods.params import TIMES, FolderName, OfMachine, Params, Result, SourceNames, clamp_to, says
from sessiond.methods.services import Context
from sessiond.model.keys import is_listed, machine_of
from sessiond.policy.visibility import Sight
from sessiond.ranges import SEARCH_LIMIT, SEARCH_WITHIN_MS
from sessiond.rpc.method import Method
from sessiond.sessions import listing, search
from sessiond.sessions.found import Match
from sessiond.sessions.resolve import reaches
from sessiond.sessions.search_cursor import cursor_text, read_cursor
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
    machine: OfMachine = None
    cwd: FolderName = None
    include_archived: Annotated[bool, says("Whether to search archived sessions too.")] = False
    cursor: Annotated[
        str | None,
        says(
            "`nextCursor` of a page, for the next one; the other parameters have to be those of that page.",
            default="the newest",
        ),
    ] = None
    within_ms: Annotated[
        Annotated[int, clamp_to(SEARCH_WITHIN_MS)] | None,
        says(
            "Answer after about so many milliseconds, with what is found by then, also where that is not a whole page;"
            " `nextCursor` goes on.",
            default="a whole page, however long it takes",
        ),
    ] = None


class SearchMatch(Result, frozen=True, kw_only=True):
    """A message that contains the text."""

    session_key: Annotated[str, says("The canonical key of its session.")]
    cursor: Annotated[str, says("A cursor: the place after the message, for sessions_history.")]
    timestamp: Annotated[int, says("The time of the message, in milliseconds since 1970.")]
    role: Annotated[str, says("The role of the message.")]
    snippet: Annotated[str, says("The text around the match.")]
    session_id: Annotated[
        str | msgspec.UnsetType, says("The id of its session if that is archived: its key means another one.")
    ] = msgspec.UNSET


class SearchProgress(Result, frozen=True, kw_only=True, omit_defaults=False):
    """How far a search is."""

    looked_at: Annotated[int, says("How many bytes of transcripts were looked at, or need not be.")]
    total: Annotated[int, says("How many bytes of transcripts there are to search.")]


class SessionsSearchResult(Result, frozen=True, kw_only=True, omit_defaults=False):
    matches: Annotated[list[SearchMatch], says("The messages, newest first; of one time by key, then the last first.")]
    has_more: Annotated[bool, says("Whether there are more than `limit`, or may be, because the search ended early.")]
    next_cursor: Annotated[str | msgspec.UnsetType, says("The cursor for the next page.")] = msgspec.UNSET
    content_redacted: Annotated[bool, says("Whether secrets were masked in the snippets.")]
    progress: Annotated[
        SearchProgress | msgspec.UnsetType, says("How far it is, where the search ended early for `withinMs`.")
    ] = msgspec.UNSET
    partial: Annotated[
        int | msgspec.UnsetType,
        says("How many sessions are not read whole yet, so that matches may be missing; absent if none."),
    ] = msgspec.UNSET


async def handle(ctx: Context, params: SessionsSearchParams) -> SessionsSearchResult:
    services, caller = ctx.services, ctx.caller
    about = _describe(params)
    after = read_cursor(params.cursor, about, services.store.sign) if params.cursor is not None else None
    if params.session_key is not None:
        sessions = [await services.find_whole(caller, params.session_key)]
    else:
        sessions = await _readable(ctx, archived=params.include_archived)
    sessions, partial = _choose(sessions, params)
    query = search.Query(
        text=params.query,
        limit=params.limit,
        role=params.role,
        since_ms=params.since,
        until_ms=params.until,
        shown=services.masker_for(caller),
        after=after,
        is_over=_timer(ctx, params.within_ms),
    )
    page = await search.search(services.store, services.time_slicer, sessions, query, services.search_index)
    # Checked again, because a search takes time: sessions may have been reset, deleted or hidden meanwhile.
    sight = services.sight_of(caller)
    found = [(match, cursor) for match, cursor in page.found if _is_still_readable(ctx, sight, match.session, params)]
    return SessionsSearchResult(
        matches=[_describe_match(match, cursor) for match, cursor in found],
        has_more=page.has_more,
        next_cursor=cursor_text(page.next_place, about, services.store.sign) if page.next_place else msgspec.UNSET,
        content_redacted=any(match.masked for match, _ in found),
        progress=SearchProgress(looked_at=page.progress[0], total=page.progress[1]) if page.progress else msgspec.UNSET,
        partial=partial or msgspec.UNSET,
    )


def _describe(params: SessionsSearchParams) -> str:
    """What search it is: all that decides which messages are found, and in which order."""
    fields = (params.query, params.session_key, params.role, params.since, params.until, params.cwd)
    described = (*fields, sorted(set(params.sources or ())), params.include_archived, params.machine)
    return msgspec.json.encode(described).decode()


def _describe_match(match: Match, cursor: str) -> SearchMatch:
    return SearchMatch(
        session_key=match.session.key,
        cursor=cursor,
        timestamp=match.timestamp,
        role=match.role,
        snippet=match.snippet,
        session_id=match.session.session_id if match.session.archived else msgspec.UNSET,
    )


def _timer(ctx: Context, within_ms: int | None) -> Callable[[], bool] | None:
    """A function that says whether the time is over, which begins when it is called first. It is called in worker
    threads: first when the search gets to what no page before has looked at. Finding the place again may take as long
    as the time, and each page would hardly get further.
    """
    if within_ms is None:
        return None
    clock, deadline = ctx.services.clock, math.inf

    def is_over() -> bool:
        nonlocal deadline
        now = clock.monotonic()
        deadline = min(deadline, now + within_ms / 1000)
        return now >= deadline

    return is_over


def _choose(sessions: list[Session], params: SessionsSearchParams) -> tuple[list[Session], int]:
    """The sessions that fit the params, and how many of them were not read whole yet."""
    if params.sources is not None:
        sources = frozenset[str](params.sources)
        sessions = [session for session in sessions if listing.source_of(session.key) in sources]
    if params.machine is not None:
        sessions = [session for session in sessions if machine_of(session.key) == params.machine]
    # As `session.is_whole` has it, without a call for each of thousands.
    entries = [session.entry for session in sessions]
    partial = sum([(facts := one.file).bytes < facts.folded_to for one in entries])
    partial += sum([one.source.partial for one in entries if one.source is not None])
    if params.cwd is not None:
        folder = listing.normalize_folder(params.cwd)
        known = [(session, session.entry.cwd) for session in sessions]
        partial = sum(not session.is_whole and (cwd is None or listing.is_below(cwd, folder)) for session, cwd in known)
        sessions = [session for session, cwd in known if cwd is not None and listing.is_below(cwd, folder)]
    return sessions, partial


async def _readable(ctx: Context, *, archived: bool) -> list[Session]:
    services = ctx.services
    catalog, sight = services.store.catalog, services.sight_of(ctx.caller)
    pool = list(catalog.every() if archived else catalog.by_key.values())
    found: list[Session] = []
    for begin in range(0, len(pool), _CHUNK):
        some = [session for session in pool[begin : begin + _CHUNK] if is_listed(session.key)]
        found += some if sight.unlimited else [session for session in some if reaches(catalog, sight, session.key)]
        await trio.lowlevel.checkpoint()
    return found


def _is_still_readable(ctx: Context, sight: Sight, session: Session, params: SessionsSearchParams) -> bool:
    catalog = ctx.services.store.catalog
    # Else only live sessions are searched, because cursors belong to the key.
    with_archived = params.include_archived or params.session_key is not None
    if with_archived and session.folder.source is None:
        current = catalog.by_id.get(session.session_id)
    else:
        current = catalog.by_key.get(session.key)
    return current is session and reaches(catalog, sight, session.key)


METHOD = Method(
    "sessions_search",
    "read",
    SessionsSearchParams,
    SessionsSearchResult,
    handle,
    "Find messages by their text, newest first.",
)
