"""Live output on a terminal: a last line that is redrawn, and a reply that is shown while it is written."""

from __future__ import annotations

import sys
import threading

from sessiond.cli.terminal.escape import escape, one_line
from sessiond.cli.terminal.question import question_lines
from sessiond.cli.terminal.screen import Screen, clip, columns_of, screen_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from sessiond.client.wire import Event

CLEAR = "\r\x1b[K"
# Only the end of a text is drawn; this is longer than a line of any terminal.
MAX_TAIL_CHARS = 1000
# How long to wait for the last deltas of a run, which come on another connection than its end.
LAST_WORDS_S = 2.0


class LiveLine:
    """Draws the text of replies being written in the last line of the terminal. Draws nothing elsewhere."""

    def __init__(self, on: Screen) -> None:
        self._width = on.width if on.width is not None and sys.stdout.isatty() else None
        self._texts: dict[str, str] = {}
        self._drawn = False

    def take(self, event: Event, head: str) -> None:
        """Draw `head` and what the run of a `session.delta` has written so far."""
        if self._width is None:
            return
        run = str(event.get("runId"))
        text = self._texts[run] = (self._texts.get(run, "") + str(event.get("text", "")))[-MAX_TAIL_CHARS:]
        room = max(self._width - columns_of(head) - 1, 10)
        sys.stdout.write(CLEAR + head + _end_of(one_line(text.strip()), room))
        sys.stdout.flush()
        self._drawn = True

    def clear(self, *, forget: bool = False) -> None:
        """Remove the line, before other output. With `forget` drop the text so far, because it is a message now."""
        if forget:
            self._texts.clear()
        if self._drawn:
            sys.stdout.write(CLEAR)
            self._drawn = False


class StreamedReply:
    """The reply of one run on stdout, as it comes. One thread passes in events, another calls `end`.

    The id of the run may be known only after its first delta, so deltas before `begin` are kept.
    """

    def __init__(self, *, last_words_s: float = LAST_WORDS_S) -> None:
        self._last_words_s = last_words_s
        self._news = threading.Condition()  # guards the attributes below
        self._run_id: str | None = None
        self._early: list[Event] = []
        self._text = ""
        self._over = False
        self._message_came = False
        self._asked: set[str] = set()  # ids of the questions that were shown

    def say_before(self, text: str) -> None:
        """Write to stderr, unless some of the reply is on the terminal already."""
        with self._news:
            if not self._text:
                sys.stderr.write(text)
                sys.stderr.flush()

    def begin(self, run_id: str) -> None:
        """Show the reply of this run."""
        with self._news:
            self._run_id = run_id
            early, self._early = self._early, []
            for event in early:
                self._show(event)

    def take(self, event: Event) -> None:
        """Handle an event of the session."""
        with self._news:
            if self._run_id is None:
                self._early.append(event)
            else:
                self._show(event)
            self._news.notify_all()

    def show_open(self, question: dict[str, Any]) -> None:
        """Show a question of the session that was open already: the run may have to wait for its answer."""
        with self._news:
            if not self._over:
                self._show_question(question)

    def end(self, reply: str | None) -> bool:
        """Stop showing, and end the line; whether exactly this reply is on the terminal."""
        with self._news:
            wanted = (reply or "").strip()
            if self._text and wanted:
                self._news.wait_for(lambda: self._text.strip() == wanted, self._last_words_s)
            self._over = True
            self._end_line()
            return bool(wanted) and self._text.strip() == wanted

    def _show(self, event: Event) -> None:
        if event.name == "session.message" and event["message"].get("role") == "assistant":
            self._message_came = True
        if event.name == "question.asked" and not self._over and event["question"].get("runId") == self._run_id:
            self._show_question(event["question"])
        if self._over or event.name != "session.delta" or event.get("runId") != self._run_id:
            return
        if self._message_came:  # the text so far was an earlier message; the reply is the last one
            self._end_line()
            self._text, self._message_came = "", False
        text = str(event.get("text", ""))
        if text and not self._text:
            sys.stderr.write(CLEAR)  # removes the line of progress
            sys.stderr.flush()
        self._text += text
        sys.stdout.write(escape(text, lines=True))
        sys.stdout.flush()

    def _show_question(self, question: dict[str, Any]) -> None:
        """Show what is asked: whoever is asked may be the very person who waits for the reply."""
        if question["id"] in self._asked:
            return
        self._asked.add(question["id"])
        above = "\n" if self._text and not self._text.endswith("\n") else CLEAR
        lines = question_lines(question, screen_of(sys.stderr))
        # The reply alone is on standard output.
        sys.stderr.write(above + "".join(f"{line}\n" for line in lines))
        sys.stderr.flush()

    def _end_line(self) -> None:
        if self._text and not self._text.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()


def _end_of(text: str, width: int) -> str:
    """The end of a text in at most `width` columns."""
    if columns_of(text) <= width:
        return text
    kept = text[-width + 1 :]
    while columns_of(kept) > width - 1:
        kept = kept[1:]
    return clip("…" + kept, width)
