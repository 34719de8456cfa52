"""Plan the import of an OpenClaw state folder: which files are transcripts of which sessions, and their index entries.

Reads names and indexes, through descriptors and never through a symlink; opens no transcript.
Source: compatibility.md, "The store".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import msgspec

from sessiond.errors import reason_of
from sessiond.store import adoption, dirfd, index, layout

_SET_ASIDE = re.compile(r"(.+)\.jsonl\.(reset|deleted|bak)\.(\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d(?:\.\d{3})?Z)")
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9._-]")


class SkippedFile(msgspec.Struct, frozen=True):
    """Something that was not imported. `path` is relative to the source."""

    path: str
    reason: str


class PlannedSession(msgspec.Struct, frozen=True, kw_only=True):
    """One session to import. `name` is its file in the source; None: it is only in the index."""

    session_id: str
    name: str | None
    key_id: str
    archived: bool = False
    created_ms: int | None = None


class ImportPlan(msgspec.Struct):
    """One agent's sessions folder. `fd` is open on it and has to be closed by the caller of `plan`."""

    agent_id: str
    path: str
    fd: int
    items: list[PlannedSession]
    foreign: adoption.Foreign


def agents(root_fd: int, skipped: list[SkippedFile]) -> list[str]:
    """The folders below `agents/` that may be an agent's. FileNotFoundError where there is no such folder."""
    agents_fd = dirfd.open_dir(root_fd, layout.AGENTS)
    with dirfd.closing(agents_fd), os.scandir(agents_fd) as entries:
        found: list[str] = []
        for entry in entries:
            path = f"{layout.AGENTS}/{entry.name}"
            if entry.is_symlink():
                skipped.append(SkippedFile(path, "a symlink; it is not followed"))
            elif not layout.is_agent_folder(entry.name.lower()):
                skipped.append(SkippedFile(path, "no agent's folder"))
            elif entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
    return sorted(found)


def plan(root_fd: int, agent: str, skipped: list[SkippedFile]) -> ImportPlan | None:
    """The plan for one agent's folder; None if it has no sessions."""
    path = f"{layout.AGENTS}/{agent}/{layout.SESSIONS}"
    try:
        fd = dirfd.open_path_dir(root_fd, (layout.AGENTS, agent, layout.SESSIONS))
    except FileNotFoundError:
        return None
    except OSError as error:
        skipped.append(SkippedFile(path, reason_of(error)))
        return None
    found = ImportPlan(agent_id=agent.lower(), path=path, fd=fd, items=[], foreign={})
    live, archived = _list_files(found, skipped)
    found.foreign = _by_file(index.load(fd).foreign, live)
    found.items += [PlannedSession(session_id=stem, name=name, key_id=stem) for stem, name in live.items()]
    found.items += _plan_archived(live, archived)
    known = {item.session_id for item in found.items}
    for session_id, used_ms in adoption.session_ids(found.foreign):
        if session_id not in known and layout.session_id_of(session_id + layout.SUFFIX) is not None:
            found.items.append(PlannedSession(session_id=session_id, name=None, key_id=session_id, created_ms=used_ms))
            known.add(session_id)
    return found


def _list_files(found: ImportPlan, skipped: list[SkippedFile]) -> tuple[dict[str, str], list[tuple[str, str, str]]]:
    """Transcripts by session id, and those set aside as `(session id, when and why, name)`."""
    live: dict[str, str] = {}
    archived: list[tuple[str, str, str]] = []
    with os.scandir(found.fd) as entries:
        for name, entry in sorted((entry.name, entry) for entry in entries):
            set_aside = _SET_ASIDE.fullmatch(name)
            if set_aside is None and not name.endswith(layout.SUFFIX):
                continue
            path = f"{found.path}/{name}"
            stem = _NOT_IN_IDS.sub("_", set_aside[1] if set_aside is not None else name[: -len(layout.SUFFIX)])
            if entry.is_symlink():
                skipped.append(SkippedFile(path, "a symlink; it is not followed"))
            elif layout.session_id_of(stem + layout.SUFFIX) is None:
                skipped.append(SkippedFile(path, "its name is no session id"))
            elif set_aside is None:
                live[stem] = name
            elif set_aside[2] == "bak":
                skipped.append(
                    SkippedFile(path, "what a compaction left over; the session's own transcript goes on from it")
                )
            else:
                archived.append((stem, f"{set_aside[2]}.{set_aside[3]}", name))
    return live, archived


def _plan_archived(live: dict[str, str], archived: list[tuple[str, str, str]]) -> Iterator[PlannedSession]:
    """The sessions that were reset or deleted. If another file has the same id, reason and time are added to the id."""
    stems = [*live, *(stem for stem, _, _ in archived)]
    for stem, when, name in archived:
        session_id = stem if stems.count(stem) == 1 else f"{stem}.{when}"
        yield PlannedSession(session_id=session_id, name=name, key_id=stem, archived=True)


def _by_file(foreign: adoption.Foreign, live: dict[str, str]) -> adoption.Foreign:
    """The index, with each session id replaced by that of its `sessionFile`: threads have files of their own."""
    named: adoption.Foreign = {}
    for key, fields in foreign.items():
        file = fields.get("sessionFile")
        if isinstance(file, str):
            stem = _NOT_IN_IDS.sub("_", file.rpartition("/")[2].removesuffix(layout.SUFFIX))
            if stem in live:
                fields = {**fields, "sessionId": stem}
        named[key] = fields
    return named
