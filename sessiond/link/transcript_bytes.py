"""Bytes of our own transcripts, as the daemon answers for them. Source: protocol.md, "Calls" (`sessions.bytes`)."""

from __future__ import annotations

import msgspec

from sessiond.client.errors import RpcError
from sessiond.link.owner_door import OwnerDoor
from sessiond.link.ranges import RANGE_BYTES


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
