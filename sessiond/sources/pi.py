"""The folder of pi: `sessions/<folder>/<time>_<id>.jsonl`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sessiond.sources.finder import SourceFinder, SourceRoot, compile_path, path_from

_FILE = r"(.*_)?(?P<id>[^_]+)\.jsonl"

FINDER = SourceFinder(name="pi", patterns=(compile_path("sessions", ".+", _FILE),), id_in_head=True)
# `$PI_CODING_AGENT_SESSION_DIR` is the folder of the sessions itself.
_FINDER_OF_SESSIONS = replace(FINDER, patterns=(compile_path(_FILE), compile_path(".+", _FILE)))


def find_root(environ: Mapping[str, str], home: Path) -> SourceRoot:
    """`$PI_CODING_AGENT_SESSION_DIR`, else `$PI_CODING_AGENT_DIR`, else `~/.pi/agent`."""
    if environ.get("PI_CODING_AGENT_SESSION_DIR", "").startswith("/"):
        return SourceRoot(path_from(environ, "PI_CODING_AGENT_SESSION_DIR", home), _FINDER_OF_SESSIONS)
    return SourceRoot(path_from(environ, "PI_CODING_AGENT_DIR", home / ".pi" / "agent"), FINDER)
