"""What an agent says in one turn, `session/update` by `session/update`: messages, live events and records. Sans-io.

Knows the shapes of ACP v1 and of transcripts. Does not know processes, requests or where the events go. Reads
leniently: what cannot be used is counted and left out. Source: runs.md, "acp".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import msgspec

from sessiond.runtimes.acp.message_draft import AcpMessageDraft
from sessiond.runtimes.acp.tool_calls import CallLedger
from sessiond.runtimes.output import ENVELOPE_BYTES, CustomOutput, Delta, Event, ThoughtDelta
from sessiond.runtimes.presets.fields import amount, count, table, text

# The kind of an update goes into the type of a record.
_KIND = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
# Agents repeat these with every session and turn, some with hundreds of entries.
_LISTS = ("available_commands_update", "config_option_update")
# What the agent stopped for, in the words of transcripts.
_STOP_REASONS = {"max_tokens": "length", "max_turn_requests": "length", "cancelled": "aborted", "refusal": "error"}


class ContextUsage(msgspec.Struct, frozen=True):
    """The newest `usage_update`: tokens in the context, its size, and the cost so far in US dollars."""

    used: int
    size: int
    cost_usd: float | None


class UpdateReader:
    """The updates of one turn. `known_lists` outlives it: the lists that a session has recorded, by kind.

    `dropped` counts the updates that could not be used; `split` the messages that were too long for one record.
    """

    def __init__(self, *, provider: str, max_record_bytes: int, known_lists: dict[str, bytes]) -> None:
        self._max_bytes = max_record_bytes - ENVELOPE_BYTES
        self._draft = AcpMessageDraft(provider, self._max_bytes)
        self.calls = CallLedger(self._draft, self._max_bytes)
        self._known_lists = known_lists
        self._dropped = 0
        self.context: ContextUsage | None = None

    @property
    def dropped(self) -> int:
        return self._dropped + self.calls.dropped

    @property
    def split(self) -> int:
        return self._draft.split

    def take(self, update: Any) -> Iterator[Event]:
        """The events of one update."""
        kind = text(update, "sessionUpdate")
        match kind:
            case "agent_message_chunk" | "agent_thought_chunk":
                yield from self._chunk(update, is_thought=kind == "agent_thought_chunk")
            case "tool_call" | "tool_call_update":
                yield from self.calls.take(update)
            case "usage_update":
                self._usage(update)
            case "user_message_chunk":
                pass  # our own message, which some agents repeat
            case _:
                yield from self._other(kind, update)

    def end(self, stop_reason: str) -> Iterator[Event]:
        """What is left at the end of the turn: the last message, and results for the calls that have none."""
        yield from self._draft.flush(_STOP_REASONS.get(stop_reason))
        yield from self.calls.end()

    def _chunk(self, update: dict[str, Any], *, is_thought: bool) -> Iterator[Event]:
        message_id = text(update, "messageId") or None
        content = table(update, "content")
        match text(content, "type"):
            case "text" if isinstance(content.get("text"), str):
                said = content["text"]
            case "resource_link" if text(content, "uri"):
                said = f"[{text(content, 'title') or text(content, 'name')}]({text(content, 'uri')})"
            case "resource" if text(content, "resource", "text"):
                said = text(content, "resource", "text")
            case "image" if self._is_image(content) and not is_thought:
                image = {"type": "image", "data": content["data"], "mimeType": content["mimeType"]}
                yield from self._draft.add_message_block(image, message_id)
                return
            case _:
                self._dropped += 1
                return
        if is_thought:
            yield from self._draft.add_thought(said, message_id)
            if said:
                yield ThoughtDelta(said)
            return
        yield from self._draft.add_text(said, message_id)
        if said:
            yield Delta(said)

    def _is_image(self, content: dict[str, Any]) -> bool:
        return bool(text(content, "mimeType")) and 0 < len(text(content, "data")) < self._max_bytes - ENVELOPE_BYTES

    def _usage(self, update: dict[str, Any]) -> None:
        if not all(isinstance(update.get(name), int) for name in ("used", "size")):
            self._dropped += 1
            return
        cost = amount(update, "cost", "amount") if text(update, "cost", "currency") == "USD" else None
        if cost is None and self.context is not None:
            cost = self.context.cost_usd
        self.context = ContextUsage(count(update, "used"), count(update, "size"), cost)

    def _other(self, kind: str, update: Any) -> Iterator[Event]:
        encoded = msgspec.json.encode(update)
        if not _KIND.fullmatch(kind) or len(encoded) > self._max_bytes:
            self._dropped += 1
            return
        if kind in _LISTS:
            digest = blake2b(encoded, digest_size=16).digest()
            if self._known_lists.get(kind) == digest:
                return
            self._known_lists[kind] = digest
        yield CustomOutput(f"acp/{kind}", update)


def turn_usage(result: Any, context: ContextUsage | None, cost_usd: float | None) -> dict[str, Any] | None:
    """The usage of a turn in pi's shape, from its answer and the newest `usage_update`; None where neither has any.

    Agents disagree whether `inputTokens` contains the cached ones and `outputTokens` the thoughts; the total tells.
    Source: store.md, "Messages".
    """
    said, quota = table(result, "usage"), table(result, "_meta", "quota", "token_count")
    # Gemini CLI has no `usage`, and its own `quota` names the tokens another way.
    given = count(said, "inputTokens") or count(quota, "input_tokens")
    output = count(said, "outputTokens") or count(quota, "output_tokens")
    cached = count(said, "cachedReadTokens"), count(said, "cachedWriteTokens")
    thought, total = count(said, "thoughtTokens"), count(said, "totalTokens")
    if sum(cached) and total in (given + output, given + output + thought):
        given = max(0, given - sum(cached))
    if thought and total == given + output + sum(cached) + thought:
        output += thought
    found: dict[str, Any] = {"input": given, "output": output, "cacheRead": cached[0], "cacheWrite": cached[1]}
    used = context.used if context is not None else 0
    found["totalTokens"] = used or total or sum(found.values())
    if not any(found.values()) and cost_usd is None:
        return None
    return found if cost_usd is None else {**found, "cost": {"total": cost_usd}}


def cost_since(before: float | None, now: float | None) -> float | None:
    """What was spent since `before`, of a cost that an agent sums up; a lower value begins again."""
    if now is None:
        return None
    return now - before if before is not None and now >= before else now
