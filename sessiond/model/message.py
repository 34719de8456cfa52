"""Message objects: build them, and read their text. Pure; the format is that of pi (store.md, "Messages")."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.model import lax


def user_message(
    content: str | list[dict[str, Any]], now_ms: int, provenance: dict[str, Any] | None = None
) -> dict[str, Any]:
    """A message from a person or from another session."""
    message: dict[str, Any] = {"role": "user", "content": content, "timestamp": now_ms}
    if provenance is not None:
        message["provenance"] = provenance
    return message


# The `model` of a message whose model is not known.
UNKNOWN_MODEL = "unknown"
_TOKENS = ("input", "output", "cacheRead", "cacheWrite", "totalTokens")
_COSTS = ("input", "output", "cacheRead", "cacheWrite", "total")


def assistant_message(
    text: str, now_ms: int, *, provider: str, model: str | None, usage: dict[str, Any] | None
) -> dict[str, Any]:
    """An answer of an agent, for runtimes that return only text. `usage` is that of the runtime, if it has any."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "api": "sessiond",
        "provider": provider,
        "model": model or provider,
    }
    return complete_message(message if usage is None else {**message, "usage": usage}, now_ms)


def complete_message(message: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """The message with every member that pi expects for its role. Existing members stay as they are.

    pi sums `usage` and `usage.cost` over all assistant messages and fails at one without them. 0 is what it writes
    itself for an unknown price.
    """
    match message.get("role"):
        case "assistant":
            usage = message.get("usage")
            absent = {"api": "sessiond", "provider": "sessiond", "model": UNKNOWN_MODEL, "stopReason": "stop"}
            message = {**absent, **message, "usage": _complete_usage(usage if isinstance(usage, dict) else {})}
        case "toolResult":
            message = {"toolName": "", "isError": False, **message}
        case _:
            pass
    # The timestamp is the last member, as in pi's messages.
    timestamp = message.get("timestamp")
    return message if isinstance(timestamp, int | float) else {**message, "timestamp": now_ms}


def _complete_usage(usage: dict[str, Any]) -> dict[str, Any]:
    cost = usage.get("cost")
    costs = cost if isinstance(cost, dict) else {} if cost is None else {"total": cost}
    return {**dict.fromkeys(_TOKENS, 0), **usage, "cost": {**dict.fromkeys(_COSTS, 0), **costs}}


def text_of(message: bytes | msgspec.Raw | dict[str, Any], between: str = "") -> str:
    """The visible text of a message: its string content, or its text blocks with `between` between them."""
    if not isinstance(message, dict):
        message = lax.decode_dict(bytes(message))
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    blocks = (block for block in content if isinstance(block, dict) and block.get("type") == "text")
    return between.join(block["text"] for block in blocks if isinstance(block.get("text"), str))
