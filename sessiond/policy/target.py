"""Where a session's outgoing texts are delivered: channel, addressee, account, thread. Derived from its key and entry.

Delivers nothing, and does not know which channels can be reached. Source: runs.md, "Channels and delivery".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from sessiond.model.keys import group_part

if TYPE_CHECKING:
    from sessiond.model.entry import Entry

# Channels whose people read the transcript and its events, so that nothing is delivered anywhere else.
IN_TRANSCRIPT = frozenset({"webchat", "internal"})
_THREAD = re.compile(r"(?P<to>.+):(?:topic|thread):(?P<thread>\d+)")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An addressee. `to` is None only if the channel is one of IN_TRANSCRIPT."""

    channel: str
    to: str | None = None
    account_id: str | None = None
    thread_id: str | None = None


def target_of(key: str, entry: Entry) -> Target | None:
    """The target of the session `key`; None if neither its key nor its entry names one.

    The key of a group session names its chat. Other sessions take it from `deliveryContext`, else from the last
    message.
    """
    context = entry.delivery_context or {}
    group = group_part(key)
    if group is not None:
        return _group(group[0], group[2], context, entry)
    channel = (_text(context.get("channel")) or entry.last_channel or entry.channel or "").strip().lower()
    to = _text(context.get("to")) or entry.last_to or entry.group_id
    if not channel or channel == "unknown" or (to is None and channel not in IN_TRANSCRIPT):
        return None
    account = _text(context.get("accountId")) or entry.last_account_id
    return Target(channel=channel, to=to, account_id=account, thread_id=_text(context.get("threadId")))


def thread_fields(key: str, entry: Entry, thread: str | None) -> dict[str, Any]:
    """The entry fields of a child bound to `thread`, in the chat of its requester `key`."""
    target = target_of(key, entry) if thread is not None else None
    if target is None:
        return {}
    context = {"channel": target.channel, "to": target.to, "accountId": target.account_id, "threadId": thread}
    present = {name: value for name, value in context.items() if value is not None}
    return {"deliveryContext": present, "lastChannel": target.channel, "lastTo": target.to}


def _group(channel: str, chat: str, context: dict[str, Any], entry: Entry) -> Target:
    found = _THREAD.fullmatch(chat)
    thread = found["thread"] if found is not None else None
    chat = found["to"] if found is not None else chat
    # Keys are in lower case, names of chats need not be: prefer the spelling that the channel used.
    spellings = (_text(context.get("to")), entry.last_to, entry.group_id)
    to = next((text for text in spellings if text is not None and text.lower() == chat), chat)
    same = (_text(context.get("channel")) or channel).lower() == channel
    account = (_text(context.get("accountId")) if same else None) or entry.last_account_id
    thread = thread or (_text(context.get("threadId")) if same else None)
    return Target(channel=channel, to=to, account_id=account, thread_id=thread)


def _text(value: object) -> str | None:
    """A non-blank string, or an integer as text, because some channels number chats and threads; else None."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value.strip() else None
