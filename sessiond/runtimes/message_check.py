"""Messages of other programs before they are stored: whole, on one line, without files' contents and forged origins."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.errors import InvalidParams
from sessiond.policy.redact import redact_spawn_calls, redact_spawn_raw


def redact_message(message: dict[str, Any] | msgspec.Raw) -> dict[str, Any] | msgspec.Raw:
    """The message as it may be stored: without the content of files in a recorded sessions_spawn call."""
    if not isinstance(message, msgspec.Raw):
        return redact_spawn_calls(message)
    raw = bytes(message)
    changed = redact_spawn_raw(raw)
    return message if changed is raw else msgspec.Raw(changed)


class _Shape(msgspec.Struct, frozen=True):
    role: str
    content: msgspec.Raw
    provenance: msgspec.Raw = msgspec.Raw()


_decode_shape = msgspec.json.Decoder(_Shape).decode
_decode_members = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def check_message(
    raw: msgspec.Raw, field: str, *, from_owner: bool = False, provenance: dict[str, Any] | None = None
) -> msgspec.Raw:
    """A message object that came from outside, on one line and fit to be stored. InvalidParams names what is wrong.

    A `provenance` in it is taken off unless the owner wrote it: it says whose words these are, and no agent says that
    of its own. What the daemon knows of that, `provenance`, is put in its place. Source: runs.md, "sessions_send".
    """
    try:
        shape = _decode_shape(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidParams(
            f"`{field}` is not a message: an object with a `role` and `content`.", field=field
        ) from None
    if not shape.role:
        raise InvalidParams(f"`{field}.role` is empty.", field=f"{field}.role")
    if bytes(shape.content)[:1] not in (b'"', b"["):
        raise InvalidParams(f"`{field}.content` is neither text nor a list of blocks.", field=f"{field}.content")
    if (bytes(shape.provenance) and not from_owner) or provenance is not None:
        members: dict[str, Any] = dict(_decode_members(raw))
        members.pop("provenance", None)
        known = {"provenance": provenance} if provenance is not None else {}
        raw = msgspec.Raw(msgspec.json.encode({**members, **known}))
    # One line a record: white space between tokens may hold newlines, and those end a line.
    compact = msgspec.Raw(msgspec.json.format(raw, indent=-1)) if b"\n" in bytes(raw) else raw
    changed = redact_message(compact)
    return changed if isinstance(changed, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(changed))
