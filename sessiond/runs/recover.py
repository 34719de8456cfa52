"""After a restart: give every run that was going on its end, and let those wait again that had not started."""

from __future__ import annotations

from typing import Any

import msgspec
import structlog

from sessiond.model.entry import LiveRun
from sessiond.model.record import RUN
from sessiond.runs.run import Request, Run
from sessiond.runs.supervisor import RunSupervisor
from sessiond.store import transcript
from sessiond.store.store import SessionStore

log = structlog.get_logger("sessiond.runs")


async def recover(store: SessionStore, supervisor: RunSupervisor) -> int:
    """Restore the runs that the transcripts leave open; how many there were. In the order of acceptance."""
    open_runs = [(run, session) for session in store.catalog.newest() for run in session.entry.runs]
    open_runs.sort(key=lambda pair: (pair[0].accepted_at, pair[0].offset))
    for live, session in open_runs:
        request = await store.read(session, _request_at, live, store.record_limit)
        run = Run(live.run_id, session, request or _lost(), live.accepted_at)
        run.started_at = live.started_at
        if live.started_at is None and request is not None and request.message:
            supervisor.restore(run)
        else:
            supervisor.interrupt(run)
        log.info("run recovered", run_id=run.run_id, session_key=session.key, started=live.started_at is not None)
    return len(open_runs)


def _request_at(fd: int, live: LiveRun, record_limit: int) -> Request | None:
    line = next(transcript.read_lines(fd, live.offset, record_limit), None)
    if line is None or line.record is None or line.record.custom_type != RUN or line.record.data is None:
        return None
    data: dict[str, Any] = msgspec.json.decode(line.record.data)
    fields = data.get("request")
    if data.get("runId") != live.run_id or not isinstance(fields, dict):
        return None
    try:
        return msgspec.convert({"message": {}, "text": "", **fields}, Request)
    except msgspec.ValidationError:
        return None


def _lost() -> Request:
    """Stands for a request whose record is damaged: the run still gets its end."""
    return Request(text="", message={})
