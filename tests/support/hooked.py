"""A session of Claude Code that works in a terminal, as its hooks tell of it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from support.foreign_daemon import home_of
from support.foreign_sessions import UUID
from support.in_process import Connection

from sessiond.clock import Clock

ID = UUID.format(1)
KEY = f"claude:{ID}"
OPTIONS = [
    {"id": "allow", "label": "Allow", "kind": "allow_once"},
    {"id": "deny", "label": "Deny", "kind": "reject_once"},
]


class Shift:
    """A clock that a test puts forward; `clock` is for the daemon."""

    def __init__(self) -> None:
        self.by_s = 0.0
        self.clock = Clock(
            wall_ms=lambda: int((time.time() + self.by_s) * 1000), monotonic=lambda: time.monotonic() + self.by_s
        )


def claude_line(text: str, role: str = "user", at: str = "2026-01-02T03:04:05.000Z", session: str = ID) -> bytes:
    line = {"type": role, "uuid": f"u-{text}-{at}", "sessionId": session, "cwd": "/home/me", "timestamp": at}
    return json.dumps({**line, "message": {"role": role, "content": text}}).encode() + b"\n"


def claude_path(tmp_path: Path, session: str = ID) -> Path:
    return home_of(tmp_path) / ".claude" / "projects" / "-home-me" / f"{session}.jsonl"


def claude_file(tmp_path: Path, *texts: str, session: str = ID) -> Path:
    path = claude_path(tmp_path, session)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(claude_line(text, session=session) for text in texts or ("hello",)))
    return path


def named(tmp_path: Path, event: str, session: str = ID) -> dict[str, Any]:
    """The params of every call about the session."""
    return {"event": event, "sessionId": session, "transcriptPath": str(claude_path(tmp_path, session))}


async def report(owner: Connection, tmp_path: Path, event: str, session: str = ID, **more: Any) -> Any:
    return await owner.call("hooks.report", **named(tmp_path, event, session), **more)


async def send_ask(owner: Connection, tmp_path: Path, title: str = "Bash: ls", session: str = ID, **more: Any) -> int:
    """Ask without waiting; the request's id."""
    params = named(tmp_path, "PermissionRequest", session)
    return await owner.send("hooks.ask", **params, title=title, options=OPTIONS, **more)
