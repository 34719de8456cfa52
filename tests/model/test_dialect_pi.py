"""The dialect of pi, over session files that pi wrote and lines of older versions."""

from __future__ import annotations

import json

from support.rows import check_each
from support.source_files import describe_message, fold_lines, golden_lines

from sessiond.model.dialects import DIALECTS
from sessiond.model.dialects.pi import native_id_in, parse

PI = DIALECTS["pi"]
HEAD = {"id": "a1b2c3d4", "parentId": None, "timestamp": "2026-11-22T15:00:00.000Z"}
SHOWN = [
    "user: please RUN echo forty-two",
    """assistant: (I shall run it.) | Let me look. | bash{"command":"echo forty-two","description":"run it"}""",
    "toolResult: forty-two",
    "assistant: The command printed: forty-two",
    "bashExecution: by-hand",
    "user: please HANG now",
    "assistant: Answer 3 to: p",
    "user: and again",
    "assistant: Answer 4 to: and again",
    "user: after the compaction",
    "assistant: Answer 2 to: after the compaction",
    "user: on the other branch",
    "assistant: Answer 5 to: on the other branch",
]


def line(**fields: object) -> bytes:
    return json.dumps({**HEAD, **fields}).encode()


def test_what_was_said_is_shown_and_what_pi_added_is_not():
    entry, records = fold_lines(PI, golden_lines("pi/session.jsonl"))
    assert [describe_message(record.message) for record in records if record.message is not None] == SHOWN
    assert entry.message_count == len(SHOWN)
    (hidden,) = [record for record in records if record.hidden is not None]
    assert json.loads(hidden.hidden or b"")["role"] == "system" and hidden.message is None
    assert [record.marker for record in records if record.marker is not None] == ["compaction", "rewind"]
    assert all(record.is_typed == (record.role == "user") for record in records)


def test_the_entry_of_a_session_that_pi_wrote():
    entry, records = fold_lines(PI, golden_lines("pi/session.jsonl"))
    source = entry.source
    assert source is not None
    assert (source.title, source.forked_from, source.markers, source.unknown) == ("Birds in the yard", None, 2, {})
    assert (entry.cwd, entry.model, entry.model_provider) == ("/workspace", "claude-sonnet-4-5", "anthropic")
    # Six answers, one of which was broken off, and the summaries of the compaction and of the branch.
    usages = [record.facts.usage for record in records if record.facts is not None and record.facts.usage is not None]
    assert len(usages) == 8
    assert entry.input_tokens == sum(usage.input for usage in usages)
    assert entry.output_tokens == sum(usage.output for usage in usages)


def test_a_fork_names_the_session_that_it_was_copied_from():
    (original, *_), (fork, *lines) = golden_lines("pi/session.jsonl"), golden_lines("pi/fork.jsonl")
    entry, _ = fold_lines(PI, [fork, *lines])
    native_id = json.loads(original)["id"]
    assert entry.source is not None and entry.source.forked_from == native_id
    facts = parse(fork).facts
    assert facts is not None and facts.native_id == json.loads(fork)["id"] != native_id
    assert entry.source.title == "please RUN echo forty-two"


def test_copied_answers_have_the_usage_ids_of_the_original():
    def usage_ids(path: str) -> set[str | None]:
        records = [parse(one) for one in golden_lines(path)]
        return {record.facts.usage_id for record in records if record.facts is not None and record.facts.usage}

    assert len(usage_ids("pi/session.jsonl") & usage_ids("pi/fork.jsonl")) == 2


@check_each(
    ("fields", "shown", "marker"),
    [
        ({"type": "custom_message", "customType": "note", "content": "text", "display": True}, False, None),
        ({"type": "context_edit", "targetId": "x", "replacement": None}, False, None),
        ({"type": "label", "targetId": "x", "label": "here"}, False, None),
        ({"type": "message", "message": {"role": "custom", "content": "text"}}, False, None),
        ({"type": "message", "message": {"role": "hookMessage", "content": "text"}}, False, None),
        ({"type": "message", "message": {"role": "compactionSummary", "summary": "text"}}, False, None),
        ({"type": "message", "message": "none"}, False, None),
        ({"type": "message", "message": {"role": "user", "content": "typed"}}, True, None),
        ({"type": "compaction", "summary": "s", "firstKeptEntryIndex": 3}, False, "compaction"),
        ({"type": "branch_summary", "fromId": "root", "summary": "s"}, False, "rewind"),
    ],
)
def test_which_lines_are_messages_and_which_are_markers(fields, shown, marker):
    record = parse(line(**fields))
    assert ((record.message is not None), record.marker) == (shown, marker)
    assert record.facts is None or record.facts.unknown_type is None


def test_usage_besides_messages_counts():
    usage = {"input": 0, "output": 0, "cacheRead": 50, "cacheWrite": 0, "totalTokens": 50}
    entry, _ = fold_lines(PI, [line(type="usage", kind="cache_warm", model="m", usage=usage)])
    assert (entry.cache_read, entry.message_count, entry.model) == (50, 0, None)


def test_the_newest_name_is_the_title_and_an_unknown_type_is_counted():
    lines = [line(type="session_info", name="one"), line(type="dream"), line(type="session_info", name="two")]
    entry, _ = fold_lines(PI, [*lines, line(type="session_info", name="")])
    assert entry.source is not None and (entry.source.title, entry.source.unknown) == ("two", {"dream": 1})


def test_a_file_of_version_1_has_no_ids():
    first = {"type": "session", "id": "s1", "timestamp": "2025-11-20T10:00:00.000Z", "cwd": "/w", "provider": "p"}
    second = {"type": "message", "timestamp": HEAD["timestamp"], "message": {"role": "user", "content": "hello"}}
    entry, _ = fold_lines(PI, [json.dumps(one).encode() for one in (first, second)])
    assert (entry.message_count, entry.cwd, entry.source and entry.source.title) == (1, "/w", "hello")


@check_each(
    ("path", "native_id"),
    [
        ("/h/sessions/--w--/2026-11-22T15-30-59-413Z_01a203e1-ccd4.jsonl", "01a203e1-ccd4"),
        ("C:\\pi\\2026_my_id.jsonl", "my_id"),
        ("/h/no-id.jsonl", None),
        ("/h/2026_x.json", None),
        ("", None),
    ],
)
def test_the_native_id_stands_in_the_name_of_the_file(path, native_id):
    assert native_id_in(path) == native_id
