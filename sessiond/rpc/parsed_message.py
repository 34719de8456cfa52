"""Parse a message as far as that can take long, so that a worker thread can do it. Knows routes; calls no handler."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import UNSET, UnsetType

from sessiond.errors import SessiondError
from sessiond.rpc.limits import LONG_BYTES
from sessiond.rpc.messages import Envelope, parse
from sessiond.rpc.params import decode_params, read_meta
from sessiond.rpc.pending import PreparedMethod


class ParsedMessage:
    """An envelope. `params` are already decoded for a long message, else None.

    `has_meta`: the params may have a member `_meta`; `meta` is UNSET as long as it is not read.
    """

    __slots__ = ("envelope", "has_meta", "meta", "params")

    def __init__(self, envelope: Envelope, has_meta: bool) -> None:
        self.envelope, self.has_meta = envelope, has_meta
        self.meta: dict[str, Any] | UnsetType | None = UNSET if has_meta else None
        self.params: Any = None


def parse_message(message: bytes, max_nesting: int, routes: Mapping[str, PreparedMethod]) -> ParsedMessage:
    """The envelope, and for a long message the decoded params too. Raises MessageError."""
    envelope = parse(message, max_nesting)
    parsed = ParsedMessage(envelope, b'"_meta"' in message)
    route = None if envelope.method is UNSET else routes.get(envelope.method)
    if len(message) >= LONG_BYTES and route is not None:
        with suppress(SessiondError):  # the dispatcher decodes them again and reports the error
            if parsed.has_meta:
                parsed.meta = read_meta(envelope.params)
            parsed.params = decode_params(route.decoder, envelope.params, has_meta=parsed.has_meta)
    return parsed
