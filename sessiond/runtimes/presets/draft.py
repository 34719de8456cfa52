"""Build assistant messages block by block, as agent programs stream them. Knows pi's message shapes only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sessiond.runtimes.output import Event, MessageOutput, Tool


class MessageDraft:
    """Collects blocks until the message is complete; a tool result completes the message before it.

    `api` and `provider` are the values that pi writes for that vendor.
    """

    def __init__(self, api: str, provider: str, model: str | None = None) -> None:
        self.model = model
        self._fixed = {"api": api, "provider": provider}
        self._blocks: list[dict[str, Any]] = []
        self._names: dict[str, str] = {}

    @property
    def has_text(self) -> bool:
        """Whether there is a text block already."""
        return any(block["type"] == "text" for block in self._blocks)

    def text(self, text: str) -> None:
        """Append text to the last block if it is text, else as a new block."""
        if self._blocks and self._blocks[-1]["type"] == "text":
            self._blocks[-1]["text"] += text
        elif text:
            self._blocks.append({"type": "text", "text": text})

    def add_thinking(self, text: str, signature: str = "") -> None:
        """Add a block of thinking."""
        block = {"type": "thinking", "thinking": text}
        self._blocks.append({**block, "thinkingSignature": signature} if signature else block)

    def block(self, block: dict[str, Any]) -> None:
        """Add a block as it is."""
        self._blocks.append(block)

    def call(self, call_id: str, name: str, arguments: dict[str, Any]) -> Iterator[Event]:
        """Add a tool call, unless its id is known already."""
        if call_id in self._names:
            return
        self._names[call_id] = name
        self._blocks.append({"type": "toolCall", "id": call_id, "name": name, "arguments": arguments})
        yield Tool("start", call_id, name, {"arguments": arguments})

    def result(
        self,
        call_id: str,
        content: list[dict[str, Any]],
        *,
        is_error: bool,
        details: Any = None,
        timestamp: int | None = None,
    ) -> Iterator[Event]:
        """Complete the message with the call, then add the result as a message of its own."""
        yield from self.flush()
        name = self._names.pop(call_id, "")
        message: dict[str, Any] = {
            "role": "toolResult",
            "toolCallId": call_id,
            "toolName": name,
            "content": content,
            "isError": is_error,
        }
        if details is not None:
            message["details"] = details
        yield Tool("end", call_id, name, {"isError": is_error})
        yield MessageOutput(_with_timestamp(message, timestamp))

    def flush(
        self, usage: dict[str, Any] | None = None, stop_reason: str | None = None, timestamp: int | None = None
    ) -> Iterator[Event]:
        """The message collected so far, if it has any blocks."""
        if not self._blocks:
            return
        calls = any(block["type"] == "toolCall" for block in self._blocks)
        message: dict[str, Any] = {"role": "assistant", "content": self._blocks, **self._fixed}
        if self.model:
            message["model"] = self.model
        if usage is not None:
            message["usage"] = usage
        message["stopReason"] = stop_reason or ("toolUse" if calls else "stop")
        self._blocks = []
        yield MessageOutput(_with_timestamp(message, timestamp))


def texts(text: str) -> list[dict[str, Any]]:
    """`text` as a list with one content block; an empty list for empty text."""
    return [{"type": "text", "text": text}] if text else []


def _with_timestamp(message: dict[str, Any], timestamp: int | None) -> dict[str, Any]:
    return message if timestamp is None else {**message, "timestamp": timestamp}
