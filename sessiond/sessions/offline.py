"""Find a session in a store while no daemon runs. Reads only; takes no lock.

Uses the saved indexes, and reads the transcripts that changed since they were saved.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sessiond.errors import NotFound
from sessiond.model.caller import OWNER
from sessiond.model.entry import Entry
from sessiond.model.keys import KeyRules
from sessiond.policy.visibility import Sight
from sessiond.sessions import resolve
from sessiond.store import adoption, dirfd, folding, index, inventory
from sessiond.store.catalog import Catalog, Folder, Session
from sessiond.store.doctor import RECORD_LIMIT
from sessiond.store.inventory import StoredName

# The shortest prefix of an id that the commands accept when the daemon runs.
MIN_PREFIX = 8


def find(store: Path, text: str, rules: KeyRules) -> Session:
    """The session with that key, alias, id, prefix of an id, or label. NotFound; OSError if there is no store."""
    catalog = Catalog()
    with dirfd.closing(dirfd.open_root(store)) as root_fd:
        catalog.load(list(_sessions(root_fd)))
    sight = Sight(level="all", unlimited=True)
    try:
        return resolve.find(catalog, sight, OWNER, rules, text, field="KEY")
    except NotFound as error:
        found = [one for one in catalog.by_id.values() if one.session_id.startswith(text.lower())]
        if len(text) >= MIN_PREFIX and len(found) == 1:
            return found[0]
        if not catalog.with_label(text):
            raise error from None
    return resolve.find_by_label(catalog, sight, text, agent_id=None)


def _sessions(root_fd: int) -> Iterator[Session]:
    folders: dict[tuple[str, ...], tuple[Folder, dict[str, Entry]]] = {}
    for thing in inventory.list_store(root_fd):
        if thing.kind != "transcript":
            continue
        with dirfd.closing(dirfd.open_path_dir(root_fd, thing.parts)) as fd:
            if thing.parts not in folders:
                folder = Folder(thing.parts[1], fd, thing.dialect, archived=thing.is_archived)
                folders[thing.parts] = folder, index.load(fd).ours
            folder, known = folders[thing.parts]
            entry = _entry_of(fd, thing, known.get(thing.session_id))
        if entry is None or entry.attends is not None:
            continue
        if adoption.is_own_key(entry.session_key, folder.agent_id):
            yield Session(key=entry.session_key, entry=entry, folder=folder)


def _entry_of(fd: int, thing: StoredName, known: Entry | None) -> Entry | None:
    if known is not None and folding.is_current(known.file, thing.status, thing.dialect):
        return known
    empty = Entry(session_id=thing.session_id)
    try:
        return folding.advance(fd, known or empty, thing.name, RECORD_LIMIT, dialect=thing.dialect, collect=False).entry
    except OSError:
        return None  # removed meanwhile, or not readable


def path_of(store: Path, session: Session) -> str:
    """The absolute path of the transcript."""
    return os.path.join(store, session.path)
