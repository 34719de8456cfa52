"""Decide whether messages may be sent into or out of a session, and parse the owner's slash commands.

Knows keys, entries and the configured rules. Sends nothing. Source: runs.md, "Send policy".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from sessiond.errors import Forbidden
from sessiond.model import keys

if TYPE_CHECKING:
    from sessiond.config.settings import SendMatch, SendPolicyConfig
    from sessiond.model.entry import Entry

Verdict = Literal["allow", "deny"]

USAGE = "Usage: /send on|off|inherit"
_OVERRIDES: dict[str, Verdict | None] = {"on": "allow", "off": "deny", "inherit": None}


def decide(policy: SendPolicyConfig, key: str, entry: Entry | None = None) -> Verdict:
    """The verdict for the session `key` (canonical): its own override, else any deny rule, any allow rule, the default.

    Stopping a run does not ask the policy; it is always allowed.
    """
    if entry is not None and entry.send_policy in ("allow", "deny"):
        return "allow" if entry.send_policy == "allow" else "deny"
    channel, chat_type = _channel(key, entry), _chat_type(key, entry)
    verdict = None
    for rule in policy.rules:
        if _matches(rule.match, key, channel, chat_type):
            if rule.action == "deny":
                return "deny"
            verdict = rule.action
    return verdict or policy.default


def require_allowed(policy: SendPolicyConfig, key: str, entry: Entry | None = None) -> None:
    """Raise Forbidden (`send_denied`) if the policy denies sending."""
    if decide(policy, key, entry) == "deny":
        raise Forbidden(
            f"sending to {key} is turned off by the send policy; the owner can say `/send on` there", code="send_denied"
        )


def _matches(match: SendMatch, key: str, channel: str | None, chat_type: str | None) -> bool:
    if match.channel is not None and match.channel.strip().lower() != channel:
        return False
    if match.chat_type is not None and _normalize_chat_type(match.chat_type) != chat_type:
        return False
    if match.key_prefix is not None:
        return any(text.startswith(match.key_prefix.strip().lower()) for text in (key, keys.rest_of(key)))
    return True


def _channel(key: str, entry: Entry | None) -> str | None:
    named = (entry.channel or entry.last_channel) if entry is not None else None
    if named:
        return named.strip().lower()
    group = keys.group_part(key)
    return group[0] if group is not None else None


def _chat_type(key: str, entry: Entry | None) -> str | None:
    if entry is not None and entry.chat_type:
        return _normalize_chat_type(entry.chat_type)
    return keys.chat_type_of(key)


def _normalize_chat_type(chat_type: str) -> str:
    word = chat_type.strip().lower()
    return "direct" if word == "dm" else word


class OwnerCommand(msgspec.Struct, frozen=True):
    """A standalone command of the owner.

    If `sets_override`, `/send` sets the session's `sendPolicy` to `override` (None clears it). `reply` is the answer,
    if it does not depend on what the command does: `/send` has one, `/stop` and `/reset` have none.
    """

    name: Literal["send", "stop", "reset"]
    sets_override: bool = False
    override: Verdict | None = None
    reply: str | None = None


def parse_command(text: str) -> OwnerCommand | None:
    """The command in `text`; None if `text` is a message. A command is the whole message.

    `/send` without a word or with an unknown one changes nothing; its reply explains the usage.
    """
    if len(text) > 1000:
        # No command is that long, and `lower().split()` would copy a message of megabytes.
        return None
    match text.lower().split():
        case ["/stop"]:
            return OwnerCommand("stop")
        case ["/reset"]:
            return OwnerCommand("reset")
        case ["/send", word] if word in _OVERRIDES:
            return OwnerCommand("send", True, _OVERRIDES[word], f"Send policy set to {word}.")
        case ["/send"] | ["/send", _]:
            return OwnerCommand("send", reply=USAGE)
    return None
