"""Codex: `codex exec --json`. Knows its command line and its lines.

Seen with 0.169: `thread.started`, `turn.started`, `turn.completed` (usage), `turn.failed`, `error`, and
`item.started | updated | completed` with items of the types `agent_message`, `reasoning`, `command_execution`,
`file_change`, `mcp_tool_call`, `web_search`, `collab_tool_call`, `todo_list`, `error`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from sessiond.model.usage import Usage
from sessiond.runtimes.output import CustomOutput, Delta, Ended, Event, NativeSession, ThoughtDelta
from sessiond.runtimes.presets.draft import MessageDraft, texts
from sessiond.runtimes.presets.fields import array, count, member, table, text, usage
from sessiond.runtimes.presets.preset import Preset, native_id, session_to_fork, session_to_resume
from sessiond.runtimes.runtime import RunSpec

_EFFORT = {"off": "none", "minimal": "minimal", "low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh"}
_COUNTS = ("input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens")
_FAILED = ("failed", "declined")


def _arguments(spec: RunSpec, resume: str | None, extra: Sequence[str]) -> list[str]:
    words = ["exec", "--json", "--skip-git-repo-check"]
    if spec.model:
        words.append(f"--model={spec.model}")
    if spec.thinking in _EFFORT:
        words += ["-c", f'model_reasoning_effort="{_EFFORT[spec.thinking]}"']
    # Both come last: the subcommands do not know every option, and `-` reads the message from stdin.
    original = session_to_fork(spec)
    if resume is not None:
        extra = [*extra, "resume", resume]
    elif original is not None:
        extra = [*extra, "fork", original]
    return [*words, *extra, "-"]


class CodexLines:
    """One run of Codex.

    Codex reports the usage of the whole thread so far, so the counts of earlier runs are stored after the native
    session id.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._draft = MessageDraft("openai-responses", "openai", spec.model)
        self._thread = session_to_resume(spec) or ""
        self._counted = _usage_counted(spec.native_session_id or "")
        # What a copy has counted when it begins: the usage of its original.
        self._inherited = dict.fromkeys(_COUNTS, 0)
        if session_to_fork(spec) is not None and spec.fork_usage is not None:
            self._inherited = _usage_of_original(spec.fork_usage)
        self._ended = False
        self._error: str | None = None

    def line(self, item: dict[str, Any], raw: bytes) -> Iterator[Event]:
        del raw
        match text(item, "type"):
            case "thread.started":
                yield from self._on_thread_started(text(item, "thread_id"))
            case "turn.started":
                pass
            case "turn.completed":
                yield from self._on_turn_completed(table(item, "usage"))
            case "turn.failed":
                self._ended = True
                yield Ended(error=text(item, "error", "message") or self._error or "the turn failed")
            case "error":
                # Usually not fatal: Codex retries a failed connection.
                if text(item, "message") != self._error:
                    yield CustomOutput("codex/error", item)
                self._error = text(item, "message")
            case "item.started" | "item.updated" | "item.completed" as kind:
                yield from self._item(kind, item)
            case kind:
                yield CustomOutput(f"codex/{kind or 'line'}", item)

    def end(self) -> Iterator[Event]:
        yield from self._draft.flush()
        if not self._ended and self._error:
            yield Ended(error=self._error)

    def _on_thread_started(self, thread: str) -> Iterator[Event]:
        if native_id(thread) and thread != self._thread:
            self._thread, self._counted = thread, self._inherited
            yield NativeSession(thread)

    def _on_turn_completed(self, total: dict[str, Any]) -> Iterator[Event]:
        self._ended = True
        counts = {name: count(total, name) for name in _COUNTS}
        fresh = {name: counts[name] - self._counted[name] for name in _COUNTS}
        if min(fresh.values()) < 0:
            # Less than before: this release of Codex reports each turn by itself.
            fresh = counts
        cached, written = fresh["cached_input_tokens"], fresh["cache_write_input_tokens"]
        spent = usage(
            input=max(fresh["input_tokens"] - cached - written, 0),
            output=fresh["output_tokens"],
            cache_read=cached,
            cache_write=written,
        )
        if self._thread:
            yield NativeSession(" ".join([self._thread, *(str(counts[name]) for name in _COUNTS)]))
        yield from self._draft.flush(spent)
        yield Ended(usage=spent)

    def _item(self, phase: str, item: dict[str, Any]) -> Iterator[Event]:
        inner = table(item, "item")
        done = phase == "item.completed"
        arguments: dict[str, Any]
        match text(inner, "type"):
            case "agent_message":
                if done and text(inner, "text"):
                    if self._draft.has_text:
                        yield from self._draft.flush()
                    self._draft.text(text(inner, "text"))
                    yield Delta(text(inner, "text"))
            case "reasoning":
                if done and text(inner, "text"):
                    self._draft.add_thinking(text(inner, "text"))
                    yield ThoughtDelta(text(inner, "text"))
            case "command_execution":
                arguments = {"command": text(inner, "command")}
                yield from self._tool(inner, done, "shell", arguments, texts(text(inner, "aggregated_output")))
            case "file_change":
                arguments = {"changes": array(inner, "changes")}
                yield from self._tool(inner, done, "apply_patch", arguments, texts(text(inner, "status")))
            case "mcp_tool_call":
                name = f"mcp__{text(inner, 'server')}__{text(inner, 'tool')}"
                yield from self._tool(inner, done, name, table(inner, "arguments"), _mcp_content(inner))
            case "web_search":
                yield from self._tool(inner, done, "web_search", {"query": text(inner, "query")}, [])
            case "collab_tool_call":
                arguments = {"prompt": text(inner, "prompt")}
                states = table(inner, "agents_states").values()
                said = [text(state, "message") for state in states]
                yield from self._tool(inner, done, text(inner, "tool"), arguments, texts("\n".join(filter(None, said))))
            case kind:
                yield CustomOutput(f"codex/{kind or 'item'}", item)

    def _tool(
        self, item: dict[str, Any], done: bool, name: str, arguments: dict[str, Any], content: list[dict[str, Any]]
    ) -> Iterator[Event]:
        call = text(item, "id")
        if not call:
            yield CustomOutput(f"codex/{text(item, 'type')}", item)
            return
        yield from self._draft.call(call, name, arguments)
        if done:
            code = member(item, "exit_code")
            failed = text(item, "status") in _FAILED or (isinstance(code, int) and code != 0)
            details = {"exitCode": code} if isinstance(code, int) else None
            yield from self._draft.result(call, content, is_error=failed, details=details)


def _usage_counted(native: str) -> dict[str, int]:
    numbers = native.split(" ")[1:]
    if len(numbers) != len(_COUNTS) or not all(number.isascii() and number.isdigit() for number in numbers):
        return dict.fromkeys(_COUNTS, 0)
    # Counts are below 2**53, so a longer number was not written here; cut it before `int`.
    return {name: int(number[:16]) for name, number in zip(_COUNTS, numbers, strict=True)}


def _usage_of_original(used: Usage) -> dict[str, int]:
    """The counts of Codex for a usage, whose input is without what was cached."""
    cached, written = int(used.cache_read), int(used.cache_write)
    return dict(zip(_COUNTS, (int(used.input) + cached + written, cached, written, int(used.output)), strict=True))


def _mcp_content(item: dict[str, Any]) -> list[dict[str, Any]]:
    blocks = [block for block in array(item, "result", "content") if text(block, "type")]
    return blocks or texts(text(item, "error", "message"))


PRESET = Preset(
    name="codex",
    program="codex",
    arguments=_arguments,
    parser=CodexLines,
    session_lost=re.compile(r"no rollout found for thread id"),
    # Older releases take the word for a message, and print the help of `exec`.
    fork_help=(("exec", "fork", "--help"), re.compile(r"^Usage: .*\bexec fork\b", re.MULTILINE)),
)
