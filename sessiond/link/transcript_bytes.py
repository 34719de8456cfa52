"""Bytes of our own transcripts, as the daemon answers for them. Source: protocol.md, "Calls" (`sessions.bytes`,
`sessions.heads`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from sessiond.client.errors import RpcError
from sessiond.link.owner_door import OwnerDoor
from sessiond.link.ranges import HEAD_BYTES, RANGE_BYTES


class FoundBytes(msgspec.Struct, frozen=True):
    """Bytes from `begin` on, of a transcript of `size`; `cursor` is their end. Label and folder are as of these."""

    begin: int = msgspec.field(name="from")
    size: int
    cursor: str
    data: bytes
    label: str | None = None
    cwd: str | None = None

    @property
    def to(self) -> int:
        return self.begin + len(self.data)


class _FoundHead(msgspec.Struct, frozen=True):
    """How a transcript begins; only with the status `ok` there is more than it."""

    status: Literal["ok", "missing", "stale", "busy"]
    size: int = 0
    cursor: str = ""
    data: bytes = b""
    label: str | None = None
    cwd: str | None = None


class _FoundHeads(msgspec.Struct, frozen=True):
    heads: tuple[_FoundHead, ...]


class OtherContent(Exception):
    """The transcript is not what it was before the cursor."""


class NoTranscript(Exception):
    """The daemon has no such session."""


async def read_bytes(
    daemon: OwnerDoor, session: str, cursor: str | None, at: int | None = None, most: int = RANGE_BYTES
) -> FoundBytes:
    """At most `most` bytes from the cursor, or from `at` on while the cursor is valid.

    OtherContent, NoTranscript; ClientError for what may pass.
    """
    params = {"sessionId": session, "maxBytes": most}
    if cursor is not None:
        params["cursor"] = cursor
    if at is not None:
        params["at"] = at
    try:
        found: FoundBytes = await daemon.call("sessions.bytes", params, form=FoundBytes)
    except RpcError as error:
        if error.reason in ("cursor_stale", "cursor_invalid"):
            raise OtherContent from None
        if error.slug == "not_found":
            raise NoTranscript from None
        raise
    return found


async def read_heads(
    daemon: OwnerDoor, wanted: Sequence[tuple[str, str | None]]
) -> list[FoundBytes | Literal["missing", "stale", "busy"]]:
    """The first bytes of each session, if its cursor is valid or None, or why not. ClientError."""
    asked = [
        {"sessionId": session} if cursor is None else {"sessionId": session, "cursor": cursor}
        for session, cursor in wanted
    ]
    found: _FoundHeads = await daemon.call(
        "sessions.heads", {"sessions": asked, "maxBytes": HEAD_BYTES}, form=_FoundHeads
    )
    return [
        FoundBytes(0, one.size, one.cursor, one.data, one.label, one.cwd) if one.status == "ok" else one.status
        for one in found.heads
    ]
