"""The database of opencode as it was recorded, and lines of its events."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

SQL = Path(__file__).parents[1] / "golden" / "sources" / "opencode" / "opencode.sql"


def make_database(path: str | Path = ":memory:") -> sqlite3.Connection:
    """A database as the program had it, in a file or in memory."""
    connection = sqlite3.connect(path)
    connection.executescript(f"begin;\n{SQL.read_text()}\ncommit;")
    return connection


def session_titled(connection: sqlite3.Connection, title: str) -> str:
    """The id of the session whose title begins with this."""
    (found,) = connection.execute("select id from session where title like ?", (f"{title}%",)).fetchone()
    return str(found)


def event_line(seq: int, kind: str, data: dict[str, object], role: str | None = None) -> bytes:
    """One line of the dialect."""
    told = {"seq": seq, "type": kind, **({"role": role} if role is not None else {}), "data": data}
    return json.dumps(told).encode()


def lines_of_session(connection: sqlite3.Connection, session_id: str) -> list[bytes]:
    """The events of a session as lines of the dialect."""
    roles = {
        key: json.loads(data)["role"]
        for key, data in connection.execute("select id, data from message where session_id = ?", (session_id,))
    }
    query = "select seq, type, data from event where aggregate_id = ? order by seq"
    lines = []
    for seq, kind, text in connection.execute(query, (session_id,)):
        data = json.loads(text)
        part = data.get("part")
        lines.append(event_line(seq, kind, data, roles.get(part["messageID"]) if part else None))
    return lines
