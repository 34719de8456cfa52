"""Records of questions: total readers, limits on both sides, and hostile text."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model import question as q
from sessiond.model.entry import MAX_CLOSED_QUESTIONS, MAX_QUESTION_REFS, Entry
from sessiond.model.fold import fold, ineffective_reason
from sessiond.model.record import ANSWER, QUESTION, custom_line, parse
from sessiond.model.row import state_of, waiting_of
from sessiond.model.title import UNSHOWN

NOW = 1_795_300_000_000
OPTION = {"id": "a", "label": "Allow", "kind": "allow_once"}
ASKED: dict[str, Any] = {"id": "0" * 16, "title": "May I?", "options": [OPTION], "askedAt": NOW}
ENTRY = Entry(session_id="s", session_key="agent:main:main")


def apply(entry: Entry, custom_type: str, data: Any, offset: int = 100) -> Entry:
    return fold(entry, parse(custom_line("r", None, NOW, custom_type, data).rstrip(b"\n")), offset, NOW)


def ask(entry: Entry, number: int, offset: int = 100, **more: Any) -> Entry:
    return apply(entry, QUESTION, {**ASKED, "id": f"{number:016x}", **more}, offset)


def close(entry: Entry, number: int, offset: int = 200, **more: Any) -> Entry:
    answer = {"questionId": f"{number:016x}", "outcome": "withdrawn", "at": NOW, **more}
    return apply(entry, ANSWER, answer, offset)


@check_each(
    ("change", "is_read"),
    [
        ({}, True),
        ({"id": "0" * 15}, False),
        ({"id": "0" * 15 + "G"}, False),
        ({"id": 7}, False),
        ({"title": "x" * 200}, True),
        ({"title": "x" * 201}, False),
        ({"title": "\u202e\x07"}, False),
        ({"title": None}, False),
        ({"detail": "x" * q.MAX_DETAIL_BYTES}, True),
        # What is not needed is left out where it cannot be used.
        ({"detail": "x" * (q.MAX_DETAIL_BYTES + 1)}, True),
        ({"detail": 7, "runId": "!", "expiresAt": -1, "kind": []}, True),
        ({"options": []}, False),
        ({"options": [{**OPTION, "id": str(number)} for number in range(16)]}, True),
        ({"options": [{**OPTION, "id": str(number)} for number in range(17)]}, False),
        ({"options": [OPTION, OPTION]}, False),
        ({"options": [{**OPTION, "id": "é" * 100}]}, True),
        ({"options": [{**OPTION, "id": "é" * 101}]}, False),
        ({"options": [{**OPTION, "id": ""}]}, False),
        ({"options": [{**OPTION, "label": "x" * 200}]}, True),
        ({"options": [{**OPTION, "label": "x" * 201}]}, False),
        ({"options": [{**OPTION, "kind": "allow"}]}, False),
        ({"askedAt": -1}, False),
        ({"askedAt": "now"}, False),
    ],
)
def test_a_record_is_read_if_it_keeps_the_limits(change: dict[str, Any], *, is_read: bool) -> None:
    data = {**ASKED, **change}
    found = q.read_question(msgspec.json.encode(data))
    assert (found is not None) is is_read
    entry = apply(ENTRY, QUESTION, data)
    assert (len(entry.questions) == 1) is is_read
    record = parse(custom_line("r", None, NOW, QUESTION, data).rstrip(b"\n"))
    assert (ineffective_reason(ENTRY, record) is None) is is_read


hostile = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["allow_once", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*ASKED, *OPTION]), inner, max_size=5),
    max_leaves=12,
)


@given(st.binary(max_size=60) | st.fixed_dictionaries({}, optional=dict.fromkeys([*ASKED, "detail"], hostile)))
def test_readers_and_fold_never_raise(data: Any) -> None:
    raw = data if isinstance(data, bytes) else msgspec.json.encode(data)
    for read in (q.read_question, q.read_answer):
        found = read(raw)
        assert found is None or read(msgspec.json.encode(q.record_data(found))) == found
    if not isinstance(data, bytes):
        for kind in (QUESTION, ANSWER):
            entry = apply(ENTRY, kind, {**ASKED, **data})
            assert len(entry.questions) <= 1
            assert state_of(entry) == ("waiting" if entry.questions else "idle")


words = st.text(st.characters(codec="utf-8"), max_size=300)


@given(words, words, st.lists(st.tuples(words, words, st.sampled_from(q.OPTION_KINDS)), max_size=20))
def test_what_a_program_says_is_made_to_fit_and_stays_readable(
    title: str, detail: str, options: list[tuple[str, str, q.OptionKind]]
) -> None:
    draft = q.compose_draft(title, [q.QuestionOption(*one) for one in options], detail=detail * 100)
    if draft is None:
        assert not q.clean_line(title, 200) or not any(q.is_option_id(one[0]) for one in options)
        return
    asked = q.Question(id="0" * 16, title=draft.title, detail=draft.detail, options=draft.options, asked_at=NOW)
    assert q.read_question(msgspec.json.encode(q.record_data(asked))) == asked
    assert q.clean_draft(draft) == draft
    shown = [draft.title, *(option.label for option in draft.options)]
    assert not any(UNSHOWN.search(text) or "\n" in text or len(text) > 200 for text in shown)
    assert all(shown)
    assert not UNSHOWN.search((draft.detail or "").replace("\n", ""))
    assert len((draft.detail or "").encode()) <= q.MAX_DETAIL_BYTES
    # Ids are given back to the agent as it wrote them.
    assert {option.id for option in draft.options} <= {one[0] for one in options}


@check_each(
    ("title", "detail", "shown"),
    [
        ("rm -rf build", "rm -rf build", None),
        ("`rm -rf build`", "rm -rf build\n\nrm -rf build\n", None),
        ("rm -rf build", "rm -rf build\n\nin /home", "rm -rf build\n\nin /home"),
        # What differs in a line break or in backticks is another command.
        ("echo a rm b", "echo a\nrm b", "echo a\nrm b"),
        ("rm b", "`rm b`", "`rm b`"),
        ("x" * 300, "x" * 300, "x" * 300),
    ],
)
def test_a_detail_that_only_repeats_the_title_is_left_out(title: str, detail: str, shown: str | None) -> None:
    draft = q.compose_draft(title, [q.QuestionOption("a", "b", "allow_once")], detail=detail)
    assert draft is not None and draft.detail == shown


def test_the_entry_has_the_open_questions_and_the_newest_that_ended() -> None:
    entry = ENTRY
    assert (state_of(entry), waiting_of(entry)) == ("idle", None)
    for number in range(3):
        entry = ask(entry, number, 100 + number, title=f"question {number}", askedAt=NOW + number)
    assert state_of(entry) == "waiting"
    waits = waiting_of(entry)
    assert waits is not None
    assert (waits.since, waits.questions, waits.title) == (NOW, 3, "question 0")
    assert ask(entry, 1, 900) == entry, "an id counts once"
    entry = close(entry, 0, 300)
    assert close(entry, 0, 400, outcome="answered", optionId="a") == entry, "the first end counts"
    assert close(entry, 77) == entry
    assert [ref.id[-1] for ref in entry.open_questions] == ["1", "2"]
    numbers = range(10, 10 + MAX_CLOSED_QUESTIONS + 5)
    for number in numbers:
        entry = ask(entry, number, 1000 + number)
    for number in reversed(numbers):
        entry = close(entry, number, 2000 - number)
    ended = [int(ref.id, 16) for ref in entry.questions if ref.closed is not None]
    assert ended == list(numbers)[:MAX_CLOSED_QUESTIONS], "those that ended first went"
    assert [ref.id[-1] for ref in entry.open_questions] == ["1", "2"]


def test_an_entry_has_at_most_so_many_open_questions() -> None:
    entry = ENTRY
    for number in range(MAX_QUESTION_REFS):
        entry = ask(entry, number, 100 + number)
    record = parse(custom_line("r", None, NOW, QUESTION, {**ASKED, "id": "f" * 16}).rstrip(b"\n"))
    assert "200 were open" in (ineffective_reason(entry, record) or "")
    assert ask(entry, MAX_QUESTION_REFS) == entry
    entry = close(entry, 5)
    assert len(ask(entry, MAX_QUESTION_REFS).open_questions) == MAX_QUESTION_REFS


def test_an_answer_of_a_policy_to_what_was_not_asked_closes_nothing() -> None:
    entry = ask(ENTRY, 1)
    policy = {"toolCallId": "t", "title": "x", "kind": "read", "outcome": "policy", "decision": "allow", "at": NOW}
    assert apply(entry, ANSWER, policy) == entry


def test_the_header_says_whose_session_it_attends_and_a_patch_says_whom_to_tell() -> None:
    header = {"type": "session", "id": "s", "sessionKey": "agent:main:x", "attends": "claude:abc"}
    entry = fold(ENTRY, parse(msgspec.json.encode(header)), 0, NOW)
    assert entry.attends == "claude:abc"
    for bad in ("agent:main:main", 7, None, "claude:../x"):
        assert fold(ENTRY, parse(msgspec.json.encode({**header, "attends": bad})), 0, NOW).attends is None
    told = apply(entry, "sessiond/entry", {"notify": True, "attends": "claude:other", "questions": []})
    assert (told.notify, told.attends) == (True, "claude:abc")
