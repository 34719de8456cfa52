"""The fold for transcripts that another machine's sessiond wrote: that of our own ones, without what holds there only.

Pure. Its keys are those of the other machine, so they get its name. What a run, a label or a message that was handed
over means here is nothing: no run of it goes on here, nothing here is found by its labels.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from sessiond.model.entry import Entry
from sessiond.model.fold import FOLD_VERSION, fold
from sessiond.model.keys import key_elsewhere, machine_of
from sessiond.model.line_facts import CHOSEN, FIRST_WORDS
from sessiond.model.record import Record
from sessiond.model.source_facts import SourceFacts
from sessiond.model.title import clean_title

# Together with FOLD_VERSION: raise it whenever the same lines give another entry than before.
REPLICA_FOLD_VERSION = 2_000_000 + 1000 * 1 + FOLD_VERSION

# What only the daemon there acts upon, or what names a session of that machine's programs, with the value that says
# nothing.
_OF_THERE: tuple[tuple[str, Any], ...] = (
    ("talks", ()),
    ("keyed", ()),
    ("continues", None),
    ("attends", None),
    ("hook", None),
    ("notify", None),
    ("inbox_cursor", None),
    ("is_copy", False),
)


def fold_replica(entry: Entry, record: Record, offset: int, mtime_ms: int) -> Entry:
    """The entry after `record`, whose line begins at `offset`. Never raises.

    `entry` is one of `begin_foreign`, whose key says of which machine it is.
    """
    folded = fold(entry, record, offset, mtime_ms)
    if folded is entry:
        return entry
    changes: dict[str, Any] = {name: nothing for name, nothing in _OF_THERE if getattr(folded, name) != nothing}
    if folded.session_key != entry.session_key:
        changes["session_key"] = entry.session_key
    if folded.spawned_by != entry.spawned_by and folded.spawned_by is not None:
        machine = machine_of(entry.session_key)
        changes["spawned_by"] = key_elsewhere(machine, folded.spawned_by) if machine is not None else None
    if (folded.display_name, folded.title) != (entry.display_name, entry.title):
        changes["source"] = _with_title(folded)
    return replace(folded, **changes) if changes else folded


def _with_title(entry: Entry) -> SourceFacts:
    """The source with the title that the session has there: titles of foreign sessions are looked for in it."""
    source = entry.source if entry.source is not None else SourceFacts(name="")
    name = clean_title(entry.display_name) if entry.display_name else None
    return replace(source, title=name or entry.title, title_rank=CHOSEN if name else FIRST_WORDS)
