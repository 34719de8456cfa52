"""Decide which sessions a caller may see or send to. Knows keys and who spawned whom; reads no store.

The only place for that decision: every transport, method, event and search result asks here, with canonical keys.

Whom a caller acts as (security.md, "Callers"):

- The owner sees everything, and so does the owner's page. So does an unsandboxed token with scope `admin` that names
  neither a session nor an agent.
- A token with a session key acts as that session, whatever else it says.
- A token with an agent but no session (an adapter) acts as that agent's main session.
- Sessions of other programs (`claude:...`) are seen by the owner and by unsandboxed callers whose visibility is `all`.
  Agent-to-agent rules play no part.
- Another machine (machines.md) reads the tree of its agent's main session, whatever the visibility is. It sends to what
  it spawned there, and messages to the sessions that its rule names, but never to a session of a machine, which would
  send it on or back.
- A token with neither, and without `admin`, acts as no session. It sees nothing unless the visibility is `all`, and
  then what the agent-to-agent rules allow to an agent with an empty name, which only the pattern `*` matches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

import msgspec

from sessiond.errors import Forbidden
from sessiond.model import keys

if TYPE_CHECKING:
    from sessiond.config.settings import Config
    from sessiond.model.caller import Caller

Visibility = Literal["self", "tree", "agent", "all"]
# `address`: to send a message, which a machine's rule permits in more sessions than the rest of `send`.
Action = Literal["read", "send", "address"]
SpawnerOf = Callable[[str], str | None]

ACTIONS: tuple[Action, ...] = ("read", "send")
# More than the deepest possible tree of spawned sessions (`maxSpawnDepth` is 5 at most).
LEAST_STEPS = 8
_RANK: dict[Visibility, int] = {"self": 0, "tree": 1, "agent": 2, "all": 3}


class VisibilityRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules that the configuration sets. `send_visibility=None`: the same as `visibility`.

    `machines` has for each other machine the patterns of the keys to which it may send messages.
    """

    visibility: Visibility = "tree"
    send_visibility: Visibility | None = None
    agent_to_agent: bool = False
    allow: tuple[str, ...] = ()
    session_tools_visibility: Literal["spawned", "all"] = "spawned"
    main_key: str = "main"
    machines: Mapping[str, tuple[str, ...]] = {}


def rules_from(config: Config) -> VisibilityRules:
    """The rules of a configuration."""
    return VisibilityRules(
        visibility=config.tools.sessions.visibility,
        send_visibility=config.tools.sessions.send_visibility,
        agent_to_agent=config.tools.agent_to_agent.enabled,
        allow=tuple(config.tools.agent_to_agent.allow),
        session_tools_visibility=config.agents.defaults.sandbox.session_tools_visibility,
        main_key=config.session.main_key,
        machines={peer.name: peer.send for peer in config.link.peers},
    )


class Sight(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one caller may reach. Built once per request, then asked for each session.

    `level` is what lists report as `visibility`. `own_key` and `agent_id` are None if the caller has none. With
    `sees_foreign` the sessions of other programs are in reach. `addresses` are patterns of keys that are in reach, of
    other agents than `barred`, whose sessions are not, not even the caller's own.
    """

    level: Visibility
    unlimited: bool = False
    sees_foreign: bool = False
    own_key: str | None = None
    agent_id: str | None = None
    agent_to_agent: bool = False
    allow: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    barred: frozenset[str] = frozenset()

    def reaches(self, target_key: str, spawner_of: SpawnerOf, *, least_steps: int = 0) -> bool:
        """Whether the caller may see `target_key` (canonical). `spawner_of` gives the key of a session's spawner.

        Pass LEAST_STEPS for keys that the caller named: then a hidden key and a missing key take the same time to
        refuse.
        """
        if keys.is_foreign(target_key):
            if self.unlimited or self.sees_foreign:
                return True
        elif keys.agent_of(target_key) in self.barred:
            in_tree("", target_key, spawner_of, least_steps)
            return False
        elif self.addresses and matches_any(self.addresses, target_key):
            return True
        elif target_key == self.own_key or self.reaches_agent(keys.agent_of(target_key)):
            return True
        in_sight = _RANK[self.level] >= _RANK["tree"] and self.own_key is not None
        # Another program's session is in nobody's tree; looking there takes as long as for a missing key.
        return in_sight and in_tree(self.own_key or "", target_key, spawner_of, least_steps)

    def reaches_agent(self, agent_id: str) -> bool:
        """Whether the caller may see all sessions of an agent."""
        if self.unlimited:
            return True
        rank = _RANK[self.level]
        if rank >= _RANK["agent"] and agent_id == self.agent_id:
            return True
        return self.level == "all" and self._may_cross_to(agent_id)

    def _may_cross_to(self, target_agent: str) -> bool:
        if not self.agent_to_agent:
            return False
        return matches_any(self.allow, self.agent_id or "") and matches_any(self.allow, target_agent)


_OWNERS_SIGHT = Sight(level="all", unlimited=True)


def sight(caller: Caller, rules: VisibilityRules, action: Action = "read") -> Sight:
    """What `caller` may reach by `action`."""
    if _stands_for_the_owner(caller):
        return _OWNERS_SIGHT
    level = effective(caller, rules, action)
    if caller.kind == "nobody":
        return Sight(level="self")
    own_key, agent_id = acts_as(caller.session_key, caller.agent_id, rules), caller.agent_id
    if own_key is not None:
        agent_id = keys.agent_of(own_key)
    if is_machine(caller, rules):
        return Sight(
            level=level,
            own_key=own_key,
            agent_id=agent_id,
            addresses=rules.machines.get(agent_id or "", ()) if action == "address" else (),
            barred=frozenset(rules.machines) | {agent_id or ""} if action != "read" else frozenset(),
        )
    return Sight(
        level=level,
        sees_foreign=level == "all" and not caller.sandboxed,
        own_key=own_key,
        agent_id=agent_id,
        agent_to_agent=rules.agent_to_agent,
        allow=rules.allow,
    )


def is_machine(caller: Caller, rules: VisibilityRules) -> bool:
    """Whether the caller is another machine: by its token, or because its agent stands for one now."""
    return caller.is_machine or caller.agent_id in rules.machines


def acts_as(session_key: str | None, agent_id: str | None, rules: VisibilityRules) -> str | None:
    """The key of the session that a token with these claims acts as; None if it acts as no session."""
    if session_key is None and agent_id is not None:
        return f"agent:{agent_id}:{rules.main_key}"
    return session_key


def effective(caller: Caller, rules: VisibilityRules, action: Action = "read") -> Visibility:
    """The visibility of `caller`: the configured one, at most `tree` for a sandboxed caller, `tree` for a machine."""
    if _stands_for_the_owner(caller):
        return "all"
    if is_machine(caller, rules):
        return "tree"
    level = rules.visibility
    if action != "read" and rules.send_visibility is not None:
        level = rules.send_visibility
    if caller.sandboxed and rules.session_tools_visibility == "spawned" and _RANK[level] > _RANK["tree"]:
        return "tree"
    return level


def settings_to_reach_others(caller: Caller, rules: VisibilityRules) -> list[str]:
    """What the configuration has to say, and does not, for `caller` to send to sessions of an agent that it does not
    reach. Whether there is such an agent plays no part.
    """
    own_key = acts_as(caller.session_key, caller.agent_id, rules)
    name = "visibility" if rules.send_visibility is None else "sendVisibility"
    level, allow = rules.send_visibility or rules.visibility, 'tools.agentToAgent.allow = ["*"]'
    wanted = {
        f'tools.sessions.{name} = "all"': level != "all",
        'agents.defaults.sandbox.sessionToolsVisibility = "all"': (
            caller.sandboxed and rules.session_tools_visibility != "all"
        ),
        "tools.agentToAgent.enabled = true": not rules.agent_to_agent,
        allow: not matches_any(rules.allow, keys.agent_of(own_key or "")),
    }
    # With all else in place its patterns do not have the other one.
    return [setting for setting, is_missing in wanted.items() if is_missing] or [allow]


def may_see(
    caller: Caller, target_key: str, rules: VisibilityRules, spawner_of: SpawnerOf, action: Action = "read"
) -> bool:
    """Whether `caller` may see (or send to) the session `target_key`. For many targets build one `sight`."""
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

    The owner may mint any token. A caller with an `admin` token may mint for its own session and for sessions that it
    may both see and send to, because whoever holds the new token acts as that session. A sandboxed caller may only mint
    sandboxed tokens.
    """
    if _stands_for_the_owner(caller):
        return
    if caller.sandboxed and not sandboxed:
        raise Forbidden("a sandboxed caller mints sandboxed tokens only: pass sandboxed = true", code="token_wider")
    key = acts_as(session_key, agent_id, rules)
    if key is None or not all(may_see(caller, key, rules, spawner_of, action) for action in ACTIONS):
        raise Forbidden("a token can be minted only for a session that you may see yourself", code="token_wider")


def in_tree(root_key: str, target_key: str, spawner_of: SpawnerOf, least_steps: int = 0) -> bool:
    """Whether `target_key` is `root_key` or was spawned from it, at any depth and by any agent.

    The spawners are read from transcripts, which other programs may write, so they may form a circle: it ends the walk.
    A walk without success takes at least `least_steps`, so that its duration does not tell a hidden session from a
    missing one.
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
    return any(matches_wildcard(pattern.strip(), agent_id) for pattern in patterns if pattern.strip())


def matches_wildcard(pattern: str, text: str) -> bool:
    """Whether the whole `text` matches `pattern`, ignoring case; `*` stands for any text."""
    return matches_exactly(pattern.casefold(), text.casefold())


def matches_exactly(pattern: str, text: str) -> bool:
    """The same where case counts, as in the names of folders.

    Each piece between the stars is searched once, from left to right, so that no pattern takes exponential time.
    """
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
    if caller.kind == "owner" or caller.is_page:
        return True
    anonymous = caller.session_key is None and caller.agent_id is None
    return caller.kind == "token" and caller.has("admin") and anonymous and not caller.sandboxed
