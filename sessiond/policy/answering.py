"""Decide who may answer whose questions. Pure: knows keys and who spawned whom.

Nobody answers a question of its own kin: that of its own session, of one that spawned it or that it spawned, at any
depth, or of another session of its agent. Else an agent could grant itself what it may not do. Whether the question is
visible at all is decided by `visibility.py`. Source: security.md, "Questions".
"""

from __future__ import annotations

from sessiond.errors import Forbidden
from sessiond.model import keys
from sessiond.model.caller import Caller
from sessiond.policy import visibility
from sessiond.policy.visibility import SpawnerOf, VisibilityRules

OWNER_NAME = "owner"


def is_kin(caller: Caller, target_key: str, rules: VisibilityRules, spawner_of: SpawnerOf) -> bool:
    """Whether the session that asks is kin of the caller. The owner, and who stands in for the owner, has none."""
    if visibility.sight(caller, rules).unlimited:
        return False
    own_key = visibility.acts_as(caller.session_key, caller.agent_id, rules)
    if own_key is None:
        return False
    if keys.is_foreign(target_key) and _is_inbox_of(own_key, keys.source_of(target_key) or ""):
        return True
    is_own_agent = not keys.is_foreign(target_key) and keys.agent_of(target_key) == keys.agent_of(own_key)
    return (
        is_own_agent
        or visibility.in_tree(own_key, target_key, spawner_of)
        or visibility.in_tree(target_key, own_key, spawner_of)
    )


def check_answer(caller: Caller, target_key: str, rules: VisibilityRules, spawner_of: SpawnerOf) -> None:
    """Refuse (Forbidden, `question_kin`) an answer to a question of the caller's kin."""
    if is_kin(caller, target_key, rules, spawner_of):
        raise Forbidden(
            f"a question of {target_key} is not answered by itself, by who spawned it or was spawned by it, or by"
            " another session of its agent; a person has to answer it",
            code="question_kin",
        )


def name_of(caller: Caller, rules: VisibilityRules) -> str:
    """By whom an answer of this caller is, as its record says: `owner`, the key of a session, or `token <id>` for a
    token that belongs to none.
    """
    if visibility.sight(caller, rules).unlimited:
        return OWNER_NAME
    return visibility.acts_as(caller.session_key, caller.agent_id, rules) or f"token {caller.token_id}"


def _is_inbox_of(key: str, source: str) -> bool:
    """Whether the session is the inbox of that program: what reads it may be the very session that asks."""
    name = keys.rest_of(key).removeprefix("mcp:")
    return keys.is_inbox(key) and (name == source or name.startswith(f"{source}-"))
