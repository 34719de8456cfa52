"""The ends of runs for commands that follow sessions: requested where events do not tell all of it."""

from __future__ import annotations

from contextlib import suppress

from sessiond.cli.frame.daemon import CALL_TIMEOUT_S
from sessiond.cli.frame.failures import note
from sessiond.cli.terminal.times import moment_in, now_ms
from sessiond.client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from sessiond.client.blocking import Client
    from sessiond.client.wire import Event

    ShowRunEnd = Callable[[str, dict[str, Any]], None]

MAX_LISTED = 200
_END_PHASES = ("end", "error")
_PAGE = {"limit": 20, "includeRuns": True}


def is_run_end(event: Event) -> bool:
    """Whether the event is the end of a run."""
    return event.name == "sessions.changed" and event.get("phase") in _END_PHASES


class SessionRunEnds:
    """Calls `show(key, end)` once for each end of a run of one session; `end` is as in `sessions_history`.

    For `Client.subscribe(key, with_changes=True)`: pass it `on_connect`, and pass every event to `take`.
    Ends count from `since_ms` on, which is before the first page was read; `shown` are those of that page.
    """

    def __init__(
        self, client: Client, key: str, show: ShowRunEnd, *, since_ms: int, shown: Iterable[dict[str, Any]]
    ) -> None:
        self._client, self._key, self._show, self._since_ms = client, key, show, since_ms
        self._shown = {end["runId"] for end in shown}
        self._was_connected = False

    def on_connect(self) -> None:
        """Show the ends since the page was read, which have no event. Says so if a lost connection is back."""
        if self._was_connected:
            note("connected again")
        self._was_connected = True
        self._show_new()

    def take(self, event: Event) -> None:
        """Show how a run ended when its event comes."""
        if is_run_end(event):
            self._show_new()

    def _show_new(self) -> None:
        with suppress(ClientError):  # a caller may follow a session and not be allowed to read its history
            page = self._client.call("sessions_history", {"sessionKey": self._key, **_PAGE}, timeout_s=CALL_TIMEOUT_S)
            ends = _ends_since(page, self._since_ms)
            for end in ends:
                if end["runId"] not in self._shown:
                    self._show(page["sessionKey"], end)
            self._shown = {end["runId"] for end in ends}


class MissedRunEnds:
    """Calls `show(key, end)` for each run that ended while the connection was lost.

    For `Client.subscribe`: pass it `on_connect`, and pass every event to `take`. With `key` all runs of that session
    count, else those whose begin was seen.
    """

    def __init__(self, client: Client, key: str | None, show: ShowRunEnd) -> None:
        self._client, self._key, self._show = client, key, show
        self._was_connected = False
        # Session key -> the time (milliseconds since 1970) from which on ends of its runs have not been shown.
        self._awaited: dict[str, int] = {}
        # Session key and time of the ends shown here. The daemon ends interrupted runs at about the time at which the
        # subscription is renewed, so the event of such an end may come as well.
        self._told: set[tuple[str, int | None]] = set()

    def on_connect(self) -> None:
        """The subscription was confirmed, for the first time or after a lost connection."""
        with suppress(ClientError):  # a caller may follow a session and not be allowed to list sessions or read them
            if self._was_connected:
                note("connected again")
                self._show_missed()
            else:
                self._was_connected = True
                self._begin()

    def take(self, event: Event) -> bool:
        """Note which runs begin and end; False for the event of an end that was shown here already."""
        if is_run_end(event) and (event["sessionKey"], (event.get("row") or {}).get("endedAt")) in self._told:
            return False
        self._note(event)
        return True

    def _note(self, event: Event) -> None:
        if self._key is not None:
            if is_run_end(event):  # the event itself is shown
                self._awaited[self._key] = now_ms()
        elif event.name == "sessions.changed":
            if event.get("phase") == "start":
                self._awaited[event["sessionKey"]] = now_ms()
            elif event.get("phase") in (*_END_PHASES, "delete"):
                self._awaited.pop(event["sessionKey"], None)

    def _begin(self) -> None:
        if self._key is not None:
            self._awaited[self._key] = now_ms()
            return
        rows = self._client.call("sessions_list", {"limit": MAX_LISTED}, timeout_s=CALL_TIMEOUT_S)["sessions"]
        self._awaited = {row["key"]: now_ms() for row in rows if row.get("status") == "running"}

    def _show_missed(self) -> None:
        self._told.clear()
        for key, since_ms in list(self._awaited.items()):
            page = self._client.call("sessions_history", {"sessionKey": key, **_PAGE}, timeout_s=CALL_TIMEOUT_S)
            ends = _ends_since(page, since_ms)
            for end in ends:
                # A list says `main` where events say `agent:main:main`, so a session may be awaited by both.
                shown = page["sessionKey"], moment_in(end.get("endedAt"))
                if shown not in self._told:
                    self._told.add(shown)
                    self._show(page["sessionKey"], end)
            if self._key is not None:
                self._awaited[key] = now_ms()
            elif ends:
                del self._awaited[key]


def _ends_since(page: dict[str, Any], since_ms: int) -> list[dict[str, Any]]:
    return [end for end in page.get("runs") or () if (moment_in(end.get("endedAt")) or 0) >= since_ms]
