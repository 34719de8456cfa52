"""An assistant message that grows block by block, as agent programs stream it. Knows pi's message shapes only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sessiond.runtimes.output import Event, MessageOutput, Tool


class MessageDraft:
    """Collects blocks until the message is whole; a tool result ends the message before it.

    `api` and `provider` are what pi writes for that vendor.
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
        """Add text: to the text block that is being written, else as a new one."""
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
        """Add a tool call; a call that is known already is not added again."""
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
        """The result of a call: ends the message that called, then is a message of its own."""
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
        """The message as far as it has come, if there is one."""
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
    """`text` as content blocks; nothing for nothing."""
    return [{"type": "text", "text": text}] if text else []


def _with_timestamp(message: dict[str, Any], timestamp: int | None) -> dict[str, Any]:
    return message if timestamp is None else {**message, "timestamp": timestamp}
