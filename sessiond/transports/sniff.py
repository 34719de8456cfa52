"""Which dialect a connection speaks, by its first bytes. Sans-io; reads no message.

Source: protocol.md, "The first byte of a connection chooses the dialect".
"""

from __future__ import annotations

from typing import Literal

from sessiond.errors import InvalidRequest

Dialect = Literal["ndjson", "cbor", "http"]

_LSP = b"content-length:"
_ACCEPTED = (
    "Accepted are JSON-RPC 2.0 with one JSON message a line, JSON-RPC 2.0 as a sequence of CBOR items, "
    "and HTTP/1.1 with WebSocket"
)


def dialect_of(first: bytes) -> Dialect | None:
    """The dialect of a connection that begins with `first`; None while more bytes are needed.

    Raises InvalidRequest, with a sentence that names what is accepted.
    """
    if not first:
        return None
    match first[0]:
        case 0x7B | 0x5B | 0x20 | 0x09 | 0x0A | 0x0D:  # { [ and white space
            return "ndjson"
        case byte if 0x80 <= byte <= 0xDB:
            return "cbor"
        case byte if 0x41 <= byte <= 0x5A:
            return _http_or_lsp(first[: len(_LSP)].lower())
        case byte:
            raise InvalidRequest(f"A connection cannot begin with the byte 0x{byte:02x}. {_ACCEPTED}.")


def _http_or_lsp(first: bytes) -> Dialect | None:
    if not _LSP.startswith(first):
        return "http"
    if len(first) < len(_LSP):
        return None
    raise InvalidRequest(f"This is LSP framing (Content-Length: headers), which is not spoken here. {_ACCEPTED}.")
