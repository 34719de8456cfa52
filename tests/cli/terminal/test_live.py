"""A reply that is shown while it is generated: once, and the caller learns whether all of it was."""

from __future__ import annotations

import pytest
from support.rows import check_each

from sessiond.cli.terminal.live import CLEAR, StreamedReply
from sessiond.client.wire import Event


def delta(text: str, run_id: str = "r1") -> Event:
    return Event("session.delta", {"runId": run_id, "text": text})


def message(role: str) -> Event:
    return Event("session.message", {"message": {"role": role, "content": "x"}})


@check_each(
    ("events", "reply", "shown", "is_shown"),
    [
        ([], "all", "", False),
        ([delta("a"), delta("ll\n")], "all", "all\n", True),
        ([delta("a"), delta("ll")], "all", "all\n", True),
        ([delta("other", "r2"), delta("all")], "all", "all\n", True),
        ([message("user"), delta("all"), message("assistant")], "all", "all\n", True),
        ([delta("first"), message("assistant"), delta("all")], "all", "first\nall\n", True),
        ([delta("\x1b[2Jall")], "\x1b[2Jall", "\\x1b[2Jall\n", True),
        ([delta("l")], "all", "l\n", False),
        ([delta("all")], None, "all\n", False),
        ([delta("all")], "", "all\n", False),
    ],
)
def test_a_reply_is_shown_while_it_is_generated(
    capsys: pytest.CaptureFixture[str],
    events: list[Event],
    reply: str | None,
    shown: str,
    is_shown: bool,
) -> None:
    for early in range(len(events) + 1):
        stream = StreamedReply(last_words_s=0)
        for event in events[:early]:
            stream.take(event)
        stream.begin("r1")
        for event in events[early:]:
            stream.take(event)
        assert stream.end(reply) is is_shown
        stream.take(delta("late"))
        out, err = capsys.readouterr()
        assert (out, err) == (shown, CLEAR * min(1, shown.count("\n")) if "first" not in shown else CLEAR * 2)


def test_what_the_run_asks_is_shown_with_the_lines_that_answer(capsys: pytest.CaptureFixture[str]) -> None:
    options = [{"id": "yes", "label": "Allow", "kind": "allow_once"}]

    def asked(run_id: str) -> Event:
        question = {"id": "1a2b3c4d5e6f7a8b", "runId": run_id, "title": "Run it?\x1b[2J", "options": options}
        return Event("question.asked", {"question": question})

    shown = "  ? Run it?\\x1b[2J\n  - Allow (allow once)\n      sessiond answer 1a2b3c4d yes\n"
    for early in range(3):
        stream = StreamedReply(last_words_s=0)
        events = [asked("r2"), asked("r1")]
        for event in events[:early]:
            stream.take(event)
        stream.begin("r1")
        for event in events[early:]:
            stream.take(event)
        stream.take(delta("all"))
        assert stream.end("all")
        stream.take(asked("r1"))
        assert capsys.readouterr() == ("all\n", CLEAR + shown + CLEAR)
    stream = StreamedReply(last_words_s=0)
    stream.show_open(asked("r0")["question"])  # of the run before it
    stream.show_open(asked("r0")["question"])
    stream.begin("r1")
    assert capsys.readouterr() == ("", CLEAR + shown)
