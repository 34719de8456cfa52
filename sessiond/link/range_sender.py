"""How ranges and rows leave: the part of `Courier` that feeds use."""

from __future__ import annotations

from typing import Protocol

from sessiond.link.subjects import Kind


class RangeSender(Protocol):
    """`send` returns when the stream has the message; BusError."""

    async def send(
        self,
        peer: str,
        kind: Kind,
        identity: str,
        fields: object = None,
        payload: bytes = b"",
        *,
        msg_id: str | None = None,
    ) -> bool: ...
