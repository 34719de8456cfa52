"""Add to and take from the text of a JSON document, and leave every other byte of it.

Knows where members and items begin and end. Knows no settings. Standard library only.
"""

from __future__ import annotations

import json
from json.decoder import JSONDecodeError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_BLANKS = " \t\r\n"
_decode_at = json.JSONDecoder().raw_decode


class UnknownForm(Exception):
    """The text is not what it was expected to be; the message says what is wrong."""


class Part:
    """A member of an object (with its `key`) or an item of an array: `text[start:end]`, its value from `value_at`."""

    def __init__(self, key: str | None, start: int, value_at: int, end: int) -> None:
        self.key, self.start, self.value_at, self.end = key, start, value_at, end


class Container:
    """The object or array whose bracket is at `at`, and the one that closes it at `close`."""

    def __init__(self, text: str, at: int) -> None:
        self.text, self.at = text, at
        self.is_object = text[at] == "{"
        self.parts: list[Part] = []
        keys: set[str] = set()
        place = _skip(text, at + 1)
        while text[place] not in "}]":
            start, key, value_at = place, None, place
            if self.is_object:
                key, end = _decode_at(text, place)
                value_at = _skip(text, _skip(text, end) + 1)
            end = _decode_at(text, value_at)[1]
            if key is not None and key in keys:
                raise UnknownForm(f'has "{key}" twice')
            keys.add(key or "")
            self.parts.append(Part(key, start, value_at, end))
            place = _skip(text, end)
            if text[place] == ",":
                place = _skip(text, place + 1)
        self.close = place

    def find(self, key: str) -> Part | None:
        """The member with this key."""
        return next((part for part in self.parts if part.key == key), None)

    @property
    def separator(self) -> str:
        """What stands before its parts: a newline and their indentation, or nothing where all is on one line."""
        if not self.parts:
            return ""
        last = self.parts[-1]
        before = self.parts[-2].end if len(self.parts) > 1 else self.at
        between = self.text[before : last.start]
        return between.rpartition(",")[2] if len(self.parts) > 1 else between[1:]

    def append(self, part: str, separator: str, closing: str) -> str:
        """The text with a last part more. In an empty container it stands between `separator` and `closing`."""
        if self.parts:
            end = self.parts[-1].end
            return f"{self.text[:end]},{separator}{part}{self.text[end:]}"
        return f"{self.text[: self.at + 1]}{separator}{part}{closing}{self.text[self.close :]}"

    def remove(self, part: Part) -> str:
        """The text without this part, and without the comma that parted it from another."""
        place = self.parts.index(part)
        if len(self.parts) == 1:
            begin, end = self.at + 1, self.close
        elif place:
            begin, end = self.parts[place - 1].end, part.end
        else:
            begin, end = part.start, self.parts[1].start
        return self.text[:begin] + self.text[end:]


def open_root(text: str) -> Container:
    """The object that the whole text is. UnknownForm where it is not one."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, JSONDecodeError) else ""
        raise UnknownForm(f"is not JSON{where}") from None
    if not isinstance(value, dict):
        raise UnknownForm("is not a JSON object")
    return Container(text, _skip(text, 0))


def open_inner(container: Container, part: Part, bracket: str) -> Container:
    """The object or array (`bracket`: `{` or `[`) that a part is. UnknownForm where it is something else."""
    if container.text[part.value_at] != bracket:
        kind = "an object" if bracket == "{" else "an array"
        raise UnknownForm(f'has "{part.key}", which is not {kind}')
    return Container(container.text, part.value_at)


def _skip(text: str, place: int) -> int:
    while text[place] in _BLANKS:
        place += 1
    return place
