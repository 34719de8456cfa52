"""The fold of transcripts of other programs: messages in parts, titles, usage, facts."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model.entry import Entry
from sessiond.model.foreign_fold import MAX_PARTS, MAX_SPAN_BYTES, begin_foreign, clean_title, fold_foreign
from sessiond.model.line_facts import CHOSEN, FIRST_WORDS, GIVEN, SUMMARY, LineFacts
from sessiond.model.record import Record
from sessiond.model.source_facts import FoundFacts, SourceFacts
from sessiond.model.usage import Usage


def message(role: str, message_id: str | None = None, text: str = "x", **fields: object) -> Record:
    body = msgspec.json.encode({"role": role, "content": [{"type": "text", "text": text}]})
    return Record("any", body, role=role, message=body, message_id=message_id, **fields)  # type: ignore[arg-type]


def says(**facts: object) -> Record:
    return Record("any", b"{}", facts=LineFacts(**facts))  # type: ignore[arg-type]


def with_id(line_id: str) -> Record:
    return Record("any", b"{}", line_id)


NOTHING_FOUND = FoundFacts()


def fold_all(*records: Record, found: FoundFacts = NOTHING_FOUND, step: int = 10) -> Entry:
    entry = begin_foreign(SourceFacts(name="claude", found=found), "n1")
    for place, record in enumerate(records):
        entry = fold_foreign(entry, record, place * step, 7)
    return entry


def test_an_entry_begins_with_what_the_finder_knows():
    entry = begin_foreign(
        SourceFacts(name="claude", found=FoundFacts(parent="p", cwd="/w", title=" look\nround")), "A-b"
    )
    assert (entry.session_id, entry.session_key, entry.spawned_by, entry.cwd) == ("A-b", "claude:A-b", "claude:p", "/w")
    assert entry.source is not None and (entry.source.title, entry.source.title_rank) == ("look", CHOSEN)


@check_each(
    ("records", "count"),
    [
        ([message("assistant", "m"), message("assistant", "m")], 1),
        ([message("assistant", "m"), message("toolResult"), message("assistant", "m")], 2),
        ([message("assistant", "m"), says(), says(cwd="/"), message("assistant", "m")], 1),
        ([message("assistant", "m"), message("user"), message("assistant", "m")], 3),
        ([message("assistant", "m"), message("assistant", "n"), message("assistant", "m")], 3),
        ([message("assistant", "m"), message("assistant"), message("assistant", "m")], 3),
        ([message("assistant"), message("assistant")], 2),
        ([message("toolResult", "m"), message("toolResult", "m")], 2),
        ([message("assistant", "m")] * MAX_PARTS, 1),
        ([message("assistant", "m")] * (MAX_PARTS + 1), 2),
    ],
)
def test_lines_of_one_message_id_count_once_while_only_tool_results_lie_between(records, count):
    assert fold_all(*records).message_count == count


@pytest.mark.parametrize(("offset", "count"), [(MAX_SPAN_BYTES, 1), (MAX_SPAN_BYTES + 1, 2)])
def test_a_message_spans_at_most_so_many_bytes(offset, count):
    assert fold_all(message("assistant", "m"), message("assistant", "m"), step=offset).message_count == count


def test_the_usage_of_a_message_counts_once_and_the_newest_wins():
    def part(message_id: str, output: int) -> Record:
        return message("assistant", message_id, facts=LineFacts(usage=Usage(input=10, output=output, cost=0.5)))

    entry = fold_all(part("m", 1), part("m", 1), message("toolResult"), part("m", 4), part("n", 2))
    assert (entry.input_tokens, entry.output_tokens, entry.total_tokens) == (20, 6, 12)
    assert entry.estimated_cost_usd == 1.0


def test_usage_counts_once_under_its_own_id():
    counted = [says(usage=Usage(input=3), usage_id=name) for name in ("a", "a", "b")]
    assert fold_all(*counted, says(usage=Usage(input=3)), says(usage=Usage(input=3))).input_tokens == 12


def test_a_cost_of_the_whole_session_replaces_the_sum():
    assert (
        fold_all(says(total_cost_usd=1.0), says(total_cost_usd=2.5), says(total_cost_usd=-1.0)).estimated_cost_usd
        == 2.5
    )


TYPED = message("user", text="\u202e fix  the\ttests\x07\nplease", is_typed=True)


@check_each(
    ("records", "title"),
    [
        ([message("user", text="injected"), TYPED], "fix the tests"),
        (
            [message("user", text="\x07", is_typed=True), TYPED, message("user", text="more", is_typed=True)],
            "fix the tests",
        ),
        ([TYPED, message("user", text="x" * 90, is_typed=True)], "fix the tests"),
        ([message("user", text="x" * 90, is_typed=True)], "x" * 80),
        ([says(title="chosen", title_rank=CHOSEN), TYPED], "chosen"),
        ([says(title="given", title_rank=GIVEN), says(title="chosen", title_rank=CHOSEN)], "given"),
        ([says(title="chosen", title_rank=CHOSEN), says(title="later", title_rank=CHOSEN)], "later"),
        ([TYPED, says(title="summary", title_rank=SUMMARY)], "summary"),
        ([TYPED, says(title=" \u2066\n", title_rank=GIVEN)], "fix the tests"),
        ([says(title="y" * 300, title_rank=GIVEN)], "y" * 200),
        ([message("assistant")], None),
    ],
)
def test_the_title_is_the_newest_of_the_highest_rank(records, title):
    source = fold_all(*records).source
    assert source is not None and source.title == title


def test_the_first_words_of_a_sub_agent_are_its_parents_and_no_title():
    source = fold_all(TYPED, found=FoundFacts(parent="p")).source
    assert source is not None and (source.title, source.title_rank) == (None, FIRST_WORDS)


def test_facts_become_fields_and_the_first_folder_stays():
    entry = fold_all(
        says(cwd="/a", created_ms=5, model="m1", provider="p", forked_from="f", spawned_by="s"),
        says(cwd="/b", created_ms=6, model="m2", forked_from="g", spawned_by="t"),
        message("user", timestamp_ms=9),
        message("user", timestamp_ms=8),
    )
    assert (entry.cwd, entry.created_at, entry.updated_at) == ("/a", 5, 9)
    assert (entry.model, entry.model_provider, entry.spawned_by) == ("m2", "p", "claude:s")
    assert entry.source is not None and entry.source.forked_from == "f"


def test_unknown_types_are_counted_under_a_bounded_number_of_names():
    entry = fold_all(*(says(unknown_type=f"type{number % 40}\n") for number in range(80)))
    assert entry.source is not None
    unknown = entry.source.unknown
    assert (len(unknown), unknown["type0"], sum(unknown.values())) == (20, 2, 80)


def test_an_entry_comes_back_from_json_as_it_was():
    records = [
        TYPED,
        message("assistant", "m", facts=LineFacts(usage=Usage(output=1), unknown_type="z")),
        says(cwd="/"),
    ]
    entry = fold_all(*records)
    assert msgspec.json.decode(msgspec.json.encode(entry), type=Entry) == entry
    assert b"source" not in msgspec.json.encode(Entry(session_id="ours"))


@given(st.text())
def test_a_title_has_one_line_without_control_characters(text):
    title = clean_title(text, 80)
    assert title is None or (0 < len(title) <= 80 and title == title.strip())
    assert title is None or not any(char in title for char in "\n\r\t\x07\u202e\u2066\x85")


@check_each(
    ("records", "title"),
    [
        ([says(title="s", title_rank=SUMMARY, title_of="u1"), with_id("u1")], "s"),
        ([with_id("u1"), says(title="s", title_rank=SUMMARY, title_of="u1")], "s"),
        ([says(title="s", title_rank=SUMMARY, title_of="u1"), with_id("u2")], None),
        (
            [says(title="given", title_rank=GIVEN), says(title="s", title_rank=SUMMARY, title_of="u"), with_id("u")],
            "given",
        ),
        ([*(says(title=str(n), title_rank=SUMMARY, title_of=str(n)) for n in range(16)), with_id("0")], "0"),
        ([*(says(title=str(n), title_rank=SUMMARY, title_of=str(n)) for n in range(17)), with_id("0")], None),
    ],
)
def test_a_title_of_a_line_counts_only_where_that_line_is_in_the_file(records, title):
    source = fold_all(*records).source
    assert source is not None and source.title == title


def test_usage_that_may_repeat_does_not_count_behind_usage_in_a_line_of_its_own():
    one = Usage(10, 1, 0, 0, 11)
    old = [
        says(usage=one, usage_id="total:11", usage_may_repeat=True),
        says(usage=one, usage_id="total:11", usage_may_repeat=True),
        says(usage=one, usage_id="total:22", usage_may_repeat=True),
    ]
    assert fold_all(*old).input_tokens == 20
    new = [says(usage=one, usage_id="r1"), says(usage=one, usage_id="total:33", usage_may_repeat=True)]
    assert fold_all(*new).input_tokens == 10
    assert fold_all(*old, *new, *new[1:]).input_tokens == 30


def test_the_first_words_to_a_subagent_are_no_title_whoever_says_that_it_is_one():
    typed = message("user", is_typed=True)
    for entry in (fold_all(typed, found=FoundFacts(parent="p")), fold_all(says(spawned_by="p"), typed)):
        assert entry.source is not None and entry.source.title is None
        assert (entry.spawned_by, entry.task) == ("claude:p", "x")
