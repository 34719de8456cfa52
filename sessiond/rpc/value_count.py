"""Count the values of a JSON text before it is decoded. Knows JSON's punctuation; decodes nothing.

The cost of a message is the number of its values, not its bytes: 16 MiB can hold eight million numbers, and decoding
them would block the event loop for seconds.
"""

from __future__ import annotations

from sessiond.errors import LimitExceeded
from sessiond.rpc.limits import MAX_VALUES

# Scanned at once: 3 ms at most. In a worker thread the interpreter lock is released in between.
_PIECE_BYTES = 256 * 1024
_NOT_SEPARATORS = bytes(set(range(256)) - set(b",{["))


def check_value_count(text: bytes) -> None:
    """Raise LimitExceeded for a text with too many values: commas and opening brackets outside of strings.

    A text with fewer bytes than the limit needs no check. The count may be wrong for text that is no JSON, which the
    decoder refuses anyway.
    """
    if len(text) <= MAX_VALUES:
        return
    found, start, in_string = 0, 0, False
    while start < len(text):
        piece = text[start : start + _PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece += text[start + _PIECE_BYTES : start + _PIECE_BYTES + 1]  # the byte that the last backslash escapes
        start += len(piece)
        if b"\\" in piece:
            # An escaped backslash first, or the second of `\\\\"` would be taken for the escape of the quote.
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        stretches = piece.split(b'"')
        outside = b"".join(stretches[in_string::2])
        in_string ^= len(stretches) % 2 == 0
        # `bytes.count` would take ten times as long where there are many.
        found += len(outside.translate(None, _NOT_SEPARATORS))
        if found > MAX_VALUES:
            raise LimitExceeded(f"A message has at most {MAX_VALUES} values.", limit="values", value=MAX_VALUES)
