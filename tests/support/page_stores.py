"""Stores for looking at the page: many sessions, a long transcript. Written as files, which is quicker than talking."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sessiond.clock import iso_ms

T = 1_795_000_000_000
KEY = "agent:main:long:1"
_LONG_ID = "00000000-0000-4000-8000-00000000000a"


def header(session_id: str, key: str, at_ms: int, **more: Any) -> bytes:
    """The first line of a transcript."""
    fields = {"id": session_id, "timestamp": iso_ms(at_ms), "cwd": "/home/user/work", "sessionKey": key, **more}
    return _line({"type": "session", "version": 3, **fields, "agentId": "main"})


def message(number: int, role: str, content: Any, **more: Any) -> bytes:
    """The line of a message; `number` is its id and its time in seconds."""
    said = {"role": role, "content": content, "timestamp": T + number * 1000, **more}
    line = {"type": "message", "id": f"{number:016x}", "timestamp": iso_ms(T + number * 1000), "message": said}
    return _line(line)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"


def write_sessions(store: Path, count: int) -> None:
    """`count` sessions with two messages each, the newest first in the list having the highest number."""
    for number in range(count):
        name = f"00000000-0000-4000-8000-{number:012d}"
        body = message(2 * number, "user", f"question {number}") + message(2 * number + 1, "assistant", "answer")
        _write(store, name, header(name, f"agent:main:dashboard:{number:06d}", T) + body)


def write_transcript(store: Path, lines: list[bytes], *, key: str = KEY, repeat: int = 1) -> Path:
    """A session of these lines, over and over."""
    body = b"".join(lines)
    path = _write(store, _LONG_ID, header(_LONG_ID, key, T))
    with path.open("ab") as file:
        for _ in range(repeat):
            file.write(body)
    return path


def _write(store: Path, name: str, data: bytes) -> Path:
    folder = store / "agents" / "main" / "sessions"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{name}.jsonl"
    path.write_bytes(data)
    return path
