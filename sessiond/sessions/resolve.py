"""Find the session that a caller names. Missing and hidden sessions get the same answer.

Aliases are resolved first, then visibility is checked on the canonical key. Writes nothing.
"""

from __future__ import annotations

from functools import lru_cache

from sessiond.errors import Conflict, InvalidParams, NotFound, quote, shorten
from sessiond.model.caller import Caller
from sessiond.model.keys import (
    MAX_KEY_BYTES,
    NATIVE_ID,
    SOURCES,
    UUID,
    KeyRules,
    agent_of,
    canonical_key,
    is_foreign,
    is_inbox,
    machine_of,
    normalize_key,
    rest_of,
)
from sessiond.policy.visibility import LEAST_STEPS, Sight
from sessiond.store.catalog import Catalog, Session

# A key that no session can have, because agent ids are not empty.
NOBODYS_KEY = "agent::"


def spawner_of(catalog: Catalog, key: str) -> str | None:
    """The key of the session that spawned `key`."""
    session = catalog.by_key.get(key)
    return session.entry.spawned_by if session is not None else None


def reaches(catalog: Catalog, sight: Sight, key: str) -> bool:
    """Whether a caller with this sight may see the session of `key`."""
    return sight.unlimited or sight.reaches(key, lambda target: spawner_of(catalog, target))


def may_see_name(catalog: Catalog, sight: Sight, text: str) -> bool:
    """As `reaches`, for what a transcript or a caller names: only who sees everything sees what is no key."""
    is_key = is_foreign(text) or (text.startswith("agent:") and text.count(":") > 1)
    return sight.unlimited or (is_key and reaches(catalog, sight, text))


def may_name(catalog: Catalog, sight: Sight, session: Session | None, key: str | None = None) -> bool:
    """Whether a caller with this sight may see the session that it named, or the key of a missing one.

    The check takes the same number of steps in both cases, so that its duration does not reveal a hidden session.
    """
    sought = session.key if session is not None else key or NOBODYS_KEY
    return sight.unlimited or sight.reaches(sought, lambda target: spawner_of(catalog, target), least_steps=LEAST_STEPS)


def key_of(catalog: Catalog, caller: Caller, rules: KeyRules, text: str, *, field: str = "$.sessionKey") -> str | None:
    """The canonical key for what a caller wrote; None if it is not a key (a session id, a label, any other word).

    The key of another program's session is found without case too, and is that of the session of ours that carries it.
    `mcp:<program>` finds the inbox of that program under any agent, so that it stays the same inbox when the default
    agent of the configuration changes.
    """
    # What another machine calls `main` is not the session as which it acts here.
    agent_id = None if caller.is_machine else caller.agent_id
    # Others could tell by the time what the owner has named.
    read = _read_known_text if caller.kind == "owner" and len(text) <= MAX_KEY_BYTES else _read_text
    normalized, key = read(text, rules, agent_id, field)
    if normalized == "current":
        if caller.session_key is None:
            raise InvalidParams(f'{field} is "current", but this caller has no session of its own', field=field)
        return caller.session_key
    if key is not None and is_foreign(key) and machine_of(key) is None:
        key = catalog.foreign.find_spelling(key)
        ours = catalog.carrier_of(rest_of(key)) if key not in catalog.by_key else None
        return ours.key if ours is not None else key
    if key is not None and is_inbox(key) and not normalized.startswith("agent:"):
        return catalog.inbox(rest_of(key)) or key
    return key


def _read_text(text: str, rules: KeyRules, agent_id: str | None, field: str) -> tuple[str, str | None]:
    """What a caller wrote, normalized, and the canonical key for it."""
    return normalize_key(text, field), canonical_key(text, rules, agent_id=agent_id, field=field)


_read_known_text = lru_cache(512)(_read_text)


def find(
    catalog: Catalog, sight: Sight, caller: Caller, rules: KeyRules, text: str, *, field: str = "$.sessionKey"
) -> Session:
    """The session with a key, an alias or a session id. NotFound if there is none that the caller may see.

    Visibility is checked for missing sessions too, so that they take as long as hidden ones.
    """
    key = key_of(catalog, caller, rules, text, field=field)
    session = catalog.by_key.get(key) if key is not None else by_id(catalog, text)
    if not may_name(catalog, sight, session, key) or session is None:
        # The key of another program's session may mean one of ours, which must not be named to who may not see it.
        raise no_such_session(text, key if not is_foreign_text(text) else None)
    return session


def is_foreign_text(text: str) -> bool:
    """Whether what a caller wrote begins as the key of another program's session."""
    return is_foreign(text.strip().lower())


def by_id(catalog: Catalog, text: str) -> Session | None:
    """The session with this id, also an archived one or another program's, or one of another machine as it is called
    there (`mars/main`). For a UUID, case is ignored.
    """
    text = text.strip()
    low = text.lower()
    found, again, elsewhere = catalog.by_id.get(text), catalog.by_id.get(low), catalog.foreign.find_alias(low)
    found = found or (again if UUID.fullmatch(low) else None)
    if found is not None and found.entry.attends is not None:
        found = None
    if not NATIVE_ID.fullmatch(text):
        return found or elsewhere
    # Looked for also when it was found, so that an id takes as long when its session is hidden as when there is none.
    keys = [catalog.foreign.find_spelling(f"{source}:{text}") for source in SOURCES]
    foreign = next((catalog.by_key[key] for key in keys if key in catalog.by_key), None)
    carrier = catalog.carrier_of(text)
    return found or foreign or carrier or elsewhere


def find_by_label(catalog: Catalog, sight: Sight, label: str, *, agent_id: str | None) -> Session:
    """The visible session with that label, of one agent if given. NotFound; Conflict if there are several."""
    found = catalog.keys_with_label(agent_id, label) if agent_id is not None else catalog.with_label(label)
    visible = [key for key in found or [NOBODYS_KEY] if may_name(catalog, sight, None, key) and key in catalog.by_key]
    if not visible:
        raise NotFound(f"no session has the label {quote(label)}; `sessions_list` shows the labels there are")
    if len(visible) > 1:
        raise Conflict(
            f"{len(visible)} sessions have the label {quote(label)} ({', '.join(sorted(visible)[:4])});"
            " name one by its key"
        )
    return catalog.by_key[visible[0]]


def choose_spawner(catalog: Catalog, sight: Sight, key: str, parent: str | None, *, named: bool) -> str | None:
    """The key of the spawner for a session `key` that is being found or created by a caller with this sight.

    A caller that does not see everything may only name keys in its sight, may only create sessions of its own agent,
    and cannot change the lineage of an existing session, which would bring it into its tree. A key that it did not name
    (`named=False`) becomes a child of its own session unless it gives another parent, so that it can see what it
    created. Everything else is refused with the error for a missing session, which does not reveal whether a hidden key
    is taken.
    """
    if sight.unlimited:
        return parent
    if named and not may_name(catalog, sight, None, key):
        raise no_such_session(key)
    if key in catalog.by_key or key == sight.own_key:
        return None
    if agent_of(key) != sight.agent_id:
        raise no_such_session(key)
    return parent or sight.own_key


def no_such_session(text: str, key: str | None = None) -> NotFound:
    """The error for a missing or hidden session. `key` is the canonical key for `text`, if it is a key."""
    shown = text.strip()
    shown = shown if len(shown) <= 80 else shown[:79] + "…"
    # An alias such as `main` means another session for every agent, so name the one that was looked for.
    alias = key if key is not None and key != text.strip() else None
    return NotFound(
        f"no session {quote(shown)}{f' ({shorten(alias)})' if alias else ''};"
        " `sessions_list` shows the sessions there are",
        code="session_not_found",
        **({"sessionKey": alias} if alias else {}),
    )
