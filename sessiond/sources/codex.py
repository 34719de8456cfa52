"""The folder of Codex: `sessions/YYYY/MM/DD/rollout-<time>-<uuid>.jsonl`, archived ones in `archived_sessions`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sessiond.sources.finder import SourceFinder, SourceRoot, compile_path, path_from

# Old ones are compressed.
_ROLLOUT = r"rollout-.*?(?P<id>[0-9A-Za-z]{8}(-[0-9A-Za-z]{4}){3}-[0-9A-Za-z]{12})\.jsonl(\.zst)?"

FINDER = SourceFinder(
    name="codex",
    patterns=(
        compile_path("sessions", "[0-9]{4}", "[0-9]{2}", "[0-9]{2}", _ROLLOUT),
        compile_path("archived_sessions", _ROLLOUT),
    ),
)


def find_root(environ: Mapping[str, str], home: Path) -> SourceRoot:
    """`$CODEX_HOME`, else `~/.codex`."""
    return SourceRoot(path_from(environ, "CODEX_HOME", home / ".codex"), FINDER)
