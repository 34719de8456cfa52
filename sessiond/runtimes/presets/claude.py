"""Claude Code: `claude -p --output-format stream-json`. Knows its command line and its lines.

Seen with 2.1: `system` (`init`, `status`, ...), `stream_event` (the API's own events), `assistant` (one line for each
block of a message, the id of the API's message in all of them), `user` (tool results), `result`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sessiond.clock import parse_iso_ms
from sessiond.runtimes.output import CustomOutput, Delta, Ended, Event, NativeSession, ThoughtDelta
from sessiond.runtimes.presets.draft import MessageDraft, texts
from sessiond.runtimes.presets.fields import amount, array, count, member, table, text, usage
from sessiond.runtimes.presets.preset import Preset, native_id, session_to_fork
from sessiond.runtimes.runtime import RunSpec

_STOP_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "toolUse"}
# Claude Code has no level for `off` and `adaptive`: for those no option is passed.
_EFFORT = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh"}
# Progress lines that are not kept.
_PASSING = ("init", "status", "thinking_tokens")


def _arguments(spec: RunSpec, resume: str | None, extra: Sequence[str]) -> list[str]:
    words = ["-p", "--output-format=stream-json", "--verbose", "--include-partial-messages"]
    if spec.model:
        words.append(f"--model={spec.model}")
    if spec.thinking in _EFFORT:
        words.append(f"--effort={_EFFORT[spec.thinking]}")
    if resume is not None:
        words.append(f"--resume={resume}")
    elif (original := session_to_fork(spec)) is not None:
        words += [f"--resume={original}", "--fork-session"]
    return [*words, *extra]


class ClaudeLines:
    """One run of Claude Code. The lines of one API request are one message, and its usage is counted once."""

    def __init__(self, spec: RunSpec) -> None:
        self._draft = MessageDraft("anthropic-messages", "anthropic", spec.model)
        self._message_id = ""
        self._usage: dict[str, Any] = {}
        self._stop_reason = ""
        self._timestamp: int | None = None

    def line(self, item: dict[str, Any], raw: bytes) -> Iterator[Event]:
        del raw
        kind = text(item, "type")
        if kind in ("assistant", "user", "stream_event") and text(item, "parent_tool_use_id"):
            # From a sub-agent of Claude Code: another conversation, whose result comes as a tool result.
            if kind != "stream_event":
                yield CustomOutput(f"claude/{kind}", item)
            return
        match kind:
            case "system":
                yield from self._system(item)
            case "stream_event":
                yield from self._stream(table(item, "event"))
            case "assistant":
                yield from self._assistant(item)
            case "user":
                yield from self._user(item)
            case "result":
                yield from self._result(item)
            case _:
                yield CustomOutput(f"claude/{kind or 'line'}", item)

    def end(self) -> Iterator[Event]:
        yield from self._flush()

    def _system(self, item: dict[str, Any]) -> Iterator[Event]:
        subtype = text(item, "subtype")
        if subtype == "init":
            self._draft.model = text(item, "model") or self._draft.model
            session = text(item, "session_id")
            if native_id(session):
                yield NativeSession(session)
        if subtype not in _PASSING:
            yield CustomOutput(f"claude/{subtype or 'system'}", item)

    def _stream(self, event: dict[str, Any]) -> Iterator[Event]:
        """Live text; and the usage at the end of a message, which the `assistant` lines do not have."""
        match text(event, "type"):
            case "content_block_delta":
                if text(event, "delta", "type") == "text_delta" and text(event, "delta", "text"):
                    yield Delta(text(event, "delta", "text"))
                elif text(event, "delta", "thinking"):
                    yield ThoughtDelta(text(event, "delta", "thinking"))
            case "message_delta":
                self._usage = {**self._usage, **table(event, "usage")}
                self._stop_reason = text(event, "delta", "stop_reason")
            case "message_stop" if self._stop_reason == "tool_use":
                # Only the last message has to wait for the cost of the run; this one is flushed before its tools run.
                yield from self._flush()

    def _assistant(self, item: dict[str, Any]) -> Iterator[Event]:
        message = table(item, "message")
        message_id = text(message, "id")
        if message_id != self._message_id:
            yield from self._flush()
            self._message_id = message_id
        # The model "<synthetic>" marks messages of Claude Code itself, usually about an error.
        model = text(message, "model")
        self._draft.model = model if model and not model.startswith("<") else self._draft.model
        self._usage = {**self._usage, **table(message, "usage")}
        self._stop_reason = text(message, "stop_reason") or self._stop_reason
        self._timestamp = parse_iso_ms(text(item, "timestamp"))
        for block in array(message, "content"):
            yield from self._block(block)

    def _block(self, block: Any) -> Iterator[Event]:
        match text(block, "type"):
            case "text":
                self._draft.text(text(block, "text"))
            case "thinking":
                self._draft.add_thinking(text(block, "thinking"), text(block, "signature"))
            case "tool_use" if text(block, "id"):
                yield from self._draft.call(text(block, "id"), text(block, "name"), table(block, "input"))
            case kind:
                yield CustomOutput(f"claude/{kind or 'block'}", block)

    def _user(self, item: dict[str, Any]) -> Iterator[Event]:
        results = [
            block
            for block in array(item, "message", "content")
            if text(block, "type") == "tool_result" and text(block, "tool_use_id")
        ]
        if not results:
            yield CustomOutput("claude/user", item)
            return
        yield from self._flush()
        for block in results:
            yield from self._draft.result(
                text(block, "tool_use_id"),
                _content(member(block, "content")),
                is_error=member(block, "is_error") is True,
                timestamp=parse_iso_ms(text(item, "timestamp")),
            )

    def _result(self, item: dict[str, Any]) -> Iterator[Event]:
        cost = _cost(item)
        yield from self._flush(cost)
        if item.get("permission_denials"):
            yield CustomOutput("claude/permission_denials", item["permission_denials"])
        error = None
        if item.get("is_error") is True or text(item, "subtype") not in ("", "success"):
            said = [text(item, "result"), *(one for one in array(item, "errors") if isinstance(one, str))]
            error = "; ".join(one for one in said if one) or text(item, "subtype")
        yield Ended(error=error, reply=text(item, "result") or None, usage=_usage(table(item, "usage"), cost))

    def _flush(self, cost: float | None = None) -> Iterator[Event]:
        stop_reason = _STOP_REASONS.get(self._stop_reason)
        yield from self._draft.flush(_usage(self._usage, cost), stop_reason, self._timestamp)
        self._usage, self._stop_reason, self._timestamp = {}, "", None


def _usage(item: dict[str, Any], cost: float | None) -> dict[str, Any] | None:
    if not item:
        return None
    return usage(
        input=count(item, "input_tokens"),
        output=count(item, "output_tokens"),
        cache_read=count(item, "cache_read_input_tokens"),
        cache_write=count(item, "cache_creation_input_tokens"),
        cost=cost,
    )


def _cost(item: dict[str, Any]) -> float | None:
    """The cost of this run in US dollars. `total_cost_usd` also counts the earlier runs of a resumed conversation."""
    models = table(item, "model_usage_since_last_result")
    if not models:
        return amount(item, "total_cost_usd")
    return sum(amount(model, "costUSD") or 0.0 for model in models.values())


def _content(content: Any) -> list[dict[str, Any]]:
    """The content of a tool's result: text and images in pi's shape, other blocks as they are."""
    if isinstance(content, str):
        return texts(content)
    blocks: list[dict[str, Any]] = []
    for block in content if isinstance(content, list) else []:
        if text(block, "type") == "image" and text(block, "source", "data"):
            source = table(block, "source")
            blocks.append({"type": "image", "data": source["data"], "mimeType": text(source, "media_type")})
        elif text(block, "type"):
            blocks.append(block)
    return blocks


PRESET = Preset(
    name="claude",
    program="claude",
    arguments=_arguments,
    parser=ClaudeLines,
    session_lost=re.compile(r"No conversation found with session ID"),
)
