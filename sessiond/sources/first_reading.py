"""What is read of a file before its session is shown for the first time: what the snapshot has not, or both its ends.

Blocks; called in worker threads. Knows roots and entries. Does not know the catalog.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import key_of_found
from sessiond.model.keys import machine_of
from sessiond.sources.folding_queue import SLICE_BYTES
from sessiond.sources.reading import ListedFile, ThreadTurn
from sessiond.sources.root import OpenRoot
from sessiond.sources.snapshot import Snapshot

# So many bytes that were appended while the daemon did not run are folded at once.
_MOST_APPENDED_BYTES = 4 * SLICE_BYTES


def read_all(
    batch: Sequence[tuple[OpenRoot, ListedFile]], known: Snapshot, is_busy: Callable[[], bool]
) -> list[Entry | OSError | None]:
    """As `read_known`, of several files. While others are busy it pauses now and then."""
    entries: list[Entry | OSError | None] = []
    turn = ThreadTurn(is_busy)
    for root, file in batch:
        saved = known.get(root.path, {}).get(file.place)
        entries.append(read_known(root, file, saved, turn))
        turn.pause_when_over()
    return entries


def read_known(
    root: OpenRoot, file: ListedFile, known: Entry | None, turn: ThreadTurn | None = None
) -> Entry | OSError | None:
    """The entry of a file: as the snapshot has it, and what was appended since; else that of its ends.

    None where it is no session yet, the error where it cannot be read. Blocks.
    """
    try:
        if root.makes(file.place):
            if known is not None and known.file.mtime_ns == file.mtime_ns and _may_continue(root, file, known):
                return known
            if file.found.is_compressed:
                known = None  # unpacked in the background
            else:
                put_together = root.look_at(file.place)
                if put_together is None:
                    return None
                file = put_together
        if known is not None and _may_continue(root, file, known):
            if (known.file.bytes, known.file.mtime_ns) == (file.size, file.mtime_ns):
                return known
            got = root.reader.fold_slice(file.place, known, _MOST_APPENDED_BYTES)
            if not got.more:
                return got.entry
        entry = root.reader.identify(file)
        return root.reader.read_ends(file, entry, turn) if entry is not None else None
    except MemoryError:
        return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    except OSError as error:
        return error


def _may_continue(root: OpenRoot, file: ListedFile, known: Entry) -> bool:
    """Whether an entry of the snapshot is one of this file, to which at most something was appended since."""
    source, facts = known.source, known.file
    if source is None or source.name != root.name:
        return False
    if known.session_key != key_of_found(root.name, source.found, known.session_id):
        return False
    if root.finder.is_ours and (
        machine_of(known.session_key) != file.place.partition("/")[0]
        or (":import:" in known.session_key and known.file.bytes != file.size)  # its key may have come meanwhile
    ):
        return False
    if not root.finder.id_in_head and known.session_id != file.found.native_id:
        return False
    return facts.inode == file.inode and facts.bytes <= file.size and facts.fold == root.folder.dialect.fold_version
