"""The dialect of opencode, over events that opencode 1.18.33 wrote and made-up ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.opencode_database import event_line, lines_of_session, make_database, session_titled
from support.rows import check_each
from support.source_files import describe_message, fold_lines

from sessiond.model.dialects import DIALECTS
from sessiond.model.dialects.opencode import parse
from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import begin_foreign
from sessiond.model.line_facts import CHOSEN
from sessiond.model.record import BadLine
from sessiond.model.source_facts import SourceFacts
from sessiond.store import folding
from sessiond.store.listing import MessageListing

OPENCODE = DIALECTS["opencode"]
LIMIT = 2**20
TOOL_TURN = [
    "user: please RUN echo forty-two",
    """assistant: (I shall run it.) | Let me look. | bash{"command":"echo forty-two","description":"run it"}""",
    "toolResult: forty-two",
    "assistant: The command printed: forty-two",
]


def lines_titled(title: str) -> list[bytes]:
    connection = make_database()
    try:
        return lines_of_session(connection, session_titled(connection, title))
    finally:
        connection.close()


def part(part_id: str, message_id: str, role: str, **fields: Any) -> bytes:
    body = {"id": part_id, "messageID": message_id, **fields}
    return event_line(1, "message.part.updated.1", {"part": body}, role)


def write(path: Path, lines: list[bytes]) -> int:
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return os.open(path, os.O_RDONLY)


def shown_in(path: Path, lines: list[bytes]) -> list[str]:
    fd = write(path, lines)
    try:
        listing = MessageListing(fd, os.fstat(fd).st_size, LIMIT, OPENCODE)
        found = [listing.read(number + 1).record for number in range(len(listing.messages))]
    finally:
        os.close(fd)
    return [describe_message(record.message if record is not None else None) for record in found]


@check_each(
    ("title", "shown"),
    [
        (
            "Answer 1 to: please RUN echo forty-two (fork",
            [*TOOL_TURN, "user: and again", "assistant: Answer 2 to: and again"],
        ),
        ("count birds", TOOL_TURN),
        ("Birds in the yard", ["user: please HANG now"]),
    ],
)
def test_the_messages_of_sessions_that_the_program_recorded(tmp_path, title, shown):
    lines = lines_titled(title)
    assert shown_in(tmp_path / "lines", lines)[: len(shown)] == shown
    entry, records = fold_lines(OPENCODE, lines)
    assert entry.message_count == len(shown_in(tmp_path / "lines", lines))
    assert entry.source is not None and entry.source.unknown == {}
    assert any(record.is_typed for record in records)
    assert all(record.timestamp_ms for record in records if record.message is not None)


def test_the_entry_of_a_session_and_of_its_sub_agent():
    entry, _ = fold_lines(OPENCODE, lines_titled("count birds"))
    parent = fold_lines(OPENCODE, lines_titled("Let me look."))[1][0].facts
    assert parent is not None
    assert (entry.spawned_by, entry.cwd) == (f"opencode:{parent.native_id}", "/workspace")
    source = entry.source
    assert source is not None and (source.title, source.title_rank) == ("count birds (@general subagent)", CHOSEN)
    assert (entry.model, entry.model_provider) == ("claude-sonnet-4-5", "anthropic")
    # Two answers, each told several times.
    assert (entry.input_tokens, entry.output_tokens, entry.cache_read, entry.total_tokens) == (120, 14, 80, 107)
    assert entry.estimated_cost_usd == pytest.approx(0.000594)


def test_a_title_that_only_says_the_time_is_none():
    for title in ("New session - 2026-11-22T15:48:19.719Z", "Child session - 2026-11-22T15:48:19.719Z"):
        facts = parse(event_line(0, "session.created.1", {"info": {"id": "ses_1", "title": title}})).facts
        assert facts is not None and facts.title is None


def test_each_step_has_the_whole_message_under_its_number(tmp_path):
    lines = lines_titled("count birds")
    shown: list[str] = []
    entry: Entry = begin_foreign(SourceFacts(name="opencode"), "ses_1")
    path = tmp_path / "lines"
    fd = write(path, [])
    try:
        for count in range(1, len(lines) + 1):
            path.write_bytes(b"".join(line + b"\n" for line in lines[:count]))
            got = folding.advance_open(fd, entry, LIMIT, dialect=OPENCODE)
            entry = got.entry
            assert not got.rewritten
            for step in got.steps:
                if step.line.record is not None and step.line.record.message is not None:
                    number = step.part_of or step.seq
                    shown[number - 1 : number] = [describe_message(step.line.record.message)]
            assert len(shown) == entry.message_count
    finally:
        os.close(fd)
    assert shown == TOOL_TURN == shown_in(path, lines)


def test_parts_keep_their_order_and_the_newest_form_of_each_counts(tmp_path):
    info = {"id": "m", "role": "assistant", "modelID": "x", "providerID": "p", "finish": "stop", "cost": 0.5}
    tokens = {"input": 5, "output": 2, "reasoning": 1, "cache": {"read": 3, "write": 4}}
    lines = [
        event_line(0, "message.updated.1", {"info": {**info, "finish": None, "cost": 0}}),
        part("p1", "m", "assistant", type="step-start"),
        part("p2", "m", "assistant", type="reasoning", text=""),
        part("p2", "m", "assistant", type="reasoning", text="hm"),
        part("p3", "m", "assistant", type="text", text="one"),
        part("p2", "m", "assistant", type="reasoning", text="hm, yes"),
        event_line(6, "message.updated.1", {"info": {**info, "tokens": tokens}}),
        part("p4", "m", "assistant", type="text", text="two"),
    ]
    assert shown_in(tmp_path / "lines", lines) == ["assistant: (hm, yes) | one | two"]
    fd = write(tmp_path / "lines", lines)
    record = MessageListing(fd, os.fstat(fd).st_size, LIMIT, OPENCODE).read(1).record
    os.close(fd)
    assert record is not None
    message = msgspec.json.decode(record.message or b"")
    assert (message["model"], message["stopReason"], message["usage"]["output"]) == ("x", "stop", 3)
    entry, _ = fold_lines(OPENCODE, lines)
    assert (entry.message_count, entry.input_tokens, entry.cache_write, entry.estimated_cost_usd) == (1, 5, 4, 0.5)


def test_what_is_removed_goes_with_all_behind_it_and_what_was_never_shown_changes_nothing(tmp_path):
    lines = [part(f"p{key}", key, "user", type="text", text=key) for key in "abc"]
    gone = event_line(9, "message.removed.1", {"sessionID": "s", "messageID": "b"})
    assert shown_in(tmp_path / "lines", [*lines, gone, gone]) == ["user: a"]


@check_each(
    ("role", "fields", "shown", "is_typed"),
    [
        ("user", {"type": "text", "text": "hello"}, "user: hello", True),
        ("user", {"type": "text", "text": "a file's content", "synthetic": True}, None, False),
        ("user", {"type": "text", "text": "x", "ignored": True}, None, False),
        ("user", {"type": "file", "mime": "image/png", "url": "data:image/png;base64,AA=="}, "user: <image>", False),
        ("user", {"type": "file", "mime": "text/plain", "url": "file:///x"}, None, False),
        ("assistant", {"type": "patch", "files": []}, None, False),
        ("assistant", {"type": "tool", "callID": "c", "tool": "ls", "state": 5}, "assistant: ls{}", False),
        ("assistant", {"type": "tool", "callID": "c", "tool": "ls", "state": {"status": "pending"}}, None, False),
        (None, {"type": "text", "text": "whose?"}, None, False),
    ],
)
def test_which_parts_are_shown(role, fields, shown, is_typed):
    record = parse(part("p", "m", role, **fields))
    assert (describe_message(record.message) if record.message is not None else None) == shown
    assert record.is_typed == is_typed


def test_an_abort_a_failed_tool_a_compaction_and_an_unknown_type():
    error = {"name": "MessageAbortedError", "data": {}}
    record = parse(event_line(0, "message.updated.1", {"info": {"id": "m", "role": "assistant", "error": error}}))
    assert msgspec.json.decode(record.message or b"")["stopReason"] == "aborted"
    state = {"status": "error", "input": {}, "error": "no such file", "time": {"start": 1, "end": 2}}
    record = parse(part("p", "m", "assistant", type="tool", callID="c", tool="cat", state=state))
    (result,) = record.more
    assert (describe_message(result.message), result.timestamp_ms) == ("toolResult: no such file", 2)
    assert msgspec.json.decode(result.message or b"")["isError"] is True
    assert parse(part("p", "m", "user", type="compaction", auto=False)).marker == "compaction"
    facts = parse(event_line(0, "session.dreamt.1", {})).facts
    assert facts is not None and facts.unknown_type == "session.dreamt.1"
    with pytest.raises(BadLine):
        parse(b"{")
