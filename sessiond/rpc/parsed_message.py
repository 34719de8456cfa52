"""A message taken apart, as far as that takes long: it can be done off the loop. Knows routes; calls no handler."""

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
    """`params` are decoded already where that took long."""

    __slots__ = ("envelope", "has_meta", "params")

    def __init__(self, envelope: Envelope, has_meta: bool) -> None:
        self.envelope, self.has_meta = envelope, has_meta
        self.params: Any = None


def take_apart(message: bytes, max_nesting: int, routes: Mapping[str, PreparedMethod]) -> ParsedMessage:
    """The envelope, and of a long message the params as well. Raises MessageError."""
    envelope = parse(message, max_nesting)
    taken = ParsedMessage(envelope, b'"_meta"' in message)
    route = None if envelope.method is UNSET else routes.get(envelope.method)
    if len(message) >= LONG_BYTES and not taken.has_meta and route is not None:
        with suppress(SessiondError):  # found again, and told, where it is asked for
            taken.params = decode_params(route.decode, envelope.params)
    return taken
