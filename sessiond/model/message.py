"""Message objects: make them, and read the text out of them. Pure; the shapes are pi's (store.md, "A transcript")."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.model import lax


def user_message(
    content: str | list[dict[str, Any]], now_ms: int, provenance: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What a person, or another session, said."""
    message: dict[str, Any] = {"role": "user", "content": content, "timestamp": now_ms}
    if provenance is not None:
        message["provenance"] = provenance
    return message


def assistant_message(
    text: str, now_ms: int, *, provider: str, model: str | None, usage: dict[str, Any] | None
) -> dict[str, Any]:
    """What an agent answered, for a runtime that gives only text. Usage is there where the runtime told it."""
    message: dict[str, Any] = {
        "role": "assistant",
        "content": [{"type": "text", "text": text}],
        "api": "sessiond",
        "provider": provider,
        "model": model or provider,
    }
    if usage is not None:
        message["usage"] = usage
    message["stopReason"] = "stop"
    message["timestamp"] = now_ms
    return message


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
