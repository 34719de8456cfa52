"""Ends of runs that nobody was told of live, because the connection was lost: asked for when it is back."""

from __future__ import annotations

from contextlib import suppress

from sessiond.cli.frame.daemon import CALL_TIMEOUT_S
from sessiond.cli.frame.failures import note
from sessiond.cli.terminal.times import moment_in, now_ms
from sessiond.client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from sessiond.client.blocking import Client
    from sessiond.client.wire import Event

MAX_LISTED = 200


class MissedRunEnds:
    """For `Client.subscribe`: `connected` is its `on_connect`, and `take` is given every event.

    `show(key, end)` gets the end of each run that was going on when the connection was lost, as `sessions_history` has
    it. With `key` that is every run of the session, else those that were seen to begin.
    """

    def __init__(self, client: Client, key: str | None, show: Callable[[str, dict[str, Any]], None]) -> None:
        self._client, self._key, self._show = client, key, show
        self._was_connected = False
        # Since when (milliseconds since 1970) an end of a run of these sessions is news.
        self._awaited: dict[str, int] = {}

    def on_connected(self) -> None:
        """The subscription stands: at first, or again."""
        with suppress(ClientError):  # whoever may follow a session need not be one who may list or read all
            if self._was_connected:
                note("connected again")
                self._ask()
            else:
                self._was_connected = True
                self._begin()

    def take(self, event: Event) -> None:
        """Note which runs begin and end."""
        if self._key is None and event.name == "sessions.changed":
            if event.get("phase") == "start":
                self._awaited[event["sessionKey"]] = now_ms()
            elif event.get("phase") in ("end", "error", "delete"):
                self._awaited.pop(event["sessionKey"], None)

    def _begin(self) -> None:
        if self._key is not None:
            self._awaited[self._key] = now_ms()
            return
        rows = self._client.call("sessions_list", {"limit": MAX_LISTED}, timeout_s=CALL_TIMEOUT_S)["sessions"]
        self._awaited = {row["key"]: now_ms() for row in rows if row.get("status") == "running"}

    def _ask(self) -> None:
        for key, since_ms in list(self._awaited.items()):
            params = {"sessionKey": key, "limit": 20, "includeRuns": True}
            page = self._client.call("sessions_history", params, timeout_s=CALL_TIMEOUT_S)
            ends = [end for end in page.get("runs") or () if (moment_in(end.get("endedAt")) or 0) >= since_ms]
            for end in ends:
                self._show(page["sessionKey"], end)
            if self._key is not None:
                self._awaited[key] = now_ms()
            elif ends:
                del self._awaited[key]
