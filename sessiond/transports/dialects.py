"""The dialects of a connection, in one table: first bytes, link, and the encoding of a refusal. Reads nothing.

Source: protocol.md, "The first byte of a connection chooses the dialect".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sessiond.rpc.codecs import CBOR, JSON
from sessiond.rpc.limits import Limits
from sessiond.rpc.link import ReceiveGate
from sessiond.transports.framed import FramedLink, cbor_link, ndjson_link
from sessiond.transports.streams import ByteStream

_HTTP_503 = (
    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nRetry-After: 1\r\n"
    b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
)


LinkMaker = Callable[[ByteStream, Limits, Callable[[], ReceiveGate]], FramedLink]


@dataclass(frozen=True, slots=True)
class ConnectionDialect:
    """One dialect. `first_bytes` are those with which a connection may begin.

    `link` makes the link for a peer; None for HTTP, where each request is served on its own. `encode_refusal` encodes
    an error, given as JSON text, for a client that is not served.
    """

    name: str
    first_bytes: bytes
    link: LinkMaker | None
    encode_refusal: Callable[[bytes], bytes]


def _encode_503(text: bytes) -> bytes:
    return _HTTP_503 % (len(text), text)


NDJSON = ConnectionDialect("ndjson", b"{[ \t\n\r", ndjson_link, JSON.from_json)
CBOR_SEQUENCE = ConnectionDialect("cbor", bytes(range(0x80, 0xDC)), cbor_link, CBOR.from_json)
HTTP = ConnectionDialect("http", bytes(range(ord("A"), ord("Z") + 1)), None, _encode_503)
DIALECTS = (NDJSON, CBOR_SEQUENCE, HTTP)
