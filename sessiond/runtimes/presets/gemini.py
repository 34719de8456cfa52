"""Gemini CLI: `gemini --output-format stream-json`. Knows its command line and its lines.

Seen with 0.61: `init`, `message` (the user's text whole, the assistant's as deltas), `tool_use`, `tool_result`,
`error`, `result` (stats of this run).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sessiond.clock import parse_iso_ms
from sessiond.runtimes.output import CustomOutput, Delta, Ended, Event, NativeSession
from sessiond.runtimes.presets.draft import MessageDraft, texts
from sessiond.runtimes.presets.fields import count, table, text, usage
from sessiond.runtimes.presets.preset import Preset, native_id, session_to_fork
from sessiond.runtimes.runtime import RunSpec


def _arguments(spec: RunSpec, resume: str | None, extra: Sequence[str]) -> list[str]:
    words = ["--output-format=stream-json"]
    if spec.model:
        words.append(f"--model={spec.model}")
    if resume is not None:
        words.append(f"--resume={resume}")
    elif (original := session_to_fork(spec)) is not None:
        # It copies a file to a new session; with --resume it would write to the original.
        words.append(f"--session-file={spec.fork_file or original}")
    return [*words, *extra]


class GeminiLines:
    """One run of Gemini CLI."""

    def __init__(self, spec: RunSpec) -> None:
        self._draft = MessageDraft("google-generative-ai", "google", spec.model)
        self._timestamp: int | None = None

    def line(self, item: dict[str, Any], raw: bytes) -> Iterator[Event]:
        del raw
        kind = text(item, "type")
        timestamp = parse_iso_ms(text(item, "timestamp"))
        match kind:
            case "init":
                self._draft.model = text(item, "model") or self._draft.model
                if native_id(item.get("session_id")):
                    yield NativeSession(text(item, "session_id"))
            case "message" if text(item, "role") == "assistant":
                self._timestamp = timestamp
                self._draft.text(text(item, "content"))
                if text(item, "content"):
                    yield Delta(text(item, "content"))
            case "message" if text(item, "role") == "user":
                # The message of this turn, which is in the transcript already.
                pass
            case "tool_use" if text(item, "tool_id"):
                self._timestamp = timestamp
                yield from self._draft.call(text(item, "tool_id"), text(item, "tool_name"), table(item, "parameters"))
            case "tool_result" if text(item, "tool_id"):
                failed = text(item, "status") == "error"
                output = text(item, "output") or text(item, "error", "message")
                yield from self._draft.flush(timestamp=self._timestamp)
                yield from self._draft.result(
                    text(item, "tool_id"), texts(output), is_error=failed, timestamp=timestamp
                )
            case "result":
                yield from self._result(item)
            case _:
                yield CustomOutput(f"gemini/{kind or 'line'}", item)

    def end(self) -> Iterator[Event]:
        yield from self._draft.flush(timestamp=self._timestamp)

    def _result(self, item: dict[str, Any]) -> Iterator[Event]:
        stats = table(item, "stats")
        everything, cached = count(stats, "input_tokens"), count(stats, "cached")
        spent = usage(
            input=max(everything - cached, 0),
            # Thinking tokens are only included in the total.
            output=max(count(stats, "total_tokens") - everything, count(stats, "output_tokens")),
            cache_read=cached,
            cache_write=0,
        )
        # The model may be "auto"; the stats name the one that answered.
        models = list(table(stats, "models"))
        self._draft.model = models[-1] if models else self._draft.model
        yield from self._draft.flush(spent, timestamp=self._timestamp)
        error = None
        if text(item, "status") == "error":
            error = text(item, "error", "message") or "the turn failed"
        yield Ended(error=error, usage=spent, model=self._draft.model)


PRESET = Preset(
    name="gemini",
    program="gemini",
    arguments=_arguments,
    parser=GeminiLines,
    session_lost=re.compile(r"Error resuming session"),
    fork_help=(("--help",), re.compile(r"--session-file\b")),
)
