"""Where a session's words go when they leave the daemon: channel, addressee, account, thread. Read from key and entry.

Delivers nothing, and does not know which channels can be reached. Source: runs.md, "Channels and delivery".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from sessiond.model.keys import group_part

if TYPE_CHECKING:
    from sessiond.model.entry import Entry

# The transcript and its events are the delivery. Source: runs.md, "Channels and delivery".
IN_TRANSCRIPT = frozenset({"webchat", "internal"})
_THREAD = re.compile(r"(?P<to>.+):(?:topic|thread):(?P<thread>\d+)")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """`to` is None only where the channel is one of IN_TRANSCRIPT."""

    channel: str
    to: str | None = None
    account_id: str | None = None
    thread_id: str | None = None


def target_of(key: str, entry: Entry) -> Target | None:
    """The target of the session `key`; None where nothing says where its words would go.

    A group's key names its chat; any other session has it from `deliveryContext`, else from the message that came last.
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
    """The entry fields of a child bound to a thread: its words go there, in the chat of its requester `key`."""
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
    # Keys are lower-cased, chats need not be: what the channel itself wrote is the better spelling.
    spellings = (_text(context.get("to")), entry.last_to, entry.group_id)
    to = next((text for text in spellings if text is not None and text.lower() == chat), chat)
    same = (_text(context.get("channel")) or channel).lower() == channel
    account = (_text(context.get("accountId")) if same else None) or entry.last_account_id
    thread = thread or (_text(context.get("threadId")) if same else None)
    return Target(channel=channel, to=to, account_id=account, thread_id=thread)


def _text(value: object) -> str | None:
    """A word of the context; numbers, which some channels have for chats and threads, as text."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value.strip() else None
