"""The table of sources. A new one is a dialect, a finder and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sessiond.config.settings import SourcesConfig
from sessiond.sources import claude, codex, gemini, opencode, pi
from sessiond.sources.finder import RootOf, SourceFinder, SourceRoot

_ROOTS: dict[str, tuple[RootOf, SourceFinder]] = {
    module.FINDER.name: (module.find_root, module.FINDER) for module in (claude, codex, gemini, pi, opencode)
}
SOURCE_NAMES = tuple(_ROOTS)


def root_of(name: str, environ: Mapping[str, str], home: Path, configured: Path | None = None) -> SourceRoot:
    """Where the sessions of a program are: where the configuration says, else where the program puts them."""
    find_root, finder = _ROOTS[name]
    return SourceRoot(configured, finder) if configured is not None else find_root(environ, home)


def find_roots(config: SourcesConfig, environ: Mapping[str, str], home: Path) -> dict[str, SourceRoot]:
    """Where the sessions of the programs are that are not switched off."""
    found: dict[str, SourceRoot] = {}
    for name in SOURCE_NAMES if config.enabled else ():
        own = config.source(name)
        if own.enabled is not False:
            found[name] = root_of(name, environ, home, own.path)
    return found
