"""All that `history` shows of a session, as the text of a document, oldest first: messages, markers, ends of runs,
questions and answers.

The daemon gives pages newest first. Each is asked for while the one before is made into text.
"""

from __future__ import annotations

import itertools
import tempfile
import threading

from sessiond.cli.documents import contents
from sessiond.cli.frame.daemon import CALL_TIMEOUT_S
from sessiond.cli.frame.failures import CommandFailed
from sessiond.cli.frame.question_facts import question_facts
from sessiond.cli.terminal.message import moment_of
from sessiond.cli.terminal.page_order import (
    FACT,
    MARKER,
    MESSAGE,
    PageEntry,
    call_ids,
    entries_in_order,
)
from sessiond.cli.terminal.question import QuestionFact, take_facts
from sessiond.cli.terminal.times import clock
from sessiond.cli.terminal.transcript import MARKERS, RUN_ENDS
from sessiond.client.errors import ClientError, ConnectionLost
from sessiond.ranges import HISTORY_BYTES, HISTORY_LIMIT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, BinaryIO

    from sessiond.cli.documents.forms import Form
    from sessiond.client.blocking import Client

    Mask = Callable[[dict[str, Any]], dict[str, Any]]


def write_session(client: Client, session: str, form: Form, mask: Mask, out: BinaryIO) -> tuple[int, bool]:
    """Write the session into `out`; how many messages it has, and whether the daemon masked some.

    Each page is kept as text in a temporary file until the oldest is there.
    """
    facts = question_facts(client, session, session, mask)
    count, redacted, ends = 0, False, [0]
    with tempfile.TemporaryFile() as spool:
        for page, is_oldest in _pages_newest_first(client, session):
            asked = _facts_of_page(facts, page, is_oldest=is_oldest)
            calls = contents.names_of_calls(page["messages"])
            for entry in entries_in_order(page, asked):
                spool.write(encode(_text_of(entry, form, mask, calls)))
            ends.append(spool.tell())
            count, redacted = count + len(page["messages"]), redacted or bool(page.get("contentRedacted"))
        for begin, end in reversed(list(itertools.pairwise(ends))):
            spool.seek(begin)
            out.write(spool.read(end - begin))
    return count, redacted


def encode(text: str) -> bytes:
    """`text` for a file. A lone surrogate, which only JSON lines may still have, as its JSON escape."""
    return text.encode("utf-8", "backslashreplace")


def local_time(moment_ms: int | None) -> str:
    """The local date and time."""
    # With a present far away the date is always said.
    return "no time" if moment_ms is None else clock(moment_ms, moment_ms + 400 * 86_400_000)


def _text_of(entry: PageEntry, form: Form, mask: Mask, calls: Mapping[str, str]) -> str:
    what: Any = entry.what if entry.kind == FACT else mask(entry.what)  # the texts of facts are masked already
    files = [mask(file) for file in entry.files]
    if form.is_data:
        return form.line_of(entry, what, files)
    if entry.kind == MESSAGE:
        one = contents.message_entry(what, entry.moment_ms, files, calls)
    elif entry.kind == MARKER:
        one = contents.note_entry(MARKERS.get(what["kind"], what["kind"]), entry.moment_ms)
    elif entry.kind == FACT:
        one = contents.fact_entry(what.who, what.text, entry.moment_ms)
    else:
        one = contents.run_end_entry(what, RUN_ENDS, entry.moment_ms)
    return form.message(one, local_time(one.moment_ms))


def _pages_newest_first(client: Client, session: str) -> Iterator[tuple[dict[str, Any], bool]]:
    """Each page, and whether it is the oldest."""
    params = {"sessionKey": session, "limit": HISTORY_LIMIT.most, "maxBytes": HISTORY_BYTES.most}
    params |= {"includeTools": True, "includeRuns": True}
    coming = _CallAhead(client, params)
    while True:
        page = coming.result()
        is_oldest = not page["hasMore"] or not page.get("nextCursor")
        if not is_oldest:
            coming = _CallAhead(client, {**params, "cursor": page["nextCursor"]})
        yield page, is_oldest
        if is_oldest:
            return


class _CallAhead:
    """A page that is on its way."""

    def __init__(self, client: Client, params: dict[str, Any]) -> None:
        self._client, self._params = client, params
        self._page: dict[str, Any] = {}
        self._error: Exception | None = ConnectionLost("the next page did not come")
        # A daemon thread: Ctrl-C does not wait for it.
        self._thread = threading.Thread(target=self._call, daemon=True)
        self._thread.start()

    def result(self) -> dict[str, Any]:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._page

    def _call(self) -> None:
        try:
            self._page = self._client.call("sessions_history", self._params, timeout_s=CALL_TIMEOUT_S)
            self._error = None
        except (ClientError, CommandFailed) as error:
            self._error = error


def _facts_of_page(facts: list[QuestionFact], page: dict[str, Any], *, is_oldest: bool) -> list[QuestionFact]:
    """Those of `facts` that belong to a page, removed from there; pages come newest first."""
    if is_oldest or not facts or not page["messages"]:
        return take_facts(facts, None) if is_oldest else []
    first = moment_of(page["messages"][0], page["positions"][0])
    if first is None:
        return []
    older = take_facts(facts, first - 1)
    # A call is asked about before the message with it is written.
    calls = frozenset[str]().union(*map(call_ids, page["messages"]))
    taken = [fact for fact in older if fact.call_id in calls] + facts
    facts[:] = [fact for fact in older if fact.call_id not in calls]
    return taken
