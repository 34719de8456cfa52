"""The outcome of a child's run, read from its records, and the text of its announcement. Writes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, cast

from sessiond.errors import StorageError
from sessiond.model import lax
from sessiond.model.dialects import TranscriptDialect
from sessiond.model.keys import agent_of
from sessiond.model.message import text_of
from sessiond.model.record import FINAL, RUN, Record
from sessiond.policy.announce import AnnounceFacts, announcement
from sessiond.runs.registry import Registry
from sessiond.runs.run import INTERRUPTED, RunView
from sessiond.store import layout, transcript
from sessiond.store.catalog import Session
from sessiond.store.store import SessionStore
from sessiond.subagents.archive import is_to_be_deleted

# Replaces a result that would not fit into one record of the requester's transcript.
TOO_LONG = "(longer than limits.maxRecordBytes allows; the transcript has it)"


async def find_outcome(registry: Registry, run_id: str, key: str) -> RunView:
    """How the run ended. If its transcript no longer says so, an error that says that."""
    found = await registry.find(run_id)
    if found is not None and found.status in FINAL:
        return found
    return RunView(run_id=run_id, key=key, status="error", error="the record of its end cannot be read")


async def find_first_end(store: SessionStore, child: Session) -> str | None:
    """The run whose end counts as the child's, by the records of its transcript, where that has ended. StorageError.

    That is the run that it was spawned for, or the one that replaced it after a steer.
    """
    found: str | None = await store.read(child, _first_end, store.record_limit, child.dialect)
    return found


def _first_end(fd: int, record_limit: int, dialect: TranscriptDialect) -> str | None:
    spawned: set[str] = set()
    # Steers that have no end yet: a run that was cut off goes on in one of them.
    steers: set[str] = set()
    for line in transcript.read_lines(fd, 0, record_limit, dialect=dialect):
        if line.record is None or line.record.custom_type != RUN:
            continue
        data = lax.decode_dict(line.record.data)
        run_id, status, request = data.get("runId"), data.get("status"), data.get("request")
        if not isinstance(run_id, str) or not isinstance(status, str):
            continue
        if status == "accepted" and isinstance(request, dict):
            follow = request.get("follow")
            if request.get("first") is True and data.get("step") != "announce":
                steers.add(run_id)
            if run_id in steers or (isinstance(follow, dict) and follow.get("spawn") is not None):
                spawned.add(run_id)
        elif status in FINAL and run_id in spawned:
            steers.discard(run_id)
            if not steers or not is_cut_off(status, data.get("error")):
                return run_id
    return None


def is_cut_off(status: str, error: object) -> bool:
    """Whether a run with this end was stopped, by somebody or with the daemon, so that a queued steer replaces it."""
    return status == "aborted" or (status == "error" and error == INTERRUPTED)


async def announcement_text(store: SessionStore, child: Session, first: RunView, said: str | None) -> str | None:
    """The text of the announcement; None: post nothing. `said` is the answer of the announce step, if any."""
    entry = child.entry
    reply = said if said is not None and said.strip() else first.reply
    tool_result = None
    if not (reply or "").strip():
        tool_result = await _tool_result(store, child, first.run_id)
    ran = first.started_at is not None and first.ended_at is not None
    return announcement(
        AnnounceFacts(
            status=cast(Literal["ok", "error", "timeout", "aborted"], first.status),
            session_key=child.key,
            session_id=child.session_id,
            transcript_path=str(store.path / _path_afterwards(child)),
            error=first.error,
            reply=reply,
            tool_result=tool_result,
            runtime_ms=(first.ended_at or 0) - (first.started_at or 0) if ran else None,
            input_tokens=entry.input_tokens,
            output_tokens=entry.output_tokens,
            cost_usd=entry.estimated_cost_usd,
        )
    )


async def task_of(store: SessionStore, registry: Registry, child: Session, run_id: str) -> str:
    """The child's task: from the run if it is in memory, else the first message of its transcript."""
    run = registry.get(run_id)
    if run is not None and run.request.text:
        return run.request.text
    task: str = await store.read(child, _first_message, store.record_limit, child.dialect)
    return task


async def _tool_result(store: SessionStore, child: Session, run_id: str) -> str | None:
    """The newest tool result of the run; None if there is none or the transcript is gone."""
    end = child.entry.file.folded_to
    try:
        found: str | None = await store.read(child, _latest_tool_result, run_id, end, store.record_limit, child.dialect)
    except StorageError:
        if store.catalog.has(child):
            raise
        return None
    return found


def _path_afterwards(child: Session) -> str:
    """The path of the transcript when the announcement is read: with `cleanup: "delete"` it is archived by then."""
    archived = child.archived or is_to_be_deleted(child)
    return layout.transcript_path(agent_of(child.key), child.session_id, archived=archived)


def _latest_tool_result(fd: int, run_id: str, end: int, record_limit: int, dialect: TranscriptDialect) -> str | None:
    """The text of the run's newest tool result that has text."""
    for record in _records(transcript.read_backwards(fd, end, record_limit, dialect=dialect)):
        if record.role == "toolResult" and record.message is not None and (text := text_of(record.message)).strip():
            return text
        if record.custom_type == RUN and record.data is not None and _begins(record.data, run_id):
            break
    return None


def _begins(data: bytes, run_id: str) -> bool:
    fields = lax.decode_dict(data)
    return (fields.get("runId"), fields.get("status")) == (run_id, "accepted")


def _first_message(fd: int, record_limit: int, dialect: TranscriptDialect) -> str:
    for record in _records(transcript.read_lines(fd, 0, record_limit, dialect=dialect)):
        if record.message is not None and record.role == "user":
            return text_of(record.message)
    return ""


def _records(lines: Iterator[transcript.Line]) -> Iterator[Record]:
    return (line.record for line in lines if line.record is not None)
