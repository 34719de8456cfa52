"""How a run ends, and the records that say so. Every run has exactly one end: ok, error, timeout or aborted.

Knows outcomes and records. Writes nothing itself.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sessiond.model.message import assistant_message
from sessiond.model.record import RUN
from sessiond.runs.run import INTERRUPTED, Run
from sessiond.runs.transcript_sink import ReplySoFar
from sessiond.runtimes.runtime import RunOutcome
from sessiond.store.store import Custom, Message, Part


class RunEnd(msgspec.Struct, frozen=True, kw_only=True):
    """`reply_id` is the assistant record that is the reply; without one a non-empty reply is still to be written.

    `counted` says that messages of the run told their usage themselves, `by_reset` of an aborted run that its session
    began anew.
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


def end_of_turn(outcome: RunOutcome, said: ReplySoFar) -> RunEnd:
    """The end of a turn that the runtime lived to its end, having said `said` meanwhile.

    Without a reply of its own the last thing said is the reply. A reply that is something else is one more message.
    """
    reply = outcome.reply if outcome.reply is not None else said.text
    written = said.text is not None and reply is not None and reply.strip() in ("", said.text.strip())
    return RunEnd(
        status="ok" if outcome.error is None else "error",
        reply=(said.text if written else reply or "") if outcome.error is None else reply,
        error=outcome.error,
        reply_id=said.reply_id if written else None,
        usage=outcome.usage,
        model=outcome.model,
        notes=outcome.notes,
        counted=said.usage,
    )


def end_of(run: Run) -> RunEnd:
    """How a run ended, for a copy of its transcript that does not say so; without the reply, which is no part of it."""
    assert run.status != "queued"
    assert run.status != "running"
    return RunEnd(status=run.status, error=run.error, by_reset=run.by_reset)


def failed_end(error: str) -> RunEnd:
    return RunEnd(status="error", error=error)


def interrupted_end() -> RunEnd:
    """The daemon ended while the run was going on. Source: runs.md, "A run's life over a crash"."""
    return RunEnd(status="error", error=INTERRUPTED)


def transcript_lost_end(key: str) -> RunEnd:
    """Another program took the transcript away: nothing of the run is on record any more."""
    return RunEnd(status="error", error=f"the transcript of {key} was removed while the run was going on")


def aborted_end(*, by_reset: bool = False) -> RunEnd:
    return RunEnd(status="aborted", error="aborted", by_reset=by_reset)


def timeout_end(limit_s: float) -> RunEnd:
    return RunEnd(status="timeout", error=f"the run met its limit of {limit_s:g} s")


def parts(run: Run, end: RunEnd, now_ms: int, price: float | None) -> list[Part]:
    """The records of an end: the reply, where the runtime did not write it itself, and the end."""
    made: list[Part] = []
    data: dict[str, Any] = {"runId": run.run_id, "status": end.status, "at": now_ms}
    usage = None if end.counted else end.usage
    if end.error is not None:
        data["error"] = end.error
    if end.by_reset:
        # On record: a daemon killed in the middle of the reset finds a session that looks as if there had been none.
        data["reason"] = "reset"
    if end.reply_id is not None:
        data["replyId"] = end.reply_id
    elif end.reply:
        made.append(Message(assistant_message(end.reply, now_ms, provider="sessiond", model=end.model, usage=usage)))
        usage = None
        # Its id is made when it is written; it is the record right before this one.
        data["replyBefore"] = True
    elif end.reply is not None:
        data["reply"] = ""
    if usage is not None:
        # No message of the run carries it.
        data["usage"] = usage
        data |= {"model": end.model} if end.model is not None else {}
    if price is not None:
        data["estimatedCostUsd"] = price
    if end.notes:
        data["notes"] = list(end.notes)
    made.append(Custom(RUN, data))
    return made
