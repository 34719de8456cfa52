"""Summarize the output of a turn: its reply, usage and model. Does no I/O."""

from __future__ import annotations

from typing import Any

from sessiond.runtimes.output import Ended, MessageOutput

# So many members of a usage are summed, and as many costs; pi's has six. One message can have 87,000.
_MAX_MEMBERS = 256


def text_of(message: dict[str, Any]) -> str:
    """The text of a message: its string, or its text blocks joined."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


class TurnSummary:
    """The last assistant text, the usage over all assistant messages, and the last model of a turn."""

    def __init__(self) -> None:
        self.messages = 0
        self.reply: str | None = None
        self.error: str | None = None
        self.usage: dict[str, Any] | None = None
        self.model: str | None = None
        self._final_usage: dict[str, Any] | None = None
        self._final_reply: str | None = None

    def add(self, event: MessageOutput | Ended) -> None:
        """Add one message, or what the program said at the end."""
        match event:
            case MessageOutput():
                self._message(event.message)
            case Ended():
                self.error = event.error or self.error
                self.model = event.model or self.model
                self._final_usage = event.usage or self._final_usage
                self._final_reply = event.reply if event.reply is not None else self._final_reply

    def end(self) -> None:
        """Determine the reply and the usage after the last event."""
        if self.reply is None:
            self.reply = self._final_reply or ""
        self.usage = self._final_usage or self.usage

    def _message(self, message: dict[str, Any]) -> None:
        self.messages += 1
        if message.get("role") != "assistant":
            return
        self.reply = text_of(message) or self.reply
        model = message.get("model")
        self.model = model if isinstance(model, str) and model else self.model
        usage = message.get("usage")
        if isinstance(usage, dict):
            self.usage = add_usage(self.usage, usage)


def add_usage(sum_: dict[str, Any] | None, usage: dict[str, Any]) -> dict[str, Any]:
    """The sum of two usages in pi's shape, without members that are not numbers. A numeric `cost` is a total."""
    before = dict(sum_ or {})
    costs = before.pop("cost", None)
    total = _add(before, {key: value for key, value in usage.items() if key != "cost"})
    cost = usage.get("cost")
    if cost is not None or costs is not None:
        total["cost"] = _add(costs or {}, cost if isinstance(cost, dict) else {"total": cost})
    return total


def _add(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    total = dict(left)
    for key, value in right.items():
        if len(total) >= _MAX_MEMBERS and key not in total:
            continue
        # Larger than 2**53 is not a count, and the sum could not be written as JSON.
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 2**53:
            total[key] = total.get(key, 0) + value
    return total
