"""opencode: `opencode run --format json`. Knows its command line and its lines.

Seen with 1.18: `step_start`, `text`, `reasoning` (both when they are whole), `tool_use` (when the tool is done),
`step_finish` (tokens and cost of one request to the model), `error`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sessiond.runtimes.output import CustomOutput, Delta, Ended, Event, NativeSession, ThoughtDelta
from sessiond.runtimes.presets.draft import MessageDraft, texts
from sessiond.runtimes.presets.fields import amount, count, table, text, usage
from sessiond.runtimes.presets.preset import Preset, native_id, session_to_fork
from sessiond.runtimes.runtime import RunSpec

_STOP_REASONS = {"stop": "stop", "length": "length", "tool-calls": "toolUse", "error": "error"}


def _arguments(spec: RunSpec, resume: str | None, extra: Sequence[str]) -> list[str]:
    words = ["run", "--format=json", "--thinking"]
    if spec.model:
        words.append(f"--model={spec.model}")
    if spec.thinking not in (None, "off", "adaptive"):
        words.append(f"--variant={spec.thinking}")
    if resume is not None:
        words.append(f"--session={resume}")
    elif (original := session_to_fork(spec)) is not None:
        words += [f"--session={original}", "--fork"]
    return [*words, *extra]


class OpencodeLines:
    """One run of opencode. A step is one message; the results of its tools come when it is finished."""

    def __init__(self, spec: RunSpec) -> None:
        # Models are named provider/model.
        provider, _, model = (spec.model or "").partition("/")
        self._draft = MessageDraft("opencode", provider if model else "opencode", model or spec.model)
        self._session = ""
        self._results: list[tuple[str, str, bool]] = []

    def line(self, item: dict[str, Any], raw: bytes) -> Iterator[Event]:
        del raw
        session = text(item, "sessionID")
        if session != self._session and native_id(session):
            self._session = session
            yield NativeSession(session)
        part = table(item, "part")
        kind = text(item, "type")
        match kind:
            case "step_start":
                pass
            case "text":
                said = text(part, "text")
                if said:
                    self._draft.text(said)
                    yield Delta(said)
            case "reasoning":
                said = text(part, "text")
                self._draft.add_thinking(said)
                if said:
                    yield ThoughtDelta(said)
            case "tool_use" if text(part, "callID"):
                yield from self._tool(part)
            case "step_finish":
                yield from self._finish(part, count(item, "timestamp") or None)
            case "error":
                error = text(item, "error", "data", "message") or text(item, "error", "name")
                yield Ended(error=error or "the turn failed")
            case _:
                yield CustomOutput(f"opencode/{kind or 'line'}", item)

    def end(self) -> Iterator[Event]:
        yield from self._settle()

    def _tool(self, part: dict[str, Any]) -> Iterator[Event]:
        state = table(part, "state")
        call = text(part, "callID")
        yield from self._draft.call(call, text(part, "tool"), table(state, "input"))
        # For opencode, a command with an exit status other than 0 is a successful tool call. Store it as an error, as
        # with the other programs.
        failed = text(state, "status") == "error" or count(state, "metadata", "exit") != 0
        self._results.append((call, text(state, "output") or text(state, "error"), failed))

    def _finish(self, part: dict[str, Any], timestamp: int | None) -> Iterator[Event]:
        tokens = table(part, "tokens")
        spent = usage(
            input=count(tokens, "input"),
            output=count(tokens, "output") + count(tokens, "reasoning"),
            cache_read=count(tokens, "cache", "read"),
            cache_write=count(tokens, "cache", "write"),
            cost=amount(part, "cost"),
        )
        yield from self._draft.flush(spent, _STOP_REASONS.get(text(part, "reason")), timestamp)
        yield from self._settle()

    def _settle(self) -> Iterator[Event]:
        yield from self._draft.flush()
        for call, output, failed in self._results:
            yield from self._draft.result(call, texts(output), is_error=failed)
        self._results = []


PRESET = Preset(
    name="opencode",
    program="opencode",
    arguments=_arguments,
    parser=OpencodeLines,
    session_lost=re.compile(r"Session not found"),
)
