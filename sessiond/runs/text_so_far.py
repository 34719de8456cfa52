"""What the agent of a run has written since its last message: for late followers, and for the end of the run."""

from __future__ import annotations

import re

# A live text longer than this is known by its end. Twice as much is held at most, so that few pieces cause a cut.
MAX_CHARS = 64 * 1024
_REST_OF_WORD = re.compile(r"\S*\s*")
KEY_BEGINS, KEY_ENDS, KEY_LINE_CHARS = "-----BEGIN ", "-----END ", 64


class TextSoFar:
    """Pieces of text as they come; joined where somebody asks."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._chars = 0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self._chars += len(piece)
        if self._chars > 2 * MAX_CHARS:
            self._pieces = [self.end(MAX_CHARS)]
            self._chars = len(self._pieces[0])

    def clear(self) -> None:
        self._pieces, self._chars = [], 0

    def end(self, limit: int = 2 * MAX_CHARS) -> str:
        """The last `limit` characters, see `end_of_text`."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return end_of_text(self._pieces[0], limit) if self._pieces else ""


def end_of_text(text: str, limit: int) -> str:
    """The last `limit` characters, from the beginning of a word on. Of a private key that is cut its first line stays,
    by which it is recognized and masked, or nothing.
    """
    at = len(text) - limit
    if at <= 0:
        return text
    opened = text.rfind(KEY_BEGINS, 0, at)
    if opened >= 0:
        closed = text.find(KEY_ENDS, opened)
        if closed < 0:
            return text[opened : opened + KEY_LINE_CHARS] + text[at + KEY_LINE_CHARS :]
        at = max(at, closed + len(KEY_ENDS))
    word = _REST_OF_WORD.match(text, at)
    return text[word.end() if word is not None and word.end() < len(text) and not text[at - 1].isspace() else at :]
