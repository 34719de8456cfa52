"""The folder of Gemini CLI: `tmp/<project>/chats/session-<time>-<id>.jsonl`, sub-agents in `chats/<parent>/`.

Older versions keep a session in one document, `session-<time>-<id>.json`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sessiond.model.source_facts import FoundFacts
from sessiond.sources.finder import SourceFinder, SourceRoot, compile_path, read_beside

_MAX_PATH_BYTES = 4096


def _facts_beside(root_fd: int, place: str) -> FoundFacts:
    parts = place.split("/")
    data = read_beside(root_fd, "/".join((*parts[:2], ".project_root"))) or b""
    cwd = data.decode("utf-8", "replace").strip() if len(data) <= _MAX_PATH_BYTES else ""
    is_path = cwd.startswith("/") and cwd.isprintable()
    return FoundFacts(parent=parts[3] if len(parts) == 5 else None, cwd=cwd if is_path else None)


FINDER = SourceFinder(
    name="gemini",
    patterns=(
        compile_path("tmp", ".+", "chats", r"(?P<id>session-.+)\.jsonl?"),
        compile_path("tmp", ".+", "chats", r"(?P<parent>[^.]+)", r"(?P<id>.+)\.jsonl"),
    ),
    id_in_head=True,
    facts_beside=_facts_beside,
)


def find_root(_environ: Mapping[str, str], home: Path) -> SourceRoot:
    """`~/.gemini`."""
    return SourceRoot(home / ".gemini", FINDER)
