"""JSON-RPC 2.0 as a sequence of CBOR items, for answers that have bytes in them. Knows bytes and messages. Sans-io.

In JSON they are base64: making and reading it takes as long as all else that is done with a range.
"""

from __future__ import annotations

from typing import Any

import cbor2

from sessiond.client import wire
from sessiond.client.errors import ClientError
from sessiond.model.lax import decode_any
from sessiond.rpc.codecs import decode_leniently
from sessiond.rpc.framing import ItemFramer

# The daemon's longest answer to this program is a range of a MiB.
MAX_ANSWER_BYTES = 16 << 20
_MAX_NESTING = 64


class CborWire(wire.JsonRpcWire):
    """The framing and the request ids of one connection."""

    def __init__(self) -> None:
        super().__init__()
        self._framer = ItemFramer(MAX_ANSWER_BYTES, _MAX_NESTING)

    def request(self, method: str, params: dict[str, Any]) -> tuple[int, bytes]:
        request_id, line = super().request(method, params)
        return request_id, self.outgoing(line)

    def outgoing(self, line: bytes) -> bytes:
        return cbor2.dumps(decode_any(line))

    def feed(self, data: bytes) -> list[wire.Incoming]:
        """The messages that `data` completes. ClientError where they cannot be read: no more can, then."""
        messages = [wire.incoming_of(_decode(item)) for item in self._framer.feed(data)]
        if self._framer.error is not None:
            raise ClientError(f"the daemon sent what cannot be read: {self._framer.error.message}")
        return messages


def _decode(item: bytes) -> Any:
    try:
        return decode_leniently(item)
    except ValueError:
        raise ClientError("the daemon sent an item that is no CBOR") from None
