"""What a JSON text would cost to decode, told from its bytes before anything decodes it. Pure.

A decoder is one call in C, in which no other thread runs, not even the event loop. Its time is that of the values, not
of the bytes: one line of 8 MB can hold three million empty lists (a second), or 1,800 integers whose digits take half a
second. Knows JSON's punctuation. Decodes nothing, and may be wrong for text that is no JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import NamedTuple

# Far more than any message needs, and below the recursion limits of decoders, so that these decide nothing.
MAX_NESTING = 128
# Decoded in 50 ms. A page of a thousand messages has a tenth of it.
MAX_VALUES = 262_144
# An integer with more is beyond the numbers that other programs read. The time for one grows with their square.
MAX_DIGITS = 308

# Processed per call: 3 ms at most.
_PIECE_BYTES = 256 * 1024
_NO_BRACKET = bytes(sorted(set(range(256)) - set(b"[]{}")))
_NO_SEPARATOR = bytes(sorted(set(range(256)) - set(b",{[")))
_NO_CLOSING = bytes(sorted(set(range(256)) - set(b"]}")))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STEPS = {ord("["): 1, ord("]"): -1}
# So many of the innermost levels are removed, which is quick; what most texts have is gone then.
_QUICK_LEVELS = 4
_PIECE_BRACKETS = 64 * 1024
_ONE_DIGIT = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)


class Excess(NamedTuple):
    """A limit that a text exceeds: at most `most` of `what`. `reason` says it of a line, for `sessiond doctor`."""

    limit: str
    most: int
    what: str
    reason: str


_NESTING = Excess("nesting", MAX_NESTING, "levels", "nested too deeply")
_VALUES = Excess("values", MAX_VALUES, "values", f"more than {MAX_VALUES} values")
_DIGITS = Excess("digits", MAX_DIGITS, "digits in a number", f"a number of more than {MAX_DIGITS} digits")


def find_excess(text: bytes) -> Excess | None:
    """The limit that the text exceeds, in nesting, values or digits; None for one that may be decoded.

    It does not look into strings: JSON in a string is a text of its own.
    """
    return find_long_excess(text) or (_NESTING if is_too_deep(text) else None)


def find_long_excess(text: bytes, spare: int = 0) -> Excess | None:
    """As `find_excess`, without a limit of the nesting. So many bytes and values are to be put around it (`spare`).

    A text of no more bytes than values may have is decoded quickly whatever it holds. Counted as values are commas and
    opening brackets outside of strings.
    """
    if len(text) + spare <= MAX_VALUES:
        return None
    values, closed, digits_before = spare, 0, b""
    for outside in _outside_strings(text):
        # `bytes.count` would take ten times as long where there are many.
        values += len(outside.translate(None, _NO_SEPARATOR))
        closed += len(outside.translate(None, _NO_CLOSING))  # more than were opened only where it is no JSON
        if values > MAX_VALUES or closed > MAX_VALUES:
            return _VALUES
        digits = digits_before + outside.translate(_ONE_DIGIT)
        if _TOO_MANY_DIGITS in digits:
            return _DIGITS
        digits_before = digits[-MAX_DIGITS:]
    return None


def has_more_values(text: bytes, most: int) -> bool:
    """Whether there are more values than `most` in the text, counted as by `find_long_excess`."""
    if len(text) <= most:
        return False
    values = 0
    for outside in _outside_strings(text):
        values += len(outside.translate(None, _NO_SEPARATOR))
        if values > most:
            return True
    return False


def is_too_deep(text: bytes) -> bool:
    """Whether objects and arrays are nested beyond the limit. May be wrong by some levels where it is no JSON."""
    # Each level needs two brackets.
    if len(text) <= 2 * MAX_NESTING or len(text.translate(None, _NO_BRACKET)) <= 2 * MAX_NESTING:
        return False
    brackets = b"".join(outside.translate(None, _NO_BRACKET) for outside in _outside_strings(text))
    brackets = brackets.translate(_ONE_KIND)
    for _ in range(_QUICK_LEVELS):
        brackets = brackets.replace(b"[]", b"")  # the innermost level
    depth = _QUICK_LEVELS
    for start in range(0, len(brackets), _PIECE_BRACKETS):
        steps = map(_STEPS.__getitem__, brackets[start : start + _PIECE_BRACKETS])
        depths = list(accumulate(steps, initial=depth))
        if max(depths) > MAX_NESTING:
            return True
        depth = depths[-1]
    return False


def _outside_strings(text: bytes) -> Iterator[bytes]:
    """What stands outside of strings, in pieces. A regular expression would take four times as long."""
    start, in_string = 0, False
    while start < len(text):
        piece = text[start : start + _PIECE_BYTES]
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece += text[start + _PIECE_BYTES : start + _PIECE_BYTES + 1]  # the byte that the last backslash escapes
        start += len(piece)
        if b"\\" in piece:
            # Escaped backslashes go first, or the second of `\\\\"` would be taken for the escape of the quote.
            piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        stretches = piece.split(b'"')
        yield b"".join(stretches[in_string::2])
        in_string ^= len(stretches) % 2 == 0
