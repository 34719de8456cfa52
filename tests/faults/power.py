"""What a disk may hold after the power goes: a model of files and folders in which only what was synced is sure.

From the calls that the shim wrote down. Stricter than most file systems: a name lasts when its folder was synced, bytes
when their file was. What was not synced may be missing, half there, or there without what came before it.
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
    sure: bytes
    writes: list[tuple[int, bytes]] = field(default_factory=list)  # an offset of -1: cut to that length

    def content(self, kind: Kind | None) -> bytes:
        """None: as it is now."""
        data = self.sure
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
        self.sure, self.writes = self.content(None), []


@dataclass(eq=False)
class _Folder:
    now: dict[str, _File | _Folder] = field(default_factory=dict)
    sure: dict[str, _File | _Folder] = field(default_factory=dict)
    # Moves out of it or into it that may come undone. A journal has each as one step: both folders know it or neither.
    moves: list[tuple[_Folder, str, _Folder, str]] = field(default_factory=list)

    def sync(self) -> None:
        for source, name, target, to in self.moves:
            if name in source.sure and name not in source.now:
                target.sure[to] = source.sure.pop(name)
        self.moves = []
        self.sure = dict(self.now)


class Cut(NamedTuple):
    """What was left after so many calls."""

    number: int
    kind: Kind
    files: Files

    def __str__(self) -> str:
        return f"power cut after {self.number}, {self.kind}"


def snapshot(store: Path) -> Files:
    """Everything below a folder."""
    found: Files = {}
    for path in sorted(store.rglob("*")):
        name = str(path.relative_to(store))
        found[name] = None if path.is_dir() else path.read_bytes()
    return found


def restore(files: Files, store: Path) -> None:
    """Make a folder of these files."""
    store.mkdir(mode=0o700)
    for name, data in sorted(files.items()):
        path = store / name
        if data is None:
            path.mkdir(mode=0o700)
        else:
            path.write_bytes(data)
            path.chmod(0o600)


def cuts(before: Files, calls: list[Call]) -> Iterator[Cut]:
    """What each moment may leave, where that differs from what the moment before it may."""
    root = _tree(before)
    seen: set[int] = set()
    for call in calls:
        _do(root, call)
        kinds: tuple[Kind, ...] = ("lost", "half", "reordered")
        for kind in kinds:
            files = _left(root, kind)
            # The calls' acknowledgements differ from moment to moment, so the number counts where bytes are the same.
            state = hash((kind == "lost" and call.number, tuple(sorted(files.items(), key=lambda one: one[0]))))
            if state not in seen:
                seen.add(state)
                yield Cut(call.number, kind, files)


def last_cut(before: Files, calls: list[Call]) -> Cut:
    """What is left where only what was synced is."""
    root = _tree(before)
    for call in calls:
        _do(root, call)
    return Cut(calls[-1].number, "lost", _left(root, "lost"))


def unsynced(before: Files, calls: list[Call]) -> Iterator[str]:
    """What was put in place before its bytes were synced, and what was not synced when all was over."""
    root = _tree(before)
    for call in calls:
        if call.name == "rename":
            thing = _find(root, call.path)
            if isinstance(thing, _File) and thing.writes:
                yield f"{call}: its bytes were not synced before"
        _do(root, call)
    yield from _unsure(root, "")


def _unsure(folder: _Folder, path: str) -> Iterator[str]:
    for name in sorted(folder.now.keys() | folder.sure.keys()):
        here = posixpath.join(path, name)
        thing = folder.now.get(name)
        if thing is not folder.sure.get(name):
            yield f"{here}: its name was not synced"
        if isinstance(thing, _Folder):
            yield from _unsure(thing, here)
        elif thing is not None and thing.writes:
            yield f"{here}: its bytes were not synced"


def _tree(files: Files) -> _Folder:
    root = _Folder()
    for name, data in sorted(files.items()):
        folder, last = _parent(root, name)
        folder.now[last] = folder.sure[last] = _Folder() if data is None else _File(data)
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


def _do(root: _Folder, call: Call) -> None:
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
            # Never done to a transcript but to take back one's own bytes at its end.
            thing.sure, thing.writes = thing.content(None)[: call.offset], []
        case "chmod":
            pass
        case other:
            raise AssertionError(f"no model of {other}")


def _left(folder: _Folder, kind: Kind, path: str = "") -> Files:
    found: Files = {}
    # Lost: only names that were synced. Else: the names as they are now, with their bytes in doubt.
    for name, thing in (folder.sure if kind == "lost" else folder.now).items():
        here = posixpath.join(path, name)
        if isinstance(thing, _Folder):
            found[here] = None
            found |= _left(thing, kind, here)
        else:
            found[here] = thing.content(kind)
    return found
