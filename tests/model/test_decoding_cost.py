"""What a text would cost to decode is told from its bytes, and agrees with what a decoder finds in it."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.model import decoding_cost
from sessiond.model.decoding_cost import MAX_DIGITS, MAX_NESTING, MAX_VALUES, find_excess, find_long_excess, is_too_deep
from sessiond.model.lax import decode_any

# Long enough for the count to be made at all: short texts are not counted.
PADDING = '"' + "x" * MAX_VALUES + '"'
NESTED = st.recursive(
    st.none() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


def exceeded(text: str | bytes) -> str | None:
    """The limit that the text exceeds."""
    excess = find_long_excess(text.encode() if isinstance(text, str) else text)
    return excess and excess.limit


@check_each("value", ["1", "{}", "[]", '"\\\\\\""', '"a,b"', "null"])
def test_values_are_accepted_up_to_the_limit_and_not_beyond(value: str) -> None:
    width = 1 + value.count("{") + value.count("[")
    # The outer bracket counts, the first value has no comma, and the padding has one.
    room = (MAX_VALUES - 1) // width
    assert not exceeded("[" + ",".join([PADDING, *[value] * room]) + "]")
    assert exceeded("[" + ",".join([PADDING, *[value] * (room + width)]) + "]") == "values"


@check_each("text", [",", "[", "{", '\\"', "\\\\", '\\",\\\\', "\\u002c,"])
def test_the_content_of_strings_is_not_counted(text: str) -> None:
    assert not exceeded('{"a":"' + text * (3 * MAX_VALUES // len(text)) + '"}')


def test_values_are_counted_correctly_across_the_borders_of_scanned_blocks() -> None:
    for shift in range(8):
        quoted = "[" + '"' + "\\" * 2 * (MAX_VALUES // 2 - shift) + "\\n" * shift + '"'
        assert not exceeded(quoted + "]" + " " * MAX_VALUES)
        assert exceeded(quoted + ",1" * (MAX_VALUES + 1) + "]") == "values"


@given(st.recursive(st.text(st.sampled_from('\\",[{x\n')) | st.integers(), st.lists, max_leaves=30))
def test_the_count_equals_that_of_the_decoded_value(value: object) -> None:
    def count_values(one: object) -> int:
        return 1 + sum(map(count_values, one)) + max(0, len(one) - 1) if isinstance(one, list) else 0

    text = json.dumps(value, separators=(",", ":"))
    fill = MAX_VALUES - count_values(value) - 1
    assert not exceeded("[" + text + ",1" * fill + " " * MAX_VALUES + "]")
    assert exceeded("[" + text + ",1" * (fill + 1) + " " * MAX_VALUES + "]") == "values"


@check_each("number", ["{}", "-{}", "0.{}", "{}.5", "{}e5"])
def test_numbers_have_at_most_so_many_digits(number: str) -> None:
    most, over = (number.format("9" * count) for count in (MAX_DIGITS, MAX_DIGITS + 1))
    assert not exceeded(f"[{PADDING}, {most},{most}]")
    assert exceeded(f"[{PADDING}, {over}]") == "digits"
    assert exceeded(f'{{"a": {over},"b":{PADDING}}}') == "digits"
    assert not exceeded(f'[{PADDING}, "{over}"]')


def test_digits_are_counted_across_the_borders_of_scanned_blocks() -> None:
    for shift in (0, 1, MAX_DIGITS // 2, MAX_DIGITS, MAX_DIGITS + 1):
        spaces = b" " * (decoding_cost._PIECE_BYTES - shift)
        assert not exceeded(spaces + b"1" * MAX_DIGITS + b" " * MAX_DIGITS)
        assert exceeded(spaces + b"1" * (MAX_DIGITS + 1) + b" " * MAX_DIGITS) == "digits"


def test_a_short_text_may_have_any_number_of_digits() -> None:
    assert find_excess(b"9" * 4000) is None


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max((depth_of(one) for one in value.values()), default=0)
    if isinstance(value, list):
        return 1 + max((depth_of(one) for one in value), default=0)
    return 0


@given(
    value=NESTED,
    text=st.text(alphabet='[]{}"\\nu', max_size=40),
    levels=st.integers(0, 2 * MAX_NESTING),
    ascii_only=st.booleans(),
)
@example(value=0, text='\\\\"[', levels=MAX_NESTING - 1, ascii_only=False)
@example(value=0, text='"' + "[" * 300, levels=0, ascii_only=False)
def test_the_nesting_check_agrees_with_parsing_whatever_the_strings_contain(value, text, levels, ascii_only):
    for level in range(levels):
        value = [value, text] if level % 2 else {text: value}
    for line in (
        json.dumps([text * 20, value], ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"),
        # Longer than one piece of the scan, so that the piece may end anywhere in it.
        b" " * (decoding_cost._PIECE_BYTES - 64)
        + json.dumps([text * 20, value], ensure_ascii=ascii_only).encode("utf-8", "surrogatepass"),
    ):
        assert is_too_deep(line) == (depth_of([value]) > MAX_NESTING)


MEGABYTES = 8 * 2**20


@check_each(
    "text",
    [
        b'"' + b"x" * MEGABYTES + b'"',
        b"," * MEGABYTES,
        b"]" * MEGABYTES,
        b"[" + (b"[" * (MAX_NESTING - 1) + b"]" * (MAX_NESTING - 1) + b",") * 2000 + b"0]",
        b'"\\\\' * (MEGABYTES // 3),
        b"\\" * MEGABYTES,
        b"[" + b"[]," * (MEGABYTES // 3) + b"0]",
        b"[" + b"9" * MEGABYTES + b"]",
        b"[" + (b"9" * 4300 + b",") * (MEGABYTES // 4301) + b"0]",
        b"[" + (b"9" * MAX_DIGITS + b",") * (MEGABYTES // (MAX_DIGITS + 1)) + b"0]",
        b"[" + b"0.1," * (MAX_VALUES - 2) + b"0]",
        b"[" + b"[]," * (MAX_VALUES // 2 - 2) + b"0]",
        b"{" + b",".join(b'"%d":{}' % number for number in range(MAX_VALUES // 2 - 2)) + b"}",
    ],
)
def test_no_text_takes_long_to_check_nor_to_decode_where_it_passed(text: bytes) -> None:
    began = time.thread_time()
    passed = find_excess(text) is None
    checked = time.thread_time()
    if passed:
        with suppress(msgspec.DecodeError):
            decode_any(text)
    # A tenth of it is usual; without the check 8 MB take up to two seconds.
    assert checked - began < 0.8
    assert time.thread_time() - checked < 0.8
