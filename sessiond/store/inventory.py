"""List everything in a store, each name with its kind. Follows no symlink, opens no file.

Knows the layout, not the content of files. The workspaces of agents are not listed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator
from typing import Literal

import msgspec

from sessiond.model.dialects import V3, TranscriptDialect
from sessiond.store import dirfd, layout

Kind = Literal[
    "folder",
    "file",
    "transcript",
    "index",
    "damaged index",
    "temporary",
    "foreign archive",
    "symlink",
    "special",
    "kept",
    "unknown",
]

# How OpenClaw renames transcripts that it resets, deletes or compacts. Source: compatibility.md, "The store".
_FOREIGN_ARCHIVE = re.compile(r".+\.(?:reset|deleted|bak)\.\d[0-9TZ.:-]*")
_ROOT_FILES = frozenset({layout.STORE_FILE, layout.LOCK_FILE, layout.TOKENS, *layout.GIT_FILES})
# Folders that contain only files.
_FLAT = frozenset({layout.KEYS, layout.OUTBOX, layout.SPAWNING, layout.CACHE})
_DEEP = (layout.AGENTS, layout.RUN, layout.BACKUPS, layout.KEPT, layout.MACHINES, layout.LINK, layout.GIT)
WORKSPACE = "workspace"

KindOf = Callable[[str, int], Kind]


class StoredName(msgspec.Struct, frozen=True):
    """One name in the folder `parts`, relative to the store. `status` is of the name itself, not of a link's target."""

    parts: tuple[str, ...]
    name: str
    kind: Kind
    status: os.stat_result

    @property
    def path(self) -> str:
        """The path relative to the store, with unprintable characters escaped."""
        path = "/".join((*self.parts, self.name))
        return path if path.isprintable() else path.encode("unicode_escape").decode("ascii")

    @property
    def session_id(self) -> str:
        """The session whose transcript this is."""
        return self.name.removesuffix(layout.SUFFIX)

    @property
    def dialect(self) -> TranscriptDialect:
        """The format of a transcript in the store, which is our own."""
        return V3

    @property
    def is_archived(self) -> bool:
        """Whether it lies in an archive folder."""
        return len(self.parts) == 4


def list_store(root_fd: int) -> Iterator[StoredName]:
    """Every name in the store, folders before their content, sorted within each folder."""
    for thing in _list_names(root_fd, (), _root_kind):
        yield thing
        if thing.kind != "folder":
            continue
        if thing.name in _FLAT:
            yield from _list_names(root_fd, (thing.name,), _flat_kind)
        elif thing.name == layout.AGENTS:
            yield from _agents(root_fd)
        elif thing.name == layout.BACKUPS:
            yield from _backups(root_fd)
        elif thing.name == layout.KEPT:
            yield from _list_kept(root_fd)


def _backups(root_fd: int) -> Iterator[StoredName]:
    for backup in _list_names(root_fd, (layout.BACKUPS,), _kept_kind):
        yield backup
        if backup.kind == "folder":
            yield from _list_names(root_fd, (layout.BACKUPS, backup.name), _kept_kind)


def _list_kept(root_fd: int) -> Iterator[StoredName]:
    for source in _list_names(root_fd, (layout.KEPT,), _linked_kind):
        yield source
        if source.kind == "folder":
            yield from _list_names(root_fd, (layout.KEPT, source.name), _linked_kind)


def _agents(root_fd: int) -> Iterator[StoredName]:
    for agent in _list_names(root_fd, (layout.AGENTS,), _agents_kind):
        yield agent
        if agent.kind != "folder":
            continue
        parts: tuple[str, ...] = (layout.AGENTS, agent.name)
        for inner in _list_names(root_fd, parts, _agent_kind):
            yield inner
            if inner.kind == "folder" and inner.name == layout.SESSIONS:
                yield from _sessions(root_fd, (*parts, layout.SESSIONS))


def _sessions(root_fd: int, parts: tuple[str, ...]) -> Iterator[StoredName]:
    for thing in _list_names(root_fd, parts, _sessions_kind):
        yield thing
        if thing.kind == "folder":
            yield from _list_names(root_fd, (*parts, thing.name), _archive_kind)


def _list_names(root_fd: int, parts: tuple[str, ...], kind_of: KindOf) -> Iterator[StoredName]:
    try:
        fd = dirfd.open_path_dir(root_fd, parts)
    except OSError:
        return  # removed meanwhile, or not readable, which another check reports
    with dirfd.closing(fd):
        names = sorted(os.listdir(fd))
        for name in names:
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except OSError:
                continue
            yield StoredName(parts, name, _general_kind(name, status.st_mode) or kind_of(name, status.st_mode), status)


def _general_kind(name: str, mode: int) -> Kind | None:
    if stat.S_ISLNK(mode):
        return "symlink"
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        return "special"
    if stat.S_ISREG(mode) and name.startswith(dirfd.TEMP_PREFIX):
        return "temporary"
    return None


def _root_kind(name: str, mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file" if name in _ROOT_FILES else "unknown"
    return "folder" if name in (*_FLAT, *_DEEP) else "unknown"


def _flat_kind(_name: str, mode: int) -> Kind:
    return "file" if stat.S_ISREG(mode) else "unknown"


def _kept_kind(_name: str, mode: int) -> Kind:
    """Everything in a backup counts as known."""
    return "folder" if stat.S_ISDIR(mode) else "file"


def _linked_kind(_name: str, mode: int) -> Kind:
    """A kept file is a link to another program's, and has its mode."""
    return "folder" if stat.S_ISDIR(mode) else "kept"


def _agents_kind(name: str, mode: int) -> Kind:
    return "folder" if stat.S_ISDIR(mode) and layout.is_agent_folder(name) else "unknown"


def _agent_kind(name: str, mode: int) -> Kind:
    return "folder" if stat.S_ISDIR(mode) and name in (layout.SESSIONS, WORKSPACE) else "unknown"


def _sessions_kind(name: str, mode: int) -> Kind:
    if stat.S_ISDIR(mode):
        return "folder" if name == layout.ARCHIVE else "unknown"
    return _archive_kind(name, mode)


def _archive_kind(name: str, mode: int) -> Kind:
    if not stat.S_ISREG(mode):
        return "unknown"
    if name == layout.INDEX:
        return "index"
    if name.startswith(layout.DAMAGED_INDEX):
        return "damaged index"
    if layout.session_id_of(name) is not None:
        return "transcript"
    return "foreign archive" if _FOREIGN_ARCHIVE.fullmatch(name) else "unknown"
