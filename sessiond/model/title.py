"""Titles of sessions: one short line of what a program or a person wrote. Pure."""

from __future__ import annotations

import re

MAX_TITLE_CHARS = 200
MAX_FIRST_WORDS_CHARS = 80
# Further text of a first message cannot be among its first words.
_LOOKED_AT_CHARS = 64 * 1024
# Control characters, and those that change the direction of what follows.
UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


# What OpenClaw puts before the words of a person: blocks with who wrote, and when.
_METADATA_HEAD = re.compile(r"[^\n]{1,80} \(untrusted[^\n)]{0,80}\):\n```json\n")
_MOMENT = re.compile(r"\[[^\]\n]{0,120}\d{4}-\d\d-\d\d[^\]\n]{0,40}\]\s*")


def first_words(text: str) -> str | None:
    """The title that the first words a person typed give."""
    text = text[:_LOOKED_AT_CHARS].lstrip()
    while head := _METADATA_HEAD.match(text):
        end = text.find("\n```", head.end() - 1)
        if end < 0:
            return None
        text = text[end + 4 :].lstrip()
    moment = _MOMENT.match(text)
    return clean_title(text[moment.end() :] if moment else text, MAX_FIRST_WORDS_CHARS)


def clean_title(text: str, max_chars: int = MAX_TITLE_CHARS) -> str | None:
    """The first line of a text as a title, on one line without control and bidi characters; None if nothing is left."""
    lines = text[:_LOOKED_AT_CHARS].strip().splitlines()
    words = UNSHOWN.sub("", " ".join(lines[0].split())) if lines else ""
    return words[:max_chars].strip() or None
