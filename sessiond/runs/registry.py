"""Find runs by id: live and recently ended runs are in memory, all others are read from their transcripts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import msgspec

from sessiond.model import lax
from sessiond.model.lax import Milliseconds
from sessiond.model.message import text_of
from sessiond.model.record import FINAL, RUN, Record
from sessiond.runs.run import Run, RunView, session_id_of, view
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore

MAX_ENDED = 4096


class _RunFacts(msgspec.Struct, frozen=True, rename="camel", gc=False):
    run_id: str
    status: str
    at: Milliseconds | None = None
    error: str | None = None
    reply: str | None = None
    reply_id: str | None = None
    reply_before: bool = False
    reason: str | None = None
    stop_reason: str | None = None


class Registry:
    """The live runs and the last MAX_ENDED ended runs. Older ones are read from the transcripts."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self.live: dict[str, Run] = {}
        self._by_key: dict[str, dict[str, Run]] = {}
        self._ended: OrderedDict[str, Run] = OrderedDict()

    def add(self, run: Run) -> None:
        self.live[run.run_id] = run
        self._by_key.setdefault(run.key, {})[run.run_id] = run

    def end(self, run: Run) -> None:
        """Move the run from the live to the ended ones."""
        if not self.drop(run):
            return
        self._ended[run.run_id] = run
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)

    def drop(self, run: Run) -> bool:
        """Remove a live run; whether it was one."""
        if self.live.pop(run.run_id, None) is None:
            return False
        runs = self._by_key[run.key]
        del runs[run.run_id]
        if not runs:
            del self._by_key[run.key]
        return True

    def get(self, run_id: str) -> Run | None:
        """A run in memory."""
        return self.live.get(run_id) or self._ended.get(run_id)

    def of_session(self, key: str) -> list[Run]:
        """The live runs of a session, oldest first."""
        return list(self._by_key.get(key, {}).values())

    def count_of(self, key: str) -> int:
        """How many live runs a session has."""
        return len(self._by_key.get(key, ()))

    def session_of(self, run_id: str) -> Session | None:
        """The session of a run id, live or archived, whether or not the run exists."""
        # Always look up both, so that the duration does not reveal whether the run exists.
        run, named = self.get(run_id), self._store.catalog.by_id.get(session_id_of(run_id))
        return run.session if run is not None else named

    async def find(self, run_id: str) -> RunView | None:
        """The state of a run, from memory or else read backwards from its transcript; None if there is no such run."""
        run = self.get(run_id)
        if run is not None:
            return view(run)
        session = self.session_of(run_id)
        if session is None:
            return None
        end, limit, dialect = session.entry.file.folded_to, self._store.record_limit, session.dialect

        def search(fd: int) -> RunView | None:
            return _search(transcript.read_backwards(fd, end, limit, dialect=dialect), run_id, session.key)

        found: RunView | None = await self._store.read(session, search)
        return found


def _search(lines: Iterator[transcript.Line], run_id: str, key: str) -> RunView | None:
    id_bytes = run_id.encode()
    facts: dict[str, Any] = {}
    reply_id: object = None
    for record in _records(lines):
        # `reply_id` True: the reply is the record right before the end; otherwise the id of its record.
        if record.message is not None and reply_id is not None and reply_id in (True, record.id):
            facts["reply"] = text_of(record.message)
            reply_id = None
        if record.custom_type != RUN or id_bytes not in record.raw or record.data is None:
            continue
        data = lax.decode_fitting(record.data, _RunFacts)
        if data is None or data.run_id != run_id:
            continue
        status = data.status
        if status in FINAL:
            facts |= {"status": status, "ended_at": data.at, "error": data.error, "reply": data.reply}
            facts |= {"by_reset": data.reason == "reset", "stop_reason": data.stop_reason}
            reply_id = data.reply_id or data.reply_before
        elif status == "running":
            facts.setdefault("status", "running")
            facts["started_at"] = data.at
        elif status == "accepted":
            facts.setdefault("status", "queued")
            return RunView(run_id=run_id, key=key, **facts)
    return None


def _records(lines: Iterator[transcript.Line]) -> Iterator[Record]:
    return (line.record for line in lines if line.record is not None)
