"""How a run ends, and the records that say so. Every run has exactly one end: ok, error, timeout or aborted.

Knows outcomes and records. Writes nothing itself.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from sessiond.model.message import assistant_message
from sessiond.model.record import RUN
from sessiond.runs.run import INTERRUPTED, Run
from sessiond.runs.runtime import Outcome
from sessiond.store.store import Custom, Message, Part


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """`reply_id` is the assistant record the runtime wrote; without one a non-empty reply is still to be written."""

    status: Literal["ok", "error", "timeout", "aborted"]
    reply: str | None = None
    error: str | None = None
    reply_id: str | None = None
    usage: dict[str, Any] | None = None
    model: str | None = None
    notes: tuple[str, ...] = ()


def of(outcome: Outcome, *, wrote_reply: str | None) -> Ending:
    """The end of a turn that the runtime lived to its end."""
    return Ending(
        status="ok" if outcome.error is None else "error",
        reply=outcome.reply or "" if outcome.error is None else outcome.reply,
        error=outcome.error,
        reply_id=wrote_reply,
        usage=outcome.usage,
        model=outcome.model,
        notes=outcome.notes,
    )


def failed(error: str) -> Ending:
    return Ending(status="error", error=error)


def interrupted() -> Ending:
    """The daemon ended while the run was going on. Source: runs.md."""
    return Ending(status="error", error=INTERRUPTED)


def aborted() -> Ending:
    return Ending(status="aborted", error="aborted")


def timed_out(limit_s: float) -> Ending:
    return Ending(status="timeout", error=f"the run met its limit of {limit_s:g} s")


def parts(run: Run, end: Ending, now_ms: int, price: float | None) -> list[Part]:
    """The records of an end: the reply, where the runtime did not write it itself, and the end."""
    made: list[Part] = []
    data: dict[str, Any] = {"runId": run.run_id, "status": end.status, "at": now_ms}
    if end.error is not None:
        data["error"] = end.error
    if end.reply_id is not None:
        data["replyId"] = end.reply_id
    elif end.reply:
        provider = "sessiond"
        made.append(Message(assistant_message(end.reply, now_ms, provider=provider, model=end.model, usage=end.usage)))
        # Its id is made when it is written; it is the record right before this one.
        data["replyBefore"] = True
    elif end.reply is not None:
        data["reply"] = ""
    if price is not None:
        data["estimatedCostUsd"] = price
    if end.notes:
        data["notes"] = list(end.notes)
    made.append(Custom(RUN, data))
    return made
