"""What a disk may hold after a power cut: a model of files and folders in which only synced data is certain.

It replays the calls that the shim logged. Stricter than most file systems: a name survives if its folder was synced,
bytes if their file was. What was not synced may be missing, half written, or written without the bytes before it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from faults.shim import Call

Kind = Literal["lost", "half", "reordered"]
Files = dict[str, bytes | None]  # None: a folder


@dataclass
class _File:
    synced: bytes
    writes: list[tuple[int, bytes]] = field(default_factory=list)  # since the last sync

    def content(self, kind: Kind | None) -> bytes:
        """The bytes after a power cut of this kind; with None, the bytes now."""
        data = self.synced
        writes = self.writes
        if kind == "lost":
            writes = []
        elif kind == "half" and writes:
            offset, last = writes[-1]
            writes = [*writes[:-1], (offset, last[: len(last) // 2])]
        elif kind == "reordered":
            writes = writes[-1:]
        for offset, piece in writes:
            data = data[:offset].ljust(offset, b"\0") + piece + data[offset + len(piece) :]
        return data

    def sync(self) -> None:
        self.synced, self.writes = self.content(None), []


@dataclass(eq=False)
class _Folder:
    now: dict[str, _File | _Folder] = field(default_factory=dict)
    synced: dict[str, _File | _Folder] = field(default_factory=dict)
    # Unsynced moves out of it or into it. A journal has each as one step, so that both folders have it or neither.
    moves: list[tuple[_Folder, str, _Folder, str]] = field(default_factory=list)

    def sync(self) -> None:
        for source, name, target, to in self.moves:
            if name in source.synced and name not in source.now:
                target.synced[to] = source.synced.pop(name)
        self.moves = []
        self.synced = dict(self.now)


class Cut(NamedTuple):
    """What the disk may hold after so many calls."""

    number: int
    kind: Kind
    files: Files

    def __str__(self) -> str:
        return f"power cut after {self.number}, {self.kind}"


def snapshot(store: Path) -> Files:
    """All files and folders below a folder, by path."""
    found: Files = {}
    for path in sorted(store.rglob("*")):
        name = str(path.relative_to(store))
        found[name] = None if path.is_dir() else path.read_bytes()
    return found


def restore(files: Files, store: Path) -> None:
    """Create the store folder with these files."""
    store.mkdir(mode=0o700)
    for name, data in sorted(files.items()):
        path = store / name
        if data is None:
            path.mkdir(mode=0o700)
        else:
            path.write_bytes(data)
            path.chmod(0o600)


def cuts(before: Files, calls: list[Call]) -> Iterator[Cut]:
    """What a power cut after each call may leave, without repetitions."""
    root = _build_tree(before)
    seen: set[int] = set()
    for call in calls:
        _apply(root, call)
        kinds: tuple[Kind, ...] = ("lost", "half", "reordered")
        for kind in kinds:
            files = _files_after_cut(root, kind)
            # Equal bytes after different calls are different states, because the acknowledged calls differ.
            state = hash((kind == "lost" and call.number, tuple(sorted(files.items(), key=lambda one: one[0]))))
            if state not in seen:
                seen.add(state)
                yield Cut(call.number, kind, files)


def last_cut(before: Files, calls: list[Call]) -> Cut:
    """What is left after the last call if only synced data survives."""
    root = _build_tree(before)
    for call in calls:
        _apply(root, call)
    return Cut(calls[-1].number, "lost", _files_after_cut(root, "lost"))


def find_unsynced(before: Files, calls: list[Call]) -> Iterator[str]:
    """Files that were renamed into place before their bytes were synced, and what is not synced at the end."""
    root = _build_tree(before)
    for call in calls:
        if call.name == "rename":
            thing = _find(root, call.path)
            if isinstance(thing, _File) and thing.writes:
                yield f"{call}: its bytes were not synced before"
        _apply(root, call)
    yield from _find_unsynced_below(root, "")


def _find_unsynced_below(folder: _Folder, path: str) -> Iterator[str]:
    for name in sorted(folder.now.keys() | folder.synced.keys()):
        here = posixpath.join(path, name)
        thing = folder.now.get(name)
        if thing is not folder.synced.get(name):
            yield f"{here}: its name was not synced"
        if isinstance(thing, _Folder):
            yield from _find_unsynced_below(thing, here)
        elif thing is not None and thing.writes:
            yield f"{here}: its bytes were not synced"


def _build_tree(files: Files) -> _Folder:
    root = _Folder()
    for name, data in sorted(files.items()):
        folder, last = _parent(root, name)
        folder.now[last] = folder.synced[last] = _Folder() if data is None else _File(data)
    return root


def _parent(root: _Folder, name: str) -> tuple[_Folder, str]:
    *parts, last = name.strip("/").split("/")
    for part in parts:
        below = root.now[part]
        assert isinstance(below, _Folder)
        root = below
    return root, last


def _find(root: _Folder, name: str) -> _File | _Folder:
    if not name.strip("/"):
        return root
    folder, last = _parent(root, name)
    return folder.now[last]


def _apply(root: _Folder, call: Call) -> None:
    name = call.path
    if name.endswith(" (deleted)"):
        return
    match call.name:
        case "create":
            folder, last = _parent(root, name)
            folder.now[last] = _File(b"")
        case "mkdir":
            folder, last = _parent(root, name)
            folder.now[last] = _Folder()
        case "remove":
            folder, last = _parent(root, name)
            del folder.now[last]
        case "rename" | "link":
            folder, last = _parent(root, name)
            target, to = _parent(root, call.to)
            target.now[to] = folder.now[last]
            if call.name == "rename":
                del folder.now[last]
                for one in (folder, target):
                    one.moves.append((folder, last, target, to))
        case "sync":
            thing = _find(root, name)
            if isinstance(thing, _File):
                thing.sync()
            else:
                thing.sync()
        case "write":
            thing = _find(root, name)
            assert isinstance(thing, _File)
            thing.writes.append((call.offset, call.data))
        case "truncate" | "cut":
            thing = _find(root, name)
            assert isinstance(thing, _File)
            # A transcript is only truncated to remove our own bytes at its end.
            thing.synced, thing.writes = thing.content(None)[: call.offset], []
        case "chmod":
            pass
        case other:
            raise AssertionError(f"no model of {other}")


def _files_after_cut(folder: _Folder, kind: Kind, path: str = "") -> Files:
    found: Files = {}
    # For `lost` the synced names only; otherwise the present names, whose bytes are uncertain.
    for name, thing in (folder.synced if kind == "lost" else folder.now).items():
        here = posixpath.join(path, name)
        if isinstance(thing, _Folder):
            found[here] = None
            found |= _files_after_cut(thing, kind, here)
        else:
            found[here] = thing.content(kind)
    return found
