"""The home of `recorded_home`, for counting: ids of requests are as distinct as the services' are.

The recordings asked a stub of a model, which counts from 1 in each of them; so answers that have nothing to do with
each other have the same ids. Here each recording has ids of its own. Forks, resumed sessions and sub-agents have those
of their recording, as they were.
"""

from __future__ import annotations

import re
from pathlib import Path

from support.recorded_home import write_recorded_home
from support.source_files import GOLDEN

_ID = re.compile(rb'"(msg|resp)_(\d+)"')
# Recorded apart from the others of the same version.
_APART = {
    "claude/2.1.330/terminal.jsonl": "terminal",
    "codex/0.169.0/delegating.jsonl": "agents",
    "codex/0.169.0/subagent.jsonl": "agents",
}
_ANSWER = re.compile(rb'^\{(?=.*"id":"(msg_\w+)")(?=.*"type":"assistant")', re.MULTILINE)


def write_usage_home(home: Path) -> int:
    """Write the sessions below `home`; how many there are."""
    count = write_recorded_home(home)
    tags = {path.read_bytes(): _tag_of(str(path.relative_to(GOLDEN))) for path in GOLDEN.rglob("*.jsonl")}
    for path in home.rglob("*.jsonl"):
        data = path.read_bytes()
        data = _ID.sub(rb'"\1_%b_\2"' % tags[data].encode(), data)
        if ".claude" in path.parts:
            # The stub gave no ids of requests, by which other programs know copies.
            data = _ANSWER.sub(rb'{"requestId":"req_\1",', data)
        path.write_bytes(data)
    return count


def _tag_of(name: str) -> str:
    return re.sub(r"\W", "", name.rpartition("/")[0]) + _APART.get(name, "")
