"""Remove attachment contents from messages before they are stored, and mask secrets in messages before they are sent.

The first applies to recorded `sessions_spawn` calls, the second to callers with a token. Knows the message shapes of
pi, Claude, Codex and Gemini; does not know who asks. Returns new values and changes none in place. Source: runs.md,
"Attachments"; security.md, "Redaction".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable
from typing import Any

import msgspec

from sessiond.model.decoding_cost import find_long_excess
from sessiond.model.lax import decode_any
from sessiond.policy.secrets import MASK, compile_patterns, mask, mask_secrets, names_secret

__all__ = [
    "REDACTED",
    "compile_patterns",
    "mask_message",
    "mask_secrets",
    "mask_value",
    "may_name_spawn",
    "redact_arguments",
    "redact_spawn_calls",
    "redact_spawn_raw",
]

REDACTED = "__REDACTED__"
UNREADABLE = b'{"content":"[omitted: the message could not be read for redaction]"}'

_TOO_COSTLY = object()

Patterns = tuple[re.Pattern[str], ...]
Change = Callable[[Any], Any]

# No program nests its messages this deep. Values below this depth are not walked: they are masked or kept as a whole.
_MAX_DEPTH = 100
_ARGUMENTS = frozenset({"arguments", "input", "args", "parameters", "params"})
# Programs write the tool's name with their own prefix: mcp__sessiond__sessions_spawn, sessiond.sessions_spawn.
_SPAWN = "sessions_spawn"
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")
# Keys that name the tool in events whose arguments are nested deeper (opencode: `tool`, then `state.input`).
_NAMED_ELSEWHERE = ("tool", "toolName", "tool_name")


def redact_spawn_calls(value: Any) -> Any:
    """A message, or other output of an agent, without the attachment contents of its `sessions_spawn` calls.

    `value` itself if it has none.

    A call is any object, at any depth, with the tool's name and its arguments (an object or a JSON string): `toolCall`,
    `toolUse`, `tool_use`, `functionCall`, the nested forms of Gemini and OpenAI, and calls made through another tool.
    """
    return _redact_calls(value, 0)


def may_name_spawn(raw: bytes) -> bool:
    """Whether JSON may hold a `sessions_spawn` call, so that all of its values have to be looked at."""
    return b"spawn" in raw.lower() or _ESCAPED_LETTER.search(raw) is not None


def redact_spawn_raw(raw: bytes) -> bytes:
    """As `redact_spawn_calls`, for JSON bytes; `raw` itself if it has none."""
    if not may_name_spawn(raw):
        return raw
    try:
        message = decode_any(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        # Not JSON, so no reader of the transcript will take it for a message.
        return raw
    redacted = redact_spawn_calls(message)
    return raw if redacted is message else msgspec.json.encode(redacted)


def redact_arguments(arguments: Any) -> Any:
    """The arguments of a `sessions_spawn` call, given without the call around them, without attachment contents."""
    return _redact_arguments(arguments, 0)


def _redact_calls(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, list):
        return _map_list(value, lambda item: _redact_calls(item, depth + 1))
    if not isinstance(value, dict):
        return value
    if any(_is_spawn(value.get(key)) for key in _NAMED_ELSEWHERE):
        return _redact_arguments(value, depth + 1)
    spawns = _is_spawn(value.get("name"))

    def field(key: Any, item: Any) -> Any:
        if key in _ARGUMENTS and spawns:
            return _redact_arguments(item, depth + 1)
        if key in _ARGUMENTS and isinstance(item, str) and _SPAWN in item.lower():
            return _through_json(item, lambda inner: _redact_calls(inner, depth + 1))
        return _redact_calls(item, depth + 1)

    return _map_dict(value, field)


def _is_spawn(name: Any) -> bool:
    return isinstance(name, str) and name.strip().lower().replace("-", "_").endswith(_SPAWN)


def _redact_arguments(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, str):
        return _through_json(value, lambda inner: _redact_arguments(inner, depth + 1))
    if isinstance(value, list):
        return _map_list(value, lambda item: _redact_arguments(item, depth + 1))
    if not isinstance(value, dict):
        return value

    def field(key: Any, item: Any) -> Any:
        if _is_key(key, "attachments"):
            return _redact_attachments(item, depth + 1)
        # Walk into wrappers such as `params`, but leave plain strings alone: a task may be text that looks like JSON.
        return _redact_arguments(item, depth + 1) if isinstance(item, dict | list) or key in _ARGUMENTS else item

    return _map_dict(value, field)


def _redact_attachments(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return REDACTED
    if isinstance(value, list):
        return [_redact_attachment(item, depth + 1) for item in value]
    if isinstance(value, str):
        decoded = _decode(value)
        if isinstance(decoded, list | dict):
            return _encode(_redact_attachments(decoded, depth + 1))
        return REDACTED
    return _redact_attachment(value, depth)


def _redact_attachment(item: Any, depth: int) -> Any:
    if isinstance(item, list):
        return _redact_attachments(item, depth + 1)
    if isinstance(item, str | bytes):
        return _receipt(item, None)
    if not isinstance(item, dict):
        return item
    redacted: dict[Any, Any] = {}
    for key, value in item.items():
        if not _is_key(key, "content"):
            redacted.setdefault(key, value)
        elif value == REDACTED and "sha256" in item:
            redacted[key] = value
        else:
            redacted.update({**_receipt(value, item.get("encoding")), key: REDACTED})
    return redacted


def _receipt(content: Any, encoding: Any) -> dict[str, Any]:
    """The fields that replace a content. Size and hash are those of the decoded file, as in the manifest."""
    raw = _content_bytes(content, encoding)
    return {"content": REDACTED, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}


def _content_bytes(content: Any, encoding: Any) -> bytes:
    if isinstance(content, bytes):
        return content
    if not isinstance(content, str):
        return msgspec.json.encode(content)
    raw = content.encode("utf-8", "surrogatepass")
    if isinstance(encoding, str) and encoding.strip().lower() == "base64":
        try:
            return base64.b64decode(raw, validate=True)
        except (binascii.Error, ValueError):
            return raw
    return raw


def _through_json(text: str, change: Change) -> Any:
    """`text` with `change` applied to the JSON in it; REDACTED if it cannot be read and may hold attachments."""
    decoded = _decode(text)
    if decoded is _TOO_COSTLY:
        return REDACTED
    if decoded is None:
        return REDACTED if "attachments" in text.lower() or "\\u" in text else text
    changed = change(decoded)
    return text if changed is decoded else _encode(changed)


def _decode(text: str) -> Any:
    """The JSON in a text: None where it is none, `_TOO_COSTLY` where it has too many values, which nobody writes."""
    data = text.encode("utf-8", "surrogatepass")
    if find_long_excess(data) is not None:
        return _TOO_COSTLY
    try:
        return decode_any(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def _encode(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _is_key(key: Any, name: str) -> bool:
    return isinstance(key, str) and key.strip().lower() == name


def _map_dict(value: dict[Any, Any], change: Callable[[Any, Any], Any]) -> dict[Any, Any]:
    """`value` with `change` applied to each field; `value` itself if no field changed."""
    changed = {key: change(key, item) for key, item in value.items()}
    return changed if any(changed[key] is not item for key, item in value.items()) else value


def _map_list(value: list[Any], change: Change) -> list[Any]:
    changed = [change(item) for item in value]
    return changed if any(new is not old for new, old in zip(changed, value, strict=True)) else value


def mask_message(raw: bytes, patterns: Patterns = ()) -> tuple[bytes, bool]:
    """`(message, masked)`: the message (JSON bytes) with its secrets masked, and whether it had any.

    Masks secrets in every string (text, thinking, tool-call arguments, tool results) and the whole value of a field
    whose name says that it is a secret. Bytes that cannot be parsed are replaced by UNREADABLE.
    """
    try:
        message = decode_any(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return UNREADABLE, True
    masked = mask_value(message, patterns)
    return (raw, False) if masked is message else (msgspec.json.encode(masked), True)


def mask_value(value: Any, patterns: Patterns = ()) -> Any:
    """Like `mask_message`, for a value that is parsed already; `value` itself if it has no secret."""
    return _mask(value, patterns, 0, secret=False)


def _mask(value: Any, patterns: Patterns, depth: int, *, secret: bool) -> Any:
    if depth > _MAX_DEPTH:
        return MASK
    if isinstance(value, str):
        if secret:
            return mask(value) if value else value
        return mask_secrets(value, patterns)[0]
    if isinstance(value, list):
        return _map_list(value, lambda item: _mask(item, patterns, depth + 1, secret=secret))
    if not isinstance(value, dict):
        return value
    image = value.get("type") == "image"

    def field(key: str, item: Any) -> Any:
        if image and key == "data":
            # Base64 of an image holds no readable secret, and is by far the largest string in a message.
            return item
        if key in _ARGUMENTS and isinstance(item, str) and item.lstrip()[:1] in ("{", "["):
            decoded = _decode(item)
            if decoded is _TOO_COSTLY:
                return MASK
            if decoded is not None:
                masked = _mask(decoded, patterns, depth + 1, secret=False)
                return item if masked is decoded else _encode(masked)
        return _mask(item, patterns, depth + 1, secret=secret or names_secret(key))

    return _map_dict(value, field)
