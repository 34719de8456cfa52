"""Files that appear in great numbers at once, as at the start and when another machine is linked: found in what the
watches told, and sorted into batches.

One after the other each takes two threads and a turn of the loop; together they are read as at the start.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sessiond.events.watch_backend import NameChanged, WatchEvent
from sessiond.sources.reading import ListedFile
from sessiond.sources.root import OpenRoot
from sessiond.sources.snapshot import Snapshot

# A crowd has more files than this.
LEAST_CROWD = 100
# Done in one go in a thread before others have their turn: so many files that are as the snapshot has them, or an
# eighth of them if they have to be read.
_BATCH_EFFORT = 128
_EFFORT_OF_READING = 8


def look_at_crowd(roots: Iterable[OpenRoot], events: Sequence[WatchEvent]) -> list[tuple[OpenRoot, ListedFile]]:
    """The files in events of which no session is known yet, if they are many. Blocks."""
    places = _find_new_places(roots, events)
    return _look_at_all(places) if len(places) > LEAST_CROWD else []


def _find_new_places(roots: Iterable[OpenRoot], events: Sequence[WatchEvent]) -> list[tuple[OpenRoot, str]]:
    found: dict[tuple[OpenRoot, str], None] = {}
    below = [root for root in roots if root.files is None]
    for event in events:
        if not isinstance(event, NameChanged):
            continue
        for root in below:
            folder = root.place_of(event.directory)
            place = f"{folder}/{event.name}" if folder else event.name
            if folder is not None and place not in root.sessions and root.names_session(place):
                found[root, place] = None
    return list(found)


def _look_at_all(places: Sequence[tuple[OpenRoot, str]]) -> list[tuple[OpenRoot, ListedFile]]:
    found: list[tuple[OpenRoot, ListedFile]] = []
    for root, place in places:
        try:
            file = root.look_at_name(place)
        except OSError:
            continue  # its own event leads to the same error, which is handled there
        if file is not None:
            found.append((root, file))
    return found


def sort_into_batches(
    found: Iterable[tuple[OpenRoot, ListedFile]], snapshot: Snapshot
) -> list[list[tuple[OpenRoot, ListedFile]]]:
    """The files in batches, newest first. What was kept comes last, of which most is there in the program's folder."""
    batches: list[list[tuple[OpenRoot, ListedFile]]] = []
    left = 0
    for root, file in sorted(found, key=lambda one: (one[0].is_kept, -one[1].mtime_ns)):
        if left <= 0:
            batches.append([])
            left = _BATCH_EFFORT
        batches[-1].append((root, file))
        left -= 1 if file.place in snapshot.get(root.path, ()) else _EFFORT_OF_READING
    return batches
