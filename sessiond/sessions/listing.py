"""The sessions in a list, newest first. Filters and visibility are applied before the limit. Reads no transcript."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

import msgspec

from sessiond.errors import InvalidParams
from sessiond.model.entry import Entry
from sessiond.model.hook import attended_state
from sessiond.model.keys import SOURCES, Kind, agent_of, is_listed, kind_of, machine_of
from sessiond.model.keys import source_of as program_of
from sessiond.model.row import OWN_SOURCE, CachedRow, Row, links_of, native_id_of, row_of, title_of, waiting_of
from sessiond.policy.visibility import Sight
from sessiond.sessions.resolve import may_see_name, reaches
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore

# Of the sub-agents of a session the newest are in its row; a list with `spawnedBy` has all.
MAX_CHILDREN = 100
_encode = msgspec.json.Encoder().encode


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of a list. `after` is the place after the last row of the page before.

    `sources` are names of programs and `sessiond`; `cwd` is a folder, absolute and normalized. `titles` gives the title
    of a session as the caller may read it, and `names` a name that one was given.
    """

    kinds: frozenset[Kind] | None = None
    since_ms: int | None = None
    search: str | None = None
    label: str | None = None
    spawned_by: str | None = None
    agent_id: str | None = None
    sources: frozenset[str] | None = None
    machine: str | None = None
    cwd: str | None = None
    titles: Callable[[Entry], str | None] = title_of
    names: Callable[[str], str] = str
    include_archived: bool = False
    after: tuple[int, str] | None = None


class ListPage(msgspec.Struct, frozen=True):
    """One page. `next_place` is None on the last page. `partial` is how many sessions the filters may have missed,
    because they have not been read whole.
    """

    sessions: list[Session]
    next_place: tuple[int, str] | None
    partial: int = 0


def select(store: SessionStore, sight: Sight, wanted: Filter, limit: int) -> ListPage:
    """The newest `limit` sessions that pass the filter and that the caller may see."""
    page: list[Session] = []
    if wanted.spawned_by is not None and not may_see_name(store.catalog, sight, wanted.spawned_by):
        return ListPage(page, None)  # as where there is no such session
    partial = count_missed(store, sight, wanted)
    narrows, sees_all = _narrows(wanted), sight.unlimited
    for session in _candidates(store, sight, wanted):
        if not (_passes(store, session, wanted) if narrows else is_listed(session.key)):
            continue
        if not sees_all and not reaches(store.catalog, sight, session.key):
            continue
        if len(page) == limit:
            last = page[-1]
            return ListPage(page, _place(last), partial)
        page.append(session)
    return ListPage(page, None, partial)


def _narrows(wanted: Filter) -> bool:
    """Whether some session that is listed does not pass, apart from its time and place."""
    by_key = (wanted.kinds, wanted.agent_id, wanted.sources, wanted.machine, wanted.spawned_by)
    return any(one is not None for one in (*by_key, wanted.label, wanted.cwd, wanted.search))


def count_missed(store: SessionStore, sight: Sight, wanted: Filter) -> int:
    """How many visible sessions would pass the filter if what is not known of them yet fits."""
    if wanted.search is None and wanted.cwd is None and wanted.spawned_by is None:
        return 0
    known = msgspec.structs.replace(wanted, search=None, cwd=None, spawned_by=None)
    return sum(
        _may_pass_when_whole(session, wanted)
        and not _passes(store, session, wanted)
        and _passes(store, session, known)
        and (wanted.since_ms is None or session.entry.updated_at >= wanted.since_ms)
        and reaches(store.catalog, sight, session.key)
        for session in store.catalog.foreign.values()
        if session.is_partial
    )


def _may_pass_when_whole(session: Session, wanted: Filter) -> bool:
    """Whether each filter that the session does not pass is on a field that is not known yet. Titles may change."""
    entry = session.entry
    return (wanted.cwd is None or entry.cwd is None or is_below(entry.cwd, wanted.cwd)) and (
        wanted.spawned_by is None or entry.spawned_by in (None, wanted.spawned_by)
    )


def is_below(path: str, folder: str) -> bool:
    """Whether `path` is the folder or below it, by its segments. Follows no links."""
    path = normalize_folder(path)
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def normalize_folder(path: str) -> str:
    """The path without empty segments, `.` and `..`."""
    path = os.path.normpath(path)
    return path[1:] if path.startswith("//") else path


def _place(session: Session) -> tuple[int, str]:
    return (-session.entry.updated_at, f"{session.key}#{session.session_id}")


def _candidates(store: SessionStore, sight: Sight, wanted: Filter) -> Iterator[Session]:
    """The sessions to check, in order. For a narrow visibility or a parent, only the few that can match."""
    catalog = store.catalog
    if wanted.include_archived:
        pool: Iterable[Session] = catalog.every()
    elif wanted.spawned_by is not None:
        pool = (catalog.by_key[key] for key in catalog.children_of(wanted.spawned_by))
    elif not sight.unlimited and sight.level in ("self", "tree") and sight.own_key is not None:
        pool = (catalog.by_key[key] for key in _tree(store, sight.own_key) if key in catalog.by_key)
    else:
        return _from_place(catalog.newest(wanted.after), wanted)
    return _from_place(iter(sorted(pool, key=_place)), wanted)


def _from_place(sessions: Iterator[Session], wanted: Filter) -> Iterator[Session]:
    return sessions if wanted.after is None and wanted.since_ms is None else _skip_to_place(sessions, wanted)


def _skip_to_place(sessions: Iterator[Session], wanted: Filter) -> Iterator[Session]:
    for session in sessions:
        if wanted.after is None or _place(session) > wanted.after:
            # The sessions are in order of time: after the first that is too old all are.
            if wanted.since_ms is not None and session.entry.updated_at < wanted.since_ms:
                return
            yield session


def _tree(store: SessionStore, root: str) -> Iterator[str]:
    seen = {root}
    stack = [root]
    while stack:
        key = stack.pop()
        yield key
        fresh = [child for child in store.catalog.children_of(key) if child not in seen]
        seen.update(fresh)
        stack += fresh


def source_of(key: str) -> str:
    """The name of the program whose session it is; `sessiond` for our own, `machine` for another machine's."""
    return program_of(key) or OWN_SOURCE


def away_since(store: SessionStore, key: str) -> int | None:
    """Since when the machine of the session is not reached; None while it is, and for those on this machine."""
    machine = machine_of(key)
    return store.machines.away_since(machine) if machine is not None else None


def _passes(store: SessionStore, session: Session, wanted: Filter) -> bool:
    entry = session.entry
    if not is_listed(session.key):
        return False
    if wanted.sources is not None and source_of(session.key) not in wanted.sources:
        return False
    if wanted.machine is not None and machine_of(session.key) != wanted.machine:
        return False
    if wanted.agent_id is not None and agent_of(session.key) != wanted.agent_id:
        return False
    if wanted.label is not None and entry.label != wanted.label:
        return False
    if wanted.spawned_by is not None and entry.spawned_by != wanted.spawned_by:
        return False
    if wanted.kinds is not None and kind_of(session.key, store.rules, entry.chat_type) not in wanted.kinds:
        return False
    if wanted.cwd is not None and (entry.cwd is None or not is_below(entry.cwd, wanted.cwd)):
        return False
    if wanted.search is None:
        return True
    search = wanted.search
    texts = (entry.label, entry.session_id, session.key, native_id_of(entry))
    if any(search in text.lower() for text in texts if text) or _is_in_title(search, entry, wanted.titles):
        return True
    names = (name for name in (entry.display_name, entry.subject) if name and search in name.lower())
    return any(search in wanted.names(name).lower() for name in names)


def _is_in_title(search: str, entry: Entry, titles: Callable[[Entry], str | None]) -> bool:
    whole = title_of(entry)
    if whole is None or search not in whole.lower():
        return False
    return search in (titles(entry) or "").lower()


def row(store: SessionStore, session: Session, caller_agent: str | None, sight: Sight | None = None) -> Row:
    """The row of a session as shown to a caller of agent `caller_agent`, without the keys that it may not see."""
    cached = _cached_row(store, session, caller_agent)
    made = cached.row
    if made is None:
        made = cached.row = _make_row(store, session, cached)
    if session.folder.source is not None:
        made = show_attended(store, session, made)
    children = _children_of(store, session, sight)
    if children:
        made = msgspec.structs.replace(made, child_sessions=children)
    return without_links(made, hidden_links(store, session.entry, sight)) if sight is not None else made


def hidden_links(store: SessionStore, entry: Entry, sight: Sight) -> tuple[str, ...]:
    """The fields of a row that name sessions which a caller with this sight may not see."""
    if sight.unlimited:
        return ()
    return tuple(name for name, key in links_of(entry).items() if not may_see_name(store.catalog, sight, key))


def without_links(shown: Row, names: tuple[str, ...]) -> Row:
    """The row without these fields, which name other sessions."""
    return msgspec.structs.replace(shown, **dict.fromkeys(names)) if names else shown


def encoded_row(
    store: SessionStore, session: Session, caller_agent: str | None, sight: Sight | None = None
) -> msgspec.Raw:
    """As `row`, as JSON: kept for as long as it is valid."""
    cached = _cached_row(store, session, caller_agent)
    if (
        store.catalog.has_children(cached.parents)
        or (session.folder.source is not None and store.catalog.attending(session.key) is not None)
        or (sight is not None and not sight.unlimited and hidden_links(store, session.entry, sight))
    ):
        return msgspec.Raw(_encode(row(store, session, caller_agent, sight)))
    text = cached.text
    if text is None:
        text = cached.text = msgspec.Raw(_encode(cached.row or _make_row(store, session, cached)))
    return text


def _cached_row(store: SessionStore, session: Session, caller_agent: str | None) -> CachedRow:
    """The cached row of the session for this caller, or a new one in its place."""
    activity, entry, folder = session.activity, session.entry, session.folder
    current = activity.row
    archived = session.superseded or folder.archived
    away = away_since(store, session.key) if folder.source is not None else None
    if (
        current is None
        or current.entry is not entry
        or current.folder is not folder
        or current.rules is not store.rules
        or current.archived is not archived
        or current.caller_agent != caller_agent
        or current.place != session.place
        or current.away_since != away
    ):
        parents = _parents_of(session)
        current = CachedRow(entry, folder, session.place, store.rules, caller_agent, archived, away, parents)
        activity.row = current
    return current


def _make_row(store: SessionStore, session: Session, cached: CachedRow) -> Row:
    return row_of(
        session.key,
        cached.entry,
        path=os.path.join(store.path, session.path),
        rules=cached.rules,
        caller_agent=cached.caller_agent,
        children=[],
        archived=cached.archived,
        away_since=cached.away_since,
    )


def show_attended(store: SessionStore, session: Session, shown: Row) -> Row:
    """The row of another program's session, with what its hooks have told."""
    attending = store.catalog.attending(session.key)
    if attending is None:
        return shown
    heard_at_ms = session.entry.updated_at
    state = attended_state(attending.entry, heard_at_ms, store.now_ms(), listening_since_ms=store.opened_at_ms)
    return msgspec.structs.replace(shown, state=state, waiting=waiting_of(attending.entry))


def _children_of(store: SessionStore, session: Session, sight: Sight | None) -> list[str]:
    """The newest sessions that it spawned, and sub-agents of the program's session that is shown as it, as far as they
    may be seen.
    """
    return store.catalog.newest_children(
        _parents_of(session), MAX_CHILDREN, lambda key: sight is None or reaches(store.catalog, sight, key)
    )


def _parents_of(session: Session) -> tuple[str, ...]:
    """The keys of the sessions whose children are shown as its own."""
    native_id = native_id_of(session.entry) if session.folder.source is None else None
    if native_id is None:
        return (session.key,)
    return (session.key, *(f"{source}:{native_id}" for source in SOURCES))


def cursor_text(place: tuple[int, str]) -> str:
    """A place in the list as a cursor."""
    return f"{-place[0]}:{place[1]}"


def read_cursor(text: str) -> tuple[int, str]:
    """The place in a cursor. InvalidParams for a malformed one."""
    stamp, found, name = text.partition(":")
    if not found or not stamp.lstrip("-").isdigit() or len(stamp) > 18 or not name:
        raise InvalidParams("$.cursor is not a cursor of sessions_list; use nextCursor as it is", field="$.cursor")
    return -int(stamp), name
