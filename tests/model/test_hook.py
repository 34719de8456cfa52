"""What hooks say of a session: read whatever it is, and the state that follows from it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model.entry import Entry, HookFact, QuestionRef
from sessiond.model.fold import ineffective_reason
from sessiond.model.hook import EVENTS, LIVE_MS, attended_state, fold_hook, is_live
from sessiond.model.record import HOOK, custom_line, parse

EMPTY = Entry(session_id="s", attends="claude:x")


def after(event: str, *, at: int = 1000, offset: int = 100, questions: tuple[QuestionRef, ...] = ()) -> Entry:
    return Entry(session_id="s", hook=HookFact(event, at, offset), questions=questions)


def asked(closed: int | None) -> QuestionRef:
    return QuestionRef(id="0" * 16, offset=50, asked_at=900, title="?", closed=closed)


@check_each(
    ("entry", "heard_at", "now", "state"),
    [
        (EMPTY, 0, 2000, "idle"),
        (after("SessionStart"), 0, 2000, "idle"),
        (after("SessionEnd"), 0, 2000, "idle"),
        (after("UserPromptSubmit"), 0, 2000, "running"),
        (after("PermissionRequest"), 0, 2000, "running"),
        (after("Stop"), 0, 2000, "done"),
        (after("Notification"), 1000, 2000, "waiting"),
        (after("Notification"), 1001, 2000, "running"),
        (after("Notification", questions=(asked(99),)), 1000, 2000, "waiting"),
        (after("Notification", questions=(asked(101),)), 1000, 2000, "running"),
        (after("SessionEnd", questions=(asked(None),)), 1000, 2000, "waiting"),
        (after("Stop"), 0, 999 + LIVE_MS, "done"),
        (after("Stop"), 0, 1000 + LIVE_MS, "idle"),
    ],
)
def test_the_state_of_an_attended_session(entry: Entry, heard_at: int, now: int, state: str) -> None:
    assert attended_state(entry, heard_at, now) == state


@check_each(
    ("event", "heard_at", "since", "state"),
    [
        ("UserPromptSubmit", 0, 1000, "running"),
        ("UserPromptSubmit", 1000, 1001, "idle"),
        ("UserPromptSubmit", 1001, 1001, "running"),
        ("PermissionRequest", 0, 1001, "idle"),
        ("Notification", 1000, 2000, "waiting"),
        ("Notification", 1001, 2000, "idle"),
        ("Notification", 2000, 2000, "running"),
        ("Stop", 0, 1001, "done"),
    ],
)
def test_a_turn_of_before_the_start_counts_as_over_until_something_is_heard(
    event: str, heard_at: int, since: int, state: str
) -> None:
    assert attended_state(after(event), heard_at, 3000, listening_since_ms=since) == state


@check_each("event", sorted(EVENTS))
def test_a_session_is_live_until_its_end_or_twelve_hours_of_silence(event: str) -> None:
    ended = event == "SessionEnd"
    assert is_live(after(event), 1000) is not ended
    assert is_live(after(event), 999 + LIVE_MS) is not ended
    assert not is_live(after(event), 1000 + LIVE_MS)
    assert not is_live(EMPTY, 0)


_note = st.fixed_dictionaries(
    {}, optional={"event": st.sampled_from(sorted(EVENTS)) | st.text(), "at": st.integers() | st.floats() | st.text()}
)


@given(_note | st.none() | st.lists(st.integers()))
@example({"event": "Stop", "at": -1})
@example({"event": "Stop", "at": 10**30})
@example({"event": ["Stop"], "at": 1})
def test_any_record_of_a_hook_is_used_or_named_as_useless(data: Any) -> None:
    line = custom_line("0" * 16, None, 0, HOOK, {})
    record = parse(json.dumps({**json.loads(line), "data": data}).encode())
    folded = fold_hook(EMPTY, record.data, 7)
    assert (ineffective_reason(EMPTY, record) is None) == (folded is not EMPTY)
    if folded is not EMPTY:
        assert folded.hook is not None and folded.hook.event in EVENTS
