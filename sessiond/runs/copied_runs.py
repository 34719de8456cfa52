"""Which open runs of a transcript were accepted in another one, of which it is a copy. Reads; writes nothing.

A run goes on in the transcript that its id names, in the folder of the agent that this transcript was made for, and
nowhere else: the original may have ended it long ago, be in the archive, or be gone. Source: runs.md, "A run's life
over a crash".
"""

from __future__ import annotations

from collections.abc import Collection

from sessiond.errors import StorageError
from sessiond.model import lax
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.keys import agent_of
from sessiond.model.record import ENTRY
from sessiond.runs.run import session_id_of
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore


async def find_copied_runs(store: SessionStore, session: Session, run_ids: Collection[str]) -> set[str]:
    """Those of the runs that stand in this transcript and were accepted in another one."""
    copied = {run_id for run_id in run_ids if _is_named_elsewhere(store, session, run_id)}
    if len(copied) == len(run_ids):
        return copied
    try:
        first_agent: str | None = await store.read(session, _first_agent, store.record_limit, session.dialect)
    except StorageError:
        return copied  # the requests cannot be read either, so that no run goes on
    return copied if first_agent in (None, session.folder.agent_id) else set(run_ids)


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


def _first_agent(fd: int, record_limit: int, dialect: TranscriptDialect) -> str | None:
    """The agent of the first session key in the transcript; None where it has none that can be read."""
    for line in transcript.read_lines(fd, 0, record_limit, dialect=dialect):
        record = line.record
        if record is None:
            continue
        key: object = None
        if record.type == "session" and line.offset == 0:
            key = record.body().get("sessionKey")
        elif record.custom_type == ENTRY:
            key = lax.decode_dict(record.data).get("sessionKey")
        if isinstance(key, str) and key.startswith("agent:"):
            return agent_of(key)
    return None
