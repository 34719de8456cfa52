"""Escape untrusted text, so that nothing in a transcript, a label or an error can control the terminal."""

from __future__ import annotations

# Joiners are part of emoji and of several scripts, and do not move the cursor.
_HARMLESS_FORMATS = "\u200c\u200d"


def escape(text: str, *, lines: bool = False) -> str:
    """`text` with control, format and bidi characters and lone surrogates as `\\x1b`, `\\u202e`; `lines` keeps
    newlines, and a tab becomes four spaces. Other white space becomes a space."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escape_char(char, lines) for char in text)


def one_line(text: str) -> str:
    """`text` on one line; white space is collapsed to single spaces."""
    return escape(" ".join(text.split()))


def _escape_char(char: str, lines: bool) -> str:
    if char == "\n" and lines:
        return char
    if char == "\t":
        return "    "
    if char.isspace() and char > "\x85" and char not in "\u2028\u2029":
        return " "
    if char in _HARMLESS_FORMATS:
        return char
    from unicodedata import category  # slow to import and rarely needed

    # Unassigned characters may be new emoji, private ones a font's icons; neither moves the cursor.
    if category(char) in ("Cn", "Co"):
        return char
    point = ord(char)
    if point < 0x100:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
