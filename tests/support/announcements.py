"""The announcements in a session, read over the daemon's socket."""

from __future__ import annotations

from typing import Any

from support.real_daemon import Daemon


def announcements(daemon: Daemon, key: str = "main") -> list[dict[str, Any]]:
    """The announcements in a session's transcript, as messages."""
    messages = daemon.call("chat.history", sessionKey=key, limit=1000)["messages"]
    return [one for one in messages if one.get("provenance", {}).get("sourceTool") == "subagent_announce"]


def wait_for_announcement(daemon: Daemon, child: str, key: str = "main") -> str:
    """Wait for the announcement of a child; its text."""
    found: list[str] = []

    def look() -> bool:
        mine = [one for one in announcements(daemon, key) if one["provenance"]["sourceSessionKey"] == child]
        found[:] = [one["content"] for one in mine]
        return bool(found)

    daemon.wait_for(look, f"no announcement of {child}")
    [text] = found
    return text
