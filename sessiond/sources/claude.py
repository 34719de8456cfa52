"""The folder of Claude Code: `projects/<folder>/<id>.jsonl`, sub-agents in `<id>/subagents/agent-<id>.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from sessiond.model import lax
from sessiond.model.source_facts import FoundFacts
from sessiond.sources.finder import SourceFinder, SourceRoot, compile_path, path_from, read_beside

_META = ".meta.json"


class _AgentMeta(msgspec.Struct, frozen=True, gc=False):
    description: str | None = None


def _facts_beside(root_fd: int, place: str) -> FoundFacts:
    parts = place.split("/")
    if len(parts) != 5:
        return FoundFacts()
    data = read_beside(root_fd, place[: -len(".jsonl")] + _META)
    meta = lax.decode_fitting(data, _AgentMeta) if data else None
    return FoundFacts(parent=parts[2], title=meta.description if meta is not None else None)


def _find_described(place: str) -> str | None:
    return place[: -len(_META)] + ".jsonl" if place.endswith(_META) else None


FINDER = SourceFinder(
    name="claude",
    patterns=(
        compile_path("projects", ".+", r"(?P<id>.+)\.jsonl"),
        compile_path("projects", ".+", r"(?P<parent>[^.]+)", "subagents", r"(?P<id>agent-.+)\.jsonl"),
    ),
    facts_beside=_facts_beside,
    find_described=_find_described,
)


def find_root(environ: Mapping[str, str], home: Path) -> SourceRoot:
    """`$CLAUDE_CONFIG_DIR`, else `~/.claude`."""
    return SourceRoot(path_from(environ, "CLAUDE_CONFIG_DIR", home / ".claude"), FINDER)
