"""A search page by page: what to ask next, and when it is over. Sans-io: the clients ask.

A page comes back after a moment with what is found by then, so that the first matches are seen before the last.
"""

from __future__ import annotations

from sessiond.ranges import SEARCH_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Long enough that asking on costs little, and short enough that it looks alive.
WITHIN_MS = 300


class SearchPages:
    """The calls of one search for `limit` matches at most (None: as many as the daemon gives unless asked)."""

    def __init__(self, params: dict[str, Any], limit: int | None = None) -> None:
        self._params = {"withinMs": WITHIN_MS, **params}
        self._left = SEARCH_LIMIT.default if limit is None else limit
        self._cursor: str | None = None
        self.is_over = False

    def next_params(self) -> dict[str, Any]:
        """The params of the next `sessions_search`."""
        more = {} if self._cursor is None else {"cursor": self._cursor}
        return {**self._params, "limit": max(SEARCH_LIMIT.least, min(self._left, SEARCH_LIMIT.most)), **more}

    def take(self, page: dict[str, Any]) -> None:
        """Note the answer."""
        self._left -= len(page["matches"])
        self._cursor = page.get("nextCursor")
        self.is_over = self._left <= 0 or not page.get("hasMore") or self._cursor is None
