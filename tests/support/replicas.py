"""Replicas for tests: transcripts as another machine's daemon wrote them, where `sessiond link` would write them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from sessiond.clock import iso_ms
from sessiond.model.record import header_line

ID = "1e821bfa-1111-4222-8333-0123456789{:02x}"
STARTED_MS = 1_767_323_045_000


def replica_path(store: Path, session_id: str, *, machine: str = "mars", agent: str = "ops") -> Path:
    """Where the replica of a session is."""
    return store / "machines" / machine / "agents" / agent / "sessions" / f"{session_id}.jsonl"


def header(session_id: str, key: str = "agent:ops:main", *, cwd: str = "/srv", **more: Any) -> bytes:
    """The first line of a transcript."""
    return header_line(session_id, key, key.split(":")[1], STARTED_MS, cwd=cwd, **more)


def line(text: str, role: str = "user", *, at_s: int = 1, record_id: str | None = None) -> bytes:
    """A message in a transcript."""
    stamp = STARTED_MS + at_s * 1000
    message = {"role": role, "content": [{"type": "text", "text": text}], "timestamp": stamp}
    body = {"type": "message", "id": record_id or text[:8], "parentId": None, "timestamp": iso_ms(stamp)}
    return json.dumps({**body, "message": message}).encode() + b"\n"


def custom(kind: str, **data: Any) -> bytes:
    """A record of the daemon in a transcript."""
    body = {"type": "custom", "id": "c1", "parentId": None, "timestamp": iso_ms(STARTED_MS), "customType": kind}
    return json.dumps({**body, "data": data}).encode() + b"\n"


def write_replica(path: Path, *parts: bytes) -> Path:
    """Add to a replica, which is made where it is not there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(b"".join(parts))
    return path


def replace_replica(path: Path, *parts: bytes) -> None:
    """Put another generation in the place of a replica, as `sessiond link` does."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(b"".join(parts))
    os.replace(fresh, path)
