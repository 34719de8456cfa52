"""Resolve names that the daemon does not know: labels, prefixes of ids and keys; suggest the nearest name.

The daemon is only asked after it has refused a name, so that correct names cost nothing.
"""

from __future__ import annotations

from contextlib import suppress

from sessiond.cli.frame.failures import NOT_FOUND, USAGE, CommandFailed
from sessiond.cli.terminal.screen import is_uuid
from sessiond.client.errors import ClientError, RpcError
from sessiond.errors import quote
from sessiond.machine_names import MACHINE_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Call = Callable[[str, dict[str, Any]], Any]

# Shorter prefixes match too many names.
MIN_PREFIX = 8
MIN_KEY_DIGITS = 4
MAX_CANDIDATES = 5
# The wire parameters that name a session.
KEY_PARAMS = ("sessionKey", "key", "parentSessionKey")


def missing_session(error: RpcError, params: dict[str, Any]) -> str | None:
    """The parameter with the name of the missing session; None if the error is about something else."""
    if error.reason != "session_not_found":
        return None
    given = [name for name in KEY_PARAMS if isinstance(params.get(name), str)]
    quoted = [name for name in given if f"no session {quote(params[name].strip())}" in error.message]
    return next(iter(quoted or given), None)


def describe_bad_key(text: str) -> CommandFailed | None:
    """The failure for a text that cannot be a session key; None if it can."""
    from sessiond.errors import InvalidParams
    from sessiond.model.keys import KeyRules, canonical_key

    try:
        is_key = canonical_key(text, KeyRules()) is not None
    except InvalidParams:
        is_key = False
    if is_key:
        return None
    hint = "a key is agent:AGENT:NAME, as agent:main:research; what agents there are: sessiond agents"
    return CommandFailed(f"{quote(text)} is no session key", hint=hint, status=USAGE)


def hint_at_beginning(text: str) -> str | None:
    """How to create the session of a key that does not exist yet; None if the text is not a complete key."""
    agent, _, rest = text.removeprefix("agent:").partition(":")
    if not text.startswith("agent:") or not rest:
        return None
    return f"nobody has written to it yet? the owner makes it: sessiond create {text} (or: spawn --agent {agent} TASK)"


def find_meant_session(call: Call, text: str, key: str | None = None, *, hint: str | None = None) -> str:
    """The key of the only session for which `text` is a label or a prefix of its id or key.

    CommandFailed with the nearest names, or with the candidates if there are several, and with `hint`. `key` is the key
    that the daemon derived from an alias such as `main`.
    """
    # Tables may show only the beginning of a key, with an ellipsis.
    text = text.removesuffix("…")
    # `search` looks at labels and session ids too.
    rows = call("sessions_list", {"search": text, "limit": 200})["sessions"]
    is_prefix = len(text) >= MIN_PREFIX
    found: list[str] = [
        row["key"]
        for row in rows
        if row.get("label") == text
        or (is_prefix and str(row.get("sessionId", "")).lower().startswith(text.lower()))
        or _begins_key(text, row["key"])
        or (row.get("readOnly") and _begins_foreign_key(text, row["key"]))
    ]
    if len(found) == 1:
        return found[0]
    if found:
        shown = ", ".join(found[:MAX_CANDIDATES]) + (", …" if len(found) > MAX_CANDIDATES else "")
        raise CommandFailed(f"{quote(text)} may be any of {len(found)} sessions: {shown}", status=NOT_FOUND)
    newest = call("sessions_list", {"limit": 200})["sessions"]
    known = [name for row in newest for name in (row["key"], row.get("label")) if name]
    where = f", which is {key} here" if key else ""
    nearest = _machine_hint(call, text) or _too_short_hint(text, rows) or nearest_hint(text, known, "sessiond list")
    raise CommandFailed(
        f"no session {quote(text)}{where}", hint=f"{nearest}\n  {hint}" if hint else nearest, status=NOT_FOUND
    )


def _begins_key(text: str, key: str) -> bool:
    """Whether `text` is a prefix of `key` that ends within the UUID at its end. Chosen names are never completed."""
    if not key.startswith("agent:"):
        return False
    head, _, last = key.rpartition(":")
    return is_uuid(last) and len(text) >= len(head) + 1 + MIN_KEY_DIGITS and key.startswith(text)


def _begins_foreign_key(text: str, key: str) -> bool:
    """Whether `text` is the key of another program's session up to at least eight characters of its id."""
    native = text.partition(":")[2]
    return len(native) >= MIN_PREFIX and key.lower().startswith(text.lower())


def _machine_hint(call: Call, text: str) -> str | None:
    """How a session on another machine is named, where `text` is that machine."""
    if not MACHINE_NAME.fullmatch(text):
        return None
    with suppress(ClientError):
        found = call("agents_list", {}).get("agents", ())
        if any(agent["id"] == text and agent.get("machine") for agent in found):
            return f"{text} is another machine: name a session there, as {text}/main"
    return None


def _too_short_hint(text: str, rows: list[Any]) -> str | None:
    """What is missing of a `text` that begins the id of a session of another program; None where it begins none."""
    foreign = [row["key"] for row in rows if row.get("readOnly") and not row.get("machine")]
    for key in foreign:
        program, _, native = key.partition(":")
        if text and any(whole.lower().startswith(text.lower()) for whole in (key, native)):
            return f"too short: at least {MIN_PREFIX} characters of the id, as {program}:{native[:MIN_PREFIX]}"
    return None


def explain(call: Call, error: RpcError, method: str, params: dict[str, Any]) -> CommandFailed | None:
    """The failure for an unknown name, with the nearest existing one; None for other errors."""
    try:
        return _explain(call, error, method, params)
    except ClientError:
        return None  # the caller may not list the names


def _explain(call: Call, error: RpcError, method: str, params: dict[str, Any]) -> CommandFailed | None:
    if error.reason == "agent_not_found":
        agents = [agent["id"] for agent in call("agents_list", {})["agents"]]
        text = str(params.get("agentId") or _agent_of(params))
        return CommandFailed(
            f"no agent {quote(text)}", hint=nearest_hint(text, agents, "sessiond agents"), status=NOT_FOUND
        )
    if error.slug == "method_not_found":
        methods = [found["name"] for found in call("rpc.discover", {})["methods"]]
        hint = nearest_hint(method, methods, "sessiond call rpc.discover")
        return CommandFailed(f"no method {quote(method)}", hint=hint, status=USAGE)
    return None


def _agent_of(params: dict[str, Any]) -> str:
    key = next((params[name] for name in KEY_PARAMS if isinstance(params.get(name), str)), "")
    return key.split(":")[1] if key.startswith("agent:") else key


def nearest_hint(text: str, known: list[str], see: str) -> str:
    """`did you mean …?`, or the command that shows the names."""
    from difflib import get_close_matches

    found = get_close_matches(text, known, 3)
    return f"did you mean {' or '.join(found)}?" if found else f"see what there is: {see}"
