"""Notice that a person has decided in the terminal: the program writes the result of the tool call into its transcript.

Claude Code shows its own prompt while its hook waits, and does not tell the hook of a decision made there. Nor does it
say for which call it asks, so a question gets the first equal call of the turn that still waits and is no other
question's. Knows the transcripts of programs. Does not know questions.
"""

from __future__ import annotations

from collections import deque
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
# Calls are waited for at the same time; what was waited for long ago has a result by now.
_TAKEN = 256


class ToolUse(msgspec.Struct, frozen=True):
    """A call of a tool for which a permission is asked. `call_id` is the program's id of it, if it has said that."""

    name: str
    given: dict[str, Any]
    call_id: str | None = None


class ExpectedDecision:
    """A question of the session `key` about a call. `ended_before`: the calls that had a result when it was asked."""

    __slots__ = ("call_id", "ended_before", "key", "since_ms", "use")

    def __init__(self, key: str, use: ToolUse, since_ms: int) -> None:
        self.key, self.use, self.since_ms, self.call_id = key, use, since_ms, use.call_id
        self.ended_before: set[str] | None = None


class _CallsOfTurn(msgspec.Struct):
    """What the newest messages have of the turn that goes on: its calls, and the times of the results, by their ids."""

    calls: dict[str, dict[str, Any]] = {}
    results: dict[str, int | None] = {}


class TerminalDecisions:
    """Which calls of which sessions are waited for."""

    def __init__(self, store: SessionStore, bus: EventBus) -> None:
        self._store, self._bus = store, bus
        self._expected: dict[str, list[ExpectedDecision]] = {}
        self._taken: deque[str] = deque(maxlen=_TAKEN)

    def expect(self, key: str, use: ToolUse, since_ms: int) -> ExpectedDecision:
        """Note that the session `key` asks about a call since that time, behind all before; until `forget`."""
        expected = ExpectedDecision(key, use, since_ms)
        all_of_it = self._expected.setdefault(key, [])
        if use.call_id is not None:
            self._taken.append(use.call_id)
            for one in all_of_it:
                if one.call_id == use.call_id and one.use.call_id is None:
                    one.call_id = None  # it is another equal call's
        all_of_it.append(expected)
        return expected

    def forget(self, expected: ExpectedDecision) -> None:
        """The question is over."""
        all_of_it = self._expected[expected.key]
        all_of_it.remove(expected)
        if not all_of_it:
            del self._expected[expected.key]

    async def wait(self, expected: ExpectedDecision) -> None:
        """Return when the call has a result in the transcript."""
        key = expected.key
        with follow_quietly(self._bus, key) as wake_up:
            while True:
                wake_up.event = trio.Event()
                turn = await _read_turn(self._store, key)
                # Whoever looks first finds the calls of all, in the order in which they were asked for.
                for one in self._expected.get(key, ()):
                    self._find_call(one, turn)
                if expected.call_id in turn.results:
                    return
                await wake_up.event.wait()

    def _find_call(self, expected: ExpectedDecision, turn: _CallsOfTurn) -> None:
        since_ms = expected.since_ms
        if expected.ended_before is None:
            expected.ended_before = {ident for ident, at in turn.results.items() if at is None or at < since_ms}
        if expected.call_id is not None:
            return
        for ident, call in turn.calls.items():
            ended_at = turn.results.get(ident)
            # An earlier call's result may be read late; it is no decision about this one.
            is_over = ident in expected.ended_before or (ended_at is not None and ended_at < since_ms)
            if not is_over and ident not in self._taken and _is_equal(call, expected.use):
                expected.call_id = ident
                self._taken.append(ident)
                return


async def _read_turn(store: SessionStore, key: str) -> _CallsOfTurn:
    turn = _CallsOfTurn()
    session = store.catalog.by_key.get(key)
    if session is None or session.is_partial:
        return turn
    try:
        page = await store.page(session, _is_any, limit=_NEWEST, max_bytes=_MAX_BYTES)
    except StorageError:
        return turn
    for line, _ in page.lines:
        if line.record is None:
            continue
        if line.record.is_typed:
            # What was asked before the person typed this is not asked any more, whatever became of it.
            turn.calls.clear()
        message = lax.decode_dict(line.record.message)
        turn.calls.update(_calls(message))
        turn.results.update(dict.fromkeys(_results(message), line.record.timestamp_ms))
    return turn


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


def _calls(message: dict[str, Any]) -> dict[str, dict[str, Any]]:
    content = message.get("content")
    found: dict[str, dict[str, Any]] = {}
    for block in content if isinstance(content, list) else ():
        match block:
            case {"type": "toolCall", "id": str(ident)}:
                found[ident] = block
    return found


def _is_equal(call: dict[str, Any], use: ToolUse) -> bool:
    given = call.get("arguments")
    # The program may have added what the model left out.
    return (
        call.get("name") == use.name
        and isinstance(given, dict)
        and all(name in use.given and use.given[name] == value for name, value in given.items())
    )
