"""Decide which sessions a caller may see or write to. Knows keys and who spawned whom; reads no store.

The one place for that decision: every transport, method, event and search result asks here, on canonical keys.

Who a caller is (security.md, "Callers"):

- The owner sees all. So does an unsandboxed token with scope `admin` that names neither session nor agent: the owner
  minted it to stand in for himself.
- A token with a session key is that session, whatever else it says.
- A token with an agent but no session (an adapter) sees as that agent's main session does.
- A token with neither, and without `admin`, is no session and of no agent: it sees nothing below visibility `all`, and
  there what the agent-to-agent rules give to an agent without a name, which only the pattern `*` matches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import msgspec

from sessiond.errors import Forbidden
from sessiond.model import keys

if TYPE_CHECKING:
    from sessiond.config.settings import Config
    from sessiond.model.caller import Caller

Visibility = Literal["self", "tree", "agent", "all"]
Action = Literal["read", "send"]
SpawnerOf = Callable[[str], str | None]

ACTIONS: tuple[Action, ...] = ("read", "send")
# Deeper than anything lies that was spawned here (`maxSpawnDepth` is 5 at most).
LEAST_STEPS = 8
_RANK: dict[Visibility, int] = {"self": 0, "tree": 1, "agent": 2, "all": 3}


class VisibilityRules(msgspec.Struct, frozen=True, kw_only=True):
    """What the configuration says. `send_visibility=None` means as `visibility`."""

    visibility: Visibility = "tree"
    send_visibility: Visibility | None = None
    agent_to_agent: bool = False
    allow: tuple[str, ...] = ()
    session_tools_visibility: Literal["spawned", "all"] = "spawned"
    main_key: str = "main"


def rules_from(config: Config) -> VisibilityRules:
    """The rules of a configuration."""
    return VisibilityRules(
        visibility=config.tools.sessions.visibility,
        send_visibility=config.tools.sessions.send_visibility,
        agent_to_agent=config.tools.agent_to_agent.enabled,
        allow=tuple(config.tools.agent_to_agent.allow),
        session_tools_visibility=config.agents.defaults.sandbox.session_tools_visibility,
        main_key=config.session.main_key,
    )


class Sight(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a caller may reach: made once for a request, then asked for each session.

    `level` is what lists report as `visibility`. `own_key` and `agent_id` are None where the caller has none.
    """

    level: Visibility
    unlimited: bool = False
    own_key: str | None = None
    agent_id: str | None = None
    agent_to_agent: bool = False
    allow: tuple[str, ...] = ()

    def reaches(self, target_key: str, spawner_of: SpawnerOf, *, least_steps: int = 0) -> bool:
        """Whether the caller may see `target_key` (canonical). `spawner_of` gives the key that spawned a key.

        With LEAST_STEPS a key that is hidden takes as many as one that is not there: for keys that the caller named.
        """
        if target_key == self.own_key or self.reaches_agent(keys.agent_of(target_key)):
            return True
        in_sight = _RANK[self.level] >= _RANK["tree"] and self.own_key is not None
        return in_sight and in_tree(self.own_key or "", target_key, spawner_of, least_steps)

    def reaches_agent(self, agent_id: str) -> bool:
        """Whether the caller may see every session of an agent, whichever there are."""
        if self.unlimited:
            return True
        rank = _RANK[self.level]
        if rank >= _RANK["agent"] and agent_id == self.agent_id:
            return True
        return self.level == "all" and self._crosses_to(agent_id)

    def _crosses_to(self, target_agent: str) -> bool:
        if not self.agent_to_agent:
            return False
        return matches_any(self.allow, self.agent_id or "") and matches_any(self.allow, target_agent)


def sight(caller: Caller, rules: VisibilityRules, action: Action = "read") -> Sight:
    """What `caller` may reach by `action`."""
    level = effective(caller, rules, action)
    if _stands_for_the_owner(caller):
        return Sight(level=level, unlimited=True)
    if caller.kind == "nobody":
        return Sight(level="self")
    own_key, agent_id = acts_as(caller.session_key, caller.agent_id, rules), caller.agent_id
    if own_key is not None:
        agent_id = keys.agent_of(own_key)
    return Sight(
        level=level, own_key=own_key, agent_id=agent_id, agent_to_agent=rules.agent_to_agent, allow=rules.allow
    )


def acts_as(session_key: str | None, agent_id: str | None, rules: VisibilityRules) -> str | None:
    """The session that a token with these claims is; None for one that is no session."""
    if session_key is None and agent_id is not None:
        return f"agent:{agent_id}:{rules.main_key}"
    return session_key


def effective(caller: Caller, rules: VisibilityRules, action: Action = "read") -> Visibility:
    """The level that governs `caller`: the configured one, clamped to `tree` in a sandbox and never widened by it."""
    if _stands_for_the_owner(caller):
        return "all"
    level = rules.visibility
    if action == "send" and rules.send_visibility is not None:
        level = rules.send_visibility
    if caller.sandboxed and rules.session_tools_visibility == "spawned" and _RANK[level] > _RANK["tree"]:
        return "tree"
    return level


def may_see(
    caller: Caller, target_key: str, rules: VisibilityRules, spawner_of: SpawnerOf, action: Action = "read"
) -> bool:
    """Whether `caller` may see (or send to) the session `target_key`. For many targets make one `sight`."""
    return sight(caller, rules, action).reaches(target_key, spawner_of, least_steps=LEAST_STEPS)


def check_mint(
    caller: Caller,
    *,
    session_key: str | None,
    agent_id: str | None,
    sandboxed: bool,
    rules: VisibilityRules,
    spawner_of: SpawnerOf,
) -> None:
    """Refuse (Forbidden) a token that would reach further than the caller who asks for it.

    The owner mints anything. A token with `admin` mints for itself and for sessions that it may both see and send to
    (who holds the token is that session), and a sandboxed one only sandboxed tokens: otherwise `admin` in a session
    would be a way to all sessions.
    """
    if _stands_for_the_owner(caller):
        return
    if caller.sandboxed and not sandboxed:
        raise Forbidden("a sandboxed caller mints sandboxed tokens only: pass sandboxed = true", code="token_wider")
    key = acts_as(session_key, agent_id, rules)
    if key is None or not all(may_see(caller, key, rules, spawner_of, action) for action in ACTIONS):
        raise Forbidden("a token can be minted only for a session that you may see yourself", code="token_wider")


def in_tree(root_key: str, target_key: str, spawner_of: SpawnerOf, least_steps: int = 0) -> bool:
    """Whether `target_key` is `root_key` or was spawned from it, at any depth and under any agent.

    A transcript says itself who spawned it, and anyone may write transcripts: a circle ends the walk. A walk that
    finds nothing has `least_steps`, so that nobody learns from its length how deep a hidden session lies, or that
    there is none.
    """
    passed: set[str] = set()
    key: str | None = target_key
    while key is not None and key not in passed:
        if key == root_key:
            return True
        passed.add(key)
        key = spawner_of(key)
    for _ in range(len(passed), least_steps):
        spawner_of(target_key)
    return False


def matches_any(patterns: tuple[str, ...], agent_id: str) -> bool:
    """Whether one of the patterns matches. They are trimmed; a blank one matches nothing."""
    return any(wildcard(pattern.strip(), agent_id) for pattern in patterns if pattern.strip())


def wildcard(pattern: str, text: str) -> bool:
    """Whether the whole of `text` matches `pattern`, where `*` stands for any text, without regard to case.

    The pieces between the stars are looked for from left to right and never again: no pattern makes it slow.
    """
    pattern, text = pattern.casefold(), text.casefold()
    first, *rest = pattern.split("*")
    if not rest:
        return first == text
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    at, end = len(first), len(text) - len(last)
    for piece in middle:
        found = text.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return True


def _stands_for_the_owner(caller: Caller) -> bool:
    if caller.kind == "owner":
        return True
    anonymous = caller.session_key is None and caller.agent_id is None
    return caller.kind == "token" and "admin" in caller.scopes and anonymous and not caller.sandboxed
