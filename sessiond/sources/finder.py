"""Which files below the folder of a program are its sessions. Knows paths; opens nothing but small files beside them.

A finder is data: patterns of paths, component by component. Below a root nothing is opened that no pattern names, so
that credentials beside the sessions are never read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sessiond.model.keys import NATIVE_ID
from sessiond.model.source_facts import FoundFacts
from sessiond.store import dirfd

# What comes before the name of a source where the files are meant that are kept of it.
KEPT_PREFIX = "kept/"
# Files beside the sessions that say a title or a folder; a longer one is something else.
MAX_BESIDE_BYTES = 64 * 1024

# A path below the root: a regular expression for each component, the last one for the file. The groups `id` and
# `parent` are native ids.
PathPattern = tuple[re.Pattern[str], ...]


class FoundFile(msgspec.Struct, frozen=True):
    """What the path of a session's file says. `is_compressed`: how long its lines are is known when it was unpacked."""

    native_id: str
    parent: str | None = None
    is_compressed: bool = False


class BadName(ValueError):
    """A file stands where sessions do, and its name is no id."""


def find_nothing_beside(_root_fd: int, _place: str) -> FoundFacts:
    """No facts: nothing beside the files of this program says anything about them."""
    return FoundFacts()


def describe_nothing(_place: str) -> str | None:
    """None: no file of this program describes the session in another one."""
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFinder:
    """The sessions of the program `name`.

    `id_in_head`: the first line has the native id, which the file's name need not have. `facts_beside(root_fd, place)`
    is what files beside a session say about it; `find_described(place)` the session that such a file describes. With a
    `database` the sessions are in that file, and their paths are made up: its name and their ids. `is_kept` says that
    the files are not the program's but those that were kept of it. `is_ours`: they are those of sessiond itself, on
    other machines; nothing is kept of them, and no session of ours stands for one.
    """

    name: str
    patterns: tuple[PathPattern, ...]
    id_in_head: bool = False
    facts_beside: Callable[[int, str], FoundFacts] = find_nothing_beside
    find_described: Callable[[str], str | None] = describe_nothing
    database: str | None = None
    is_kept: bool = False
    is_ours: bool = False

    @property
    def label(self) -> str:
        """What it is called among the open roots."""
        return f"{KEPT_PREFIX}{self.name}" if self.is_kept else self.name

    def session_of(self, place: str) -> FoundFile | None:
        """The session in the file at a path below the root; None if there is none. BadName where its name is none of a
        session.
        """
        parts = place.split("/")
        for pattern in self.patterns:
            if len(pattern) != len(parts):
                continue
            groups = _match(pattern, parts)
            if groups is None:
                continue
            native_id, parent = groups.get("id") or "", groups.get("parent")
            if not all(NATIVE_ID.fullmatch(text) for text in (native_id, parent) if text is not None):
                raise BadName("its name is no session id")
            if not is_text(place):
                raise BadName("its path is not UTF-8 text")
            return FoundFile(native_id, parent, place.endswith(".zst"))
        return None

    def names(self, place: str, native_id: str) -> bool:
        """Whether a path below the root is that of the session with this id."""
        try:
            found = self.session_of(place)
        except BadName:
            return False
        return found is not None and found.native_id == native_id

    def enters(self, folder: str) -> bool:
        """Whether sessions may lie in or below a folder, by its path below the root, which is itself the empty path."""
        parts = folder.split("/") if folder else []
        return any(
            len(parts) < len(pattern) and _match(pattern[: len(parts)], parts) is not None for pattern in self.patterns
        )


class SourceRoot(msgspec.Struct, frozen=True):
    """Where the sessions of a program are, and how they are found there."""

    path: Path
    finder: SourceFinder


RootOf = Callable[[Mapping[str, str], Path], SourceRoot]


def compile_path(*parts: str) -> PathPattern:
    """The pattern of a path, from regular expressions for its components."""
    return tuple(re.compile(part, re.DOTALL) for part in parts)


def path_from(environ: Mapping[str, str], variable: str, default: Path) -> Path:
    """The folder that an environment variable names, if it is an absolute path; else the default."""
    text = environ.get(variable, "")
    return Path(text) if text.startswith("/") and "\0" not in text else default


def read_beside(root_fd: int, place: str) -> bytes | None:
    """The content of a small file below the root; None if there is none that can be read."""
    try:
        with dirfd.closing(dirfd.open_below(root_fd, place)) as fd:
            return dirfd.read_file(fd, MAX_BESIDE_BYTES)
    except (OSError, dirfd.BadComponent):
        return None


def is_text(place: str) -> bool:
    """Whether a path is UTF-8 text. Others cannot be sent to clients."""
    return place.isascii() or not any("\ud800" <= char <= "\udfff" for char in place)


def _match(pattern: PathPattern, parts: list[str]) -> dict[str, str] | None:
    groups: dict[str, str] = {}
    for expression, part in zip(pattern, parts, strict=True):
        found = expression.fullmatch(part)
        if found is None:
            return None
        groups |= {name: text for name, text in found.groupdict().items() if text is not None}
    return groups
