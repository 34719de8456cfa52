"""A home with every session in tests/golden/sources, where the programs keep them: what a daemon there shows."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

from support.opencode_database import make_database
from support.source_files import GOLDEN

# Of two recordings of one session only the later one is a file of its own.
_CONTINUED = ("gemini/tool.jsonl",)


def write_recorded_home(home: Path) -> int:
    """Write the sessions below `home`; how many there are."""
    places = [_place_of(path) for path in sorted(GOLDEN.rglob("*.jsonl")) if _name(path) not in _CONTINUED]
    for path, place in places:
        (home / place).parent.mkdir(parents=True, exist_ok=True)
        (home / place).write_bytes(path.read_bytes())
    database = home / ".local" / "share" / "opencode" / "opencode.db"
    database.parent.mkdir(parents=True)
    with make_database(database) as connection:
        (count,) = connection.execute("select count(*) from session").fetchone()
    connection.close()
    assert len({place for _, place in places}) == len(places)
    return len(places) + int(count)


def _name(path: Path) -> str:
    return str(path.relative_to(GOLDEN))


def _place_of(path: Path) -> tuple[Path, str]:
    name, head = _name(path), json.loads(path.read_bytes().splitlines()[0])
    source = name.partition("/")[0]
    if source == "claude":
        native_id, parent = _claude_id(name), _claude_id(name.replace("subagent", "delegating"))
        if "2.1.330/subagent" in name:
            parent = _claude_id(name.replace("subagent", "delegating-renamed"))
        below = f"{parent}/subagents/agent-{head.get('agentId')}" if "subagent" in name else native_id
        return path, f".claude/projects/-workspace/{below}.jsonl"
    if source == "codex":
        native_id = head.get("payload", head)["id"]
        return path, f".codex/sessions/2026/11/22/rollout-2026-11-22T15-56-12-{native_id}.jsonl"
    if source == "gemini":
        native_id = head["sessionId"]
        below = f"af5f6358-d3ff-4704-bec8-fafaa86a590a/{native_id}" if "subagent" in name else f"session-{native_id}"
        return path, f".gemini/tmp/workspace/chats/{below}.jsonl"
    return path, f".pi/agent/sessions/--workspace--/2026-11-22T15-37-17-515Z_{head['id']}.jsonl"


def _claude_id(name: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))
