"""Cut a stream of bytes into messages: NDJSON lines, or the items of a CBOR sequence (RFC 8742).

Sans-io: bytes in any chunking go in, whole messages come out. Knows where a message ends, not what it means.
"""

from __future__ import annotations

from typing import Protocol

from sessiond.errors import LimitExceeded, SessiondError
from sessiond.rpc.cbor_items import ItemScanner


class Framer(Protocol):
    """The interface of both framings.

    `error` is set when the stream cannot be read any further (message too large or not well-formed). Messages before
    that are still returned; afterwards `feed` and `finish` return nothing. `limit` is the largest message in bytes; it
    may be raised between two calls.
    """

    limit: int
    error: SessiondError | None

    @property
    def held_bytes(self) -> int:
        """How many bytes of an incomplete message are buffered."""
        ...

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that `data` completes."""
        ...

    def finish(self) -> list[bytes]:
        """What is left at the end of the stream: at most one message, which may be incomplete."""
        ...


def too_large(limit: int) -> LimitExceeded:
    """The error for a message of more than `limit` bytes."""
    return LimitExceeded(f"A message holds at most {limit} bytes here.", limit="limits.maxFrameBytes", value=limit)


class LineFramer:
    """NDJSON: one message per line. Blank lines are skipped; the last line needs no newline."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.error: SessiondError | None = None
        self._partial = bytearray()

    @property
    def held_bytes(self) -> int:
        return len(self._partial)

    def feed(self, data: bytes) -> list[bytes]:
        if self.error is not None:
            return []
        if not self._partial:
            lines = data.split(b"\n")
        elif b"\n" in data:
            head, _, tail = data.partition(b"\n")
            self._partial += head
            lines = [bytes(self._partial), *tail.split(b"\n")]
            self._partial.clear()
        else:
            lines = [data]
        rest = lines.pop()
        self._partial += rest
        return self._check_lengths(lines)

    def finish(self) -> list[bytes]:
        if self.error is not None:
            return []
        line = bytes(self._partial)
        self._partial.clear()
        return self._check_lengths([line])

    def _check_lengths(self, lines: list[bytes]) -> list[bytes]:
        messages = []
        # A chunk may consist of newlines only; `filter` skips them in C.
        for line in filter(None, lines):
            if len(line) > self.limit:
                self.error = too_large(self.limit)
                break
            if message := line.strip(b" \t\r"):
                messages.append(message)
        if len(self._partial) > self.limit:
            self.error = too_large(self.limit)
        if self.error is not None:
            self._partial = bytearray()
        return messages


class ItemFramer:
    """A CBOR sequence: messages one after the other, with nothing between them."""

    def __init__(self, limit: int, max_nesting: int) -> None:
        self.limit = limit
        self.error: SessiondError | None = None
        self._buffer = bytearray()
        self._scanner = ItemScanner(max_nesting)

    @property
    def held_bytes(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        if self.error is not None:
            return []
        self._buffer += data
        messages: list[bytes] = []
        start = 0
        try:
            while (end := self._scanner.scan(self._buffer)) is not None:
                if end - start > self.limit:
                    raise too_large(self.limit)
                with memoryview(self._buffer) as view:
                    messages.append(bytes(view[start:end]))
                start = end
            # The announced length counts, so that a string of 4 GiB is refused before its bytes are buffered.
            if max(len(self._buffer), self._scanner.position) - start > self.limit:
                raise too_large(self.limit)
        except SessiondError as error:
            self.error = error
            self._buffer = bytearray()
            return messages
        del self._buffer[:start]
        self._scanner.shift(start)
        return messages

    def finish(self) -> list[bytes]:
        """The incomplete last item, if any. Decoding it fails, so that the client gets a parse error."""
        if self.error is not None or not self._buffer:
            return []
        rest = bytes(self._buffer)
        self._buffer.clear()
        return [rest]
