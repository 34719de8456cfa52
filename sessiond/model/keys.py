"""Session keys: the notations for callers, the canonical key, and what a key says about its session.

Pure text functions; they do not know which sessions exist. Source: protocol.md, "Keys".
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from sessiond.errors import InvalidParams
from sessiond.machine_names import MACHINE_NAME

Kind = Literal["main", "group", "cron", "hook", "node", "other"]

MAX_KEY_BYTES = 512
# The form of keys in records; anything else there is ignored.
_OWN_FORM = r"agent:[a-z0-9][a-z0-9_-]{0,63}:.+"
CanonicalKey = Annotated[str, msgspec.Meta(pattern=rf"^{_OWN_FORM}$")]
# The programs whose own sessions are shown, by the word that their keys begin with.
SOURCES = ("claude", "codex", "gemini", "pi", "opencode")
# The id that a program gave its session. It keeps its letters, as it may be a file name.
NATIVE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}")
# What stands for a program where the session is one of another machine's sessiond: `<machine>/<its key there>`.
MACHINE = "machine"
# The form of the keys of both in records.
_FOREIGN_FORM = rf"(?:(?:{'|'.join(SOURCES)}):{NATIVE_ID.pattern}|{MACHINE_NAME.pattern}/{_OWN_FORM})"
ForeignKey = Annotated[str, msgspec.Meta(pattern=rf"^{_FOREIGN_FORM}\Z")]
# The form of either.
AnyKey = Annotated[str, msgspec.Meta(pattern=rf"^(?:{_OWN_FORM}$|{_FOREIGN_FORM}\Z)")]
_PROGRAMS = tuple(f"{source}:" for source in SOURCES)
_OWN = "agent:"
_ELSEWHERE = re.compile(rf"({MACHINE_NAME.pattern})/{_OWN}")
AGENT_ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
SESSION_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,127}")
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_WITHOUT_AGENT = re.compile(r"(cron|hook|subagent|node|acp|dashboard|mcp):.+|node-.+|[a-z0-9_-]+:(group|channel):.+")


class KeyRules(msgspec.Struct, frozen=True, cache_hash=True):
    """The configuration that keys depend on."""

    default_agent: str = "main"
    main_key: str = "main"
    scope: str = "per-sender"


def normalize_key(text: str, field: str) -> str:
    """`text` trimmed and in lower case; InvalidParams where it is empty, too long or has control characters."""
    key = text.strip().lower()
    if not key:
        raise InvalidParams(f"{field} is empty: give a session key, an alias or a session id", field=field)
    if _CONTROL.search(key):
        raise InvalidParams(f"{field} has a control character; session keys are printable text", field=field)
    try:
        size = len(key.encode("utf-8"))
    except UnicodeEncodeError:
        raise InvalidParams(f"{field} is not valid Unicode text", field=field) from None
    if size > MAX_KEY_BYTES:
        raise InvalidParams(f"{field} is {size} bytes long, the limit is {MAX_KEY_BYTES}", field=field)
    return key


def canonical_key(
    text: str, rules: KeyRules, *, agent_id: str | None = None, field: str = "$.sessionKey"
) -> str | None:
    """The canonical key for what a caller wrote; None for what may be a session id or a label and has to be looked up.

    `main` is the main session of `agent_id`, the caller's agent. `current` is not resolved here. A malformed `agent:`
    key is InvalidParams; `unknown` and any other word are None. The key of another program's session keeps its letters.
    """
    key = normalize_key(text, field)
    source, _, native = text.strip().partition(":")
    if source.lower() in SOURCES and NATIVE_ID.fullmatch(native):
        return f"{source.lower()}:{native}"
    if key.startswith(_OWN):
        agent, rest = _parts_of(key, field)
        if rest in ("main", "global") and (rest == "main" or rules.scope == "global"):
            rest = rules.main_key
        return f"agent:{agent}:{rest}"
    elsewhere = _ELSEWHERE.match(key)
    if elsewhere is not None:
        # What is `main` there only that machine knows.
        agent, rest = _parts_of(key[len(elsewhere[1]) + 1 :], field)
        return f"{elsewhere[1]}/agent:{agent}:{rest}"
    if key in ("main", rules.main_key) or (key == "global" and rules.scope == "global"):
        return main_key(agent_id or rules.default_agent, rules)
    if _WITHOUT_AGENT.fullmatch(key):
        return f"agent:{rules.default_agent}:{key}"
    return None


def _parts_of(key: str, field: str) -> tuple[str, str]:
    """The agent id in a normalized key that begins with `agent:`, and what follows it. InvalidParams."""
    agent, _, rest = key[len(_OWN) :].partition(":")
    if not AGENT_ID.fullmatch(agent) or not rest.strip(":"):
        raise InvalidParams(
            f"{field} is not a session key: write agent:<agentId>:<rest>, with an agent id like [a-z0-9][a-z0-9_-]*",
            field=field,
        )
    return agent, rest


def main_key(agent_id: str, rules: KeyRules) -> str:
    """The key of an agent's main session."""
    return f"agent:{agent_id}:{rules.main_key}"


def is_foreign(key: str) -> bool:
    """Whether the canonical key is that of another program's session, `<source>:<native id>`, or of one on another
    machine, `<machine>/<its key there>`.
    """
    return key.startswith(_PROGRAMS) or machine_of(key) is not None


def source_of(key: str) -> str | None:
    """The program whose session the canonical key names, MACHINE for one on another machine; None for our own."""
    if key.startswith(_OWN):
        return None
    return key.partition(":")[0] if key.startswith(_PROGRAMS) else MACHINE if machine_of(key) is not None else None


def machine_of(key: str) -> str | None:
    """The machine whose session the canonical key names; None for one that is kept on this machine."""
    found = None if key.startswith(_OWN) else _ELSEWHERE.match(key)
    return found[1] if found is not None else None


def key_elsewhere(machine: str, key: str) -> str | None:
    """The key here for a session that has this canonical key on another machine; None where it can be none."""
    try:
        agent, rest = _parts_of(key, "key") if key.startswith(_OWN) else ("", "")
        full = f"{machine}/agent:{agent}:{rest}"
        return full if agent and normalize_key(full, "key") == full else None
    except InvalidParams:
        return None


def agent_of(key: str) -> str:
    """The agent id in a canonical key; empty for a foreign session, which is no agent's here."""
    return key.split(":", 2)[1] if key.startswith(_OWN) else ""


def rest_of(key: str) -> str:
    """What follows the agent prefix of a canonical key; of another program's session the native id, of another
    machine's the key that it has there.
    """
    if key.startswith(_OWN):
        return key.split(":", 2)[2]
    return key.partition("/" if machine_of(key) is not None else ":")[2]


def kind_of(key: str, rules: KeyRules, chat_type: str | None = None) -> Kind:
    """The kind of a session, by the part of its key after the agent prefix. A foreign one is `other`."""
    if is_foreign(key):
        return "other"
    rest = rest_of(key)
    if rest == rules.main_key:
        return "main"
    if rest.startswith("cron:"):
        return "cron"
    if rest.startswith("hook:"):
        return "hook"
    if rest.startswith(("node-", "node:")):
        return "node"
    if chat_type in ("group", "channel") or group_part(key) is not None:
        return "group"
    return "other"


def group_part(key: str) -> tuple[str, str, str] | None:
    """`(channel, "group" | "channel", id)` for the key of a group, else None."""
    parts = rest_of(key).split(":", 2)
    if len(parts) == 3 and parts[1] in ("group", "channel") and not is_foreign(key):
        return parts[0], parts[1], parts[2]
    return None


def chat_type_of(key: str) -> str | None:
    """`group`, `channel` or `direct` where the key says so. Source: runs.md, "Send policy"."""
    group = group_part(key)
    if group is not None:
        return group[1]
    parts = rest_of(key).split(":")
    return "direct" if "direct" in parts or "dm" in parts else None


def is_subagent(key: str) -> bool:
    """Whether the key is that of a spawned session."""
    return rest_of(key).startswith("subagent:")


def is_inbox(key: str) -> bool:
    """Whether the canonical key is that of an MCP client's session, whose messages wait in an inbox."""
    return rest_of(key).startswith("mcp:")


def display_key(key: str, rules: KeyRules, caller_agent: str | None) -> str:
    """The key as a row shows it: the main session of the caller's agent is `main`."""
    return "main" if key == main_key(caller_agent or rules.default_agent, rules) else key


def is_listed(key: str) -> bool:
    """Whether sessions of this key are listed: `unknown` and `global` never are."""
    return not key.endswith(("global", "unknown")) or is_foreign(key) or rest_of(key) not in ("global", "unknown")
