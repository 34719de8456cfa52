"""The order in which a page of a session is shown: its messages, and between them what else happened.

One order for everything that shows a page: `history` on a terminal, and each form of `export`.
"""

from __future__ import annotations

from sessiond.cli.terminal.message import moment_of
from sessiond.cli.terminal.question import take_facts
from sessiond.cli.terminal.times import moment_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Any

    from sessiond.cli.terminal.question import QuestionFact

MESSAGE, MARKER, RUN_END, FACT = "message", "marker", "runEnd", "fact"


class PageEntry:
    """One thing that is shown: `what` is a message, a marker, the end of a run (as the daemon has them) or a
    QuestionFact. A message has its `place` and the `files` that came with it.
    """

    def __init__(
        self,
        kind: str,
        what: Any,
        moment_ms: int | None,
        place: dict[str, Any] | None = None,
        files: Sequence[dict[str, Any]] = (),
    ) -> None:
        self.kind, self.what, self.moment_ms, self.place, self.files = kind, what, moment_ms, place or {}, files


def entries_in_order(page: dict[str, Any], facts: Sequence[QuestionFact]) -> Iterator[PageEntry]:
    """All that a page shows, oldest first: messages, markers, ends of runs without a reply, and what was asked."""
    left = list(facts)
    ends = [end for end in page.get("runs") or () if not has_reply(end)]
    markers = list(page.get("markers") or ())
    files = {one["seq"]: one["files"] for one in page.get("attachments") or ()}
    for message, place in zip(page["messages"], page["positions"], strict=True):
        seq = place["seq"]
        while markers and markers[0]["seq"] <= seq:
            yield _marker(markers.pop(0))
        while ends and ends[0]["seq"] < seq:
            yield _run_end(ends.pop(0))
        moment = moment_of(message, place)
        facts_now = take_facts(left, moment) if left and moment is not None else []
        # A message is written when it is whole, which may be after the question about a call in it was asked.
        calls = call_ids(message) if facts_now else frozenset()
        yield from (_fact(fact) for fact in facts_now if fact.call_id not in calls)
        yield PageEntry(MESSAGE, message, moment, place, files.get(seq) or ())
        yield from (_fact(fact) for fact in facts_now if fact.call_id in calls)
    yield from map(_marker, markers)
    yield from map(_run_end, ends)
    yield from map(_fact, left)


def has_reply(run_end: dict[str, Any]) -> bool:
    """Whether a message says how the run ended, so that nothing else has to."""
    return run_end["status"] == "ok" and bool(run_end["replied"])


def call_ids(message: dict[str, Any]) -> frozenset[str]:
    """The ids of the tool calls in a message."""
    content = message.get("content")
    blocks = [one for one in content if isinstance(one, dict)] if isinstance(content, list) else []
    return frozenset(one["id"] for one in blocks if one.get("type") == "toolCall" and isinstance(one.get("id"), str))


def _marker(marker: dict[str, Any]) -> PageEntry:
    return PageEntry(MARKER, marker, moment_in(marker.get("timestamp")))


def _run_end(run_end: dict[str, Any]) -> PageEntry:
    return PageEntry(RUN_END, run_end, moment_in(run_end.get("endedAt")))


def _fact(fact: QuestionFact) -> PageEntry:
    return PageEntry(FACT, fact, fact.moment_ms)
