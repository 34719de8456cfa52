"""The ranges of numbers in calls, and the words that a setting may be.

Each stands here once. The types of the parameters have them from here, and so have the tools that a model is offered
and the help of the command line, which load the standard library only. Knows no method.
"""

from __future__ import annotations


class Range:
    """The least and the greatest value of a number, both included, and its default."""

    __slots__ = ("default", "least", "most")

    def __init__(self, least: int, most: int, default: int) -> None:
        self.least, self.most, self.default = least, most, default

    @property
    def in_words(self) -> str:
        """The default and the greatest value, for a help text."""
        return f"{self.default}; at most {self.most}"


_DAY_S = 86_400

LIST_LIMIT = Range(1, 200, 50)
LIST_MESSAGES = Range(0, 20, 0)
HISTORY_LIMIT = Range(1, 1000, 50)
# Sixteen messages of a megabyte each; a page of a megabyte is what a client shows.
HISTORY_BYTES = Range(1, 16 << 20, 1 << 20)
# A quarter of a MiB takes less than a millisecond of the event loop as base64; a MiB as CBOR takes as much.
TRANSCRIPT_BYTES = Range(1, 1 << 20, 256 << 10)
# The first lines of a transcript: who it is of, and how it begins.
HEAD_BYTES = Range(1, 4096, 2048)
SEARCH_LIMIT = Range(1, 200, 50)
# A minute: whoever wants it sooner asks on.
SEARCH_WITHIN_MS = Range(0, 60_000, 0)
PREVIEW_LIMIT = Range(1, 50, 12)
PREVIEW_CHARS = Range(20, 2000, 240)
# A day: longer than anyone waits for one call, and short enough for a timer.
WAIT_MS = Range(0, _DAY_S * 1000, 30_000)
SEND_WAIT_S = Range(0, _DAY_S, 30)
# An hour: a reader that waits longer asks again.
INBOX_WAIT_S = Range(0, 3600, 0)
# Ten years.
TOKEN_TTL_S = Range(1, 10 * 365 * _DAY_S, 3600)
# A page is left open over a working day, and not for ever.
PAGE_TTL_S = Range(1, 30 * _DAY_S, _DAY_S // 2)

SOURCE_WORDS = ("sessiond", "claude", "codex", "gemini", "pi", "opencode", "machine")
SESSION_KINDS = ("main", "group", "cron", "hook", "node", "other")
THINKING_LEVELS = ("off", "minimal", "low", "medium", "high", "adaptive", "xhigh")
VERBOSE_LEVELS = ("off", "on", "full")
SEND_POLICIES = ("allow", "deny")
