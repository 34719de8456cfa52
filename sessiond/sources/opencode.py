"""The database of opencode: `opencode.db` in its data folder, each session in it as a file of its events."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sessiond.sources.finder import SourceFinder, SourceRoot, compile_path, path_from

_NAME = "opencode.db"


def _finder_of(name: str) -> SourceFinder:
    return replace(FINDER, patterns=(compile_path(re.escape(name), "(?P<id>.+)"),), database=name)


FINDER = SourceFinder(name="opencode", patterns=(compile_path(re.escape(_NAME), "(?P<id>.+)"),), database=_NAME)


def find_root(environ: Mapping[str, str], home: Path) -> SourceRoot:
    """The folder of `$OPENCODE_DB`, else `$XDG_DATA_HOME/opencode`, else `~/.local/share/opencode`."""
    named = environ.get("OPENCODE_DB", "")
    if named.startswith("/") and "\0" not in named and Path(named).name:
        return SourceRoot(Path(named).parent, _finder_of(Path(named).name))
    folder = path_from(environ, "XDG_DATA_HOME", home / ".local" / "share") / "opencode"
    is_name = named and "/" not in named and named.isprintable() and named != ":memory:"
    return SourceRoot(folder, _finder_of(named) if is_name else FINDER)
