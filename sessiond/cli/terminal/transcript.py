"""A page of a session as text: its messages, and between them the ends of runs, markers, questions and answers."""

from __future__ import annotations

from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.message import moment_of, paragraph
from sessiond.cli.terminal.question import take_facts
from sessiond.cli.terminal.screen import Screen
from sessiond.cli.terminal.times import clock, moment_in, size

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from sessiond.cli.terminal.question import QuestionFact

RUN_ENDS = {
    "ok": "done, without a reply",
    "error": "failed",
    "interrupted": "was interrupted: the daemon stopped",
    "timeout": "met its time limit",
    "aborted": "was aborted",
}

MARKERS = {
    "compaction": "— what was said before was summed up —",
    "rewind": "— the conversation went back here —",
}


def page_lines(page: dict[str, Any], present_ms: int, on: Screen, facts: Sequence[QuestionFact] = ()) -> list[str]:
    """The messages of a page, oldest first, and between them the ends of runs without a reply and what was asked."""
    left = list(facts)
    ends = list(page.get("runs") or ())
    markers = list(page.get("markers") or ())
    files = {one["seq"]: one["files"] for one in page.get("attachments") or ()}
    shown = []
    for message, place in zip(page["messages"], page["positions"], strict=True):
        while markers and markers[0]["seq"] <= place["seq"]:
            shown.append(_marker_line(markers.pop(0), present_ms, on))
        while ends and ends[0]["seq"] < place["seq"]:
            shown += run_end_lines(ends.pop(0), present_ms, on)
        moment = moment_of(message, place)
        facts_now = [] if moment is None else take_facts(left, moment)
        # A message is written when it is whole, which may be after the question about a call in it was asked.
        call_ids = _call_ids(message)
        before = [fact for fact in facts_now if fact.call_id not in call_ids]
        shown += [line for fact in before for line in fact_lines(fact, present_ms, on)]
        shown += paragraph(message, moment, present_ms, on, beside=_file_names(files.get(place["seq"]) or ()))
        about = [fact for fact in facts_now if fact.call_id in call_ids]
        shown += [line for fact in about for line in fact_lines(fact, present_ms, on)]
    shown += [_marker_line(marker, present_ms, on) for marker in markers]
    for run_end in ends:
        shown += run_end_lines(run_end, present_ms, on)
    return [*shown, *(line for fact in left for line in fact_lines(fact, present_ms, on))]


def fact_lines(fact: QuestionFact, present_ms: int, on: Screen) -> list[str]:
    return paragraph({"role": fact.who, "content": fact.text}, fact.moment_ms, present_ms, on)


def _call_ids(message: dict[str, Any]) -> set[object]:
    """The ids of the tool calls in a message."""
    content = message.get("content")
    blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    return {one["id"] for one in blocks if one.get("type") == "toolCall" and isinstance(one.get("id"), str)}


def _marker_line(marker: dict[str, Any], present_ms: int, on: Screen) -> str:
    text = f"{clock(moment_in(marker.get('timestamp')), present_ms)} {MARKERS.get(marker['kind'], marker['kind'])}"
    return on.paint(text, "dim")


def _file_names(files: Sequence[dict[str, Any]]) -> list[str]:
    return [f"[attached: {one_line(str(file['name']))} ({size(file['bytes'])})]" for file in files]


def run_end_lines(run_end: dict[str, Any], present_ms: int, on: Screen) -> list[str]:
    """The end of a run without a reply, and what its agent had printed; empty for a run with a reply."""
    status, error = run_end["status"], run_end.get("error")
    if status == "ok" and run_end["replied"]:
        return []
    if status == "error" and error != "interrupted":
        text = f"{RUN_ENDS[status]}: {error}" if error else RUN_ENDS[status]
    else:
        text = RUN_ENDS["interrupted" if status == "error" else status]
    if run_end.get("printed"):
        text += f"; it had printed:\n{run_end['printed'].rstrip()}"
    return paragraph({"role": "run", "content": text}, moment_in(run_end.get("endedAt")), present_ms, on)
