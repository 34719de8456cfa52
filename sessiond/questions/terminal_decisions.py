"""Notice that a person has decided in the terminal: the program writes the result of the tool call into its transcript.

Claude Code shows its own prompt while its hook waits, and does not tell the hook of a decision made there. Knows the
transcripts of programs. Does not know questions.
"""

from __future__ import annotations

from typing import Any

import msgspec
import trio

from sessiond.errors import StorageError
from sessiond.events.bus import EventBus
from sessiond.events.wake_up import follow_quietly
from sessiond.model import lax
from sessiond.model.record import Record
from sessiond.store.store import SessionStore

# The call is among the newest messages, since the program waits for it.
_NEWEST = 20
_MAX_BYTES = 1024 * 1024


class ToolUse(msgspec.Struct, frozen=True):
    """A call of a tool for which a permission is asked: what the program says of it before it has an id."""

    name: str
    given: dict[str, Any]


async def wait_decided(store: SessionStore, bus: EventBus, key: str, use: ToolUse) -> None:
    """Return when the call that the session `key` asks for has a result in its transcript."""
    before: set[str] | None = None
    with follow_quietly(bus, key) as wake_up:
        while True:
            wake_up.event = trio.Event()
            done = await _find_done(store, key, use)
            if before is None:
                before = done  # of the same call, made before
            elif done - before:
                return
            await wake_up.event.wait()


async def _find_done(store: SessionStore, key: str, use: ToolUse) -> set[str]:
    """The ids of such calls that have a result, among the newest messages."""
    session = store.catalog.by_key.get(key)
    if session is None or session.is_partial:
        return set()
    try:
        page = await store.page(session, _is_any, limit=_NEWEST, max_bytes=_MAX_BYTES)
    except StorageError:
        return set()
    calls: set[str] = set()
    results: set[str] = set()
    for line, _ in page.lines:
        message = lax.decode_dict(line.record.message if line.record is not None else None)
        calls |= _matching_calls(message, use)
        results |= _results(message)
    return calls & results


def _is_any(_record: Record) -> bool:
    return True


def _results(message: dict[str, Any]) -> set[str]:
    match message:
        case {"role": "toolResult", "details": {"toolCallIds": [*several]}}:
            return {one for one in several if isinstance(one, str)}
        case {"role": "toolResult", "toolCallId": str(ident)}:
            return {ident}
        case _:
            return set()


def _matching_calls(message: dict[str, Any], use: ToolUse) -> set[str]:
    content = message.get("content")
    found: set[str] = set()
    for block in content if isinstance(content, list) else ():
        match block:
            case {"type": "toolCall", "id": str(ident), "name": use.name, "arguments": dict(given)}:
                # The program may have added what the model left out.
                if all(name in use.given and use.given[name] == value for name, value in given.items()):
                    found.add(ident)
    return found
