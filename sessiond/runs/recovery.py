"""Recovery after a restart, in three phases: read all open runs and follow-ups, register all of them, then continue.

Everything is registered before anything continues, without an await in between. Otherwise a run could end, or a
conversation take a step, that refers to a run which is not registered yet. Only the records decide: a run without a
start on disk is queued again, one with a start gets its end, unless another machine has it. Of an acceptance that a
crash cut off, nothing is left.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

import structlog

from sessiond.errors import StorageError
from sessiond.model import lax
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.entry import LiveRun
from sessiond.model.keys import is_foreign, is_inbox
from sessiond.model.message import text_of
from sessiond.model.record import RUN, Record
from sessiond.runs.copied_runs import find_copied_runs
from sessiond.runs.run import Run, RunRequest
from sessiond.runs.supervisor import RunSupervisor
from sessiond.store import transcript
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore
from sessiond.store.taking_back import StoredLine, take_back

log = structlog.get_logger("sessiond.runs")


class Resumable(Protocol):
    """A follow-up of runs that can continue after a restart."""

    async def read_open(self) -> None:
        """Read what an earlier process left open. Starts nothing."""

    def register_open(self) -> None:
        """Register it. Starts nothing."""

    def resume_open(self) -> None:
        """Continue it."""


async def recover(
    store: SessionStore,
    supervisor: RunSupervisor,
    others: Sequence[Resumable] = (),
    *,
    remove_files: Callable[[], Awaitable[None]] | None = None,
) -> int:
    """Continue the open runs of all transcripts, and their follow-ups; how many runs there were.

    `remove_files` removes the files that no record claims. An acceptance that was taken back claims none.
    """
    runs, copied = await read_runs(store)
    if remove_files is not None:
        await remove_files()
    for one in others:
        await one.read_open()
    # No await from here on.
    for run in runs:
        supervisor.restore(run)
    for one in others:
        one.register_open()
    supervisor.resume()
    supervisor.end_copied(copied)
    for one in others:
        one.resume_open()
    return len(runs)


async def read_runs(store: SessionStore) -> tuple[list[Run], list[Run]]:
    """The open runs of all sessions, in the order of acceptance; and those that stand in copies of their transcripts,
    which do not go on there. Acceptances that a crash cut off are taken back first.
    """
    found: list[Run] = []
    copied: list[Run] = []
    torn: dict[Session, dict[str, StoredLine]] = {}
    taken: set[str] = set()
    for live, session, is_copied in await _find_open_runs(store):
        if is_copied or live.run_id in taken:
            log.warning("a run stands open in a copy", run_id=live.run_id, session_key=session.key)
            copied.append(Run(live.run_id, session, _damaged_request(), live.accepted_at))
            copied[-1].started_at = live.started_at
            continue
        taken.add(live.run_id)
        request = await _request(store, session, live)
        if isinstance(request, StoredLine):
            torn.setdefault(session, {})[live.run_id] = request
            continue
        run = Run(live.run_id, session, request or _damaged_request(), live.accepted_at)
        run.started_at = live.started_at
        found.append(run)
        log.info("run recovered", run_id=run.run_id, session_key=session.key, started=run.begun)
    for session, lines in torn.items():
        found += await _take_back(store, session, lines)
    return found, copied


async def _take_back(store: SessionStore, session: Session, lines: dict[str, StoredLine]) -> list[Run]:
    """Take back acceptances that a crash cut off, by run id; those that are there nevertheless, which get an end."""
    try:
        await take_back(store, session, list(lines.values()))
    except StorageError as error:
        log.warning("an acceptance that was cut off stays", session_key=session.key, reason=error.message)
    left = [live for live in session.entry.runs if live.run_id in lines]
    for run_id in lines.keys() - {live.run_id for live in left}:
        log.info("an acceptance that was cut off is taken back", run_id=run_id, session_key=session.key)
    return [Run(live.run_id, session, _damaged_request(), live.accepted_at) for live in left]


async def _find_open_runs(store: SessionStore) -> list[tuple[LiveRun, Session, bool]]:
    """The open runs in the order of acceptance, and whether each stands in a copy."""
    catalog = store.catalog
    found_open = [session for session in catalog.unsettled_sessions() if session.entry.runs]
    live = [session for session in found_open if catalog.is_current(session)]
    live.sort(key=lambda session: (-session.entry.updated_at, session.key))
    # The copies beside an original do not have its key.
    others = [one for one in found_open if one.superseded and catalog.by_id.get(one.session_id) is one]
    found: list[tuple[LiveRun, Session, bool]] = []
    for session in (*live, *others):
        copied = await find_copied_runs(store, session, {run.run_id: run.offset for run in session.entry.runs})
        runs = [(run, session, run.run_id in copied) for run in session.entry.runs]
        found += [one for one in runs if one[2] or not session.superseded]
    found.sort(key=lambda one: (one[0].accepted_at, one[0].offset))
    return found


async def _request(store: SessionStore, session: Session, live: LiveRun) -> RunRequest | StoredLine | None:
    """The request of a run; None where its record is damaged; the line where it is all that is left of its write."""
    limit, dialect = store.record_limit, session.dialect
    try:
        request: RunRequest | StoredLine | None = await store.read(
            session, _request_at, live, limit, dialect, is_inbox(session.key) or is_foreign(session.key)
        )
    except StorageError as error:
        log.warning("the record of a run cannot be read", run_id=live.run_id, reason=error.message)
        return None
    return request


def _request_at(
    fd: int, live: LiveRun, record_limit: int, dialect: TranscriptDialect, is_kept: bool
) -> RunRequest | StoredLine | None:
    lines = transcript.read_lines(fd, live.offset, record_limit, dialect=dialect)
    line = next(lines, None)
    if line is None or line.offset != live.offset:
        return StoredLine(live.offset, b"")  # taken back right before a crash; the entry in the index is older
    if line.record is None or line.record.custom_type != RUN or line.record.data is None:
        return None
    data = lax.decode_dict(line.record.data)
    fields = data.get("request")
    if data.get("runId") != live.run_id or not isinstance(fields, dict):
        return None
    if not fields.keys() & {"message", "text", "inTranscript"}:
        # It was accepted and started in one write, of which a crash may have left the accepted record and perhaps the
        # message. Queue it with that message.
        behind = _message_behind(line.record, lines)
        if behind is not None:
            fields = {**fields, "message": behind, "inTranscript": True}
        elif live.started_at is None and not (is_kept and _has_message_before(fd, line, record_limit, dialect)):
            # Without the message it was not acknowledged to anyone, and whoever sent it sends it again.
            return StoredLine(line.offset, line.record.raw + b"\n")
    message = fields.get("message")
    # The record leaves out a text that equals the message's.
    text = text_of(message) if isinstance(message, dict) else ""
    # Older records have these in the request as well.
    keyed = {name: data[name] for name in ("idempotencyKey", "payload") if name in data}
    return lax.convert_fitting({"message": {}, "text": text, **keyed, **fields}, RunRequest)


def _message_behind(accepted: Record, lines: Iterable[transcript.Line]) -> dict[str, Any] | None:
    """The message of a run that was written behind its accepted record."""
    for line in lines:
        record = line.record
        if record is None or record.role != "user" or accepted.id is None:
            continue
        if record.message is not None and record.body().get("parentId") == accepted.id:
            return lax.decode_dict(record.message)
    return None


def _has_message_before(fd: int, accepted: transcript.Line, record_limit: int, dialect: TranscriptDialect) -> bool:
    """Whether the message of a run stands before its accepted record, as that of one in an inbox does."""
    line = next(transcript.read_backwards(fd, accepted.offset, record_limit, dialect=dialect), None)
    if line is None or line.record is None or accepted.record is None or line.record.role != "user":
        return False
    return line.record.id is not None and accepted.record.body().get("parentId") == line.record.id


def _damaged_request() -> RunRequest:
    """An empty request in place of one whose record is damaged, so that the run gets an end."""
    return RunRequest(text="", message={})
