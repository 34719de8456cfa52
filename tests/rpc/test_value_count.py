import json
import time
from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st
from support.rows import check_each

from sessiond.errors import LimitExceeded
from sessiond.rpc.limits import MAX_VALUES
from sessiond.rpc.value_count import check_value_count

# Long enough for the count to be made at all: short messages are not counted.
PADDING = '"' + "x" * MAX_VALUES + '"'


def is_refused(text: str) -> bool:
    try:
        check_value_count(text.encode())
    except LimitExceeded:
        return True
    return False


@check_each("value", ["1", "{}", "[]", '"\\\\\\""', '"a,b"', "null"])
def test_values_are_accepted_up_to_the_limit_and_not_beyond(value: str) -> None:
    width = 1 + value.count("{") + value.count("[")
    # The outer bracket counts, the first value has no comma, and the padding has one.
    room = (MAX_VALUES - 1) // width
    assert not is_refused("[" + ",".join([PADDING, *[value] * room]) + "]")
    assert is_refused("[" + ",".join([PADDING, *[value] * (room + width)]) + "]")


@check_each("text", [",", "[", "{", '\\"', "\\\\", '\\",\\\\', "\\u002c,"])
def test_the_content_of_strings_is_not_counted(text: str) -> None:
    assert not is_refused('{"a":"' + text * (3 * MAX_VALUES // len(text)) + '"}')


def test_values_are_counted_correctly_across_the_borders_of_scanned_blocks() -> None:
    for shift in range(8):
        quoted = "[" + '"' + "\\" * 2 * (MAX_VALUES // 2 - shift) + "\\n" * shift + '"'
        assert not is_refused(quoted + "]" + " " * MAX_VALUES)
        assert is_refused(quoted + ",1" * (MAX_VALUES + 1) + "]")


@given(st.recursive(st.text(st.sampled_from('\\",[{x\n')) | st.integers(), st.lists, max_leaves=30))
def test_the_count_equals_that_of_the_decoded_value(value: object) -> None:
    def count_values(one: object) -> int:
        return 1 + sum(map(count_values, one)) + max(0, len(one) - 1) if isinstance(one, list) else 0

    text = json.dumps(value, separators=(",", ":"))
    fill = MAX_VALUES - count_values(value) - 1
    assert not is_refused("[" + text + ",1" * fill + " " * MAX_VALUES + "]")
    assert is_refused("[" + text + ",1" * (fill + 1) + " " * MAX_VALUES + "]")


def test_counting_a_hostile_text_does_not_take_long() -> None:
    for text in (b'"' + b"x" * 2**24 + b'"', b"," * 2**24, b'"\\\\' * 2**22, b"\\" * 2**24):
        began = time.thread_time()
        with suppress(LimitExceeded):
            check_value_count(text)
        assert time.thread_time() - began < 2
