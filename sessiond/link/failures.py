"""What may go wrong in the link, as typed errors with a sentence for its owner."""

from __future__ import annotations

from typing import Literal

# unreachable  not connected; nothing was sent          timeout      no answer: it may have arrived, send it again
# no_stream    the stream is not there (any more)       full         the stream has reached its limit
# forbidden    the server's permissions refuse it       too_large    longer than the server takes
# nobody       nobody is there who would answer         no_consumer  the durable consumer is not there
# different    it is there, and not as it has to be     refused      the server says no, in its own words
Trouble = Literal[
    "unreachable",
    "timeout",
    "no_stream",
    "full",
    "forbidden",
    "too_large",
    "nobody",
    "no_consumer",
    "different",
    "refused",
]


class LinkError(Exception):
    """The sentence says what, which thing, and what to do next."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class IdentityError(LinkError):
    """A key of a machine cannot be used."""


class BusError(LinkError):
    """The server could not be used, or refused. `trouble` is for programs."""

    def __init__(self, trouble: Trouble, message: str) -> None:
        super().__init__(message)
        self.trouble = trouble
