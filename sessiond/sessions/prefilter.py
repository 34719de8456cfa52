"""Find the lines of a transcript that may contain a text, without parsing them. Pure.

The comparison ignores case, and JSON may write any character as an escape (`\\u0041`). So the filter searches for a
part of the text that is nearly always written unescaped, and also selects every line with escapes that could hide it:
no match is missed, and most lines are never parsed.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from sessiond.model.case import fold_case

# Characters that JSON escapes with a backslash, or may escape.
_ESCAPED = frozenset('"\\/')
# A shorter run of ASCII occurs in nearly every line; if the text also has other letters, search for those instead.
_TELLING = 3
# The only characters outside ASCII whose lower case contains an ASCII letter: dotted capital I and the Kelvin sign.
_STAND_INS = {"i": "\u0130", "k": "\u212a"}
_ESCAPES_OF_ASCII = re.compile(rb"\\u(?:00[2-7]|0130|212a)")
# Without escapes of control characters, which are always escaped and frequent in terminal output.
_ESCAPES_OF_OTHERS = re.compile(rb"\\u(?!00[01])")


class Prefilter:
    """Finds candidate lines for `text`, which is from `fold_case`."""

    def __init__(self, text: str) -> None:
        runs = _runs(text)
        ascii_run = max((run for run in runs if run.isascii()), key=len, default="")
        others = [run for run in runs if not run.isascii()]
        plain_run = max((run for run in others if _caseless(run)), key=len, default="")
        cased_run = max(others, key=len, default="")
        self._folded = ""
        self._raw: list[bytes] = []
        self._escapes = _ESCAPES_OF_OTHERS
        if plain_run:
            self._raw = [plain_run.encode("utf-8", "surrogatepass")]
        elif ascii_run and (len(ascii_run) >= _TELLING or not cased_run):
            self._raw = [ascii_run.encode(), *(_STAND_INS[c].encode() for c in "ik" if c in ascii_run)]
            self._escapes = _ESCAPES_OF_ASCII
        else:
            self._folded = cased_run

    def candidates(self, data: bytes) -> list[tuple[int, int]]:
        """`(begin, end)` of the candidate lines in `data` (whole lines), last first; without their newlines."""
        low = data.lower()
        # A single byte is found far sooner than a short text, and those that stand for others hardly ever occur.
        hits = {found for raw in self._raw if raw[:1] in low for found in _lines_with(low, raw)}
        if self._folded:
            hits |= self._folded_lines(data)
        if not self._raw and not self._folded:
            hits |= set(_all_lines(data))
        elif b"\\u" in low:
            hits |= {_line_at(data, hit.start()) for hit in self._escapes.finditer(low)}
        return sorted(hits, reverse=True)

    def _folded_lines(self, data: bytes) -> set[tuple[int, int]]:
        # These letters have different bytes in upper and lower case, so the text itself has to be folded.
        if data.isascii() or self._folded not in fold_case(data.decode("utf-8", "replace")):
            return set()
        return {
            (begin, end)
            for begin, end in _all_lines(data)
            if self._folded in fold_case(data[begin:end].decode("utf-8", "replace"))
        }


def _runs(text: str) -> list[str]:
    """The parts of the text that JSON need not escape, split where ASCII and other characters meet."""
    runs: list[str] = []
    open_run = ""
    for character in text:
        if character < " " or character in _ESCAPED:
            runs.append(open_run)
            open_run = ""
        elif open_run and open_run.isascii() != character.isascii():
            runs.append(open_run)
            open_run = character
        else:
            open_run += character
    return [run for run in (*runs, open_run) if run]


def _caseless(run: str) -> bool:
    return all(unicodedata.category(character) == "Lo" for character in run)


def _lines_with(low: bytes, raw: bytes) -> Iterator[tuple[int, int]]:
    at = low.find(raw)
    while at >= 0:
        begin, end = _line_at(low, at)
        yield begin, end
        at = low.find(raw, end)


def _line_at(data: bytes, at: int) -> tuple[int, int]:
    end = data.find(b"\n", at)
    return data.rfind(b"\n", 0, at) + 1, end if end >= 0 else len(data)


def _all_lines(data: bytes) -> Iterator[tuple[int, int]]:
    begin = 0
    while begin < len(data):
        end = data.find(b"\n", begin)
        end = end if end >= 0 else len(data)
        yield begin, end
        begin = end + 1
