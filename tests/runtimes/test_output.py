"""Parsing the output of programs: bytes in, events out, and the summary of a turn."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.errors import LimitExceeded
from sessiond.model.decoding_cost import MAX_VALUES
from sessiond.runtimes.output import (
    ENVELOPE_BYTES,
    CustomOutput,
    Delta,
    Ended,
    Event,
    LinesOutput,
    MessageOutput,
    Output,
    TextOutput,
    TranscriptLines,
    decode_object,
)
from sessiond.runtimes.process import OutputTail
from sessiond.runtimes.turn_summary import TurnSummary, add_usage

LIMIT = 100_000


def feed_pieces(output: Output, data: bytes, cuts: list[int]) -> list[Event]:
    events: list[Event] = []
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for start, end in pairwise(edges):
        events.extend(output.feed(data[start:end]))
    events.extend(output.end())
    return events


@given(data=st.binary() | st.text().map(str.encode), cuts=st.lists(st.integers(0, 1000)))
def test_text_output_does_not_depend_on_how_the_bytes_are_split(data, cuts) -> None:
    events = feed_pieces(TextOutput(LIMIT), data, cuts)
    reply = data.decode("utf-8", "replace").rstrip("\r\n")
    assert events[-1] == Ended(reply=reply)
    assert "".join(event.text for event in events if isinstance(event, Delta)) == reply


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
LINE = st.one_of(
    st.dictionaries(st.sampled_from(("type", "role", "content", "text", "message", "phase", "name")), JSON).map(
        msgspec.json.encode
    ),
    st.binary(max_size=30).filter(lambda line: b"\n" not in line),
    st.sampled_from((b'{"role":"assistant","content":"x"}', b'{"type":"delta","text":"y"}', b"[1]", b"{", b"")),
)


@given(lines=st.lists(LINE, max_size=6), cuts=st.lists(st.integers(0, 1000)), newline=st.booleans())
def test_lines_output_does_not_depend_on_how_the_bytes_are_split(lines, cuts, newline) -> None:
    data = b"\n".join(lines) + (b"\n" if newline else b"")
    whole, cut = LinesOutput(TranscriptLines(), LIMIT), LinesOutput(TranscriptLines(), LIMIT)
    assert feed_pieces(whole, data, []) == feed_pieces(cut, data, cuts)
    assert (
        whole.bad_lines
        == cut.bad_lines
        == sum(1 for line in lines if line.strip() and decode_object(line.strip()) is None)
    )


@given(st.binary(max_size=200))
def test_every_decoded_line_is_an_object_that_can_be_encoded_again(line) -> None:
    item = decode_object(line)
    assert item is None or isinstance(msgspec.json.encode(item), bytes)


@check_each("line", [b'{"a":1},{"b":2}', b"{}],[{}", b'{"a":' + b"[" * 150 + b"]" * 149 + b"}", b"{}]" + b"[" * 120])
def test_a_line_whose_brackets_do_not_match_is_no_object(line) -> None:
    assert decode_object(line) is None


def test_a_deeply_nested_object_is_read_if_it_can_be_written_again() -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' * depth + b"1" + b"}" * depth

    assert decode_object(nested(99)) is not None
    deep = decode_object(nested(300))
    assert deep is not None
    assert msgspec.json.encode({"type": "message", "message": {"content": [deep]}})
    assert decode_object(nested(100_000)) is None


@pytest.mark.parametrize("too_long", [False, True])
def test_a_line_without_end_is_refused_once_it_exceeds_the_limit(too_long) -> None:
    output = LinesOutput(TranscriptLines(), 10)
    assert list(output.feed(b"x" * 10)) == []
    if too_long:
        with pytest.raises(LimitExceeded) as caught:
            list(output.feed(b"x"))
        assert caught.value.data == {"limit": "limits.maxRecordBytes", "value": 10}
    else:
        assert list(output.feed(b"\n" + b"y" * 10)) == []


def message(**fields: Any) -> MessageOutput:
    return MessageOutput({"role": "assistant", **fields})


def test_a_turn_summary_has_the_last_text_the_sum_of_usage_and_the_last_model() -> None:
    summary = TurnSummary()
    summary.add(message(content="first", model="a", usage={"input": 1, "cost": {"total": 0.5}}))
    summary.add(MessageOutput({"role": "toolResult", "content": "no", "usage": {"input": 100}}))
    blocks = [{"type": "text", "text": "la"}, {"type": "image"}, {"type": "text", "text": "st"}]
    summary.add(message(content=blocks, model="b", usage={"input": 2, "output": 3, "cost": {"total": 0.25}}))
    summary.add(message(content=[{"type": "toolCall"}], model=None, usage="odd"))
    summary.end()
    assert (summary.reply, summary.model, summary.messages) == ("last", "b", 4)
    assert summary.usage == {"input": 3, "output": 3, "cost": {"total": 0.75}}


def test_values_in_the_programs_end_event_replace_those_of_its_messages() -> None:
    summary = TurnSummary()
    summary.add(message(content="", usage={"input": 1}))
    summary.add(Ended(reply="said at the end", usage={"input": 9}, model="m", error="but failed"))
    summary.end()
    assert (summary.reply, summary.usage, summary.model, summary.error) == (
        "said at the end",
        {"input": 9},
        "m",
        "but failed",
    )


def test_a_turn_without_messages_has_an_empty_reply() -> None:
    summary = TurnSummary()
    summary.end()
    assert (summary.reply, summary.usage) == ("", None)


USAGE = st.dictionaries(
    st.sampled_from(("input", "output", "cost", "odd")),
    st.integers()
    | st.floats()
    | st.booleans()
    | st.text(max_size=3)
    | st.none()
    | st.dictionaries(st.just("total"), st.floats() | st.integers()),
)


@given(st.lists(USAGE, max_size=5))
def test_the_sum_of_any_usages_can_be_encoded(usages) -> None:
    total: dict[str, Any] | None = None
    for usage in usages:
        total = add_usage(total, usage)
    assert msgspec.json.decode(msgspec.json.encode(total)) == total


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(10, 60))
def test_the_kept_tail_of_a_stream_is_bounded(pieces, limit) -> None:
    tail = OutputTail(limit)
    for piece in pieces:
        tail.feed(piece)
    assert len(tail.text().encode()) <= 3 * limit


@check_each(
    ("pieces", "text"),
    [
        ([b"one\n", b"two\n"], "one\ntwo"),
        ([b"0123456789\n", b"abcdefgh\n"], "abcdefgh"),
        ([b"x\n0123456789\n"], "0123456789"),
        ([b"0123456789abcdef"], "456789abcdef"),
        ([b""], ""),
    ],
)
def test_the_kept_tail_begins_at_a_line_if_it_contains_a_line_end(pieces, text) -> None:
    tail = OutputTail(12)
    for piece in pieces:
        tail.feed(piece)
    assert tail.text() == text


def test_a_line_has_as_many_values_as_a_record_has_room_for_and_says_so_beyond() -> None:
    output = LinesOutput(TranscriptLines(), 1 << 20)
    # The two brackets, and no comma before the first.
    most = MAX_VALUES - ENVELOPE_BYTES - 1
    good, bad = (b'{"a":[' + b"0," * (count - 1) + b"0]}\n" for count in (most, most + 1))
    assert [type(event) for event in output.feed(good)] == [CustomOutput] and output.bad_lines == 0
    assert list(output.feed(bad)) == [] and output.bad_lines == 1
    assert output.tail.startswith(f'(more than {MAX_VALUES} values) {{"a":[0,0')


def test_a_usage_has_at_most_256_members_however_many_messages_name_others() -> None:
    total: dict[str, Any] | None = None
    for number in range(300):
        total = add_usage(total, {f"n{number}": 1, "input": 1, "cost": {f"c{number}": 1}})
    assert total is not None and total["input"] == 300
    # And the costs.
    assert len(total) == 257 and len(total["cost"]) == 256
