"""Which open runs of a transcript were accepted in another one, of which it is a copy. Reads; writes nothing.

A run goes on in the transcript that its id names, in the folder of the agent for which it was accepted, and nowhere
else: the original may have ended it long ago, be in the archive, or be gone. Source: runs.md, "A run's life over a
crash".
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

from sessiond.errors import StorageError
from sessiond.model import lax
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.keys import agent_of
from sessiond.model.record import ENTRY
from sessiond.runs.run import session_id_of
from sessiond.store import transcript
from sessiond.store.adoption import is_own_key
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore


async def find_copied_runs(store: SessionStore, session: Session, offsets: Mapping[str, int]) -> set[str]:
    """Those of the runs that stand in this transcript and were accepted in another one.

    `offsets` has the runs by id, and where their records stand; also conversations, which have the ids of runs.
    """
    copied = {run_id for run_id in offsets if _is_named_elsewhere(store, session, run_id)}
    if len(copied) == len(offsets):
        return copied
    agent_id, limit = session.folder.agent_id, store.record_limit
    try:
        own_from: int = await store.read(session, _find_own_part, agent_id, limit, session.dialect)
    except StorageError:
        return copied  # the requests cannot be read either, so that no run goes on
    return copied | {run_id for run_id, offset in offsets.items() if offset < own_from}


def _is_named_elsewhere(store: SessionStore, session: Session, run_id: str) -> bool:
    """Whether the run's id names a session of which this one is no successor."""
    named = session_id_of(run_id)
    if named in ("", session.session_id):
        return False
    if session.entry.is_named_otherwise:
        return True
    # A run that follows another one, such as an announce step, has the session of that one in its id, also after a
    # reset of the key.
    origin = store.catalog.by_id.get(named)
    return origin is None or origin.key != session.key


def _find_own_part(fd: int, agent_id: str, record_limit: int, dialect: TranscriptDialect) -> int:
    """From which offset on the transcript was written for this agent.

    0, unless the first session key in it is another agent's: then it was moved here, and what is behind the record
    that adopted it was written here.
    """
    is_foreign = False
    for line in transcript.read_lines(fd, 0, record_limit, dialect=dialect):
        record = line.record
        if record is None:
            continue
        key: object = None
        if record.type == "session" and line.offset == 0:
            key = record.body().get("sessionKey")
        elif record.custom_type == ENTRY:
            key = lax.decode_dict(record.data).get("sessionKey")
        if not isinstance(key, str) or not key.startswith("agent:"):
            continue
        if not is_foreign and agent_of(key) == agent_id:
            return 0
        is_foreign = True
        if record.custom_type == ENTRY and is_own_key(key, agent_id):
            return line.offset
    return sys.maxsize if is_foreign else 0
