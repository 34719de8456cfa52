"""Decide whether anything may be sent into a session or out of it, and read the owner's slash commands.

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
    """The verdict for the session `key` (canonical): its own override, then any deny, any allow, the default.

    Stopping a run asks nobody: it is never blocked.
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


def require(policy: SendPolicyConfig, key: str, entry: Entry | None = None) -> None:
    """Forbidden (`send_denied`) where the policy denies sending."""
    if decide(policy, key, entry) == "deny":
        raise Forbidden(
            f"sending to {key} is turned off by the send policy; the owner can say `/send on` there", code="send_denied"
        )


def _matches(match: SendMatch, key: str, channel: str | None, chat_type: str | None) -> bool:
    if match.channel is not None and match.channel.strip().lower() != channel:
        return False
    if match.chat_type is not None and _same_word(match.chat_type) != chat_type:
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
        return _same_word(entry.chat_type)
    return keys.chat_type_of(key)


def _same_word(chat_type: str) -> str:
    word = chat_type.strip().lower()
    return "direct" if word == "dm" else word


class OwnerCommand(msgspec.Struct, frozen=True):
    """A standalone command of the owner.

    `override` is what `/send` sets as the session's `sendPolicy` (None clears it) and counts where `sets_override`.
    `reply` is the answer where it does not depend on what happens: `/send` has one, `/stop` and `/reset` have none.
    """

    name: Literal["send", "stop", "reset"]
    sets_override: bool = False
    override: Verdict | None = None
    reply: str | None = None


def parse_command(text: str) -> OwnerCommand | None:
    """The command that `text` is, or None: a command stands alone, and anything longer is a message.

    `/send` with no word or an unknown one changes nothing and answers how it is used.
    """
    if len(text) > 1000:
        # No command is that long; a message of megabytes is not to be copied to find that out.
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
