"""pi: `pi --mode json -p`. Knows its command line and its lines. Its messages have the shape of transcript messages.

Seen with 0.73: `session` (its header), `message_start | update | end`, `tool_execution_start | update | end`,
`agent_start | end`, `turn_start | end`, and now and then `compaction_*`, `auto_retry_*`, `queue_update`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sessiond.runtimes.output import CustomOutput, Delta, Ended, Event, NativeSession, ThoughtDelta, Tool, to_message
from sessiond.runtimes.presets.fields import member, table, text
from sessiond.runtimes.presets.preset import Preset, native_id, session_to_fork
from sessiond.runtimes.runtime import RunSpec, ToolPhase

_THINKING = ("off", "minimal", "low", "medium", "high", "xhigh")
# Events whose content is repeated in `message_end`.
_PASSING = ("agent_start", "agent_end", "turn_start", "turn_end", "message_start", "queue_update")


def _arguments(spec: RunSpec, resume: str | None, extra: Sequence[str]) -> list[str]:
    words = ["--mode", "json", "-p"]
    # pi does not know the form `--model=MODEL`.
    if spec.model:
        words += ["--model", spec.model]
    if spec.thinking in _THINKING:
        words += ["--thinking", spec.thinking]
    if resume is not None:
        words += ["--session", resume]
    elif (original := session_to_fork(spec)) is not None:
        words += ["--fork", original]
    return [*words, *extra]


class PiLines:
    """One run of pi. If the turn fails, only its last message says so: the exit status is 0."""

    def __init__(self, spec: RunSpec) -> None:
        del spec
        self._asked = False
        self._error: str | None = None

    def line(self, item: dict[str, Any], raw: bytes) -> Iterator[Event]:
        del raw
        kind = text(item, "type")
        match kind:
            case "session":
                if native_id(item.get("id")):
                    yield NativeSession(text(item, "id"))
            case "message_update":
                event = table(item, "assistantMessageEvent")
                if text(event, "type") == "text_delta" and text(event, "delta"):
                    yield Delta(text(event, "delta"))
                elif text(event, "type") == "thinking_delta" and text(event, "delta"):
                    yield ThoughtDelta(text(event, "delta"))
            case "message_end":
                yield from self._message(item)
            case "tool_execution_start":
                yield from _tool(item, "start", {"arguments": table(item, "args")})
            case "tool_execution_update":
                yield from _tool(item, "update", {"partialResult": member(item, "partialResult")})
            case "tool_execution_end":
                yield from _tool(item, "end", {"isError": item.get("isError") is True})
            case _ if kind not in _PASSING:
                yield CustomOutput(f"pi/{kind or 'line'}", item)

    def end(self) -> Iterator[Event]:
        if self._error is not None:
            yield Ended(error=self._error)

    def _message(self, item: dict[str, Any]) -> Iterator[Event]:
        message = table(item, "message")
        if text(message, "role") == "user" and not self._asked:
            # The message of this turn, which is in the transcript already.
            self._asked = True
            return
        if text(message, "role") == "assistant":
            failed = text(message, "stopReason") in ("error", "aborted")
            self._error = (text(message, "errorMessage") or text(message, "stopReason")) if failed else None
        yield to_message(message) or CustomOutput("pi/message_end", item)


def _tool(item: dict[str, Any], phase: ToolPhase, extra: dict[str, Any]) -> Iterator[Event]:
    if text(item, "toolCallId"):
        yield Tool(phase, text(item, "toolCallId"), text(item, "toolName"), extra)


PRESET = Preset(
    name="pi",
    program="pi",
    arguments=_arguments,
    parser=PiLines,
    session_lost=re.compile(r"No session found matching"),
)
