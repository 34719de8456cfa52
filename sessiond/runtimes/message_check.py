"""Check messages of other programs before they are stored; remove forged provenance, and attachment contents."""

from __future__ import annotations

from typing import Any

import msgspec

from sessiond.errors import InvalidParams
from sessiond.model.lax import decoder_of
from sessiond.policy.redact import redact_spawn_raw


def redact_message(message: msgspec.Raw) -> msgspec.Raw:
    """The message without the attachment contents of `sessions_spawn` calls in it."""
    raw = bytes(message)
    changed = redact_spawn_raw(raw)
    return message if changed is raw else msgspec.Raw(changed)


class _Shape(msgspec.Struct, frozen=True):
    role: str
    content: msgspec.Raw
    provenance: msgspec.Raw = msgspec.Raw()


_decode_shape = decoder_of(_Shape).decode
_decode_members = decoder_of(dict[str, msgspec.Raw]).decode


def check_message(
    raw: msgspec.Raw, field: str, *, from_owner: bool = False, provenance: dict[str, Any] | None = None
) -> msgspec.Raw:
    """A message object of another program, on one line, ready to be redacted. InvalidParams if it is not a message.

    Only the owner may set `provenance` in a message, because it says whose words these are: from others it is removed.
    The `provenance` parameter, if given, replaces it. Source: runs.md, "sessions_send".
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
    # A record is one line, so newlines between the tokens of the JSON have to go.
    return msgspec.Raw(msgspec.json.format(raw, indent=-1)) if b"\n" in bytes(raw) else raw
