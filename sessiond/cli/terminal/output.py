"""Writing to stdout: lines of text, tab-separated values, and JSON: one line for programs, indented for people."""

from __future__ import annotations

import json
import sys

from sessiond.cli.terminal.escape import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# JSON leaves C1 controls, bidi and line separators as they are; as escapes they are the same JSON, and have no
# effect on a terminal. All of them can only occur inside strings.
UNSAFE_IN_JSON = {
    point: f"\\u{point:04x}"
    for span in ((0x7F, 0xA0), (0x200E, 0x2010), (0x2028, 0x202F), (0x2066, 0x206A), (0x061C, 0x061D), (0xFEFF, 0xFF00))
    for point in range(*span)
}


def lines(texts: Iterable[str]) -> None:
    for text in texts:
        sys.stdout.write(text + "\n")


def as_tsv(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The rows for programs: a title line, then the cells of each row, tab-separated; None is an empty cell."""
    return ["\t".join("" if cell is None else one_line(str(cell)) for cell in row) for row in (titles, *rows)]


def as_json(value: object) -> None:
    """`value` on stdout: indented on a terminal, else one line."""
    json_line(value, indent=2 if sys.stdout.isatty() else None)


def json_line(value: object, *, indent: int | None = None) -> None:
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators)
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which UTF-8 cannot encode; a JSON escape can
        text = json.dumps(value, indent=indent, separators=separators)
    if not text.isascii() or "\x7f" in text:
        text = text.translate(UNSAFE_IN_JSON)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
