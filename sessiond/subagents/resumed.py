"""The session of an agent's own program that a child goes on with: whether the caller may, and whether it is there.

Source: runs.md, "acp".
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec

from sessiond.errors import NotFound, quote
from sessiond.model.keys import SOURCES
from sessiond.sessions.patch import Sees
from sessiond.store.catalog import Catalog, Session
from sessiond.tasks import run_in_thread

# `check(key, native_id, folder)`: why the agent of session `key` cannot go on with a session of its own in this folder;
# None if it can. Unsupported if the agent cannot be asked.
NativeCheck = Callable[[str, str, Path | None], Awaitable[str | None]]

# Shorter beginnings of ids mean too many sessions. Lists show so many characters.
_LEAST_DIGITS = 8
_MOST_NAMED = 5


class ResumedSession(msgspec.Struct, frozen=True):
    """A session of an agent's program. `folder` is where it was begun; None: not known."""

    native_id: str
    folder: str | None


async def find_resumed(
    catalog: Catalog, child_key: str, native_id: str, *, sees: Sees, check: NativeCheck
) -> ResumedSession:
    """The session with this id, or whose id begins so, which the child `child_key` is to go on with.

    NotFound if the agent does not know it, or if it is that of a session of the store that the caller may not see.
    """
    native_id = _complete_id(catalog, native_id, sees)
    known = _sessions_with(catalog, native_id)
    if known and not any(sees(session.key) for session in known):
        raise _not_found(native_id, "the agent cannot go on with it")
    folders = [session.entry.cwd for session in known if session.entry.cwd is not None]
    # In a thread: a folder may be on a file system that does not answer.
    folder = await run_in_thread(_first_there, folders, abandon_on_cancel=True) if folders else None
    reason = await check(child_key, native_id, Path(folder) if folder is not None else None)
    if reason is not None:
        raise _not_found(native_id, reason)
    return ResumedSession(native_id, folder)


def _sessions_with(catalog: Catalog, native_id: str) -> list[Session]:
    """What the store has of it: the session of the program itself, or those of ours that are shown as that.

    Of all programs: which one an agent's command starts in the end is not known.
    """
    originals = (catalog.by_key.get(f"{source}:{native_id}") for source in SOURCES)
    return [*catalog.natives.carriers(native_id), *(session for session in originals if session is not None)]


def _complete_id(catalog: Catalog, text: str, sees: Sees) -> str:
    """The whole id for the beginning of one or of the key of a program's session, as lists show them; else the text.

    NotFound where several begin so. Of what the caller may not see nothing is completed.
    """
    if _sessions_with(catalog, text):
        return text
    program, _, begin = text.removesuffix("…").lower().rpartition(":")
    if len(begin) < _LEAST_DIGITS:
        return text
    pairs = (key.partition(":") for key in catalog.by_key)
    found = sorted(
        {
            native_id
            for source, _, native_id in pairs
            if source in SOURCES
            and program in ("", source)
            and native_id.lower().startswith(begin)
            and sees(f"{source}:{native_id}")
        }
    )
    if len(found) > 1 and begin not in map(str.lower, found):
        named = ", ".join(found[:_MOST_NAMED]) + (", …" if len(found) > _MOST_NAMED else "")
        raise _not_found(text, f"{len(found)} ids begin so: {named}")
    return found[0] if found else text


def _first_there(folders: list[str]) -> str | None:
    return next((folder for folder in folders if os.path.isabs(folder) and os.path.isdir(folder)), None)


def _not_found(native_id: str, reason: str) -> NotFound:
    return NotFound(
        f"nothing was spawned, since $.resumeSessionId {quote(native_id)} is not there: {reason}",
        code="native_session_not_found",
        resumeSessionId=native_id,
    )
