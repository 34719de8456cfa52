"""`session/list`: the sessions that the caller may see, as an editor lists them."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Any

from sessiond.acp import frames
from sessiond.acp.refusals import CALL_S, Refusal, require_folder
from sessiond.client import Client

Row = dict[str, Any]

PAGE = 100


def list_sessions(client: Client, params: dict[str, Any]) -> dict[str, Any]:
    """The result of `session/list`, newest message first. With `cwd` the sessions of exactly that folder.

    Refusal for wrong params; ClientError.
    """
    wanted: dict[str, Any] = {"limit": PAGE}
    cwd = None
    if params.get("cwd") is not None:
        cwd = wanted["cwd"] = os.path.normpath(require_folder(params))
    cursor = params.get("cursor")
    if cursor is not None and not isinstance(cursor, str):
        raise Refusal(frames.INVALID_PARAMS, "`cursor` is to be text")
    while True:
        page = client.call("sessions_list", wanted | ({"cursor": cursor} if cursor else {}), timeout_s=CALL_S)
        # The daemon's filter lets pass what is below the folder too.
        rows = [row for row in page["sessions"] if cwd is None or os.path.normpath(row.get("cwd") or "") == cwd]
        cursor = page.get("nextCursor")
        if rows or not cursor:
            break
    result: dict[str, Any] = {"sessions": [_info(client, row) for row in rows]}
    return {**result, "nextCursor": cursor} if cursor else result


def _info(client: Client, row: Row) -> dict[str, Any]:
    key = row["key"]
    if ":" not in key:  # the list calls the main session of the caller's agent by its alias
        key = client.call("sessions.resolve", key=key, timeout_s=CALL_S)["key"]
    known = {name: row[name] for name in ("source", "readOnly", "messageCount", "status", "spawnedBy") if name in row}
    return {
        "sessionId": row["sessionId"],
        "cwd": row.get("cwd") or _folder_of(row),
        "title": row.get("title") or row.get("displayName") or row.get("label") or _title_of_none(key),
        "updatedAt": iso_time(row["updatedAt"]),
        "_meta": {"sessionKey": key, **known},
    }


def _title_of_none(key: str) -> str:
    """The title of a session in which nothing was said. The key of one that an editor has made says nothing."""
    return "New session" if key.startswith("agent:") and ":acp:" in key else key


def _folder_of(row: Row) -> str:
    """The folder to show for a session that has said none: the agent's workspace, which lies beside its transcripts.

    A session of another program has the home.
    """
    folder = os.path.dirname(os.path.dirname(row.get("transcriptPath") or ""))
    is_ours = row.get("source", "sessiond") == "sessiond" and os.path.isabs(folder)
    return os.path.join(folder, "workspace") if is_ours else os.path.expanduser("~")


def iso_time(wall_ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
