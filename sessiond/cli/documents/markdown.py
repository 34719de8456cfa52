"""A session as Markdown. Text of messages is quoted, so that no message can look like another one; code is not.

CommonMark 0.31 ("Code spans", "Fenced code blocks") says what is code.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from functools import lru_cache

from sessiond.cli.documents.contents import CODE, IMAGE, NOTE, TEXT, ShownMessage, ShownPart
from sessiond.cli.terminal.times import size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Final

is_data: Final = False
# Longer paragraphs have no code spans for us: all of their markup is escaped. Time grows with lines * lines * chars.
_MOST_SPAN_LINES, _MOST_SPAN_CHARS = 16, 8000
_TICKS = re.compile(r"\\.|`+", re.DOTALL)
# Where a link leads that may do something: to a scheme (which an entity or an escape may hide) that is none of these.
# In the next line it is out of sight.
_DESTINATION = r"[ \t]*+(?:$|(?!<?(?:https?|mailto):)<?[\w+.;#\\ \t-]*+[:&])"
# What would be an element, a comment or an instruction where HTML in Markdown is shown as such; an image, for which
# whoever shows the document would ask another machine; and the end of a text that would be a link with such a
# destination, at once or further on in the document.
_MARKUP = re.compile(rf"<(?=[A-Za-z/!?])|!(?=\[)|\](?=[(:]{_DESTINATION})", re.MULTILINE)
# What has an effect within a line.
_MARKS = re.compile(r"([\\`*_\[\]#!|~])")
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def head(title: str, facts: Sequence[tuple[str, str]]) -> str:
    return f"# {_heading(title)}\n\n" + "".join(f"- {name}: {_inline(value)}\n" for name, value in facts)


def session_head(title: str) -> str:
    """The heading of another session in the same document."""
    return f"\n---\n\n# {_heading(title)}\n"


def message(one: ShownMessage, when: str) -> str:
    who = _heading(one.who) + (f" from {_inline(one.sender)}" if one.sender else "")
    return f"\n## {who} · {when}\n" + "".join(f"\n{_part(part)}\n" for part in one.parts)


def foot(notes: Sequence[str]) -> str:
    return "".join(f"\n*{_heading(note)}*\n" for note in notes)


def _part(part: ShownPart) -> str:
    if part.kind == TEXT:
        return _as_quote(_clean(part.text))
    if part.kind == CODE:
        return _as_code_block(part.text, part.label)
    if part.kind == IMAGE:
        return f"*image {part.label}, {size(len(part.text) * 3 // 4)}*"
    if part.kind == NOTE:
        return f"*{_heading(part.text)}*"
    line = _html(_clean(part.summary()))
    return f"<details><summary>{line}</summary>\n\n{_as_code_block(part.text, '')}\n\n</details>"


def _as_code_block(code: str, language: str) -> str:
    code = _clean(code)
    ticks = max((len(run) for run in re.findall("`+", code)), default=0)
    fence = "`" * max(3, ticks + 1)
    word = language if re.fullmatch(r"[\w+#.-]{1,40}", language) else ""
    return f"{fence}{word}\n{code}\n{fence}"


def _as_quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for paragraph in _paragraphs(text) for line in _escape_markup(paragraph))


def _paragraphs(text: str) -> Iterator[list[str]]:
    """The lines, cut after every blank one: no code span goes over it."""
    gathered: list[str] = []
    for line in text.split("\n"):
        gathered.append(line)
        if not line.strip():
            yield gathered
            gathered = []
    yield gathered


def _escape_markup(lines: list[str]) -> list[str]:
    """The lines with all markup escaped that is not surely in a code span.

    Where a block begins and ends within the lines is not known (a list, a heading), so a place is in a code span only
    if it is in one whichever line begins the block, and though its own line ends it. (If later lines belong to the
    block, a span that ends there goes around the place, or nothing changes for it.)
    """
    text = "\n".join(lines)
    if not _MARKUP.search(text):
        return lines
    if "`" not in text or len(lines) > _MOST_SPAN_LINES or len(text) > _MOST_SPAN_CHARS or _may_be_table(lines):
        return _MARKUP.sub(_escape_match, text).split("\n")
    starts, shown = [0], list[str]()
    for line in lines:
        end = starts[-1] + len(line)
        shown.append(_escape_line(line, text[:end], starts) if _MARKUP.search(line) else line)
        starts.append(end + 1)
    return shown


def _escape_line(line: str, text: str, starts: Sequence[int]) -> str:
    """`line`, with which `text` ends; each of `starts` may begin the block, the last one begins the line."""
    spans = [_code_spans(text, start) for start in starts] if "`" in line else []

    def escape(found: re.Match[str]) -> str:
        at = starts[-1] + found.start()
        # An odd number of borders before a place: it is between the begin and the end of a span.
        is_code = spans and all(bisect_right(each, at) % 2 for each in spans)
        return found[0] if is_code else _escape_match(found)

    return _MARKUP.sub(escape, line)


def _may_be_table(lines: Sequence[str]) -> bool:
    """Whether there is a line that makes its neighbours a table, whose cells end code spans."""
    return any("|" in line for line in lines) and any("-" in line and not line.strip("-:| \t>") for line in lines)


def _escape_match(found: re.Match[str]) -> str:
    at = begin = found.start()
    while begin and found.string[begin - 1] == "\\":
        begin -= 1
    # Behind an odd number of backslashes it is escaped already.
    return found[0] if (at - begin) % 2 else f"\\{found[0]}"


def _code_spans(text: str, start: int) -> list[int]:
    """Begin and end of each code span in turn, if a block of text begins at `start`."""
    borders, at = list[int](), start
    while found := _TICKS.search(text, at):
        at = found.end()
        if found[0][0] == "\\":
            continue
        end = _ticks_of_length(len(found[0])).search(text, at)
        if end is not None:
            borders += (at, end.start())
            at = end.end()
    return borders


@lru_cache(maxsize=64)
def _ticks_of_length(count: int) -> re.Pattern[str]:
    return re.compile(f"(?<!`)`{{{count}}}(?!`)")


@lru_cache(maxsize=64)  # who speaks is always the same few
def _heading(text: str) -> str:
    """On one line, without any effect."""
    return _html(_MARKS.sub(r"\\\1", " ".join(_clean(text).split())))


def _inline(text: str) -> str:
    """On one line, as code."""
    text = " ".join(_clean(text).split()).replace("`", "'")
    return f"`{text}`" if text else ""


def _html(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clean(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text.replace("\r\n", "\n").replace("\r", "\n"))
