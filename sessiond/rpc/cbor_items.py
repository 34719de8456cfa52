"""Find where a CBOR data item ends (RFC 8949, section 3), byte by byte as it arrives. Does not decode it.

`cbor2.loads` takes the first item of a buffer and ignores the rest, and it cannot say "not yet": a sequence
(RFC 8742) needs this scanner. Well-formedness and depth are decided here; keys, tags and text by the decoder.
"""

from __future__ import annotations

from sessiond.errors import InvalidRequest, LimitExceeded, ParseError, no_memory
from sessiond.rpc.limits import MAX_CBOR_ITEMS
from sessiond.tasks import run_in_thread

# What an open container still needs: a number of items, or one of these.
_ARRAY = -1  # indefinite-length array: any number of items, then a break
_MAP_KEY = -2  # indefinite-length map, next a key or a break
_MAP_VALUE = -3  # indefinite-length map, next a value
_BYTES, _TEXT = -4, -5  # string in chunks: strings of its own kind, then a break
_CHUNKED = {2: _BYTES, 3: _TEXT}
_BREAK = 0xFF
# Scanning so many bytes takes up to 7 ms (all of them one-byte integers); longer frames go to a worker thread.
_SLOW_BYTES = 16 * 1024


class ItemScanner:
    """Finds the end of each item in a growing buffer, without reading a byte twice.

    `position` is where the next head begins; it lies beyond the buffer while bytes of a string are still missing.
    """

    def __init__(self, max_nesting: int) -> None:
        self.position = 0
        self._max_nesting = max_nesting
        self._count = 0
        self._open: list[int] = []
        self._in_item = False

    def shift(self, count: int) -> None:
        """Adjust to a buffer whose first `count` bytes were removed."""
        self.position -= count

    def scan(self, buffer: bytes | bytearray) -> int | None:
        """The offset at which the current item ends in `buffer`, None while it is incomplete.

        Raises ParseError (not well-formed), InvalidRequest (nested too deeply) or LimitExceeded (too many items);
        the scanner is of no use after that.
        """
        size = len(buffer)
        while True:
            if self._in_item and not self._open:
                if self.position > size:
                    return None
                self._in_item = False
                self._count = 0
                return self.position
            head = _read_head(buffer, self.position, size) if self.position < size else None
            if head is None:
                return None
            major, argument, self.position = head
            self._in_item = True
            self._count += 1
            if self._count > MAX_CBOR_ITEMS:
                raise LimitExceeded(
                    f"A message has at most {MAX_CBOR_ITEMS} items.", limit="items", value=MAX_CBOR_ITEMS
                )
            self._take(major, argument)

    def _take(self, major: int, argument: int | None) -> None:
        """Account for one head. `argument` is None for an indefinite length, and for a break."""
        if self._open and self._open[-1] in (_BYTES, _TEXT):
            self._take_chunk(major, argument)
            return
        match major:
            case 2 | 3:
                if argument is None:
                    self._enter(_CHUNKED[major])
                else:
                    self.position += argument
                    self._item_complete()
            case 4:
                self._enter(_ARRAY if argument is None else argument)
            case 5:
                self._enter(_MAP_KEY if argument is None else argument * 2)
            case 6:
                self._enter(1)  # a tag counts as a container of one item, so that chains of tags count as nesting
            case 7 if argument is None:
                if not self._open or self._open[-1] not in (_ARRAY, _MAP_KEY):
                    raise _malformed_error("a break where none can be")
                self._leave_container()
            case _:
                self._item_complete()

    def _take_chunk(self, major: int, argument: int | None) -> None:
        if major == 7 and argument is None:
            self._leave_container()
        elif _CHUNKED.get(major) == self._open[-1] and argument is not None:
            self.position += argument
        else:
            raise _malformed_error("a string in chunks holds something else than chunks")

    def _enter(self, wanted: int) -> None:
        if len(self._open) >= self._max_nesting:
            raise InvalidRequest(
                f"The message is nested deeper than {self._max_nesting} levels.",
                limit="limits.maxNesting",
                value=self._max_nesting,
            )
        if wanted == 0:
            self._item_complete()
        else:
            self._open.append(wanted)

    def _leave_container(self) -> None:
        self._open.pop()
        self._item_complete()

    def _item_complete(self) -> None:
        """One item is complete, and with it perhaps the containers that it was the last item of."""
        while self._open:
            wanted = self._open[-1]
            if wanted == _MAP_KEY:
                self._open[-1] = _MAP_VALUE
            elif wanted == _MAP_VALUE:
                self._open[-1] = _MAP_KEY
            elif wanted > 1:
                self._open[-1] = wanted - 1
            elif wanted == 1:
                self._open.pop()
                continue
            return


def check_single_item(frame: bytes, max_nesting: int) -> None:
    """Check that `frame` is exactly one item. Raises ParseError, InvalidRequest or LimitExceeded."""
    if ItemScanner(max_nesting).scan(frame) != len(frame):
        raise _malformed_error("a frame holds one item, whole and alone")


async def check_item(frame: bytes, max_nesting: int) -> None:
    """As `check_single_item`; a long frame is checked in a worker thread. Overloaded where there is none."""
    if len(frame) < _SLOW_BYTES:
        check_single_item(frame, max_nesting)
    else:
        try:
            await run_in_thread(check_single_item, frame, max_nesting)
        except OSError as error:
            raise no_memory(error) from None


def _read_head(buffer: bytes | bytearray, at: int, size: int) -> tuple[int, int | None, int] | None:
    """Major type, argument and the offset behind the head; None while the head is not whole."""
    initial = buffer[at]
    major, info = initial >> 5, initial & 0x1F
    if info < 24:
        return major, info, at + 1
    if info < 28:
        width = 1 << (info - 24)
        if at + 1 + width > size:
            return None
        argument = int.from_bytes(buffer[at + 1 : at + 1 + width], "big")
        if major == 7 and info == 24 and argument < 32:
            raise _malformed_error("a simple value in two bytes that fits in one")
        return major, (0 if major == 7 else argument), at + 1 + width
    if info < 31 or (initial != _BREAK and major not in (2, 3, 4, 5)):
        raise _malformed_error(f"the byte 0x{initial:02x} begins no item")
    return major, None, at + 1


def _malformed_error(reason: str) -> ParseError:
    return ParseError(f"This is not well-formed CBOR: {reason}.")
