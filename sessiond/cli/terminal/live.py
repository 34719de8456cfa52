"""On a terminal: a last line that is drawn over and over, and a reply that is shown while it comes."""

from __future__ import annotations

import sys
import threading

from sessiond.cli.terminal.escape import escape, one_line
from sessiond.cli.terminal.screen import Screen, clip, columns_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sessiond.client.wire import Event

CLEAR = "\r\x1b[K"
# Only the end of a text is drawn; this is more than a line of any terminal.
MAX_TAIL_CHARS = 1000
# The last deltas of a run come on another connection than its end; they are waited for this long.
LAST_WORDS_S = 2.0


class LiveLine:
    """The text of running replies in the last line of the terminal; on anything else nothing is drawn."""

    def __init__(self, on: Screen) -> None:
        self._width = on.width if on.width is not None and sys.stdout.isatty() else None
        self._texts: dict[str, str] = {}
        self._drawn = False

    def take(self, event: Event, head: str) -> None:
        """Draw what the run of a `session.delta` has written, behind `head`."""
        if self._width is None:
            return
        run = str(event.get("runId"))
        text = self._texts[run] = (self._texts.get(run, "") + str(event.get("text", "")))[-MAX_TAIL_CHARS:]
        room = max(self._width - columns_of(head) - 1, 10)
        sys.stdout.write(CLEAR + head + _end_of(one_line(text.strip()), room))
        sys.stdout.flush()
        self._drawn = True

    def clear(self, *, forget: bool = False) -> None:
        """Make room for what stays; `forget` what was written so far, which is a message now."""
        if forget:
            self._texts.clear()
        if self._drawn:
            sys.stdout.write(CLEAR)
            self._drawn = False


class StreamedReply:
    """The reply of one run on stdout, as it comes. Fed by another thread than the one that ends it.

    Whose run it is may be known only after its first words: what comes before `begin` is kept.
    """

    def __init__(self, *, last_words_s: float = LAST_WORDS_S) -> None:
        self._last_words_s = last_words_s
        self._news = threading.Condition()  # guards what follows
        self._run_id: str | None = None
        self._early: list[Event] = []
        self._text = ""
        self._over = False
        self._message_came = False

    def say_before(self, text: str) -> None:
        """Write to stderr, as long as nothing of the reply is on the terminal."""
        with self._news:
            if not self._text:
                sys.stderr.write(text)
                sys.stderr.flush()

    def begin(self, run_id: str) -> None:
        """It is the reply of this run."""
        with self._news:
            self._run_id = run_id
            early, self._early = self._early, []
            for event in early:
                self._show(event)

    def take(self, event: Event) -> None:
        """An event of the session."""
        with self._news:
            if self._run_id is None:
                self._early.append(event)
            else:
                self._show(event)
            self._news.notify_all()

    def end(self, reply: str | None) -> bool:
        """No more is shown; whether this very reply is on the terminal. Ends the line of what is."""
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
        if self._over or event.name != "session.delta" or event.get("runId") != self._run_id:
            return
        if self._message_came:  # the text so far was a message of its own; the last one is the reply
            self._end_line()
            self._text, self._message_came = "", False
        text = str(event.get("text", ""))
        if text and not self._text:
            sys.stderr.write(CLEAR)  # removes the line of progress
            sys.stderr.flush()
        self._text += text
        sys.stdout.write(escape(text, lines=True))
        sys.stdout.flush()

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
