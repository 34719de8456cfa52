"""The width of an output stream and whether it has colour. Pads, clips and colours text. Knows no tables."""

from __future__ import annotations

import os
import sys
from itertools import pairwise

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TextIO

_SGR = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "match": "1;31",  # as grep shows it
}
DEFAULT_WIDTH = 80
# So wide that of every key of a program (`opencode:1a2b3c4d…`) at least the eight digits are shown that name it.
LEAST_KEY = 18
_DIGITS = 8


class Screen:
    """`width` is in columns; None for no limit (a pipe, a file)."""

    def __init__(self, width: int | None, *, colour: bool = False) -> None:
        self.width = width
        self.colour = colour

    def paint(self, text: str, style: str | None) -> str:
        """`text` in a style of `_SGR`, if the stream has colours."""
        return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if self.colour and style and text else text


def screen_of(stream: TextIO | None = None) -> Screen:
    """The Screen of `stream` (stdout). $COLUMNS overrides the width; colour for terminals only, without NO_COLOR."""
    stream = stream or sys.stdout
    # Not shutil.get_terminal_size(): importing shutil takes as long as all of this package.
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) > 0 else None
    if not stream.isatty():
        return Screen(width)
    if width is None:
        try:
            width = os.get_terminal_size(stream.fileno()).columns or DEFAULT_WIDTH
        except OSError:
            width = DEFAULT_WIDTH
    return Screen(width, colour=not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")


def columns_of(text: str) -> int:
    """How many columns `text` takes: wide characters two, combining and joining ones none."""
    if text.isascii():
        return len(text)
    from unicodedata import category, east_asian_width

    return sum(
        0 if category(char) in ("Mn", "Me", "Cf") else 2 if east_asian_width(char) in "WF" else 1 for char in text
    )


def clip(text: str, width: int) -> str:
    """`text` in at most `width` columns, with an ellipsis where something was cut."""
    if columns_of(text) <= width:
        return text
    if width <= 0:
        return ""
    if text.isascii():
        return text[: width - 1] + "…"
    kept, used = "", 0
    for char in text:
        used += columns_of(char)
        if used > width - 1:
            break
        kept += char
    return kept + "…"


def fold(text: str, width: int | None) -> list[str]:
    """`text` in pieces of at most `width` columns, at least one; None for no limit."""
    if width is None or columns_of(text) <= width:
        return [text]
    pieces, used = [""], 0
    for char in text:
        columns = columns_of(char)
        if used + columns > width and pieces[-1]:
            pieces.append("")
            used = 0
        pieces[-1] += char
        used += columns
    return pieces


def clip_key(key: str, width: int, digits: int = _DIGITS) -> str:
    """A session's key in at most `width` columns: first its UUID is shortened, down to so many digits."""
    if columns_of(key) <= width:
        return key
    return clip(_shorten(key, digits), width)


def _shorten(key: str, digits: int) -> str:
    head, _, last = key.rpartition(":")
    return f"{head}:{last[:digits]}…" if is_uuid(last) and digits < len(last) else key


class TableKeys:
    """The keys in one table, shortened so that each can be told from the others: the UUIDs that Codex made within a
    minute have the same 8 digits. `least` is the width that keeps the names of programs' sessions whole.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digits: dict[str, int] = {}
        ordered = sorted(set(keys))
        for one, other in pairwise(ordered):
            shared = next(at for at in range(len(other)) if one[at : at + 1] != other[at])
            for key in (one, other):
                self._digits[key] = max(self._digits.get(key, _DIGITS), shared - key.rfind(":"))
        of_programs = [_shorten(key, self._digits.get(key, _DIGITS)) for key in ordered if key.count(":") == 1]
        self.least = max([LEAST_KEY, *(len(text) for text in of_programs if text.endswith("…"))])

    def clip(self, key: str, width: int) -> str:
        """As `clip_key`."""
        return clip_key(key, width, self._digits.get(key, _DIGITS))


def is_uuid(text: str) -> bool:
    """Whether the text is a UUID in the form that the daemon uses."""
    groups = text.split("-")
    return [len(group) for group in groups] == [8, 4, 4, 4, 12] and set("".join(groups)) <= set("0123456789abcdef")


def pad(text: str, width: int, *, right: bool = False) -> str:
    """`text` filled with blanks to `width` columns; `right` puts them before it."""
    blanks = " " * (width - columns_of(text))
    return blanks + text if right else text + blanks


def clip_around(text: str, words: str, width: int) -> str:
    """At most `width` columns of `text` around `words` (case is ignored); its beginning if it does not contain them."""
    at = text.lower().find(words.lower())
    if columns_of(text) <= width or at < 0 or len(text.lower()) != len(text):
        return clip(text, width)
    # The text after the words tells more, so the text before them gets only a third of the remaining columns.
    before = max(0, width - columns_of(words) - 2) // 3
    start = at
    while start > 0 and columns_of(text[start - 1 : at]) <= before:
        start -= 1
    if start == 0:
        return clip(text, width)
    # Where the words are near the end of the text, more of the text before them fits.
    while start > 0 and columns_of(text[start - 1 :]) <= width - 1:
        start -= 1
    return clip("…" + text[start:], width) if start else clip(text, width)
