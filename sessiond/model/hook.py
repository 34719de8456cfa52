"""What the hooks of a program in a terminal say about its session. Pure. Source: hooks.md, "What happens"."""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from sessiond.model import lax
from sessiond.model.entry import Entry, HookFact
from sessiond.model.lax import whole_ms
from sessiond.model.row import State

STARTING: Final = "SessionStart"
ENDING: Final = "SessionEnd"
PROMPTED: Final = "UserPromptSubmit"
ASKING: Final = "PermissionRequest"
NOTIFYING: Final = "Notification"
STOPPING: Final = "Stop"
EVENTS = frozenset({STARTING, ENDING, PROMPTED, ASKING, NOTIFYING, STOPPING})
# At these the program waits for no permission that it asked for before.
TURNING = frozenset({STARTING, ENDING, PROMPTED, STOPPING})
# After these an agent hears what waits for its session.
HANDING_OVER = frozenset({STARTING, PROMPTED})
# A session that nobody has heard of for so long has ended without a word.
LIVE_MS = 12 * 60 * 60 * 1000


_STATES: dict[str, State] = {PROMPTED: "running", ASKING: "running", STOPPING: "done"}


class _HookNote(msgspec.Struct, frozen=True, gc=False):
    event: str
    at: object


def read_hook(data: bytes | None, offset: int) -> HookFact | None:
    """The hook in the data of a record at `offset`; None for an event that is not known, or has no time."""
    note = lax.decode_fitting(data, _HookNote)
    at = whole_ms(note.at) if note is not None else None
    if note is None or at is None or note.event not in EVENTS:
        return None
    return HookFact(note.event, at, offset)


def fold_hook(entry: Entry, data: bytes | None, offset: int) -> Entry:
    """The entry after a hook."""
    hook = read_hook(data, offset)
    return replace(entry, hook=hook) if hook is not None else entry


def is_live(entry: Entry, now_ms: int) -> bool:
    """Whether the session that is attended works in a terminal, as far as is known."""
    hook = entry.hook
    return hook is not None and hook.event != ENDING and now_ms - hook.at < LIVE_MS


def attended_state(entry: Entry, heard_at_ms: int, now_ms: int, *, listening_since_ms: int = 0) -> State:
    """What the session does that `entry` attends, whose newest message is of `heard_at_ms`.

    Hooks of before `listening_since_ms` may have been followed by others that found nobody.
    """
    if entry.open_questions:
        return "waiting"
    hook = entry.hook
    if hook is None or not is_live(entry, now_ms):
        return "idle"
    if hook.event == NOTIFYING and is_waiting(entry, heard_at_ms):
        return "waiting"
    state = "running" if hook.event == NOTIFYING else _STATES.get(hook.event, "idle")
    # The turn may have ended in between; if it goes on, its next line or hook says so.
    is_stale = state == "running" and max(hook.at, heard_at_ms) < listening_since_ms
    return "idle" if is_stale else state


def is_waiting(entry: Entry, heard_at_ms: int) -> bool:
    """Whether the program has said that it waits for a person, and neither an answer nor anything else came since.

    `heard_at_ms` is when the session had its newest message.
    """
    hook = entry.hook
    if hook is None or hook.event != NOTIFYING or heard_at_ms > hook.at:
        return False
    return all(ref.closed is None or ref.closed < hook.offset for ref in entry.questions)
