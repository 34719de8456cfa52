"""A page of a session as text: its messages, and between them the ends of runs, markers, questions and answers."""

from __future__ import annotations

from sessiond.cli.terminal.escape import one_line
from sessiond.cli.terminal.message import paragraph
from sessiond.cli.terminal.page_order import FACT, MARKER, RUN_END, entries_in_order, has_reply
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
    shown: list[str] = []
    for entry in entries_in_order(page, facts):
        if entry.kind == MARKER:
            shown.append(_marker_line(entry.what, present_ms, on))
        elif entry.kind == RUN_END:
            shown += run_end_lines(entry.what, present_ms, on)
        elif entry.kind == FACT:
            shown += fact_lines(entry.what, present_ms, on)
        else:
            shown += paragraph(entry.what, entry.moment_ms, present_ms, on, beside=_file_names(entry.files))
    return shown


def fact_lines(fact: QuestionFact, present_ms: int, on: Screen) -> list[str]:
    return paragraph({"role": fact.who, "content": fact.text}, fact.moment_ms, present_ms, on)


def _marker_line(marker: dict[str, Any], present_ms: int, on: Screen) -> str:
    text = f"{clock(moment_in(marker.get('timestamp')), present_ms)} {MARKERS.get(marker['kind'], marker['kind'])}"
    return on.paint(text, "dim")


def _file_names(files: Sequence[dict[str, Any]]) -> list[str]:
    return [f"[attached: {one_line(str(file['name']))} ({size(file['bytes'])})]" for file in files]


def run_end_lines(run_end: dict[str, Any], present_ms: int, on: Screen) -> list[str]:
    """The end of a run without a reply, and what its agent had printed; empty for a run with a reply."""
    if has_reply(run_end):
        return []
    status, error = run_end["status"], run_end.get("error")
    if status == "error" and error != "interrupted":
        text = f"{RUN_ENDS[status]}: {error}" if error else RUN_ENDS[status]
    else:
        text = RUN_ENDS["interrupted" if status == "error" else status]
    if run_end.get("printed"):
        text += f"; it had printed:\n{run_end['printed'].rstrip()}"
    return paragraph({"role": "run", "content": text}, moment_in(run_end.get("endedAt")), present_ms, on)
