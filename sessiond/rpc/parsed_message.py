"""Parse a message as far as that can take long, so that a worker thread can do it. Knows routes; calls no handler."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import UNSET

from sessiond.errors import SessiondError
from sessiond.rpc.limits import LONG_BYTES
from sessiond.rpc.messages import Envelope, parse
from sessiond.rpc.params import decode_params
from sessiond.rpc.pending import PreparedMethod


class ParsedMessage:
    """An envelope. `params` are already decoded for a long message, else None."""

    __slots__ = ("envelope", "has_meta", "params")

    def __init__(self, envelope: Envelope, has_meta: bool) -> None:
        self.envelope, self.has_meta = envelope, has_meta
        self.params: Any = None


def parse_message(message: bytes, max_nesting: int, routes: Mapping[str, PreparedMethod]) -> ParsedMessage:
    """The envelope, and for a long message the decoded params too. Raises MessageError."""
    envelope = parse(message, max_nesting)
    parsed = ParsedMessage(envelope, b'"_meta"' in message)
    route = None if envelope.method is UNSET else routes.get(envelope.method)
    if len(message) >= LONG_BYTES and not parsed.has_meta and route is not None:
        with suppress(SessiondError):  # the dispatcher decodes them again and reports the error
            parsed.params = decode_params(route.decoder, envelope.params)
    return parsed
