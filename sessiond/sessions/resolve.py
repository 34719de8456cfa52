"""Find the session a caller means, or say that there is none: the same answer for what is not there and not visible.

Aliases first, then visibility, on the canonical key. Knows the catalog and the caller's sight; writes nothing.
"""

from __future__ import annotations

from sessiond.errors import Conflict, InvalidParams, NotFound, quote, shorten
from sessiond.model.caller import Caller
from sessiond.model.keys import UUID, KeyRules, agent_of, canonical, clean, is_inbox, rest_of
from sessiond.policy.visibility import LEAST_STEPS, Sight
from sessiond.store.catalog import Catalog, Session

# A key that no session can have: agents have names.
NOBODYS_KEY = "agent::"


def spawner_of(catalog: Catalog, key: str) -> str | None:
    """The key of the session that spawned `key`."""
    session = catalog.by_key.get(key)
    return session.entry.spawned_by if session is not None else None


def reaches(catalog: Catalog, sight: Sight, key: str) -> bool:
    """Whether a caller with this sight may see the session of `key`."""
    return sight.unlimited or sight.reaches(key, lambda target: spawner_of(catalog, target))


def may_name(catalog: Catalog, sight: Sight, session: Session | None, key: str | None = None) -> bool:
    """Whether a caller with this sight may see what it named: a session, or the key of one that is not there.

    Both take the same steps, whatever there is and however deep it lies.
    """
    sought = session.key if session is not None else key or NOBODYS_KEY
    return sight.unlimited or sight.reaches(sought, lambda target: spawner_of(catalog, target), least_steps=LEAST_STEPS)


def key_of(catalog: Catalog, caller: Caller, rules: KeyRules, text: str, *, field: str = "$.sessionKey") -> str | None:
    """The canonical key for what a caller wrote; None where it is no key (a session id, a label, any other word).

    `mcp:<program>` is the inbox of that program under whichever agent it was made: it hangs on the program, and must
    not be another one when another agent becomes the default.
    """
    if clean(text, field) == "current":
        if caller.session_key is None:
            raise InvalidParams(f'{field} is "current", but this caller has no session of its own', field=field)
        return caller.session_key
    key = canonical(text, rules, agent_id=caller.agent_id, field=field)
    if key is not None and is_inbox(key) and not clean(text, field).startswith("agent:"):
        return catalog.inbox(rest_of(key)) or key
    return key


def find(
    catalog: Catalog, sight: Sight, caller: Caller, rules: KeyRules, text: str, *, field: str = "$.sessionKey"
) -> Session:
    """The session for a key, an alias or a session id. NotFound where there is none that the caller may see.

    It is asked of one that is not there as well whether it is in sight: it takes as long as one that is hidden.
    """
    key = key_of(catalog, caller, rules, text, field=field)
    session = catalog.by_key.get(key) if key is not None else by_id(catalog, text)
    if not may_name(catalog, sight, session, key) or session is None:
        raise no_such_session(text, key)
    return session


def by_id(catalog: Catalog, text: str) -> Session | None:
    """The session with this id, live or archived; a UUID in any case."""
    text = text.strip()
    low = text.lower()
    found, again = catalog.by_id.get(text), catalog.by_id.get(low)
    return found or (again if UUID.fullmatch(low) else None)


def find_by_label(catalog: Catalog, sight: Sight, label: str, *, agent_id: str | None) -> Session:
    """The one session with that label (of one agent, where it is given) that the caller may see."""
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


def birthplace(catalog: Catalog, sight: Sight, key: str, parent: str | None, *, named: bool) -> str | None:
    """The key that is to be the spawner of `key`, which is being made or found, for a caller with this sight.

    Who does not see everything finds and names what is in its sight, there or not, and changes no lineage: that would
    be a way into its tree. What it makes is of its own agent; a key that it did not name (`named`) goes below its own
    session where it gives no other parent, so that it sees what it made. For all else the answer is that of a session
    that is not there: whether a key is taken is told to nobody who may not see it.
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
    """The answer for a session that is not there, or not there for this caller. `key` is what the text stands for."""
    shown = text.strip()
    shown = shown if len(shown) <= 80 else shown[:79] + "…"
    # `main` is another session for every agent: whoever wrote it learns which one it was.
    alias = key if key is not None and key != text.strip() else None
    return NotFound(
        f"no session {quote(shown)}{f' ({shorten(alias)})' if alias else ''};"
        " `sessions_list` shows the sessions there are",
        code="session_not_found",
        **({"sessionKey": alias} if alias else {}),
    )
