"""Detect the dialect of a connection from its first bytes. Sans-io; reads no message.

Source: protocol.md, "The first byte of a connection chooses the dialect".
"""

from __future__ import annotations

from sessiond.errors import InvalidRequest
from sessiond.transports.dialects import DIALECTS, HTTP, ConnectionDialect

_BY_FIRST_BYTE = {byte: dialect for dialect in DIALECTS for byte in dialect.first_bytes}
_LSP = b"content-length:"
_ACCEPTED = (
    "Accepted are JSON-RPC 2.0 with one JSON message a line, JSON-RPC 2.0 as a sequence of CBOR items, "
    "and HTTP/1.1 with WebSocket"
)


def dialect_of(first: bytes) -> ConnectionDialect | None:
    """The dialect of a connection that begins with `first`; None while more bytes are needed.

    Raises InvalidRequest, which names the accepted dialects.
    """
    if not first:
        return None
    dialect = _BY_FIRST_BYTE.get(first[0])
    if dialect is None:
        raise InvalidRequest(f"A connection cannot begin with the byte 0x{first[0]:02x}. {_ACCEPTED}.")
    return _http_or_lsp(first[: len(_LSP)].lower()) if dialect is HTTP else dialect


def _http_or_lsp(first: bytes) -> ConnectionDialect | None:
    if not _LSP.startswith(first):
        return HTTP
    if len(first) < len(_LSP):
        return None
    raise InvalidRequest(f"This is LSP framing (Content-Length: headers), which is not spoken here. {_ACCEPTED}.")
