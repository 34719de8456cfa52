"""The end of a run and its records. Every run has exactly one end: ok, error, timeout or aborted. Writes nothing."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sessiond.model.message import assistant_message
from sessiond.model.record import ENTRY, RUN
from sessiond.runs.run import INTERRUPTED, Run, session_id_of
from sessiond.runs.transcript_sink import ReplySoFar
from sessiond.runtimes.runtime import RunOutcome
from sessiond.store.store import Custom, Message, Part

# How much is kept of what was printed since the last message: a few screens full.
_MAX_PRINTED_CHARS = 4096
# Pi's usage takes a hundredth of it. It is in every answer about the run.
MAX_USAGE_BYTES = 16 * 1024
_USAGE_LEFT_OUT = f"its usage was left out: more than {MAX_USAGE_BYTES} bytes"


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. `reply_id` is the record with the reply; None: a non-empty reply still has to be written.

    `counted`: messages of the run have their own usage. `by_reset`: the run was aborted by a reset of its session.
    `stop_reason` is why the agent stopped, in its words.
    """

    status: Literal["ok", "error", "timeout", "aborted"]
    reply: str | None = None
    error: str | None = None
    reply_id: str | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    notes: tuple[str, ...] = ()
    counted: bool = False
    by_reset: bool = False
    stop_reason: str | None = None


def end_of_turn(outcome: RunOutcome, said: ReplySoFar) -> RunEnd:
    """The end of a turn with this outcome, which has written `said` to the transcript.

    If the outcome has no reply, the last message is the reply. A reply that differs from it is written as another
    message.
    """
    reply = outcome.reply if outcome.reply is not None else said.text
    written = said.text is not None and reply is not None and reply.strip() in ("", said.text.strip())
    is_too_long = outcome.usage is not None and len(msgspec.json.encode(outcome.usage)) > MAX_USAGE_BYTES
    return RunEnd(
        status="ok" if outcome.error is None else "aborted" if outcome.aborted else "error",
        reply=(said.text if written else reply or "") if outcome.error is None else reply,
        error=outcome.error,
        reply_id=said.reply_id if written else None,
        usage=None if is_too_long else outcome.usage,
        model=outcome.model,
        notes=(*outcome.notes, _USAGE_LEFT_OUT) if is_too_long else outcome.notes,
        counted=said.usage,
        stop_reason=outcome.stop_reason,
    )


def end_of(run: Run) -> RunEnd:
    """The end of an ended run, to be written to a copy of its transcript that lacks it. Without the reply."""
    assert run.status != "queued"
    assert run.status != "running"
    return RunEnd(status=run.status, error=run.error, by_reset=run.by_reset)


def failed_end(error: str) -> RunEnd:
    return RunEnd(status="error", error=error)


def interrupted_end() -> RunEnd:
    """The end of a run that executed when the daemon stopped. Source: runs.md, "A run's life over a crash"."""
    return RunEnd(status="error", error=INTERRUPTED)


def copied_end(run: Run) -> RunEnd:
    """The end, in a copy of its transcript, of a run that goes on in the original only."""
    origin = session_id_of(run.run_id)
    return RunEnd(
        status="error",
        error=f"this transcript is a copy of that of session {origin}, and its runs go on there only; send it again",
    )


def without_announcement(run: Run) -> list[Part]:
    """What goes with the end in a copy whose original is there: only the original's end is announced."""
    spawn = run.session.entry.spawn
    return [Custom(ENTRY, {"spawn": {"announced": "copied"}})] if spawn is not None and spawn.announced is None else []


def transcript_lost_end(key: str) -> RunEnd:
    """The end of a run whose transcript was removed by another program."""
    return RunEnd(status="error", error=f"the transcript of {key} was removed while the run was going on")


def aborted_end(*, by_reset: bool = False) -> RunEnd:
    return RunEnd(status="aborted", error="aborted", by_reset=by_reset)


def timeout_end(limit_s: float) -> RunEnd:
    return RunEnd(status="timeout", error=f"the run met its limit of {limit_s:g} s")


def end_records(run: Run, end: RunEnd, now_ms: int, price: float | None) -> list[Part]:
    """The records of an end: the reply, unless it was written during the run, and the end itself."""
    records: list[Part] = []
    data: dict[str, Any] = {"runId": run.run_id, "status": end.status, "at": now_ms}
    usage = None if end.counted else end.usage
    if end.error is not None:
        data["error"] = end.error
        # For an aborted run this may be all that it left. The error of a failed one may contain it already.
        printed = run.text_so_far.end(_MAX_PRINTED_CHARS)
        if printed.strip() and printed.strip() not in end.error:
            data["printed"] = printed
    if end.by_reset:
        # Stored, because after a crash in the middle of the reset nothing else tells that there was one.
        data["reason"] = "reset"
    if end.reply_id is not None:
        data["replyId"] = end.reply_id
    elif end.reply:
        records.append(Message(assistant_message(end.reply, now_ms, provider="sessiond", model=end.model, usage=usage)))
        usage = None
        # The reply gets its id when it is written; it is the record right before this one.
        data["replyBefore"] = True
    elif end.reply is not None:
        data["reply"] = ""
    if end.stop_reason is not None:
        data["stopReason"] = end.stop_reason
    if usage is not None:
        # No message of the run has the usage.
        data["usage"] = usage
        data |= {"model": end.model} if end.model is not None else {}
    if price is not None:
        data["estimatedCostUsd"] = price
    if end.notes:
        data["notes"] = list(end.notes)
    records.append(Custom(RUN, data))
    return records
